//! The states of a message id and their legal moves.
//!
//! ```text
//!            claim                    local transaction
//! (no row) ─────────▶ PREPARING ─────────────────────────▶ COMMITTED
//!     │                 ▲   │
//!     │ tombstone       │   │ failure, settler
//!     │        new token│   ▼
//!     └──────────────▶ ROLLED_BACK
//! ```
//!
//! Every move is a compare-and-swap on (token, state) in the database; COMMITTED is final for the message id,
//! ROLLED_BACK is final for its token.

use std::fmt;

/// The state of a message id, as readable text in `tx_log.state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// An attempt was claimed; its local transaction has not committed.
    Preparing,
    /// The business rows are committed.
    Committed,
    /// The attempt can never commit any more.
    RolledBack,
}

impl State {
    /// The text in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Preparing => "PREPARING",
            Self::Committed => "COMMITTED",
            Self::RolledBack => "ROLLED_BACK",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text in `tx_log.state` that this version does not know. It decides nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("unknown state {0:?} in tx_log")]
pub struct UnknownState(pub String);

impl std::str::FromStr for State {
    type Err = UnknownState;

    fn from_str(text: &str) -> Result<Self, UnknownState> {
        match text {
            "PREPARING" => Ok(Self::Preparing),
            "COMMITTED" => Ok(Self::Committed),
            "ROLLED_BACK" => Ok(Self::RolledBack),
            other => Err(UnknownState(other.to_owned())),
        }
    }
}

/// What a row of `tx_log` says about its message id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LogRow {
    /// The token of the attempt that the row belongs to.
    pub token: String,
    /// Its state.
    pub state: Result<State, UnknownState>,
}

/// What an attempt that wants to claim a message id is told when it meets a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The message id is committed: nothing runs again.
    AlreadyCommitted,
    /// Another attempt is under way, or died and was not settled yet.
    InFlight,
    /// The earlier attempt was rolled back: PREPARING may replace it, by compare-and-swap on its token.
    MayReplace {
        /// The token to compare with.
        rolled_back_token: String,
    },
    /// The row has a state that this version does not know.
    Unreadable(UnknownState),
}

/// What becomes of a claim that meets `row`.
#[must_use]
pub fn answer_claim(row: LogRow) -> ClaimAnswer {
    match row.state {
        Ok(State::Committed) => ClaimAnswer::AlreadyCommitted,
        Ok(State::Preparing) => ClaimAnswer::InFlight,
        Ok(State::RolledBack) => ClaimAnswer::MayReplace { rolled_back_token: row.token },
        Err(unknown) => ClaimAnswer::Unreadable(unknown),
    }
}
