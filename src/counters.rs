//! What happened inside since the start, for gauges and alarms.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::protocol::{Resolution, Unresolved};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A snapshot of what a producer did since it started.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
            /// Check-backs that could not be resolved, by reason.
            pub checks_unknown: Vec<(Unresolved, u64)>,
        }

        #[derive(Debug, Default)]
        pub(crate) struct Counting {
            $(pub $name: AtomicU64,)*
            checks_unknown: [AtomicU64; Unresolved::ALL.len()],
        }

        impl Counting {
            pub fn snapshot(&self) -> Counters {
                let unknown = Unresolved::ALL.iter().zip(&self.checks_unknown);
                Counters {
                    $($name: self.$name.load(Relaxed),)*
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
    /// Committed messages whose end the broker has not acknowledged to this producer.
    unconfirmed,
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

    pub fn subtract(counter: &AtomicU64, count: usize) {
        counter.fetch_sub(count as u64, Relaxed);
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
