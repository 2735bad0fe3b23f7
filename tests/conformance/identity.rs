//! One message id everywhere: byte for byte, from the caller to the consumer.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase,
    log::check_until_ended,
    order::{builder, producer},
    raw::Raw,
};
use rocketmq_tx::{
    Confirmation, Status, TransactionMessage,
    broker::memory::{Fault, MemoryBroker},
};

on_every_database!(4: case_21_one_id_everywhere case_22_ids_that_look_alike what_a_consumer_gets);

async fn case_21_one_id_everywhere<DB: TestDatabase>(db: Db<DB>) {
    const ID: &str = "order 42/äöü:OrderPaid';--";
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let listened = Arc::new(Mutex::new(String::new()));
    let heard = Arc::clone(&listened);
    broker.fail_ends([Some(Fault::Lost)]);
    let (mut receipt, _) = producer
        .send_with(Order::named(1, ID), move |tx, order| {
            Box::pin(async move {
                *heard.lock().unwrap() = order.msg_id().to_string();
                DB::insert(tx, order.id).await
            })
        })
        .await
        .unwrap();
    assert_eq!(receipt.confirmation().await, Confirmation::Pending);
    assert_eq!(*listened.lock().unwrap(), ID);
    assert_eq!(receipt.msg_id(), ID);
    assert_eq!(DB::texts(&db.pool, "SELECT msg_id FROM tx_log").await, [ID]);
    let half = broker.open_halves().remove(0);
    assert_eq!(half.msg_id, ID);
    // The row and the half agree on the attempt, too.
    assert_eq!(DB::texts(&db.pool, "SELECT token FROM tx_log").await, [half.token]);
    check_until_ended(&broker).await;
    assert_eq!(broker.ended()[0].0, ID);
    assert_eq!(broker.delivered_ids(), [ID]);
    let confirmed = async || producer.status(ID).await.unwrap() == Status::Committed(Confirmation::Confirmed);
    crate::support::eventually("the check-back's answer is noted under it", confirmed).await;
    let again = producer.send(Order::named(2, ID)).await.unwrap();
    assert_eq!((again.msg_id(), again.already_committed()), (ID, true));
    let error = producer.send(Order { fail: true, ..Order::named(3, "order 43") }).await.unwrap_err();
    assert!(error.to_string().contains("order 43"), "{error}");
    assert_eq!(db.orders().await, [1]);
    producer.shutdown(Duration::from_secs(30)).await;
}

async fn case_22_ids_that_look_alike<DB: TestDatabase>(db: Db<DB>) {
    const ALIKE: [&str; 7] = ["A", "a", "a ", " a", "\u{e9}", "e\u{301}", "ａ"];
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    for (order, id) in ALIKE.into_iter().enumerate() {
        let mut receipt = producer.send(Order::named(order as i64, id)).await.unwrap();
        assert!(!receipt.already_committed(), "{id:?} is a message of its own");
        receipt.confirmation().await;
    }
    for id in ALIKE {
        assert!(producer.send(Order::named(100, id)).await.unwrap().already_committed());
        assert!(matches!(producer.status(id).await.unwrap(), Status::Committed(_)));
    }
    for id in ["A ", "e", "É", "b"] {
        assert_eq!(producer.status(id).await.unwrap(), Status::NotFound, "{id:?}");
    }
    assert_eq!(broker.delivered_ids(), ALIKE);
    assert_eq!(db.orders().await, (0..ALIKE.len() as i64).collect::<Vec<_>>());
    let mut rows = DB::texts(&db.pool, "SELECT msg_id FROM tx_log").await;
    rows.sort_unstable();
    let mut alike = ALIKE.to_vec();
    alike.sort_unstable();
    assert_eq!(rows, alike);
    // All at once, in one batch of claims, they are different still.
    let many = (0..20).map(|order| Order::named(200 + order, if order < 10 { "B" } else { "b" }).clone());
    let sent = futures_util::future::join_all(many.map(|order| producer.send(order))).await;
    let won = sent.iter().flatten().filter(|receipt| !receipt.already_committed()).count();
    assert_eq!(won, 2, "one for each of the two ids");
    producer.shutdown(Duration::from_secs(30)).await;
    assert_eq!(broker.delivered().len(), ALIKE.len() + 2);
}

async fn what_a_consumer_gets<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = builder(&db, &broker).message_on::<Raw>("raws_of_eu").start().await.unwrap();
    let body: Vec<u8> = (0..=255).collect();
    let message = Raw {
        tag: Some("größe".into()),
        ordering_key: Some("kunde 7".into()),
        headers: vec![("tenant".into(), "eu 1 / ü".into()), ("trace".into(), "\"x\"".into())],
        body: Some(body.clone()),
        ..Raw::new("raw-1")
    };
    let sent = producer.send_with(message.clone(), |tx, _| Box::pin(async move { DB::insert(tx, 1).await }));
    sent.await.unwrap().0.confirmation().await;
    let delivered = broker.delivered().remove(0);
    assert_eq!(delivered.topic, "raws_of_eu");
    assert_eq!((delivered.tag, delivered.ordering_key), (message.tag.clone(), message.ordering_key.clone()));
    assert_eq!(delivered.headers, message.headers);
    assert_eq!((&*delivered.kind, delivered.body.to_vec()), (Raw::KIND, body));
    // The row keeps the same, for whoever must send it later.
    let row = |column| DB::texts(&db.pool, column);
    assert_eq!(row("SELECT topic FROM tx_log").await, ["raws_of_eu"]);
    assert_eq!(row("SELECT tag FROM tx_log").await, ["größe"]);
    assert_eq!(row("SELECT ordering_key FROM tx_log").await, ["kunde 7"]);
    assert_eq!(row("SELECT kind FROM tx_log").await, [Raw::KIND]);
    assert_eq!(row("SELECT producer_group FROM tx_log").await, ["orders"]);
    let headers: Vec<(String, String)> = serde_json::from_str(&row("SELECT headers FROM tx_log").await[0]).unwrap();
    assert_eq!(headers, message.headers);
    producer.shutdown(Duration::from_secs(30)).await;
}
