//! A tap on the connection to the broker: it notes what passes, and can lose the end of a chosen message.
//!
//! It stands where any broker adapter stands, between the SDK and [`RocketMq`].

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rocketmq_tx::{
    RocketMq,
    broker::{
        Broker, BrokerError, BrokerSettings, CheckBack, CheckSink, Connector, End, EndOrigin, HalfCoordinates,
        HalfError, HalfMessage, Registration,
    },
};
use tokio::time::{Instant, sleep};

/// What the tap noted; all clones share it.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<Notes>>);

#[derive(Default)]
struct Notes {
    lose: HashSet<String>,
    /// The message id of each half, by RocketMQ's unique key.
    messages: HashMap<String, String>,
    questions: HashMap<String, u32>,
    /// How the half of a message was ended, once the broker acknowledged it.
    ends: HashMap<String, (End, EndOrigin)>,
}

impl Wire {
    /// The cluster, seen through this tap.
    pub fn tap(&self, cluster: RocketMq) -> impl Connector {
        Tapped { cluster, wire: self.clone() }
    }

    /// The sender's end of this message will not arrive.
    pub fn lose_end_of(&self, msg_id: &str) {
        self.notes().lose.insert(msg_id.to_owned());
    }

    /// How often the broker asked about this message.
    pub fn questions(&self, msg_id: &str) -> u32 {
        self.notes().questions.get(msg_id).copied().unwrap_or(0)
    }

    /// How the half of this message was ended, and by whom, as soon as the broker has acknowledged it.
    pub async fn end_of(&self, msg_id: &str, limit: Duration) -> Result<(End, EndOrigin), crate::Error> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(end) = self.notes().ends.get(msg_id) {
                return Ok(*end);
            }
            if Instant::now() > deadline {
                return Err(format!("the half message of {msg_id} was not ended within {limit:?}").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_question(&self, check: &CheckBack) {
        let Some(identity) = &check.identity else { return };
        let notes = &mut *self.notes();
        notes.messages.insert(check.half.unique_key.clone(), identity.msg_id.clone());
        *notes.questions.entry(identity.msg_id.clone()).or_default() += 1;
    }
}

struct Tapped {
    cluster: RocketMq,
    wire: Wire,
}

#[async_trait]
impl Connector for Tapped {
    fn group(&self) -> &str {
        Connector::group(&self.cluster)
    }

    fn validate(&self) -> Result<(), BrokerError> {
        Connector::validate(&self.cluster)
    }

    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError> {
        let (checks, mut questions) = CheckSink::bounded(1_000);
        let (wire, sdk) = (self.wire.clone(), registration.checks);
        tokio::spawn(async move {
            while let Some(check) = questions.recv().await {
                wire.note_question(&check);
                // Without room it is lost, and the broker asks again.
                let _ = sdk.offer(check);
            }
        });
        let cluster: Box<dyn Connector> = Box::new(self.cluster);
        let broker = cluster.connect(Registration { topics: registration.topics, checks }).await?;
        Ok(Arc::new(TappedBroker { broker, wire: self.wire }))
    }
}

struct TappedBroker {
    broker: Arc<dyn Broker>,
    wire: Wire,
}

#[async_trait]
impl Broker for TappedBroker {
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError> {
        self.broker.settings().await
    }

    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        let msg_id = message.msg_id.clone();
        let half = self.broker.send_half(message).await?;
        self.wire.notes().messages.insert(half.unique_key.clone(), msg_id);
        Ok(half)
    }

    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        let msg_id = self.wire.notes().messages.get(&half.unique_key).cloned().unwrap_or_default();
        if origin == EndOrigin::Sender && self.wire.notes().lose.contains(&msg_id) {
            return Err(BrokerError::message("lost on purpose"));
        }
        self.broker.end(half, end, origin).await?;
        self.wire.notes().ends.insert(msg_id, (end, origin));
        Ok(())
    }

    async fn shutdown(&self) {
        self.broker.shutdown().await;
    }
}
