//! Case 3: a local transaction that takes several rounds of checks.

use std::time::{Duration, Instant};

use rocketmq_tx::SendError;

use super::{By, Cluster, Event, Point, Scene, scene::Producer};
use crate::support::{Db, Order, TestDatabase};

/// Four times the age at which the broker asks for the first time.
const SLOW: Duration = Duration::from_secs(12);

/// Both processes are asked while it runs, and neither ends it.
pub async fn asked_while_it_runs<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let (commits, fails) = ("order-1", "order-2");
    let other = scene.child().await;
    let Producer { producer, stage } = scene
        .start(|stage| {
            let slow = scene.part.builder(scene.db.pool.clone(), stage);
            slow.execute_timeout(Duration::from_secs(35)).settle_deadline(Duration::from_secs(45))
        })
        .await;
    for id in [commits, fails] {
        stage.stop(id, Point::Executing);
    }
    let begun = Instant::now();
    let send = |order| {
        tokio::spawn({
            let producer = producer.clone();
            async move { producer.send(order).await }
        })
    };
    let (commit, fail) = (send(Order::new(1)), send(Order::failing(2)));
    // About either: the broker takes the group's connections in turns, one step for each question of any group, and
    // may ask about one half here and about the other there, round after round.
    let about = |event: &Event| event.checks(commits) || event.checks(fails);
    stage.log.until("this process is asked", 1, about).await;
    other.log.until("the other process is asked", 1, about).await;
    // Not a wait for something else: the time itself is the subject.
    tokio::time::sleep(SLOW.saturating_sub(begun.elapsed())).await;
    let ended = |event: &Event| matches!(event, Event::Ended { .. });
    let so_far = begun.elapsed();
    assert_eq!(stage.log.count(ended) + other.log.count(ended), 0, "nobody ends what still runs, after {so_far:?}");
    assert_eq!(scene.db.orders().await, [0_i64; 0]);
    reader.until_quiet().await;
    assert!(reader.all.is_empty());

    stage.release(commits);
    stage.release(fails);
    commit.await.unwrap().expect("committed");
    assert!(matches!(fail.await.unwrap(), Err(SendError::RolledBack { .. })));
    println!("{}: {:?} in the local transaction", DB::name(), begun.elapsed());
    stage.log.until("its own end", 1, |event| event.ends(commits, true, By::Sender)).await;
    stage.log.until("its own end", 1, |event| event.ends(fails, false, By::Sender)).await;
    // Each check made another copy of a half: they are asked about in later rounds, here or there.
    other.kill().await;
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    println!("{}: delivered {} times", DB::name(), reader.all.len());
    reader.assert_all([commits]);
    assert_eq!(scene.db.orders().await, [1]);
    producer.shutdown(Duration::from_secs(10)).await;
}
