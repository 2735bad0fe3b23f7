//! One story's own database, topic and group, and the producers that play in it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rocketmq_tx::{
    Builder, MessageId, RocketMq, TransactionMessage, TransactionProducer, broker::rocketmq::CheckSchedule,
};
use serde::{Deserialize, Serialize};
use sqlx::Pool;

use super::{
    child::Child,
    consumer::{Reader, Received},
    log::LIMIT,
    stage::{Actor, Stage, Staged},
    topic,
};
use crate::support::{Db, TestDatabase};

/// A cluster, and the times that fit how it asks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Cluster {
    pub namesrv: String,
    pub namespace: Option<String>,
    /// A process that dies is noticed after this.
    pub settle: Duration,
    /// Where the broker does not report them: `transactionTimeOut`, `transactionCheckInterval`, `transactionCheckMax`.
    pub schedule: Option<(Duration, Duration, u32)>,
}

impl Cluster {
    pub fn rocketmq(&self, group: &str) -> RocketMq {
        let mut cluster = RocketMq::at(&self.namesrv).group(group);
        if let Some(namespace) = &self.namespace {
            cluster = cluster.namespace(namespace);
        }
        if let Some((transaction_timeout, check_interval, check_max)) = self.schedule {
            cluster =
                cluster.check_schedule_if_unreported(CheckSchedule { transaction_timeout, check_interval, check_max });
        }
        cluster
    }

    /// The name that brokers know.
    pub fn on_the_wire(&self, name: &str) -> String {
        self.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}%{name}"))
    }
}

/// All that a producer needs, in this process or in another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Part {
    pub url: String,
    pub cluster: Cluster,
    pub topic: String,
    pub group: String,
    pub housekeeping_interval: Duration,
}

impl Part {
    /// A producer on `stage`, without listeners.
    pub fn bare<DB: TestDatabase>(&self, pool: Pool<DB>, stage: &Arc<Stage>) -> Builder<DB> {
        let settle = self.cluster.settle;
        TransactionProducer::builder(pool)
            .broker(Staged { cluster: self.cluster.rocketmq(&self.group), stage: stage.clone() })
            .settle_deadline(settle)
            .execute_timeout(settle / 2)
            .database_timeout(settle * 2 / 5)
            .housekeeping_interval(self.housekeeping_interval)
    }

    /// A producer of orders on `stage`.
    pub fn builder<DB: TestDatabase>(&self, pool: Pool<DB>, stage: &Arc<Stage>) -> Builder<DB> {
        self.bare(pool, stage).listener_on(self.topic.clone(), Actor(stage.clone()))
    }
}

/// A message type that has nothing to do with orders.
#[derive(Serialize, Deserialize)]
pub struct Refund;

impl TransactionMessage for Refund {
    const KIND: &'static str = "order.refunded";
    const TOPIC: &'static str = "refunds";

    fn msg_id(&self) -> MessageId {
        "refund".into()
    }
}

/// A story's own world.
pub struct Scene<DB: TestDatabase> {
    pub db: Db<DB>,
    pub part: Part,
    /// How many brokers have the topic.
    pub brokers: usize,
}

/// A running producer.
pub struct Producer<DB: TestDatabase> {
    pub producer: TransactionProducer<DB>,
    pub stage: Arc<Stage>,
}

impl<DB: TestDatabase> Scene<DB> {
    pub async fn open(db: Db<DB>, cluster: Cluster) -> Self {
        let mut scene = Self::before_the_topic(db, cluster);
        let Part { cluster, topic, .. } = &scene.part;
        scene.brokers = topic::create(&cluster.namesrv, &cluster.on_the_wire(topic)).await;
        scene
    }

    /// As [`open`](Self::open), while the topic is not there.
    pub fn before_the_topic(db: Db<DB>, cluster: Cluster) -> Self {
        let fresh = uuid::Uuid::new_v4().simple().to_string();
        let (topic, group) = (format!("story-{}", &fresh[..12]), format!("actors-{}", &fresh[..12]));
        let housekeeping_interval = Duration::from_millis(100);
        Self { part: Part { url: db.url.clone(), cluster, topic, group, housekeeping_interval }, db, brokers: 0 }
    }

    /// Starts what `describe` makes of a stage.
    pub async fn start(&self, describe: impl FnOnce(&Arc<Stage>) -> Builder<DB>) -> Producer<DB> {
        let stage = Arc::new(Stage::default());
        let producer = describe(&stage).start().await.unwrap_or_else(|error| panic!("{error}: {:?}", chain(&error)));
        Producer { producer, stage }
    }

    /// A producer of orders.
    pub async fn producer(&self) -> Producer<DB> {
        self.start(|stage| self.part.builder(self.db.pool.clone(), stage)).await
    }

    /// Another service on the same database and in the same group, which does not know orders.
    pub async fn another_service(&self) -> Producer<DB> {
        let topic = &self.part.topic;
        self.start(|stage| self.part.bare(self.db.pool.clone(), stage).message_on::<Refund>(topic)).await
    }

    /// A producer of orders in a process of its own, for a few sends at once.
    pub async fn child(&self) -> Child {
        Child::start(&self.part, 4, Duration::from_secs(3)).await
    }

    pub async fn reader(&self) -> Deliveries {
        let topic = self.part.cluster.on_the_wire(&self.part.topic);
        let reader = Reader::start(&self.part.cluster.namesrv, "story-readers", &topic).await.expect("a reader");
        Deliveries { reader, all: Vec::new() }
    }
}

/// Opens `count` connections, so that no send waits for one: a login to PostgreSQL costs a busy machine seconds.
pub async fn log_in<DB: TestDatabase>(pool: &Pool<DB>, count: u32) {
    let logins = (0..count).map(|_| pool.acquire());
    futures_util::future::try_join_all(logins).await.expect("connections");
}

/// An error with what caused it.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What consumers of a topic see.
pub struct Deliveries {
    reader: Reader,
    pub all: Vec<Received>,
}

impl Deliveries {
    /// Waits until `count` messages were delivered, copies included.
    pub async fn until(&mut self, count: usize) {
        while self.all.len() < count {
            let Some(received) = self.reader.next(LIMIT).await else {
                panic!("{count} messages, not within {LIMIT:?}; so far {:?}", self.counts());
            };
            self.all.push(received);
        }
    }

    /// Takes in what else has come.
    pub async fn until_quiet(&mut self) {
        self.all.extend(self.reader.drain_until_quiet(Duration::from_millis(500)).await);
    }

    /// How often each message was delivered.
    pub fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for received in &self.all {
            *counts.entry(received.msg_id.clone()).or_default() += 1;
        }
        counts
    }

    /// Each of `ids`, once, and nothing else, was delivered.
    pub fn assert_exactly<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let expected: BTreeMap<String, usize> = ids.into_iter().map(|id| (id.to_owned(), 1)).collect();
        assert_eq!(self.counts(), expected);
    }

    /// Each of `ids`, at least once, and nothing else, was delivered.
    pub fn assert_all<'a>(&self, ids: impl IntoIterator<Item = &'a str>) {
        let mut expected: Vec<&str> = ids.into_iter().collect();
        expected.sort_unstable();
        assert_eq!(self.counts().keys().map(String::as_str).collect::<Vec<_>>(), expected);
    }
}
