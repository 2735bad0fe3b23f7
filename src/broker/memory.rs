//! A broker in memory, for tests: the SDK's own, and those of services that use it.
//!
//! It keeps halves and delivers committed ones as RocketMQ does: at least once, a repeated COMMIT again. It asks only
//! when told to, and fails as told.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{
    Broker, BrokerError, BrokerSettings, CheckBack, Connector, End, EndOrigin, HalfCoordinates, HalfError,
    HalfIdentity, HalfMessage, Registration,
};

/// A cluster of one broker. Clones are the same broker.
#[derive(Clone, Default)]
pub struct MemoryBroker {
    state: Arc<Mutex<State>>,
}

/// How a request to the broker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not arrive.
    Lost,
    /// It arrives, and its answer does not.
    AnswerLost,
    /// The half is stored, but not as safely as asked (`FLUSH_DISK_TIMEOUT`). For halves only.
    NotSafe,
}

#[derive(Default)]
struct State {
    next_offset: u64,
    halves: BTreeMap<u64, HalfMessage>,
    delivered: Vec<HalfMessage>,
    ended: Vec<(String, End, EndOrigin)>,
    half_faults: VecDeque<Option<Fault>>,
    end_faults: VecDeque<Option<Fault>>,
    producers: Vec<(u64, Registration)>,
    next_producer: u64,
}

impl MemoryBroker {
    /// A broker without messages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Settings that connect a producer of `group` to this broker.
    pub fn connector(&self, group: &str) -> impl Connector + use<> {
        MemoryConnector { broker: self.clone(), group: group.to_owned() }
    }

    /// Everything that consumers would have seen, in order, duplicates included.
    #[must_use]
    pub fn delivered(&self) -> Vec<HalfMessage> {
        self.lock().delivered.clone()
    }

    /// The ids of [`delivered`](Self::delivered).
    #[must_use]
    pub fn delivered_ids(&self) -> Vec<String> {
        self.lock().delivered.iter().map(|message| message.msg_id.clone()).collect()
    }

    /// The halves that were not ended.
    #[must_use]
    pub fn open_halves(&self) -> Vec<HalfMessage> {
        self.lock().halves.values().cloned().collect()
    }

    /// Every end that arrived: the message id, how it ended, and who said so.
    #[must_use]
    pub fn ended(&self) -> Vec<(String, End, EndOrigin)> {
        self.lock().ended.clone()
    }

    /// Lets the next halves fail, one fault each; `None` lets one pass.
    pub fn fail_halves(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().half_faults.extend(faults);
    }

    /// Lets the next ends fail, one fault each; `None` lets one pass.
    pub fn fail_ends(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.lock().end_faults.extend(faults);
    }

    /// Stores a half as another producer would, and leaves it open.
    pub fn plant(&self, half: HalfMessage) {
        let mut state = self.lock();
        state.store(half);
    }

    /// Asks the producers about every open half, as one round of the broker's checks. Each half is renewed at a new
    /// offset, and its question goes to the producers in turn. Returns how many were asked.
    pub fn check_back(&self) -> usize {
        let mut state = self.lock();
        let halves: Vec<_> = std::mem::take(&mut state.halves).into_values().collect();
        let asked = halves.len();
        for (turn, half) in halves.into_iter().enumerate() {
            let offset = state.store(half.clone());
            if !state.producers.is_empty() {
                let (_, producer) = &state.producers[turn % state.producers.len()];
                // A full queue is asked again in the next round.
                let _ =
                    producer.checks.offer(CheckBack { half: coordinates(&half, offset), identity: identity(&half) });
            }
        }
        asked
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn store(&mut self, half: HalfMessage) -> u64 {
        let offset = self.next_offset;
        self.next_offset += 1;
        self.halves.insert(offset, half);
        offset
    }
}

fn coordinates(half: &HalfMessage, offset: u64) -> HalfCoordinates {
    HalfCoordinates {
        topic: half.topic.clone(),
        broker_name: "memory".into(),
        store_host: None,
        commit_log_offset: offset,
        queue_offset: offset,
        unique_key: half.token.clone(),
        transaction_id: half.token.clone(),
    }
}

/// Another program's half has no token.
fn identity(half: &HalfMessage) -> Option<HalfIdentity> {
    (!half.token.is_empty()).then(|| HalfIdentity {
        msg_id: half.msg_id.clone(),
        token: half.token.clone(),
        kind: half.kind.clone(),
        scope: half.scope.clone(),
    })
}

struct MemoryConnector {
    broker: MemoryBroker,
    group: String,
}

#[async_trait]
impl Connector for MemoryConnector {
    fn group(&self) -> &str {
        &self.group
    }

    fn validate(&self) -> Result<(), BrokerError> {
        Ok(())
    }

    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError> {
        let mut state = self.broker.lock();
        let id = state.next_producer;
        state.next_producer += 1;
        state.producers.push((id, registration));
        drop(state);
        Ok(Arc::new(Connected { broker: self.broker, id, left: AtomicBool::new(false) }))
    }
}

struct Connected {
    broker: MemoryBroker,
    id: u64,
    left: AtomicBool,
}

impl Connected {
    fn leave(&self) {
        self.left.store(true, SeqCst);
        self.broker.lock().producers.retain(|(id, _)| *id != self.id);
    }
}

/// What a producer is told that has left.
fn has_left() -> BrokerError {
    BrokerError::message("this producer has left the broker in memory")
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.leave();
    }
}

#[async_trait]
impl Broker for Connected {
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError> {
        // RocketMQ's defaults.
        Ok(vec![BrokerSettings {
            broker_name: "memory".into(),
            transaction_timeout: Duration::from_secs(6),
            check_interval: Duration::from_secs(30),
            check_max: 15,
            op_batch_interval: Some(Duration::from_secs(3)),
            file_reserved: Some(Duration::from_secs(72 * 3600)),
            max_message_size: Some(4 * 1024 * 1024),
        }])
    }

    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        if self.left.load(SeqCst) {
            return Err(HalfError::Refused(has_left()));
        }
        let mut state = self.broker.lock();
        let fault = state.half_faults.pop_front().flatten();
        let lost = || HalfError::Unknown(BrokerError::message("the connection to the broker in memory was cut"));
        if fault == Some(Fault::Lost) {
            return Err(lost());
        }
        let offset = state.store(message.clone());
        let half = coordinates(&message, offset);
        match fault {
            None | Some(Fault::Lost) => Ok(half),
            Some(Fault::AnswerLost) => Err(lost()),
            Some(Fault::NotSafe) => {
                Err(HalfError::NotSafe { status: "FLUSH_DISK_TIMEOUT".into(), half: Box::new(half) })
            }
        }
    }

    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        if self.left.load(SeqCst) {
            return Err(has_left());
        }
        let mut state = self.broker.lock();
        let fault = state.end_faults.pop_front().flatten();
        if fault != Some(Fault::Lost) {
            let Some(message) = state.halves.remove(&half.commit_log_offset) else {
                return Err(BrokerError::message("the broker in memory holds no half at these coordinates"));
            };
            state.ended.push((message.msg_id.clone(), end, origin));
            if end == End::Commit {
                state.delivered.push(message);
            }
        }
        match fault {
            None => Ok(()),
            Some(_) => Err(BrokerError::message("the connection to the broker in memory was cut")),
        }
    }

    async fn shutdown(&self) {
        self.leave();
    }
}
