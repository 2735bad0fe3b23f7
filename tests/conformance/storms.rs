//! Many at once of what each alone is handled well: dropped sends, check-backs after an outage.

use std::{collections::BTreeSet, time::Duration};

use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::{self, check_until_ended},
    order::producer,
    proxy::Proxy,
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::broker::memory::MemoryBroker;
use tokio::{task::JoinSet, time::timeout};

on_every_database!(4: ten_thousand_dropped_sends);
on_every_server!(8: case_49_a_storm_of_checks);

const SOON: Duration = Duration::from_secs(120);

/// Callers who lose their patience after 0 to 5 ms, sixteen at once.
async fn ten_thousand_dropped_sends<DB: TestDatabase>(db: Db<DB>) {
    const CALLERS: i64 = 16;
    const SENDS: i64 = 10_000 / CALLERS;
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let producer = producer.clone();
        callers.spawn(async move {
            let mut dropped = 0;
            for id in caller * SENDS..(caller + 1) * SENDS {
                let patience = Duration::from_micros(id as u64 * 37 % 51 * 100);
                match timeout(patience, producer.send(Order::new(id))).await {
                    Ok(sent) => drop(sent.unwrap()),
                    Err(_) => dropped += 1,
                }
            }
            dropped
        });
    }
    let dropped: i64 = callers.join_all().await.into_iter().sum();
    assert!(dropped >= CALLERS * (SENDS / 51), "a patience of zero is never enough: {dropped}");

    // What was begun goes on without its caller, and whatever comes afterwards is as ever.
    let others = db.again(1).await;
    let decided = async {
        while others.in_state("PREPARING").await > 0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(SOON, decided).await.expect("what was begun is decided");
    let later = CALLERS * SENDS..CALLERS * SENDS + 100;
    for id in later.clone() {
        producer.send(Order::new(id)).await.unwrap();
    }
    let report = producer.shutdown(SOON).await;
    assert!(report.is_clean(), "{report:?}");
    eventually("no connection is kept from the pool", async || db.pool.num_idle() == db.pool.size() as usize).await;
    // Were one of them inside an open transaction, others would not see this.
    for id in 1..=4 {
        db.run(format!("INSERT INTO orders (id) VALUES (-{id})")).await;
    }
    let orders = others.orders().await;
    assert_eq!(orders[..4], [-4, -3, -2, -1]);
    assert!(later.clone().all(|id| orders.contains(&id)));
    assert_eq!(others.in_state("PREPARING").await, 0);
    assert_eq!(others.in_state("COMMITTED").await, orders.len() as i64 - 4);
    let delivered = broker.delivered_ids();
    assert_eq!(delivered.len(), orders.len() - 4);
    let ids: BTreeSet<_> = orders[4..].iter().map(|id| format!("order-{id}")).collect();
    assert_eq!(delivered.into_iter().collect::<BTreeSet<_>>(), ids);
    assert!(broker.open_halves().is_empty());
    others.pool.close().await;
}

/// What a dead process left is resolved in one round of the broker's, while each statement takes half a second to the
/// database and live sends go on.
async fn case_49_a_storm_of_checks<DB: TestDatabase>(db: Db<DB>) {
    const LEFT: usize = 5000;
    const LIVE: i64 = 50;
    let broker = MemoryBroker::new();
    let ids: Vec<_> = (0..LEFT).map(|id| format!("left-{id}")).collect();
    let state = |place| ["COMMITTED", "ROLLED_BACK"][place % 2];
    log::insert(&db, ids.iter().enumerate().map(|(place, id)| log::Row::new(id, id, state(place)))).await;
    let half = log::half(&db, "", "").await;
    for id in &ids {
        broker.plant(rocketmq_tx::broker::HalfMessage { msg_id: id.clone(), token: id.clone(), ..half.clone() });
    }
    let proxy = Proxy::before(&db.url).await;
    let far = proxy.through(&db, 8).await;
    let producer = producer(&far, &broker).await;
    proxy.delay(Duration::from_millis(500));
    let mut sends = JoinSet::new();
    for id in 0..LIVE {
        let producer = producer.clone();
        sends.spawn(async move { producer.send(Order::new(id)).await.map(drop) });
    }
    let left = async || broker.open_halves().iter().filter(|half| half.msg_id.starts_with("left-")).count();
    assert!(broker.check_back() >= LEFT);
    eventually("one round resolves them", async || left().await == 0).await;
    while let Some(sent) = timeout(SOON, sends.join_next()).await.expect("live sends go on") {
        sent.unwrap().unwrap();
    }
    proxy.delay(Duration::ZERO);
    // Of a live send the round may have asked too early.
    check_until_ended(&broker).await;
    assert!(producer.shutdown(SOON).await.is_clean());
    let delivered: BTreeSet<_> = broker.delivered_ids().into_iter().collect();
    let committed = ids.iter().step_by(2).cloned().chain((0..LIVE).map(|id| format!("order-{id}")));
    assert_eq!(delivered, committed.collect());
    assert_eq!(db.orders().await.len() as i64, LIVE);
    far.pool.close().await;
}
