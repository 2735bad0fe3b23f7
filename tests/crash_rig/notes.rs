//! What happened, counted, and what the producers were promised.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::report::{Outcome, Report};

#[derive(Default)]
pub struct Notes(Mutex<Noted>);

#[derive(Clone, Default)]
pub struct Noted {
    /// Processes and servers that died, by how.
    pub kills: BTreeMap<String, u64>,
    /// Everything else that was done to them.
    pub others: BTreeMap<String, u64>,
    /// What `send` came back with.
    pub outcomes: BTreeMap<Outcome, u64>,
    /// Messages whose `send` returned a receipt.
    pub accepted: BTreeSet<String>,
    /// What must not happen, whatever dies.
    pub defects: Vec<String>,
}

impl Notes {
    pub fn kill(&self, how: impl Into<String>) {
        *self.lock().kills.entry(how.into()).or_default() += 1;
    }

    pub fn other(&self, what: impl Into<String>) {
        *self.lock().others.entry(what.into()).or_default() += 1;
    }

    pub fn defect(&self, what: String) {
        eprintln!("defect: {what}");
        self.lock().defects.push(what);
    }

    /// Takes in what process `number` said.
    pub fn take(&self, number: i64, report: Report) {
        match report {
            Report::Started => self.other("producers started"),
            Report::NotStarted { .. } => self.other("producers that could not start"),
            Report::Dies { at } => self.kill(format!("SIGKILL {at:?}")),
            Report::Panicked { message } => self.defect(format!("process {number} panicked: {message}")),
            Report::Sent { id, outcome, error } => {
                *self.lock().outcomes.entry(outcome).or_default() += 1;
                match outcome {
                    Outcome::Committed | Outcome::AlreadyCommitted => drop(self.lock().accepted.insert(id)),
                    Outcome::Hung => self.defect(format!("process {number}: the send of {id} never returned")),
                    Outcome::Other => self.defect(format!("process {number}: the send of {id} failed: {error:?}")),
                    Outcome::NotStarted | Outcome::RolledBack | Outcome::InDoubt | Outcome::InFlight => {}
                }
            }
        }
    }

    pub fn all(&self) -> Noted {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `a: 1, b: 2`
pub fn in_words<K: std::fmt::Display>(counts: impl IntoIterator<Item = (K, u64)>) -> String {
    counts.into_iter().map(|(what, count)| format!("{what}: {count}")).collect::<Vec<_>>().join(", ")
}
