//! What every instance does beside its sends: the settler, its tombstones, the purger.
//!
//! No leader: rows that another instance works on are locked, and skipped.

mod missing;
mod worker;

pub(crate) use missing::Missing;
pub(crate) use worker::{Housekeeping, spawn};
