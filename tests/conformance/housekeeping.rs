//! The settler and the purger: which rows they take, and which never.

use std::time::Duration;

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::{self, FAR, Row, check_until_ended, until_deadline},
    order::{builder, held, producer},
};
use rocketmq_tx::{
    Status,
    broker::{End, EndOrigin, memory::MemoryBroker},
};

on_every_database!(4: what_a_dead_process_left the_purger_takes_only_what_is_done;
    2: case_3_a_transaction_that_outlives_its_deadline);

const DEADLINE: Duration = Duration::from_secs(30);

/// More of them than one batch.
async fn what_a_dead_process_left<DB: TestDatabase>(db: Db<DB>) {
    const DEAD: usize = 1100;
    let names: Vec<_> = (0..DEAD).map(|id| format!("dead-{id}")).collect();
    log::insert(&db, names.iter().map(|id| Row { deadline_at: 0, ..Row::new(id, id, "PREPARING") })).await;
    let others = [("young", "PREPARING"), ("committed", "COMMITTED"), ("rolled-back", "ROLLED_BACK")];
    log::insert(&db, others.map(|(id, state)| Row::new(id, id, state))).await;
    // A deadline binds only who is PREPARING.
    log::insert(&db, [Row { deadline_at: 0, ..Row::new("committed late", "t", "COMMITTED") }]).await;
    let broker = MemoryBroker::new();
    for id in ["dead-0", "dead-1099", "young"] {
        broker.plant(log::half(&db, id, id).await);
    }

    let instances = [producer(&db, &broker).await, producer(&db, &broker).await];
    eventually("they are settled", async || db.in_state("ROLLED_BACK").await == DEAD as i64 + 1).await;
    assert_eq!(db.in_state("PREPARING").await, 1);
    assert_eq!(db.in_state("COMMITTED").await, 2);
    eventually("both have counted", async || {
        instances.iter().map(|instance| instance.counters().settled).sum::<u64>() == DEAD as u64
    })
    .await;
    assert!(broker.ended().is_empty(), "the settler leaves the halves to check-backs");
    eventually("the dead ones' halves are ended", async || {
        broker.check_back();
        broker.ended().len() == 2
    })
    .await;
    assert!(broker.ended().iter().all(|ended| (ended.1, ended.2) == (End::Rollback, EndOrigin::CheckBack)));
    assert_eq!(broker.open_halves().iter().map(|half| &*half.msg_id).collect::<Vec<_>>(), ["young"]);
    assert!(broker.delivered().is_empty());
    // A dead one's id can be sent.
    instances[0].send(Order::named(1, "dead-7")).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["dead-7".to_owned()]));
    for instance in instances {
        instance.shutdown(DEADLINE).await;
    }
}

/// It waited for a connection first, and still runs when its deadline is over: its lock keeps every settler away.
async fn case_3_a_transaction_that_outlives_its_deadline<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let narrow = db.again(1).await;
    let sender = builder(&narrow, &broker)
        .execute_timeout(Duration::from_millis(5500))
        .database_timeout(Duration::from_millis(400))
        .settle_deadline(Duration::from_secs(6))
        .start()
        .await
        .unwrap();
    let other_instance = producer(&db, &broker).await;
    let busy = narrow.pool.acquire().await.unwrap();
    let (closure, transaction) = held();
    let sending = tokio::spawn({
        let sender = sender.clone();
        async move { sender.send_with(Order::new(1), closure).await }
    });
    eventually("it is claimed", async || db.in_state("PREPARING").await == 1).await;
    eventually("much of its time is over", async || until_deadline(&db).await < 2_500_000).await;
    drop(busy);
    transaction.began.await.unwrap();
    eventually("all of its time is over", async || until_deadline(&db).await < 0).await;
    if DB::name() != "SQLite" {
        // Settlers look meanwhile, and find others. SQLite has but one writer, who is the transaction itself.
        log::insert(&db, [Row { deadline_at: 0, ..Row::new("dead", "t", "PREPARING") }]).await;
        eventually("the settler has looked", async || db.in_state("ROLLED_BACK").await == 1).await;
    }
    assert_eq!(other_instance.status("order-1").await.unwrap(), Status::Preparing);
    transaction.release.send(()).unwrap();
    sending.await.unwrap().expect("it was left alone").0.confirmation().await;
    assert_eq!(db.orders().await, [1]);
    check_until_ended(&broker).await;
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    sender.shutdown(DEADLINE).await;
    other_instance.shutdown(DEADLINE).await;
    narrow.pool.close().await;
}

async fn the_purger_takes_only_what_is_done<DB: TestDatabase>(db: Db<DB>) {
    const DONE: usize = 600;
    let names: Vec<_> = (0..2 * DONE).map(|id| format!("done-{id}")).collect();
    let old = |id, state| Row { updated_at: 0, deadline_at: 0, ..Row::new(id, "t", state) };
    let done = names.iter().enumerate().map(|(place, id)| {
        let state = if place % 2 == 0 { "COMMITTED" } else { "ROLLED_BACK" };
        Row { confirmed_at: Some(0), ..old(id, state) }
    });
    log::insert(&db, done).await;
    log::insert(
        &db,
        [
            Row { deadline_at: FAR, ..old("a: old, preparing", "PREPARING") },
            old("b: old, committed, unconfirmed", "COMMITTED"),
            Row { confirmed_at: Some(FAR), ..old("c: old, committed, just confirmed", "COMMITTED") },
            Row { confirmed_at: Some(FAR), ..Row::new("d: new, confirmed", "t", "COMMITTED") },
            Row { confirmed_at: Some(FAR), ..old("e: old, just rolled back", "ROLLED_BACK") },
        ],
    )
    .await;
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    eventually("they are purged", async || producer.counters().purged == 2 * DONE as u64).await;
    let rest = DB::texts(&db.pool, "SELECT substr(msg_id, 1, 1) FROM tx_log ORDER BY msg_id").await;
    assert_eq!(rest, ["a", "b", "c", "d", "e"]);
    // A purged id is a new message.
    assert_eq!(producer.status("done-0").await.unwrap(), Status::NotFound);
    producer.send(Order::named(1, "done-0")).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["done-0".to_owned()]));
    producer.shutdown(DEADLINE).await;
    assert!(broker.open_halves().is_empty());
}
