//! Confirmations written back in batches: the broker acknowledged the end of these messages.

use std::{sync::Arc, time::Duration};

use tokio::sync::{mpsc, oneshot};

use crate::{
    counters::Counting,
    store::{Store, SupportedDatabase},
};

/// Nobody waits for a confirmation; a longer gathering saves more statements than it costs.
const GATHER: Duration = Duration::from_millis(50);
/// Rows of one statement.
const BATCH: usize = 256;
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

    /// Returns once everything noted before was written, or could not be.
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
    let mut ids = Vec::new();
    let mut flushes = Vec::new();
    while let Some(note) = incoming.recv().await {
        let gathered = tokio::time::sleep(GATHER);
        tokio::pin!(gathered);
        let mut next = Some(note);
        while let Some(note) = next {
            match note {
                Note::Confirmed(id) => ids.push(id),
                Note::Flush(done) => flushes.push(done),
            }
            if ids.len() >= BATCH || !flushes.is_empty() {
                break;
            }
            next = tokio::select! {
                note = incoming.recv() => note,
                () = &mut gathered => None,
            };
        }
        if !ids.is_empty() {
            // Two instances that confirm the same rows in the same order cannot deadlock.
            ids.sort_unstable();
            if let Err(error) = store.confirm(&ids).await {
                Counting::add(&counting.housekeeping_failed, 1);
                tracing::warn!(%error, rows = ids.len(), "could not write confirmations; a later look finds them");
            }
            ids.clear();
        }
        for done in flushes.drain(..) {
            let _ = done.send(());
        }
    }
}
