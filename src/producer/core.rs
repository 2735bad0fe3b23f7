//! What every send of one producer shares.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use super::{claim::Claimer, connections::Connections, listener::Kinds};
use crate::{
    broker::{Broker, End, EndOrigin, HalfCoordinates},
    confirm::Confirmer,
    counters::Counting,
    protocol::{Limits, Timing},
    receipt::Confirmation,
    store::{Store, SupportedDatabase},
};

pub(super) struct Core<DB: SupportedDatabase> {
    pub store: Arc<Store<DB>>,
    pub connections: Connections<DB>,
    pub broker: Arc<dyn Broker>,
    pub claimer: Claimer,
    pub confirmer: Confirmer,
    pub kinds: Kinds<DB>,
    pub group: String,
    pub timing: Timing,
    pub limits: Limits,
    pub counting: Arc<Counting>,
    /// Sends and ends that are under way.
    pub tasks: TaskTracker,
    pub closing: AtomicBool,
}

impl<DB: SupportedDatabase> Core<DB> {
    /// Step 5: tells the broker that holds the half, in a task of its own, and notes its acknowledgement.
    pub fn end_committed(&self, msg_id: String, half: HalfCoordinates) -> oneshot::Receiver<Confirmation> {
        let (told, confirmation) = oneshot::channel();
        let (broker, confirmer, counting) =
            (Arc::clone(&self.broker), self.confirmer.clone(), Arc::clone(&self.counting));
        counting.end_begun();
        let span = tracing::debug_span!("end", msg_id, end = "commit");
        let end = async move {
            let confirmation = match broker.end(&half, End::Commit, EndOrigin::Sender).await {
                Ok(()) => {
                    counting.end_acknowledged();
                    confirmer.confirmed(msg_id);
                    Confirmation::Confirmed
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "the broker will be told by check-back");
                    counting.end_lost(msg_id);
                    Confirmation::Pending
                }
            };
            let _ = told.send(confirmation);
        };
        self.tasks.spawn(end.instrument(span));
        confirmation
    }

    /// Ends a half that will never be committed. When that is lost, a check-back says the same.
    pub fn end_rolled_back(&self, msg_id: &str, half: HalfCoordinates) {
        let (broker, counting) = (Arc::clone(&self.broker), Arc::clone(&self.counting));
        let span = tracing::debug_span!("end", msg_id, end = "rollback");
        let end = async move {
            if let Err(error) = broker.end(&half, End::Rollback, EndOrigin::Sender).await {
                Counting::add(&counting.ends_failed, 1);
                tracing::warn!(error = &error as &dyn std::error::Error, "the broker will be told by check-back");
            }
        };
        self.tasks.spawn(end.instrument(span));
    }
}
