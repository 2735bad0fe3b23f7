//! What happened in a process, in order; the same words for this one and for a child.

use std::{future::Future, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

/// Where a message can be made to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Point {
    /// The claim is written, and no half message was sent.
    Claimed,
    /// The broker has stored the half message, and nobody was told.
    HalfStored,
    /// The business rows are written in the local transaction.
    Executing,
    /// The local transaction has committed, or was rolled back, and the half message was not ended.
    Decided,
    /// The broker has acknowledged the end, and nobody was told.
    Ended,
}

/// Who ends a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum By {
    Sender,
    CheckBack,
}

/// One thing that happened to a message, or to the process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// The producer has started.
    Ready,
    /// A message waits where it was told to.
    Waits { id: String, at: Point },
    /// A broker holds a half message.
    Half { id: String, broker: String },
    /// A broker asked about it.
    Checked { id: String },
    /// It was ended, and whether the broker acknowledged that.
    Ended { id: String, commit: bool, by: By, acknowledged: bool },
    /// `send` came back: `None` for a receipt, else the error.
    Sent { id: String, error: Option<String> },
    /// The producer was shut down; what was left.
    Stopped { unfinished: usize, unconfirmed: u64 },
}

impl Event {
    /// A half of `id` was ended as told, and the broker acknowledged it.
    pub fn ends(&self, of: &str, with_commit: bool, who: By) -> bool {
        matches!(self, Self::Ended { id, commit, by, acknowledged: true }
            if id == of && *commit == with_commit && *by == who)
    }

    /// A broker asked about `of`.
    pub fn checks(&self, of: &str) -> bool {
        matches!(self, Self::Checked { id } if id == of)
    }
}

/// Longer than any story; only a failure waits for it.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A list of events that can be waited for.
#[derive(Clone, Debug)]
pub struct Log(Arc<watch::Sender<Vec<Event>>>);

impl Default for Log {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl Log {
    pub fn add(&self, event: Event) {
        self.0.send_modify(|events| events.push(event));
    }

    pub fn all(&self) -> Vec<Event> {
        self.0.borrow().clone()
    }

    pub fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.0.borrow().iter().filter(|event| wanted(event)).count()
    }

    /// Told of each event from now on.
    pub fn follow(&self) -> watch::Receiver<Vec<Event>> {
        self.0.subscribe()
    }

    /// Waits until `wanted` has happened `times` times; the test fails when it does not.
    pub async fn until(&self, what: &str, times: usize, wanted: impl Fn(&Event) -> bool) {
        let mut events = self.0.subscribe();
        let enough = |all: &Vec<Event>| all.iter().filter(|event| wanted(event)).count() >= times;
        in_time(what, async { drop(events.wait_for(enough).await.expect("the log is alive")) }, || {
            format!("{:#?}", self.all())
        })
        .await;
    }

    pub async fn until_it_waits(&self, of: &str, where_to: Point) {
        let what = format!("{of} at {where_to:?}");
        self.until(&what, 1, |event| matches!(event, Event::Waits { id, at } if id == of && *at == where_to)).await;
    }
}

/// Waits for `happens`, and fails the test with `instead` when it takes too long.
pub async fn in_time<T>(what: &str, happens: impl Future<Output = T>, instead: impl Fn() -> String) -> T {
    match tokio::time::timeout(LIMIT, happens).await {
        Ok(value) => value,
        Err(_) => panic!("not within {LIMIT:?}: {what}; instead: {}", instead()),
    }
}
