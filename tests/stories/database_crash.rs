//! The database crashes with a message at every point of the protocol, and comes back.

use super::{Cluster, Point, Scene, scene::Producer};
use crate::support::{Db, Order, TestDatabase, eventually};

/// A claim may be lost with the crash, a local transaction is; what was committed is not.
pub async fn crashes_at_every_point<DB: TestDatabase>(
    db: Db<DB>,
    cluster: Cluster,
    crash_and_restart: impl AsyncFnOnce(),
) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let Producer { producer, stage } = scene.producer().await;
    let points = [(1, Point::Claimed), (2, Point::HalfStored), (3, Point::Executing), (4, Point::Decided)];
    let mut sends = Vec::new();
    for (number, point) in points {
        let id = format!("order-{number}");
        stage.stop(&id, point);
        let producer = producer.clone();
        sends.push(tokio::spawn(async move { producer.send(Order::new(number)).await }));
        stage.log.until_it_waits(&id, point).await;
    }
    crash_and_restart().await;
    for (number, _) in points {
        stage.release(&format!("order-{number}"));
    }
    let mut sent = Vec::new();
    for send in sends {
        sent.push(send.await.unwrap());
    }
    println!("{}: after the crash {sent:?}", DB::name());
    assert!(sent[2].is_err(), "its transaction ended with its connection");
    assert!(sent[3].is_ok(), "its transaction had ended before");
    // Connections from before the crash fail once each.
    eventually("sends work again", async || producer.send(Order::new(5)).await.is_ok()).await;

    let after = scene.db.again(1).await;
    eventually("everything is decided", async || after.in_state("PREPARING").await == 0).await;
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    let orders = after.orders().await;
    assert!(!orders.contains(&3) && orders.ends_with(&[4, 5]), "{orders:?}");
    // Who was told that it is committed was told the truth.
    for (send, (number, _)) in sent.iter().zip(points) {
        assert!(send.is_err() || orders.contains(&number), "{number}");
    }
    let ids: Vec<_> = orders.iter().map(|id| format!("order-{id}")).collect();
    reader.assert_all(ids.iter().map(String::as_str));
    assert_eq!(after.in_state("COMMITTED").await, orders.len() as i64);
    producer.shutdown(scene.part.cluster.settle).await;
    after.pool.close().await;
}
