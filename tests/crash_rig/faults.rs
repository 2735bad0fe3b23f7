//! What a proxy does to what passes through it.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::chance::Chance;

/// What happens to one request, statement or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It comes later, and perhaps after what was sent after it.
    Delay(Duration),
    /// It never comes, and the connection stays.
    Drop,
    /// It never comes, and the connection is cut.
    Cut,
    /// It comes twice.
    Duplicate,
    /// It comes, and its answer does not: the connection is cut instead.
    LoseAnswer,
    /// The sender's connection is cut, and it comes after that.
    Late(Duration),
}

/// Beyond the requests' and statements' own time-outs at its longest.
const DELAY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(4));
/// One in so many of what passes is struck.
const STRUCK_ONE_IN: u64 = 40;

/// The faults of one proxy.
pub struct Faults {
    chance: Mutex<Chance>,
    active: AtomicBool,
    counts: Mutex<BTreeMap<String, u64>>,
    /// Ends every connection.
    connections: Mutex<CancellationToken>,
}

impl Faults {
    pub fn new(chance: Chance) -> Self {
        Self {
            chance: Mutex::new(chance),
            active: AtomicBool::new(false),
            counts: Mutex::default(),
            connections: Mutex::default(),
        }
    }

    /// Begins, or ends, to strike.
    pub fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::SeqCst);
    }

    /// What happens to the next `what`: nothing, mostly, or one of `kinds`.
    pub fn strike(&self, what: &str, kinds: &[Kind]) -> Option<Fault> {
        if !self.active.load(Ordering::SeqCst) {
            return None;
        }
        let mut chance = lock(&self.chance);
        if !chance.one_in(STRUCK_ONE_IN) {
            return None;
        }
        let kind = chance.pick(kinds);
        let delay = chance.between(DELAY.0, DELAY.1);
        drop(chance);
        *lock(&self.counts).entry(format!("{what} {kind:?}")).or_default() += 1;
        Some(match kind {
            Kind::Delayed => Fault::Delay(delay),
            Kind::Dropped => Fault::Drop,
            Kind::Cut => Fault::Cut,
            Kind::Duplicated => Fault::Duplicate,
            Kind::Unanswered => Fault::LoseAnswer,
            Kind::Late => Fault::Late(delay),
        })
    }

    /// What a connection waits for beside its own end.
    pub fn connection(&self) -> CancellationToken {
        lock(&self.connections).child_token()
    }

    pub fn cut_all(&self) {
        std::mem::take(&mut *lock(&self.connections)).cancel();
    }

    /// How often each fault struck.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        lock(&self.counts).clone()
    }
}

/// The kinds of [`Fault`], in the words of the counts.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Delayed,
    Dropped,
    Cut,
    Duplicated,
    Unanswered,
    Late,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
