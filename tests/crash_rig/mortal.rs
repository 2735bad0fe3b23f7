//! A broker adapter and a listener around the real ones, in which the process dies, stalls or fails.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use rocketmq_tx::{
    RocketMq, TransactionListener, Tx,
    broker::{
        Broker, BrokerError, BrokerSettings, Connector, End, EndOrigin, HalfCoordinates, HalfError, HalfMessage,
        Registration,
    },
};

use super::{
    chance::Chance,
    lifeline,
    report::{Point, Report},
    support::{Order, TestDatabase, order::OrderError},
};

/// How one process ends, if nobody kills it before, and what it has to suffer until then.
pub struct Fate {
    at: Point,
    /// How often messages still pass that point.
    passages: AtomicU64,
    /// From now on nothing happens any more.
    spared: AtomicBool,
    chance: Mutex<Chance>,
    /// Longer than this one a PREPARING row is settled.
    settle: Duration,
    execute_timeout: Duration,
    /// One in so many local transactions is slow; they are fewer where they keep all others out.
    slow_one_in: u64,
    /// The halves whose sender's end never leaves the process, by their unique key.
    without_end: Mutex<HashSet<String>>,
}

/// One in so many halves waits for its local transaction, mostly until others have settled the row.
const STALLED_ONE_IN: u64 = 30;
/// A process passes its point at most so often.
const PASSAGES_MAX: u64 = 250;

impl Fate {
    pub fn new(mut chance: Chance, settle: Duration, execute_timeout: Duration, slow_one_in: u64) -> Self {
        let (at, passages) = (chance.pick(&Point::ALL), 1 + chance.below(PASSAGES_MAX));
        Self {
            at,
            passages: passages.into(),
            spared: AtomicBool::new(false),
            chance: Mutex::new(chance),
            settle,
            execute_timeout,
            slow_one_in,
            without_end: Mutex::default(),
        }
    }

    pub fn spare(&self) {
        self.spared.store(true, Ordering::SeqCst);
    }

    /// Ends the process when this is its passage of its point.
    fn pass(&self, point: Point, id: &str) {
        if point == self.at && self.passages.fetch_sub(1, Ordering::SeqCst) == 1 && !self.spared() {
            eprintln!("{id} dies at {point:?}");
            Report::Dies { at: point }.tell();
            lifeline::die();
        }
    }

    fn spared(&self) -> bool {
        self.spared.load(Ordering::SeqCst)
    }

    fn draw<T>(&self, from: impl FnOnce(&mut Chance) -> T) -> T {
        from(&mut self.chance.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// As a process that gets no processor for a while, at a place where only the fence can tell.
    /// The end of every other such message is lost.
    async fn stall(&self, id: &str, half: &HalfCoordinates) {
        let (least, most) = (self.settle / 2, self.settle * 5 / 2);
        let stall =
            self.draw(|chance| chance.one_in(STALLED_ONE_IN).then(|| (chance.between(least, most), chance.one_in(2))));
        if let Some((stall, loses_its_end)) = stall.filter(|_| !self.spared()) {
            eprintln!("{id} stalls for {stall:?}");
            if loses_its_end {
                self.without_end().insert(half.unique_key.clone());
            }
            tokio::time::sleep(stall).await;
        }
    }

    fn without_end(&self) -> MutexGuard<'_, HashSet<String>> {
        self.without_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn be_slow(&self) {
        let most = self.execute_timeout + self.execute_timeout / 4;
        let slow = self
            .draw(|chance| chance.one_in(self.slow_one_in).then(|| chance.between(Duration::from_millis(100), most)));
        if let Some(slow) = slow.filter(|_| !self.spared()) {
            tokio::time::sleep(slow).await;
        }
    }
}

/// The real cluster.
pub struct Mortal {
    pub cluster: RocketMq,
    pub fate: Arc<Fate>,
}

#[async_trait]
impl Connector for Mortal {
    fn group(&self) -> &str {
        Connector::group(&self.cluster)
    }

    fn validate(&self) -> Result<(), BrokerError> {
        self.cluster.validate()
    }

    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError> {
        let broker = Box::new(self.cluster).connect(registration).await?;
        Ok(Arc::new(MortalBroker { broker, fate: self.fate }))
    }
}

struct MortalBroker {
    broker: Arc<dyn Broker>,
    fate: Arc<Fate>,
}

#[async_trait]
impl Broker for MortalBroker {
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError> {
        self.broker.settings().await
    }

    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        let (id, token) = (message.msg_id.clone(), message.token.clone());
        self.fate.pass(Point::AfterClaim, &id);
        let half = self.broker.send_half(message).await;
        match &half {
            Ok(half) => eprintln!("{id} {token} half {} at {}", half.unique_key, half.commit_log_offset),
            Err(error) => eprintln!("{id} {token} no half: {error}"),
        }
        let half = half?;
        self.fate.pass(Point::AfterHalf, &id);
        self.fate.stall(&id, &half).await;
        Ok(half)
    }

    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        let (key, at) = (&half.unique_key, half.commit_log_offset);
        let commits = end == End::Commit && origin == EndOrigin::Sender;
        if commits {
            self.fate.pass(Point::AfterCommitBeforeEnd, key);
        }
        let ended = if origin == EndOrigin::Sender && self.fate.without_end().remove(key) {
            Err(BrokerError::message("lost"))
        } else {
            self.broker.end(half, end, origin).await
        };
        eprintln!("{key} at {at} {end:?} by {origin:?}: {:?}", ended.as_ref().map_err(ToString::to_string));
        if commits && ended.is_ok() {
            self.fate.pass(Point::AfterEndBeforeConfirmation, key);
        }
        ended
    }

    async fn shutdown(&self) {
        self.broker.shutdown().await;
    }
}

/// Inserts the order; sometimes slowly, sometimes for the last time.
pub struct Worker(pub Arc<Fate>);

impl<DB: TestDatabase> TransactionListener<DB> for Worker {
    type Message = Order;
    type Error = OrderError;

    async fn execute(&self, tx: &mut Tx<'_, DB>, order: &Order) -> Result<(), OrderError> {
        DB::insert(tx, order.id).await?;
        self.0.pass(Point::InsideExecute, &format!("order-{}", order.id));
        self.0.be_slow().await;
        if order.fail { Err(OrderError::ToldTo) } else { Ok(()) }
    }
}
