//! The orderly end of a producer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{core::Core, deadline};
use crate::store::SupportedDatabase;

/// What was left when a producer stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Sends and ends that were still under way at the deadline. Sends go on while the runtime lives; their messages are
    /// resolved by check-back.
    pub unfinished: usize,
    /// Committed messages whose end the broker has not acknowledged: they are delivered after a check-back.
    pub unconfirmed: u64,
}

impl ShutdownReport {
    /// Whether nothing was left.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unfinished == 0 && self.unconfirmed == 0
    }
}

/// What the last confirmations are given when the deadline has passed.
const LAST_WRITES: Duration = Duration::from_millis(500);

/// Runs in a task of its own, so that a caller who goes away does not leave it half done.
pub(super) async fn run<DB: SupportedDatabase>(
    core: Arc<Core<DB>>,
    stop: CancellationToken,
    limit: Duration,
) -> ShutdownReport {
    core.closing.store(true, Ordering::SeqCst);
    let stopping = tokio::spawn({
        let core = Arc::clone(&core);
        async move {
            core.tasks.close();
            let end = deadline::after(limit);
            let _ = timeout_at(end, core.tasks.wait()).await;
            let unfinished = core.tasks.len();
            // Confirmations that are not written cost a later look at their rows, and nothing else.
            let _ = timeout_at(end.max(Instant::now() + LAST_WRITES), core.confirmer.flush()).await;
            stop.cancel();
            core.broker.shutdown().await;
            if unfinished == 0 {
                core.store.close().await;
            }
            unfinished
        }
    });
    let unfinished = stopping.await.unwrap_or_else(|_| core.tasks.len());
    ShutdownReport { unfinished, unconfirmed: core.counting.snapshot().unconfirmed }
}
