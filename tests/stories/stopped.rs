//! A process that stands still for longer than its deadlines, and goes on: a long pause of a virtual machine.

use std::time::Duration;

use rocketmq_tx::Status;

use super::{
    By, Child, Cluster, Event, Point, Scene,
    scene::{Part, Producer},
};
use crate::support::{Db, Order, TestDatabase, eventually};

/// Its half message was stored: nothing holds the row.
const HALF_STORED: &str = "order-1";
/// It is in its local transaction, whose lock the database keeps.
const EXECUTING: &str = "order-2";

/// Another process settles what nothing holds, and leaves alone what still may commit.
pub async fn stopped_past_its_deadline<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    // Stopped within a transaction of its own settler it would keep what that has locked, until it goes on.
    let alone = Part { housekeeping_interval: Duration::from_secs(3600), ..scene.part.clone() };
    let mut child = Child::start(&alone, 4, Duration::from_secs(3)).await;
    child.send_up_to(Point::HalfStored, Order::new(1)).await;
    child.send_up_to(Point::Executing, Order::new(2)).await;
    child.stop();
    let Producer { producer, stage } = scene.another_service().await;
    let settled = async || producer.status(HALF_STORED).await.unwrap() == Status::RolledBack;
    eventually("the other process settles it", settled).await;
    stage.log.until("its half is ended", 1, |event| event.ends(HALF_STORED, false, By::CheckBack)).await;
    assert_eq!(producer.status(EXECUTING).await.unwrap(), Status::Preparing);

    child.resume();
    for id in [HALF_STORED, EXECUTING] {
        child.release(id.to_owned()).await;
    }
    let told = |of: &'static str| move |event: &Event| matches!(event, Event::Sent { id, .. } if id == of);
    for id in [HALF_STORED, EXECUTING] {
        child.log.until("its caller is told", 1, told(id)).await;
    }
    let failed = |event: &Event| matches!(event, Event::Sent { id, error: Some(_) } if id == HALF_STORED);
    assert_eq!(child.log.count(failed), 1, "it was settled");
    // Whether the other one still commits is a matter of its time-out; but it is one thing for all.
    eventually("it is decided", async || producer.status(EXECUTING).await.unwrap() != Status::Preparing).await;
    child.kill().await;
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    let orders = scene.db.orders().await;
    assert!(!orders.contains(&1), "{orders:?}");
    let ids: Vec<_> = orders.iter().map(|id| format!("order-{id}")).collect();
    reader.assert_all(ids.iter().map(String::as_str));
    producer.shutdown(Duration::from_secs(10)).await;
}
