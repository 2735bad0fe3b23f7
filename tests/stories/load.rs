//! Many messages at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use rocketmq_tx::{Confirmation, SendError, TransactionListener, Tx};

use super::{
    Cluster, Event, Scene,
    scene::{Producer, log_in},
};
use crate::support::{Db, Order, TestDatabase, order::OrderError};

/// A send that takes longer, on a machine that is busy with something else, may rightly be asked about: the broker
/// notes an end a little after it.
const ASKED_AFTER: Duration = Duration::from_secs(1);

/// A thousand sends, of which a fifth fail: the topic holds what the business table holds, each half on its broker.
pub async fn a_thousand_sends<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    log_in(&scene.db.pool, 32).await;
    let Producer { producer, stage } = scene.producer().await;
    let begun = Instant::now();
    let fails = |number: &i64| number % 5 == 0;
    let sends = stream::iter(0..1_000).map(|number| {
        let producer = producer.clone();
        async move {
            let order = if fails(&number) { Order::failing(number) } else { Order::new(number) };
            let begun = Instant::now();
            match producer.send(order).await {
                Ok(mut receipt) => {
                    assert_eq!(receipt.confirmation().await, Confirmation::Confirmed, "{number}");
                    assert!(!fails(&number), "{number}");
                }
                Err(error) => {
                    assert!(matches!(error.execute_error(), Some(OrderError::ToldTo)), "{number}: {error:?}");
                    assert!(fails(&number), "{number}");
                }
            }
            (begun.elapsed() >= ASKED_AFTER).then(|| format!("order-{number}"))
        }
    });
    let slow: Vec<Option<String>> = sends.buffer_unordered(64).collect().await;
    let slow: BTreeSet<String> = slow.into_iter().flatten().collect();
    println!("{}: 1000 sends in {:?}, of which {} slow", DB::name(), begun.elapsed(), slow.len());

    reader.until(800).await;
    // Whatever was not ended is asked about now.
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    let committed = scene.db.orders().await;
    assert_eq!(committed.len(), 800);
    let ids: Vec<String> = committed.iter().map(|number| format!("order-{number}")).collect();
    reader.assert_all(ids.iter().map(String::as_str));
    let copied: Vec<_> = reader.counts().into_iter().filter(|(id, count)| *count > 1 && !slow.contains(id)).collect();
    assert!(copied.is_empty(), "delivered again: {copied:?}");
    let asked =
        |event: &Event| matches!(event, Event::Checked { id } if id.starts_with("order-") && !slow.contains(id));
    assert_eq!(stage.log.count(asked), 0, "every half was ended by its sender");
    let counters = producer.counters();
    assert_eq!((counters.committed, counters.rolled_back), (800, 200), "{counters:?}");
    assert_eq!((counters.in_doubt, counters.ends_failed, counters.unconfirmed, counters.settled), (0, 0, 0, 0));

    // A broker moves a message from its own half message only, so an end that went astray would have moved nothing.
    let holders: BTreeMap<String, String> = stage.log.all().into_iter().filter_map(half).collect();
    for received in &reader.all {
        assert_eq!(holders[&received.msg_id], received.broker_name, "{}", received.msg_id);
    }
    let used: BTreeSet<&String> = holders.values().collect();
    assert_eq!(used.len(), scene.brokers, "{used:?}");
    assert!(producer.shutdown(Duration::from_secs(5)).await.is_clean());
}

fn half(event: Event) -> Option<(String, String)> {
    match event {
        Event::Half { id, broker } if id.starts_with("order-") => Some((id, broker)),
        _ => None,
    }
}

/// Inserts the order, and keeps the database busy for 30 ms.
struct Busy;

impl<DB: TestDatabase> TransactionListener<DB> for Busy {
    type Message = Order;
    type Error = sqlx::Error;

    async fn execute(&self, tx: &mut Tx<'_, DB>, order: &Order) -> Result<(), sqlx::Error> {
        DB::insert(tx, order.id).await?;
        let work = if DB::name() == "PostgreSQL" { "SELECT pg_sleep(0.03)" } else { "SELECT SLEEP(0.03)" };
        DB::sql(tx, work).await.map(drop)
    }
}

/// 256 callers at once, 32 connections, and 30 ms of work for the database in each.
pub async fn more_callers_than_connections<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    log_in(&scene.db.pool, 32).await;
    let topic = scene.part.topic.clone();
    let Producer { producer, .. } =
        scene.start(|stage| scene.part.bare(scene.db.pool.clone(), stage).listener_on(topic, Busy)).await;
    let begun = Instant::now();
    let sends = (0..256).map(|number| {
        let producer = producer.clone();
        tokio::spawn(async move { Ok::<_, SendError>(producer.send(Order::new(number)).await?.confirmation().await) })
    });
    for (number, send) in sends.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(send.await.unwrap().unwrap_or_else(|error| panic!("{number}: {error:?}")), Confirmation::Confirmed);
    }
    println!("{}: 256 sends of 30 ms on 32 connections in {:?}", DB::name(), begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_millis(30 * 256 / 32), "the work was not done");
    let all: Vec<i64> = (0..256).collect();
    assert_eq!(scene.db.orders().await, all);
    // Copies of slow ones come on top.
    while reader.counts().len() < 256 {
        reader.until(reader.all.len() + 1).await;
    }
    let ids: Vec<String> = all.iter().map(|number| format!("order-{number}")).collect();
    reader.assert_all(ids.iter().map(String::as_str));
    let counters = producer.counters();
    assert_eq!((counters.committed, counters.in_doubt, counters.settled, counters.ends_failed), (256, 0, 0, 0));
    producer.shutdown(Duration::from_secs(5)).await;
}
