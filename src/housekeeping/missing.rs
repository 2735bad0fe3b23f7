//! Halves that the broker asked about and that have no row.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use crate::store::Tombstone;

/// Beyond it new ones wait for a later check: a claim that is lost is rare, so many mean a wrong database.
const CAPACITY: usize = 100_000;

/// Remembers since when each such half has been asked about. Its claim may still come until it is old enough to bury.
#[derive(Clone, Debug)]
pub(crate) struct Missing {
    since: Arc<Mutex<HashMap<Tombstone, Instant>>>,
    patience: Duration,
}

impl Missing {
    pub fn new(patience: Duration) -> Self {
        Self { since: Arc::default(), patience }
    }

    /// The broker asked about this half, and its message id has no row.
    pub fn note(&self, half: Tombstone) {
        let mut since = self.since.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if since.len() < CAPACITY {
            since.entry(half).or_insert_with(Instant::now);
        }
    }

    /// Takes those that were first noted longer than the patience ago.
    pub fn take_due(&self, now: Instant) -> Vec<Tombstone> {
        let mut since = self.since.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_due = |noted: &Instant| now.saturating_duration_since(*noted) >= self.patience;
        since.extract_if(|_, noted| is_due(noted)).map(|(half, _)| half).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_is_due_once_after_the_patience() {
        let missing = Missing::new(Duration::from_secs(60));
        let half = |token: &str| Tombstone {
            msg_id: "m".into(),
            token: token.into(),
            kind: "k".into(),
            producer_group: "g".into(),
            topic: "t".into(),
        };
        missing.note(half("1"));
        missing.note(half("1"));
        missing.note(half("2"));
        let start = Instant::now();
        assert!(missing.take_due(start + Duration::from_secs(59)).is_empty());
        assert_eq!(missing.take_due(start + Duration::from_secs(61)).len(), 2);
        assert!(missing.take_due(start + Duration::from_secs(99)).is_empty());
    }
}
