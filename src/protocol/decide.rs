//! The answer to a check-back, from nothing but the row that a primary showed.

use super::state::{LogRow, State};

/// The answer to a check-back. There is no default: whatever is not proven is [`Resolution::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// The attempt's business rows are committed.
    Commit,
    /// The attempt can never commit any more.
    Rollback,
    /// Not decided yet, or not provable here: the broker asks again.
    Unknown(Unresolved),
}

/// Why a check-back could not be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unresolved {
    /// This attempt is PREPARING: it still runs, or the settler will decide.
    Preparing,
    /// Another attempt is PREPARING. A database crash may still lose that claim, and this attempt's own claim may
    /// still be on its way and then win.
    OtherAttemptPreparing,
    /// No row: the claim is under way, was lost, or the row was purged too early. A tombstone ends it.
    NoRow,
    /// The row's state is not one that this version knows.
    UnknownState,
    /// The half was made by another program.
    NoIdentity,
    /// The half belongs to another database. Nothing was read.
    ForeignScope,
    /// The row could not be read.
    DatabaseError,
    /// The row was read on a replica, which may lag behind.
    NotPrimary,
}

impl Unresolved {
    /// Every reason, in the order of their counters.
    pub(crate) const ALL: [Self; 8] = [
        Self::Preparing,
        Self::OtherAttemptPreparing,
        Self::NoRow,
        Self::UnknownState,
        Self::NoIdentity,
        Self::ForeignScope,
        Self::DatabaseError,
        Self::NotPrimary,
    ];
}

/// Answers the question about the attempt with `asked_token`, given the row of its message id on the primary.
///
/// Final rows are durable, so another token that is final proves that this attempt can never commit.
#[must_use]
pub fn resolve(asked_token: &str, row: Option<&LogRow>) -> Resolution {
    let Some(row) = row else { return Resolution::Unknown(Unresolved::NoRow) };
    match (row.token == asked_token, &row.state) {
        (_, Err(_)) => Resolution::Unknown(Unresolved::UnknownState),
        (true, Ok(State::Committed)) => Resolution::Commit,
        (true, Ok(State::RolledBack)) => Resolution::Rollback,
        (true, Ok(State::Preparing)) => Resolution::Unknown(Unresolved::Preparing),
        (false, Ok(State::Committed | State::RolledBack)) => Resolution::Rollback,
        (false, Ok(State::Preparing)) => Resolution::Unknown(Unresolved::OtherAttemptPreparing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::UnknownState;

    fn row(token: &str, state: State) -> LogRow {
        LogRow { token: token.into(), state: Ok(state) }
    }

    #[test]
    fn every_line_of_the_table() {
        for (row, expected) in [
            (Some(row("mine", State::Committed)), Resolution::Commit),
            (Some(row("mine", State::RolledBack)), Resolution::Rollback),
            (Some(row("mine", State::Preparing)), Resolution::Unknown(Unresolved::Preparing)),
            (Some(row("other", State::Committed)), Resolution::Rollback),
            (Some(row("other", State::RolledBack)), Resolution::Rollback),
            (Some(row("other", State::Preparing)), Resolution::Unknown(Unresolved::OtherAttemptPreparing)),
            (None, Resolution::Unknown(Unresolved::NoRow)),
        ] {
            assert_eq!(resolve("mine", row.as_ref()), expected, "{row:?}");
        }
    }

    #[test]
    fn a_state_from_the_future_decides_nothing() {
        for token in ["mine", "other"] {
            let row = LogRow { token: token.into(), state: Err(UnknownState("PARKED".into())) };
            assert_eq!(resolve("mine", Some(&row)), Resolution::Unknown(Unresolved::UnknownState));
        }
    }
}
