//! What happened inside since the start, for gauges and alarms.

use std::{
    collections::HashSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::protocol::{Resolution, Unresolved};

/// Lost ends that are remembered one by one.
const LOST_ENDS: usize = 100_000;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of what a producer did since it started.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Committed messages of this producer whose end the broker has not acknowledged to it, now: a gauge.
            pub unconfirmed: u64,
            /// Check-backs that could not be resolved, by reason.
            pub checks_unknown: Vec<(Unresolved, u64)>,
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub $name: AtomicU64,)*
            checks_unknown: [AtomicU64; Unresolved::ALL.len()],
            ends_under_way: AtomicU64,
            ends_lost: Mutex<HashSet<String>>,
        }

        impl Counting {
            pub fn snapshot(&self) -> Counters {
                let unknown = Unresolved::ALL.iter().zip(&self.checks_unknown);
                Counters {
                    $($name: self.$name.load(Relaxed),)*
                    unconfirmed: self.unconfirmed(),
                    checks_unknown: unknown.map(|(reason, count)| (*reason, count.load(Relaxed))).collect(),
                }
            }
        }
    };
}

counters! {
    /// Messages whose business rows this producer committed.
    committed,
    /// Attempts that were rolled back.
    rolled_back,
    /// COMMITs whose outcome the database did not say in time.
    in_doubt,
    /// Ends that the broker did not acknowledge: it will be told by check-back.
    ends_failed,
    /// Check-backs answered with Commit.
    checks_committed,
    /// Check-backs answered with Rollback.
    checks_rolled_back,
    /// PREPARING rows that the settler of this instance rolled back.
    settled,
    /// Tombstones that this instance wrote.
    buried,
    /// Rows that the purger of this instance deleted.
    purged,
    /// Failures of housekeeping to reach the database.
    housekeeping_failed,
}

impl Counting {
    pub fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    /// The end of a committed message is on its way.
    pub fn end_begun(&self) {
        self.ends_under_way.fetch_add(1, Relaxed);
    }

    /// The broker acknowledged the sender's end of a committed message.
    pub fn end_acknowledged(&self) {
        self.ends_under_way.fetch_sub(1, Relaxed);
    }

    /// The sender's end of a committed message was lost. What another instance answers for it is not heard of here, so
    /// that the set is bounded.
    pub fn end_lost(&self, msg_id: String) {
        self.ends_under_way.fetch_sub(1, Relaxed);
        Self::add(&self.ends_failed, 1);
        let mut lost = self.ends_lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.len() < LOST_ENDS {
            lost.insert(msg_id);
        }
    }

    /// The broker acknowledged the answer to a check-back about a committed message.
    pub fn check_acknowledged(&self, msg_id: &str) {
        self.ends_lost.lock().unwrap_or_else(PoisonError::into_inner).remove(msg_id);
    }

    fn unconfirmed(&self) -> u64 {
        let lost = self.ends_lost.lock().unwrap_or_else(PoisonError::into_inner).len();
        self.ends_under_way.load(Relaxed) + lost as u64
    }

    pub fn check_answered(&self, resolution: &Resolution) {
        let counter = match resolution {
            Resolution::Commit => &self.checks_committed,
            Resolution::Rollback => &self.checks_rolled_back,
            Resolution::Unknown(reason) => {
                let position = Unresolved::ALL.iter().position(|known| known == reason);
                &self.checks_unknown[position.expect("ALL lists every reason")]
            }
        };
        counter.fetch_add(1, Relaxed);
    }
}
