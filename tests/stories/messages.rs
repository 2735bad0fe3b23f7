//! One producer, one message: what becomes of it.

use std::time::Duration;

use rocketmq_tx::{
    BoxError, Confirmation, MessageId, SendError, StartError, Status, TransactionMessage, protocol::Limits,
};
use serde::{Deserialize, Serialize};

use super::{By, Cluster, Point, Scene, Stage, scene::Producer};
use crate::support::{Db, Order, TestDatabase};

/// Also case 45, in a cluster with a namespace: ended by their sender, and by another process.
pub async fn commits_and_rolls_back<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let mut child = scene.child().await;
    child.send_up_to(Point::Decided, Order::new(1)).await;
    child.send_up_to(Point::Decided, Order::failing(2)).await;
    child.kill().await;
    let Producer { producer, stage } = scene.producer().await;
    let mut receipt = producer.send(Order::new(3)).await.unwrap();
    assert_eq!(receipt.confirmation().await, Confirmation::Confirmed);
    producer.send(Order::failing(4)).await.unwrap_err();
    for (id, commit, by) in [
        ("order-3", true, By::Sender),
        ("order-4", false, By::Sender),
        ("order-1", true, By::CheckBack),
        ("order-2", false, By::CheckBack),
    ] {
        stage.log.until(&format!("{id} is ended"), 1, |event| event.ends(id, commit, by)).await;
    }
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    reader.assert_exactly(["order-1", "order-3"]);
    assert_eq!(scene.db.orders().await, [1, 3]);
    let topic = scene.part.cluster.on_the_wire(&scene.part.topic);
    assert!(reader.all.iter().all(|received| received.topic == topic));
    assert!(producer.shutdown(Duration::from_secs(5)).await.is_clean());
}

/// Two calls at once, and one later: `execute` runs once, one message is delivered.
pub async fn the_same_id_twice<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let Producer { producer, stage } = scene.producer().await;
    stage.stop("order-1", Point::Executing);
    let first = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(Order::new(1)).await }
    });
    stage.log.until_it_waits("order-1", Point::Executing).await;
    let second = producer.send(Order::new(1)).await;
    assert!(matches!(second, Err(SendError::InFlight { .. })), "{second:?}");
    let many_writers = DB::name() != "SQLite";
    if many_writers {
        producer.send(Order::new(2)).await.expect("the second call is in nobody's way");
    }
    stage.release("order-1");
    let mut receipt = first.await.unwrap().unwrap();
    assert!(!receipt.already_committed());
    assert_eq!(receipt.confirmation().await, Confirmation::Confirmed);
    assert!(producer.send(Order::new(1)).await.unwrap().already_committed());
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    reader.assert_exactly(if many_writers { &["order-1", "order-2"][..] } else { &["order-1"] }.iter().copied());
    assert_eq!(scene.db.orders().await.len(), reader.all.len());
    producer.shutdown(Duration::from_secs(5)).await;
}

/// The second producer of a group would take the first one's check-backs away.
pub async fn the_same_group_twice_in_a_process<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let first = scene.producer().await;
    let stage = std::sync::Arc::<Stage>::default();
    let error = scene.part.builder(scene.db.pool.clone(), &stage).start().await.unwrap_err();
    assert!(matches!(error, StartError::Broker(_)), "{error:?}");
    let text = super::scene::chain(&error);
    assert!(text.contains(&scene.part.group) && text.contains("already runs"), "{text}");
    first.producer.send(Order::new(1)).await.expect("the first one goes on");
    first.producer.shutdown(Duration::from_secs(5)).await;
    let next = scene.producer().await;
    next.producer.send(Order::new(2)).await.expect("the group is free after the shutdown");
    reader.until(2).await;
    reader.assert_exactly(["order-1", "order-2"]);
    next.producer.shutdown(Duration::from_secs(5)).await;
}

/// A message of a given size.
#[derive(Serialize, Deserialize)]
struct Sized {
    id: String,
    body: usize,
    /// The length of one header's value.
    header: usize,
}

impl TransactionMessage for Sized {
    const KIND: &'static str = "sized";
    const TOPIC: &'static str = "sized";

    fn msg_id(&self) -> MessageId {
        self.id.as_str().into()
    }

    fn headers(&self) -> Vec<(String, String)> {
        vec![("padding".into(), "x".repeat(self.header))]
    }

    fn encode(&self) -> Result<Vec<u8>, BoxError> {
        Ok(vec![b'b'; self.body])
    }
}

/// Case 41: what fits is stored, asked about and delivered; one byte more is refused before anything is written.
pub async fn sizes_at_their_limits<DB: TestDatabase>(db: Db<DB>, cluster: Cluster) {
    let scene = Scene::open(db, cluster).await;
    let mut reader = scene.reader().await;
    let topic = scene.part.topic.clone();
    let Producer { producer, stage } =
        scene.start(|stage| scene.part.bare(scene.db.pool.clone(), stage).message_on::<Sized>(topic)).await;
    let send = |message: Sized| {
        producer.send_with(message, |tx, message| {
            Box::pin(async move { DB::insert(tx, (message.body + message.header) as i64).await })
        })
    };
    let limits = Limits { body: 4 << 20, ..Limits::default() };
    let body = usize::try_from(limits.body).unwrap();
    let header = largest_header(limits);

    for (id, body, header) in [("body+1", body + 1, 1), ("head+1", 1, header + 1)] {
        let error = send(Sized { id: id.into(), body, header }).await.unwrap_err();
        assert!(matches!(error, SendError::Invalid(_)), "{id}: {error:?}");
        assert_eq!(producer.status(id).await.unwrap(), Status::NotFound, "{id}");
    }
    assert!(stage.log.all().is_empty(), "no half message: {:?}", stage.log.all());

    // A check adds properties of the broker's, so the largest must survive one, too.
    let largest = [("body+0", body, 1), ("head+0", 1, header), ("both+0", body, header)];
    for (id, body, header) in largest {
        stage.lose_end(id);
        send(Sized { id: id.into(), body, header })
            .await
            .unwrap_or_else(|error| panic!("{id}: {}", super::scene::chain(&error)));
    }
    reader.until(largest.len()).await;
    stage.a_round_passes(&scene.part.topic).await;
    reader.until_quiet().await;
    reader.assert_exactly(largest.map(|(id, ..)| id));
    for received in &reader.all {
        let (_, body, header) = largest.into_iter().find(|(id, ..)| *id == received.msg_id).unwrap();
        assert!(received.body.len() == body && received.body.iter().all(|byte| *byte == b'b'));
        assert_eq!(received.properties["padding"].len(), header);
    }
    producer.shutdown(Duration::from_secs(5)).await;
}

/// The longest value of the header that the SDK takes beside its own properties, with ids of six bytes.
fn largest_header(limits: Limits) -> usize {
    let hex = "0".repeat(32);
    let own =
        [("KEYS", "body+0"), ("TX_MSG_ID", "body+0"), ("TX_TOKEN", &hex), ("TX_KIND", Sized::KIND), ("TX_SCOPE", &hex)];
    let fits = |length: &usize| {
        let padding = "x".repeat(*length);
        limits.check_properties(own.into_iter().chain([("padding", padding.as_str())])).is_ok()
    };
    (0..limits.properties).rev().find(fits).expect("there is room")
}
