//! Case 47: SIGTERM with closures in flight.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use super::{By, Child, Cluster, Event, Point, Scene, scene::Producer};
use crate::support::{Db, Order, TestDatabase};

const IN_FLIGHT: i64 = 20;
const DEADLINE: Duration = Duration::from_secs(3);
/// For what a shutdown does after its deadline, on a machine that is busy with something else.
const GRACE: Duration = Duration::from_secs(6);

/// Half of them end while it stops, and half never: it leaves in time, and the next process resolves what it left.
pub async fn terminated_with_closures_in_flight<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let mut child = Child::start(&scene.part, 20, DEADLINE).await;
    let id = |number: i64| format!("order-{number}");
    for number in 0..IN_FLIGHT {
        child.send(Order::new(number), Point::Executing).await;
    }
    for number in 0..IN_FLIGHT {
        child.log.until_it_waits(&id(number), Point::Executing).await;
    }
    let (done, left): (Vec<i64>, Vec<i64>) = (0..IN_FLIGHT).partition(|number| number % 2 == 0);
    let told = Instant::now();
    child.terminate();
    for number in &done {
        child.release(id(*number)).await;
    }
    for number in &done {
        let receipt = Event::Sent { id: id(*number), error: None };
        child.log.until("it commits while it stops", 1, |event| *event == receipt).await;
    }
    let status = child.exit().await;
    let took = told.elapsed();
    println!("{}: gone {took:?} after SIGTERM", DB::name());
    assert!(status.success(), "{status}");
    assert!(took >= DEADLINE, "it waited for those that could still end: {took:?}");
    assert!(took < DEADLINE + GRACE, "{took:?}");
    let expected = Event::Stopped { unfinished: left.len(), unconfirmed: 0 };
    child.log.until("it tells what was left", 1, |event| *event == expected).await;
    assert_eq!(scene.db.orders().await, done);

    let Producer { producer, stage } = scene.another_service().await;
    for number in &left {
        let id = id(*number);
        stage.log.until("what was left is ended", 1, |event| event.ends(&id, false, By::CheckBack)).await;
    }
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    let delivered: BTreeSet<String> = done.iter().map(|number| id(*number)).collect();
    reader.assert_exactly(delivered.iter().map(String::as_str));
    assert_eq!(scene.db.orders().await, done);
    assert_eq!((scene.db.in_state("PREPARING").await, scene.db.in_state("ROLLED_BACK").await), (0, 10));
    producer.shutdown(DEADLINE).await;
}
