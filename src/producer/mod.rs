//! The producer: what a service calls.

mod builder;
mod claim;
mod connections;
mod core;
mod deadline;
mod listener;
mod local_transaction;
mod send;
mod shutdown;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::Pool;
use tokio::sync::OnceCell;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::Instrument;

use self::{
    core::Core,
    listener::{Closure, Work},
};
use crate::{
    counters::Counters,
    error::{SendError, StatusError},
    message::{BoxError, TransactionMessage},
    protocol::State,
    receipt::{Confirmation, Receipt, Status},
    store::SupportedDatabase,
    tx::Tx,
};
pub use builder::Builder;
pub use listener::TransactionListener;
pub use shutdown::ShutdownReport;

/// Sends messages that are delivered if and only if their business rows commit.
///
/// Cheap to clone; all clones are one producer. Call [`shutdown`](Self::shutdown) before the process ends. Dropping the
/// last clone without it blocks nothing and loses nothing: what was under way goes on while the runtime lives, and the
/// rest is resolved by the other instances of the group, or after the restart.
pub struct TransactionProducer<DB: SupportedDatabase> {
    core: Arc<Core<DB>>,
    background: Arc<Background>,
}

/// What ends with the last clone.
struct Background {
    stop: CancellationToken,
    report: OnceCell<ShutdownReport>,
    /// Stops check-backs and housekeeping when the producer is dropped.
    _stop_on_drop: DropGuard,
}

impl<DB: SupportedDatabase> Clone for TransactionProducer<DB> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), background: Arc::clone(&self.background) }
    }
}

impl<DB: SupportedDatabase> fmt::Debug for TransactionProducer<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionProducer").field("group", &self.core.group).finish_non_exhaustive()
    }
}

impl<DB: SupportedDatabase> TransactionProducer<DB> {
    /// Starts to describe a producer whose local transactions run on `pool`, the service's own.
    ///
    /// Two settings of the pool matter: `max_connections` bounds how many local transactions run at once, and
    /// `test_before_acquire(false)` saves a round trip for each of them. The SDK opens four more connections of its own to
    /// the same database.
    pub fn builder(pool: Pool<DB>) -> Builder<DB> {
        Builder::new(pool)
    }

    /// Sends a message together with the business rows that its listener's `execute` writes.
    ///
    /// `Ok` means that they are committed and that the message will be delivered, at least once, whatever crashes now;
    /// also when an earlier send of the same message id had committed it, see
    /// [`Receipt::already_committed`]. The call runs in a task of its own: dropping the future does not stop it.
    ///
    /// # Errors
    ///
    /// [`SendError`], whose variants say what happened to the business rows.
    pub async fn send<M: TransactionMessage>(&self, message: M) -> Result<Receipt, SendError> {
        let listener = self.core.kinds.listener_of::<M>().map_err(SendError::Invalid)?;
        self.run(message, listener).await.map(|(receipt, _)| receipt)
    }

    /// Sends a message together with the business rows that `execute` writes, and returns what it returned.
    ///
    /// The value is `None` when an earlier send of the same message id had committed it, since `execute` did not run.
    /// The message type needs no listener, but must be known to the builder (`.message::<M>()`). Otherwise as
    /// [`send`](Self::send).
    ///
    /// # Errors
    ///
    /// [`SendError`], whose variants say what happened to the business rows.
    pub async fn send_with<M, F, T, E>(&self, message: M, execute: F) -> Result<(Receipt, Option<T>), SendError>
    where
        M: TransactionMessage,
        F: for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a M) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        self.run(message, Closure::new(execute)).await
    }

    async fn run<M, W>(&self, message: M, work: W) -> Result<(Receipt, Option<W::Value>), SendError>
    where
        M: TransactionMessage,
        W: Work<DB, M>,
    {
        // Before the look at `closing`: shutdown waits for whoever did not see it.
        let task = self.core.tasks.token();
        if self.core.closing.load(Ordering::SeqCst) {
            return Err(SendError::ShuttingDown);
        }
        let msg_id = message.msg_id();
        let span = tracing::info_span!("send", msg_id = msg_id.as_str(), kind = M::KIND);
        let core = Arc::clone(&self.core);
        let sending = tokio::spawn(
            async move {
                let _task = task;
                send::send(core, message, work).await
            }
            .instrument(span),
        );
        // The task fails only with the runtime, or by a defect after which nothing may be claimed to be known.
        sending.await.unwrap_or_else(|error| {
            Err(SendError::InDoubt { msg_id: msg_id.as_str().to_owned(), source: Some(error.into()) })
        })
    }

    /// The state of a message id, from the primary.
    ///
    /// # Errors
    ///
    /// [`StatusError`] when the database cannot be asked, or has a state that this version does not know.
    pub async fn status(&self, msg_id: &str) -> Result<Status, StatusError> {
        let failed = |source| StatusError { msg_id: msg_id.to_owned(), source };
        let rows = self.core.store.read([msg_id]).await.map_err(|error| failed(error.into()))?;
        let seen = rows.into_iter().next();
        let on_primary = match &seen {
            Some(seen) => seen.on_primary,
            None => self.core.store.is_primary().await.map_err(|error| failed(error.into()))?,
        };
        if !on_primary {
            return Err(failed("the database is a read-only replica by now, which may be behind".into()));
        }
        let Some(seen) = seen else { return Ok(Status::NotFound) };
        Ok(match seen.row.state.map_err(|error| failed(error.into()))? {
            State::Preparing => Status::Preparing,
            State::RolledBack => Status::RolledBack,
            State::Committed if seen.confirmed => Status::Committed(Confirmation::Confirmed),
            State::Committed => Status::Committed(Confirmation::Pending),
        })
    }

    /// What happened inside since the start, for gauges and alarms.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.core.counting.snapshot()
    }

    /// Stops: new sends are refused, open ones may finish within `deadline`, check-backs are answered meanwhile, and the
    /// producer leaves the cluster, which takes up to 5 s more when the servers do not answer. Returns what remained.
    ///
    /// Nothing that remained is lost: whoever is left of the group answers the check-backs, or this service after its
    /// restart. Later and concurrent calls return the same report.
    pub async fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let stop = || shutdown::run(Arc::clone(&self.core), self.background.stop.clone(), deadline);
        self.background.report.get_or_init(stop).await.clone()
    }
}
