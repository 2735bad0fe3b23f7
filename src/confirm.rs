//! Confirmations written back in batches: the broker acknowledged the end of these messages.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    counters::Counting,
    store::{Store, SupportedDatabase},
};

/// Nobody waits for a confirmation; a longer gathering saves more statements than it costs.
const GATHER: Duration = Duration::from_millis(50);
/// Rows of one statement.
const BATCH: usize = 256;
/// How long a database that refused a batch is left alone.
const RETRY: Duration = Duration::from_secs(1);
/// Confirmations that may wait for a slow database. Beyond it they are forgotten: the rows stay unconfirmed, which costs
/// a later look at them and loses nothing.
const QUEUE: usize = 65_536;

enum Note {
    Confirmed(String),
    Flush(oneshot::Sender<()>),
}

/// Where acknowledged ends are noted.
#[derive(Clone, Debug)]
pub(crate) struct Confirmer(mpsc::Sender<Note>);

impl Confirmer {
    /// Starts the task that writes confirmations. It ends when every clone of this is dropped.
    pub fn spawn<DB: SupportedDatabase>(store: Arc<Store<DB>>, counting: Arc<Counting>) -> Self {
        let (notes, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(serve(store, counting, incoming));
        Self(notes)
    }

    /// Notes one acknowledged COMMIT. Never waits.
    pub fn confirmed(&self, msg_id: String) {
        if self.0.try_send(Note::Confirmed(msg_id)).is_err() {
            tracing::warn!("confirmations wait for the database; one is left to a later look");
        }
    }

    /// Returns once everything noted before was written; never, while the database refuses.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.send(Note::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

async fn serve<DB: SupportedDatabase>(
    store: Arc<Store<DB>>,
    counting: Arc<Counting>,
    mut incoming: mpsc::Receiver<Note>,
) {
    let mut ids = Vec::with_capacity(BATCH);
    let mut flushes = Vec::new();
    // A batch that the database refused is tried again before the next one.
    while !ids.is_empty() || gather(&mut ids, &mut flushes, &mut incoming).await {
        if !ids.is_empty() {
            // Two instances that confirm the same rows in the same order cannot deadlock.
            ids.sort_unstable();
            match store.confirm(&ids).await {
                Ok(()) => ids.clear(),
                Err(error) => {
                    Counting::add(&counting.housekeeping_failed, 1);
                    tracing::warn!(error = &error as &dyn std::error::Error, "confirmations wait for the database");
                    if incoming.is_closed() {
                        return;
                    }
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        for done in flushes.drain(..) {
            let _ = done.send(());
        }
    }
}

/// Collects notes until a batch is full, somebody waits for it, or [`GATHER`] has passed since the first one. `false`
/// when no note can come any more.
async fn gather(
    ids: &mut Vec<String>,
    flushes: &mut Vec<oneshot::Sender<()>>,
    incoming: &mut mpsc::Receiver<Note>,
) -> bool {
    let mut note = incoming.recv().await;
    if note.is_none() {
        return false;
    }
    let until = Instant::now() + GATHER;
    while let Some(next) = note {
        match next {
            Note::Confirmed(id) => ids.push(id),
            Note::Flush(done) => flushes.push(done),
        }
        if ids.len() == BATCH || !flushes.is_empty() {
            break;
        }
        note = timeout_at(until, incoming.recv()).await.ok().flatten();
    }
    true
}
