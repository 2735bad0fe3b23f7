//! A process is killed with a message at every point of the protocol, and another one finds what it left.

use std::time::Instant;

use rocketmq_tx::{Confirmation, Status};

use super::{By, Cluster, Event, Point, Scene, scene::Producer};
use crate::support::{Db, Order, TestDatabase, eventually};

/// Nothing was sent for it but the claim.
const CLAIMED: &str = "order-1";
/// Case 61: the half message was stored, and nothing else happened.
const HALF_STORED: &str = "order-2";
/// The same, and the database lost the claim in its own crash.
const CLAIM_LOST: &str = "order-3";
/// Committed, and the end was never sent.
const COMMITTED: &str = "order-4";
/// Rolled back by its own error, and the end was never sent.
const FAILED: &str = "order-5";
/// Nothing was left to do.
const FINISHED: &str = "order-6";
/// The broker has acknowledged the end, and nobody noted that.
const ENDED: &str = "order-8";
/// In the middle of its local transaction.
const EXECUTING: &str = "order-7";

/// Cases 9 and 61. The second process knows other message types only, sends nothing, and finds the topic as it is.
pub async fn killed_at_every_point<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let mut child = scene.child().await;
    child.send_up_to(Point::Claimed, Order::new(1)).await;
    let claimed = Instant::now();
    child.send_up_to(Point::HalfStored, Order::new(2)).await;
    child.send_up_to(Point::HalfStored, Order::new(3)).await;
    child.send_up_to(Point::Decided, Order::new(4)).await;
    child.send_up_to(Point::Decided, Order::failing(5)).await;
    child.send(Order::new(6), None).await;
    child.log.until("one goes all the way", 1, |event| event.ends(FINISHED, true, By::Sender)).await;
    child.send_up_to(Point::Ended, Order::new(8)).await;
    // The last one: on SQLite its local transaction keeps all others out.
    child.send_up_to(Point::Executing, Order::new(7)).await;
    child.kill().await;
    scene.db.run(format!("DELETE FROM tx_log WHERE msg_id = '{CLAIM_LOST}' AND state = 'PREPARING'")).await;
    assert_eq!(scene.db.orders().await, [4, 6, 8]);
    reader.until(2).await;
    reader.assert_exactly([FINISHED, ENDED]);

    let Producer { producer, stage } = scene.another_service().await;
    reader.until(3).await;
    println!("{}: committed, delivered {:?} after the kill", DB::name(), claimed.elapsed());
    for (id, commit) in
        [(COMMITTED, true), (FAILED, false), (HALF_STORED, false), (EXECUTING, false), (CLAIM_LOST, false)]
    {
        stage.log.until(&format!("{id} is ended"), 1, |event| event.ends(id, commit, By::CheckBack)).await;
        println!("{}: {id} ended {:?} after the kill", DB::name(), claimed.elapsed());
    }
    // Their last question may have come before the settler decided: no attempt is left when a whole round brings none.
    stage.a_round_passes(&scene.part.topic).await;
    for (id, expected) in [
        (CLAIMED, Status::RolledBack),
        (HALF_STORED, Status::RolledBack),
        (CLAIM_LOST, Status::RolledBack),
        (FAILED, Status::RolledBack),
        (EXECUTING, Status::RolledBack),
    ] {
        assert_eq!(producer.status(id).await.unwrap(), expected, "{id}");
    }
    let confirmed = Status::Committed(Confirmation::Confirmed);
    eventually("the committed one is confirmed", || async { producer.status(COMMITTED).await.unwrap() == confirmed })
        .await;
    // Nobody asks about it any more: it stays unconfirmed.
    assert_eq!(producer.status(ENDED).await.unwrap(), Status::Committed(Confirmation::Pending));
    assert_eq!(scene.db.orders().await, [4, 6, 8], "business rows");
    reader.until_quiet().await;
    reader.assert_exactly([COMMITTED, FINISHED, ENDED]);
    assert_eq!(stage.log.count(|event| event.checks(CLAIMED)), 0, "it has no half message");
    let counters = producer.counters();
    assert_eq!((counters.settled, counters.buried), (3, 1), "{counters:?}");

    // Nothing of a dead attempt is in the way of the next one.
    producer.shutdown(scene.part.cluster.settle).await;
    let again = scene.start(|stage| scene.part.builder(scene.db.pool.clone(), stage)).await;
    again.producer.send(Order::new(7)).await.expect("the id is free again");
    reader.until(reader.all.len() + 1).await;
    assert_eq!(reader.all.last().unwrap().msg_id, EXECUTING);
    assert_eq!(scene.db.orders().await, [4, 6, 7, 8]);
    again.producer.shutdown(scene.part.cluster.settle).await;
}

/// The producer that left a message behind is the one that is asked about it.
pub async fn an_end_is_lost<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let Producer { producer, stage } = scene.producer().await;
    // Case 21: one id everywhere, with what may be in it.
    let (kept, dropped) = ("Order 42:OrderPlaced/é", "Order 43:OrderPlaced/é");
    stage.lose_end(kept);
    stage.lose_end(dropped);
    let mut receipt = producer.send(Order::named(1, kept)).await.unwrap();
    assert_eq!(receipt.msg_id(), kept);
    producer.send(Order { fail: true, ..Order::named(2, dropped) }).await.unwrap_err();
    assert_eq!(receipt.confirmation().await, Confirmation::Pending);
    assert_eq!(producer.status(kept).await.unwrap(), Status::Committed(Confirmation::Pending));
    assert_eq!(producer.counters().unconfirmed, 1);

    stage.log.until("asked and answered", 1, |event| event.ends(kept, true, By::CheckBack)).await;
    stage.log.until("asked and answered", 1, |event| event.ends(dropped, false, By::CheckBack)).await;
    assert!(stage.log.count(|event| event.checks(kept)) >= 1, "the check-back has the id of the message");
    reader.until(1).await;
    let delivered = &reader.all[0];
    assert_eq!(delivered.properties["TX_MSG_ID"], kept);
    assert_eq!(delivered.keys.as_deref(), Some(kept));
    assert_eq!(serde_json::from_slice::<Order>(&delivered.body).unwrap().msg_id.as_deref(), Some(kept));
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    reader.assert_exactly([kept]);
    let confirmed = Status::Committed(Confirmation::Confirmed);
    eventually("confirmed", || async { producer.status(kept).await.unwrap() == confirmed }).await;
    assert_eq!(scene.db.orders().await, [1]);
    assert_eq!(producer.counters().unconfirmed, 0, "the gauge goes down again");
    let lost = |event: &Event| matches!(event, Event::Ended { by: By::Sender, acknowledged: false, .. });
    assert_eq!(stage.log.count(lost), 2);
    producer.shutdown(scene.part.cluster.settle).await;
}
