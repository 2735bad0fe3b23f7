//! What a caller is told when a message was not sent.

use std::{fmt, time::Duration};

use crate::{
    broker::BrokerError,
    message::BoxError,
    protocol::TimingError,
    store::{OpenError, is_constraint},
};

/// Why `send` did not return a receipt. Each variant says what happened to the business rows; see
/// [`business_rows`](Self::business_rows).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The message cannot be sent as it is. Nothing was done.
    #[error("invalid message: {0}")]
    Invalid(String),

    /// The message could not be begun: no claim, no half message or no connection. The business rows were not touched;
    /// sending it again is safe. Right after a failed claim the answer may be [`InFlight`](Self::InFlight) until the
    /// settle deadline.
    #[error("message {msg_id} was not started: {reason}")]
    NotStarted {
        /// The message.
        msg_id: String,
        /// What failed.
        reason: &'static str,
        /// Why.
        #[source]
        source: BoxError,
    },

    /// The business rows are rolled back and the message is never delivered. It may be sent again. Only where `execute`
    /// ended the transaction itself ([`RollbackCause::EndedByExecute`]) may be stored what it ran after that.
    #[error("message {msg_id} was rolled back: {cause}")]
    RolledBack {
        /// The message.
        msg_id: String,
        /// Why.
        #[source]
        cause: RollbackCause,
    },

    /// `execute` ended the transaction itself (a raw `COMMIT`, or on MySQL and MariaDB a statement that commits
    /// implicitly). What it had committed by then stays committed, and the message is delivered with it; what came later
    /// may or may not be stored. Remove that statement from `execute`.
    #[error(
        "the execute of message {msg_id} ended its transaction itself: what it committed stays, and the message is \
         delivered; remove the COMMIT, DDL or START TRANSACTION from execute"
    )]
    Escaped {
        /// The message.
        msg_id: String,
    },

    /// The database did not say what became of the COMMIT, or of one that `execute` may have run itself. It resolves
    /// itself: `status` tells when, the message is delivered if and only if the rows are committed, and `execute` never
    /// runs again for this attempt.
    #[error("the database did not say whether message {msg_id} was committed; ask its status")]
    InDoubt {
        /// The message.
        msg_id: String,
        /// What went wrong, when it was more than silence.
        #[source]
        source: Option<BoxError>,
    },

    /// Another send of the same message id is under way, or died and was not settled yet. Nothing was done.
    #[error("message {msg_id} is in flight; ask its status, or send it again after the settle deadline")]
    InFlight {
        /// The message.
        msg_id: String,
    },

    /// The producer is shutting down. Nothing was done.
    #[error("the producer is shutting down; send the message through another instance")]
    ShuttingDown,
}

/// What happened to the business rows of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BusinessRows {
    /// `execute` did not run.
    Untouched,
    /// `execute` ran, or began to, and everything it did is undone.
    RolledBack,
    /// `execute` rolled its transaction back itself. What it ran after that may be stored, and the message is never
    /// delivered.
    Abandoned,
    /// `execute` committed them, all or in part, behind the SDK's back; the message is delivered.
    Escaped,
    /// Not known yet.
    InDoubt,
}

impl SendError {
    /// What happened to the business rows.
    #[must_use]
    pub fn business_rows(&self) -> BusinessRows {
        match self {
            Self::Invalid(_) | Self::NotStarted { .. } | Self::InFlight { .. } | Self::ShuttingDown => {
                BusinessRows::Untouched
            }
            Self::RolledBack { cause: RollbackCause::EndedByExecute, .. } => BusinessRows::Abandoned,
            Self::RolledBack { .. } => BusinessRows::RolledBack,
            Self::Escaped { .. } => BusinessRows::Escaped,
            Self::InDoubt { .. } => BusinessRows::InDoubt,
        }
    }

    /// Whether to send the same message again, here and without a change to it or to the code: the failure was the
    /// database's or the broker's. For [`InDoubt`](Self::InDoubt) that is safe as well: once it is decided, the answer is
    /// that it was committed before, or another attempt.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NotStarted { .. } | Self::InFlight { .. } | Self::InDoubt { .. } => true,
            Self::RolledBack { cause, .. } => match cause {
                RollbackCause::TimedOut(_) | RollbackCause::Settled => true,
                // A deferred constraint is checked by COMMIT.
                RollbackCause::Database(error) => !error.downcast_ref().is_some_and(is_constraint),
                _ => false,
            },
            Self::Invalid(_) | Self::Escaped { .. } | Self::ShuttingDown => false,
        }
    }

    /// The error that `execute` returned, when it is an `E`.
    #[must_use]
    pub fn execute_error<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::RolledBack { cause: RollbackCause::Execute(error), .. } => error.downcast_ref(),
            _ => None,
        }
    }
}

/// Why a local transaction was rolled back.
#[derive(Debug)]
#[non_exhaustive]
pub enum RollbackCause {
    /// `execute` returned this error.
    Execute(BoxError),
    /// `execute` panicked.
    Panicked,
    /// `execute` ran longer than the execute time-out.
    TimedOut(Duration),
    /// A statement failed, `execute` went on and returned `Ok`, and the database cannot commit what is left (any error on
    /// PostgreSQL; a deadlock or lock wait time-out on MySQL and MariaDB). Return the error, or use a savepoint.
    Swallowed,
    /// `execute` rolled the transaction back itself. The database runs, and commits, each statement after that alone.
    EndedByExecute,
    /// The attempt had waited so long that it was settled before its transaction began.
    Settled,
    /// The database refused BEGIN, the SDK's own statement or COMMIT.
    Database(BoxError),
}

impl fmt::Display for RollbackCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Execute(_) => f.write_str("execute failed"),
            Self::Panicked => f.write_str("execute panicked"),
            Self::TimedOut(timeout) => write!(f, "execute did not finish within {timeout:?}"),
            Self::Swallowed => f.write_str(
                "a statement failed, execute returned Ok all the same, and the database cannot commit the rest; \
                 return the error or use a savepoint",
            ),
            Self::EndedByExecute => f.write_str("execute rolled the transaction back itself"),
            Self::Settled => f.write_str(
                "it waited past the settle deadline before its transaction began; raise settle_deadline or the pool's size",
            ),
            Self::Database(_) => f.write_str("the database refused the transaction"),
        }
    }
}

impl std::error::Error for RollbackCause {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Execute(error) | Self::Database(error) => Some(&**error),
            _ => None,
        }
    }
}

/// Why a producer did not start. Nothing was sent; the text names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A setting is wrong.
    #[error("invalid setting: {0}")]
    Invalid(String),
    /// Times that do not fit each other or the broker's.
    #[error("the time settings do not fit")]
    Timing(#[from] TimingError),
    /// The database cannot be used.
    #[error("the database cannot be used")]
    Database(#[from] OpenError),
    /// The broker cannot be used.
    #[error("the broker cannot be used")]
    Broker(#[from] BrokerError),
}

/// The database could not be asked for a message's status.
#[derive(Debug, thiserror::Error)]
#[error("could not read the status of message {msg_id}")]
pub struct StatusError {
    pub(crate) msg_id: String,
    #[source]
    pub(crate) source: BoxError,
}
