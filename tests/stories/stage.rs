//! A broker adapter around the real one that notes what passes through it, and stops or loses what it is told to.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, OnceLock},
};

use async_trait::async_trait;
use rocketmq_tx::{
    RocketMq, TransactionListener, Tx,
    broker::{
        Broker, BrokerError, BrokerSettings, CheckBack, CheckSink, Connector, End, EndOrigin, HalfCoordinates,
        HalfError, HalfMessage, Registration,
    },
};
use tokio::sync::watch;

use super::log::{By, Event, Log, Point};
use crate::support::{Order, TestDatabase, order::OrderError};

/// The scope of half messages that stories plant to see a round of checks go by.
const PROBE: &str = "probe";
/// The most probes until every broker has one: halves take turns on the queues.
const PROBES: usize = 64;

/// What the messages of one producer are made to do, and what they did.
#[derive(Default)]
pub struct Stage {
    pub log: Log,
    stops: watch::Sender<HashMap<String, Point>>,
    lost: Mutex<HashSet<String>>,
    /// The message of each unique key.
    ids: Mutex<HashMap<String, String>>,
    broker: OnceLock<Arc<dyn Broker>>,
}

impl Stage {
    /// Makes `id` wait at `point` until it is released.
    pub fn stop(&self, id: &str, point: Point) {
        self.stops.send_modify(|stops| {
            stops.insert(id.to_owned(), point);
        });
    }

    /// Lets `id` go on.
    pub fn release(&self, id: &str) {
        self.stops.send_modify(|stops| {
            stops.remove(id);
        });
    }

    /// The sender's end of `id` never reaches the broker.
    pub fn lose_end(&self, id: &str) {
        self.lost.lock().unwrap().insert(id.to_owned());
    }

    /// Returns at once, unless `id` is to wait here.
    pub async fn pass(&self, id: &str, point: Point) {
        let waits = |stops: &HashMap<String, Point>| stops.get(id) == Some(&point);
        let mut stops = self.stops.subscribe();
        if waits(&stops.borrow_and_update()) {
            self.log.add(Event::Waits { id: id.to_owned(), at: point });
            let _ = stops.wait_for(|stops| !waits(stops)).await;
        }
    }

    fn broker(&self) -> &Arc<dyn Broker> {
        self.broker.get().expect("the producer has started")
    }

    /// Waits until every broker has gone through all half messages that are old enough for a check now: what was not
    /// asked about by then was ended.
    ///
    /// Each broker gets a half that nobody ends; it asks about them in their order.
    pub async fn a_round_passes(&self, topic: &str) {
        let brokers: HashSet<_> =
            self.broker().settings().await.expect("settings").into_iter().map(|one| one.broker_name).collect();
        let (mut holders, mut probes) = (HashSet::new(), Vec::new());
        while holders != brokers {
            assert!(probes.len() < PROBES, "halves go only to {holders:?} of {brokers:?}");
            let id = format!("{PROBE}-{}", uuid::Uuid::new_v4().simple());
            let half = self.broker().send_half(probe(topic, &id)).await.expect("a probe is stored");
            if holders.insert(half.broker_name.clone()) {
                probes.push(id);
            } else {
                self.broker().end(&half, End::Rollback, EndOrigin::Sender).await.expect("a probe too many is ended");
            }
        }
        for id in probes {
            self.log.until("a probe is asked about", 1, |event| event.checks(&id)).await;
        }
    }

    /// The messages whose half is at `broker`.
    pub fn held_by(&self, broker: &str) -> HashSet<String> {
        let there = |event| match event {
            Event::Half { id, broker: at } if at == broker => Some(id),
            _ => None,
        };
        self.log.all().into_iter().filter_map(there).collect()
    }

    fn remember(&self, half: &HalfCoordinates, id: &str) {
        self.ids.lock().unwrap().insert(half.unique_key.clone(), id.to_owned());
    }

    async fn forward(self: Arc<Self>, mut checks: tokio::sync::mpsc::Receiver<CheckBack>, to: CheckSink) {
        while let Some(check) = checks.recv().await {
            let identity = check.identity.as_ref();
            let id = identity.map_or_else(|| check.half.unique_key.clone(), |identity| identity.msg_id.clone());
            self.remember(&check.half, &id);
            self.log.add(Event::Checked { id });
            if identity.is_some_and(|identity| identity.scope == PROBE) {
                // When this is lost the next round asks again.
                let _ = self.broker().end(&check.half, End::Rollback, EndOrigin::CheckBack).await;
            } else {
                // No room means that the producer has stopped.
                let _ = to.offer(check);
            }
        }
    }
}

fn probe(topic: &str, id: &str) -> HalfMessage {
    HalfMessage {
        topic: topic.to_owned(),
        tag: None,
        ordering_key: None,
        msg_id: id.to_owned(),
        token: PROBE.to_owned(),
        kind: PROBE.to_owned(),
        scope: PROBE.to_owned(),
        body: PROBE.into(),
        headers: Vec::new(),
    }
}

/// The real cluster, on a stage.
pub struct Staged {
    pub cluster: RocketMq,
    pub stage: Arc<Stage>,
}

#[async_trait]
impl Connector for Staged {
    fn group(&self) -> &str {
        Connector::group(&self.cluster)
    }

    fn validate(&self) -> Result<(), BrokerError> {
        self.cluster.validate()
    }

    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError> {
        let (sink, checks) = CheckSink::bounded(65_536);
        let noted = Registration { topics: registration.topics, checks: sink };
        let broker = Box::new(self.cluster).connect(noted).await?;
        assert!(self.stage.broker.set(broker.clone()).is_ok(), "a stage is for one producer");
        tokio::spawn(self.stage.clone().forward(checks, registration.checks));
        Ok(Arc::new(OnStage { broker, stage: self.stage }))
    }
}

struct OnStage {
    broker: Arc<dyn Broker>,
    stage: Arc<Stage>,
}

#[async_trait]
impl Broker for OnStage {
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError> {
        self.broker.settings().await
    }

    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        let id = message.msg_id.clone();
        self.stage.pass(&id, Point::Claimed).await;
        let half = self.broker.send_half(message).await?;
        self.stage.remember(&half, &id);
        self.stage.log.add(Event::Half { id: id.clone(), broker: half.broker_name.clone() });
        self.stage.pass(&id, Point::HalfStored).await;
        Ok(half)
    }

    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        let id = self.stage.ids.lock().unwrap().get(&half.unique_key).cloned().expect("its half passed here");
        let by = if origin == EndOrigin::Sender { By::Sender } else { By::CheckBack };
        let mut lost = false;
        if by == By::Sender {
            self.stage.pass(&id, Point::Decided).await;
            lost = self.stage.lost.lock().unwrap().contains(&id);
        }
        let ended = if lost { Err(BrokerError::message("lost")) } else { self.broker.end(half, end, origin).await };
        self.stage.log.add(Event::Ended {
            id: id.clone(),
            commit: end == End::Commit,
            by,
            acknowledged: ended.is_ok(),
        });
        if by == By::Sender {
            self.stage.pass(&id, Point::Ended).await;
        }
        ended
    }

    async fn shutdown(&self) {
        self.broker.shutdown().await;
    }
}

/// Inserts the order, and waits when told to.
pub struct Actor(pub Arc<Stage>);

impl<DB: TestDatabase> TransactionListener<DB> for Actor {
    type Message = Order;
    type Error = OrderError;

    async fn execute(&self, tx: &mut Tx<'_, DB>, order: &Order) -> Result<(), OrderError> {
        DB::insert(tx, order.id).await?;
        self.0.pass(&id_of(order), Point::Executing).await;
        if order.fail { Err(OrderError::ToldTo) } else { Ok(()) }
    }
}

/// The message id of an order.
pub fn id_of(order: &Order) -> String {
    rocketmq_tx::TransactionMessage::msg_id(order).as_str().to_owned()
}
