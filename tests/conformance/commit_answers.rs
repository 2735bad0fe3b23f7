//! COMMIT was sent, and its answer never came. Whatever became of it, the database and the deliveries agree, `execute` ran
//! once, and nobody guesses.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::on_every_server;
use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::{check_is_unknown, check_until_ended, until_deadline},
    order::builder,
    proxy::{Commit, Proxy},
};
use rocketmq_tx::{
    BusinessRows, Receipt, RollbackCause, SendError, Status, TransactionProducer, broker::memory::MemoryBroker,
    protocol::Unresolved,
};
use tokio::sync::oneshot;

on_every_server!(2: case_6_the_answer_is_lost case_6_the_commit_is_lost case_6_the_commit_arrives_late
    case_6_the_server_gives_up_late case_6_the_database_goes_away_after_the_commit
    case_6_the_database_goes_away_before_the_commit case_57_a_raw_commit_and_then_silence);

const DEADLINE: Duration = Duration::from_secs(30);

/// A producer behind a proxy, whose closures are counted.
struct Scene<DB: TestDatabase> {
    direct: Db<DB>,
    proxied: Db<DB>,
    proxy: Proxy,
    broker: MemoryBroker,
    producer: TransactionProducer<DB>,
    runs: Arc<AtomicUsize>,
}

async fn scene<DB: TestDatabase>(direct: Db<DB>) -> Scene<DB> {
    let (proxy, broker) = (Proxy::before(&direct.url).await, MemoryBroker::new());
    let proxied = proxy.through(&direct, 2).await;
    let producer = builder(&proxied, &broker)
        .execute_timeout(Duration::from_secs(4))
        .settle_deadline(Duration::from_secs(10))
        .start()
        .await
        .unwrap();
    Scene { direct, proxied, proxy, broker, producer, runs: Arc::default() }
}

impl<DB: TestDatabase> Scene<DB> {
    /// After the database was away, the SDK's own connections notice one by one: nothing is started meanwhile.
    async fn send_in_the_end(&self) -> Receipt {
        loop {
            match self.send().await {
                Err(error @ SendError::NotStarted { .. }) => assert!(error.is_transient()),
                sent => return sent.unwrap(),
            }
        }
    }

    async fn send(&self) -> Result<Receipt, SendError> {
        let runs = Arc::clone(&self.runs);
        let sent = self.producer.send_with(Order::new(1), move |tx, order| {
            runs.fetch_add(1, SeqCst);
            Box::pin(async move { DB::insert(tx, order.id).await })
        });
        sent.await.map(|(receipt, _)| receipt)
    }

    async fn is_in_doubt(&self) {
        let error = self.send().await.unwrap_err();
        assert!(matches!(&error, SendError::InDoubt { msg_id, .. } if msg_id == "order-1"), "{error:?}");
        assert_eq!(error.business_rows(), BusinessRows::InDoubt);
        assert!(error.is_transient(), "to send it again is safe, and tells");
        assert_eq!(self.producer.counters().in_doubt, 1);
        assert!(self.broker.ended().is_empty(), "nobody guesses");
        assert_eq!(self.broker.open_halves().len(), 1);
    }

    async fn status(&self) -> Option<Status> {
        self.producer.status("order-1").await.ok()
    }

    async fn becomes_committed(&self) {
        let committed = async || matches!(self.status().await, Some(Status::Committed(_)));
        eventually("the status says so", committed).await;
        check_until_ended(&self.broker).await;
        self.is_committed_once().await;
    }

    async fn is_committed_once(&self) {
        assert!(matches!(self.status().await, Some(Status::Committed(_))));
        assert_eq!(self.direct.orders().await, [1]);
        assert_eq!(self.broker.delivered_ids(), ["order-1"]);
        assert!(self.broker.open_halves().is_empty());
        assert_eq!(self.runs.load(SeqCst), 1);
        assert!(self.send_in_the_end().await.already_committed());
        assert_eq!(self.runs.load(SeqCst), 1);
        self.end().await;
    }

    async fn becomes_rolled_back(&self) {
        eventually("the status says so", async || self.status().await == Some(Status::RolledBack)).await;
        check_until_ended(&self.broker).await;
        self.is_rolled_back().await;
    }

    /// Afterwards the message may be sent again.
    async fn is_rolled_back(&self) {
        assert_eq!(self.status().await, Some(Status::RolledBack));
        assert!(self.direct.orders().await.is_empty());
        assert!(self.broker.delivered().is_empty() && self.broker.open_halves().is_empty());
        assert_eq!(self.runs.load(SeqCst), 1);
        self.send_in_the_end().await.confirmation().await;
        assert_eq!(self.direct.orders().await, [1]);
        assert_eq!(self.broker.delivered_ids(), ["order-1"]);
        assert_eq!(self.runs.load(SeqCst), 2);
        self.end().await;
    }

    async fn end(&self) {
        assert_eq!(self.producer.shutdown(DEADLINE).await.unfinished, 0);
        self.proxied.pool.close().await;
    }
}

async fn case_6_the_answer_is_lost<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    scene.proxy.cut(Commit::Arrives);
    scene.send().await.expect("the rows are committed").confirmation().await;
    scene.is_committed_once().await;
}

async fn case_6_the_commit_is_lost<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    scene.proxy.cut(Commit::IsLost);
    let error = scene.send().await.unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Database(_), .. }), "{error:?}");
    assert!(error.is_transient());
    eventually("the half is ended", async || scene.broker.open_halves().is_empty()).await;
    scene.is_rolled_back().await;
}

/// The client's connection is gone, and the server has yet to see the COMMIT: until it does, PREPARING proves nothing.
async fn case_6_the_commit_arrives_late<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    let (arrives, signal) = oneshot::channel();
    scene.proxy.cut(Commit::ArrivesLate(signal));
    scene.is_in_doubt().await;
    assert_eq!(scene.status().await, Some(Status::Preparing));
    check_is_unknown(&scene.broker, &scene.producer, Unresolved::Preparing).await;
    // The settler passes over a row that somebody holds, whatever its deadline.
    eventually("its deadline is over", async || until_deadline(&scene.direct).await < 0).await;
    check_is_unknown(&scene.broker, &scene.producer, Unresolved::Preparing).await;
    arrives.send(true).unwrap();
    scene.becomes_committed().await;
}

async fn case_6_the_server_gives_up_late<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    let (arrives, signal) = oneshot::channel();
    scene.proxy.cut(Commit::ArrivesLate(signal));
    scene.is_in_doubt().await;
    check_is_unknown(&scene.broker, &scene.producer, Unresolved::Preparing).await;
    arrives.send(false).unwrap();
    scene.becomes_rolled_back().await;
}

async fn case_6_the_database_goes_away_after_the_commit<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    scene.proxy.cut_and_take_down(Commit::Arrives);
    scene.is_in_doubt().await;
    assert_eq!(scene.status().await, None, "it cannot be asked");
    check_is_unknown(&scene.broker, &scene.producer, Unresolved::DatabaseError).await;
    scene.proxy.bring_up();
    scene.becomes_committed().await;
}

async fn case_6_the_database_goes_away_before_the_commit<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    scene.proxy.cut_and_take_down(Commit::IsLost);
    scene.is_in_doubt().await;
    check_is_unknown(&scene.broker, &scene.producer, Unresolved::DatabaseError).await;
    scene.proxy.bring_up();
    scene.becomes_rolled_back().await;
}

/// What `execute` did itself is as unknown as the SDK's own COMMIT would be.
async fn case_57_a_raw_commit_and_then_silence<DB: TestDatabase>(db: Db<DB>) {
    let scene = scene(db).await;
    scene.proxy.cut_and_take_down(Commit::Arrives);
    let runs = Arc::clone(&scene.runs);
    let sent = scene.producer.send_with(Order::new(1), move |tx, order| {
        runs.fetch_add(1, SeqCst);
        Box::pin(async move {
            DB::insert(tx, order.id).await?;
            DB::sql(tx, "COMMIT").await
        })
    });
    let error = sent.await.unwrap_err();
    assert!(matches!(error, SendError::InDoubt { .. }), "{error:?}");
    assert!(scene.broker.ended().is_empty(), "nobody guesses");
    scene.proxy.bring_up();
    scene.becomes_committed().await;
}
