//! Processes whose clocks are wrong: nothing but the database's clock may decide about an attempt.

use std::time::{Duration, Instant};

use super::{By, Cluster, Event, Point, Scene, child::Child};
use crate::support::{Db, Order, TestDatabase};

/// Ten minutes ahead, and behind.
const CLOCKS: [&str; 2] = ["+600", "-600"];
/// Several looks of every settler.
const WHILE: Duration = Duration::from_secs(4);

/// Each process has messages on the way while the other one's settler and answers are ten and twenty minutes off.
pub async fn ten_minutes_off<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let mut children = Vec::new();
    for clock in CLOCKS {
        children.push(Child::start_with_clock(&scene.part, 8, Duration::from_secs(10), clock).await);
    }
    let held = Instant::now();
    let mut committed = Vec::new();
    for (child, first) in children.iter_mut().zip([10, 20]) {
        let points = [Point::Claimed, Point::HalfStored, Point::Executing];
        for (id, point) in (first..).zip(points) {
            child.send_up_to(point, Order::new(id)).await;
            committed.push(id);
        }
        // The end of this one never comes: it waits for it until it is killed.
        child.send_up_to(Point::Decided, Order::new(first + 3)).await;
        committed.push(first + 3);
        child.send(Order::failing(first + 4), None).await;
    }
    // Not a wait for something else: that nothing is decided meanwhile is the subject.
    tokio::time::sleep(WHILE.saturating_sub(held.elapsed())).await;
    assert!(held.elapsed() < scene.part.cluster.settle, "the deadline by a right clock has not come");
    assert_eq!(scene.db.in_state("ROLLED_BACK").await, 2, "nothing but what failed");
    for (child, first) in children.iter_mut().zip([10, 20]) {
        for id in first..first + 3 {
            child.release(format!("order-{id}")).await;
            let sent =
                |event: &Event| matches!(event, Event::Sent { id: of, error: None } if *of == format!("order-{id}"));
            child.log.until("it commits", 1, sent).await;
        }
        let failed = format!("order-{}", first + 4);
        child.log.until("it fails", 1, |event| event.ends(&failed, false, By::Sender)).await;
    }
    reader.until(committed.len()).await;
    assert_eq!(scene.db.orders().await, committed, "each ran once");
    let fresh = scene.another_service().await;
    for child in children {
        child.kill().await;
    }
    fresh.stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    let ids: Vec<_> = committed.iter().map(|id| format!("order-{id}")).collect();
    reader.assert_all(ids.iter().map(String::as_str));
    assert_eq!(scene.db.orders().await, committed);
    fresh.producer.shutdown(scene.part.cluster.settle).await;
}
