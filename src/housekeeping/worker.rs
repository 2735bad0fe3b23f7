//! The loop of housekeeping.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::Missing;
use crate::{
    counters::Counting,
    store::{Store, StoreError, SupportedDatabase},
};

/// Rows of one transaction: its locks are held for milliseconds.
const BATCH: usize = 500;
/// Finished rows are in nobody's way; looking for them is not urgent.
const PURGE_EVERY: u32 = 60;

/// How often housekeeping looks.
#[derive(Clone, Debug)]
pub(crate) struct Housekeeping {
    pub interval: Duration,
}

impl Default for Housekeeping {
    fn default() -> Self {
        // An attempt that died keeps its message id in flight until it is found.
        Self { interval: Duration::from_secs(1) }
    }
}

impl Housekeeping {
    pub fn check(&self) -> Result<(), String> {
        if self.interval.is_zero() {
            return Err("housekeeping_interval is zero; give it a positive duration".into());
        }
        Ok(())
    }

    pub fn worker<DB: SupportedDatabase>(
        &self,
        store: Arc<Store<DB>>,
        counting: Arc<Counting>,
        missing: Missing,
        retention: Duration,
    ) -> Worker<DB> {
        Worker { store, counting, missing, retention, interval: self.interval }
    }
}

pub(crate) struct Worker<DB: SupportedDatabase> {
    store: Arc<Store<DB>>,
    counting: Arc<Counting>,
    missing: Missing,
    retention: Duration,
    interval: Duration,
}

/// Runs housekeeping until `stop`. A round that has begun is finished.
pub(crate) fn spawn<DB: SupportedDatabase>(worker: Worker<DB>, stop: CancellationToken) {
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(worker.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0_u32;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            let purge = round.is_multiple_of(PURGE_EVERY);
            round = round.wrapping_add(1);
            if let Err(error) = worker.round(purge).await {
                Counting::add(&worker.counting.housekeeping_failed, 1);
                tracing::warn!(error = &error as &dyn std::error::Error, "housekeeping goes on with its next round");
            }
        }
    });
}

impl<DB: SupportedDatabase> Worker<DB> {
    async fn round(&self, purge: bool) -> Result<(), StoreError> {
        self.settle().instrument(tracing::debug_span!("settle")).await?;
        self.bury().await?;
        if purge {
            self.purge().await?;
        }
        Ok(())
    }

    async fn settle(&self) -> Result<(), StoreError> {
        loop {
            let settled = self.store.settle_expired(BATCH).await?;
            Counting::add(&self.counting.settled, settled.len());
            for row in &settled {
                tracing::info!(msg_id = row.msg_id, kind = row.kind, "an attempt that nobody works on was rolled back");
            }
            if settled.len() < BATCH {
                return Ok(());
            }
        }
    }

    async fn bury(&self) -> Result<(), StoreError> {
        let mut due = self.missing.take_due(Instant::now()).into_iter();
        while let Some(tombstone) = due.next() {
            if let Err(error) = self.store.bury(&tombstone).await {
                // Their next check-back starts their time anew.
                for half in std::iter::once(tombstone).chain(due) {
                    self.missing.note(half);
                }
                return Err(error);
            }
            Counting::add(&self.counting.buried, 1);
            tracing::warn!(msg_id = tombstone.msg_id, "a half message without a row was ruled out");
        }
        Ok(())
    }

    async fn purge(&self) -> Result<(), StoreError> {
        loop {
            let purged = self.store.purge(self.retention, BATCH).await?;
            Counting::add(&self.counting.purged, purged);
            if purged < BATCH {
                return Ok(());
            }
        }
    }
}
