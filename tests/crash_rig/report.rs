//! What a producer process tells the driver, a line of JSON each on its standard output.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// Where a process kills itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Point {
    AfterClaim,
    AfterHalf,
    InsideExecute,
    AfterCommitBeforeEnd,
    AfterEndBeforeConfirmation,
}

impl Point {
    pub const ALL: [Self; 5] = [
        Self::AfterClaim,
        Self::AfterHalf,
        Self::InsideExecute,
        Self::AfterCommitBeforeEnd,
        Self::AfterEndBeforeConfirmation,
    ];
}

/// What `send` came back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Outcome {
    Committed,
    AlreadyCommitted,
    NotStarted,
    RolledBack,
    InDoubt,
    InFlight,
    /// Not one of those that the rig expects.
    Other,
    /// It did not come back.
    Hung,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    Started,
    /// Its producer could not start, as a service's could not while a server is away.
    NotStarted {
        error: String,
    },
    /// It kills itself now.
    Dies {
        at: Point,
    },
    Sent {
        id: String,
        outcome: Outcome,
        error: Option<String>,
    },
    Panicked {
        message: String,
    },
}

impl Report {
    /// Written at once and as a whole: the process may be killed right after it.
    pub fn tell(&self) {
        let line = format!("{}\n", serde_json::to_string(self).expect("a report"));
        // The driver is gone when this fails, and this process soon.
        let _ = std::io::stdout().lock().write_all(line.as_bytes());
    }
}
