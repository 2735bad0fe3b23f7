//! What a caller is told when a message was sent.

use tokio::sync::oneshot;

/// Proof that the business rows are committed: the message will be delivered, at least once, whatever crashes now.
///
/// It does *not* mean that the message was delivered already. Whether the broker has acknowledged its end is
/// [`confirmation`](Self::confirmation); when that was lost, the broker's check-back delivers the message.
#[derive(Debug)]
pub struct Receipt {
    msg_id: String,
    already_committed: bool,
    confirmation: Ended,
}

#[derive(Debug)]
enum Ended {
    Known(Confirmation),
    Awaited(oneshot::Receiver<Confirmation>),
}

/// Whether the broker knows that the message is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    /// The broker acknowledged the end: the message is visible to consumers.
    Confirmed,
    /// The end, or its answer, was lost or is under way: the broker will be told by check-back.
    Pending,
}

impl Receipt {
    pub(crate) fn of_this_send(msg_id: String, confirmation: oneshot::Receiver<Confirmation>) -> Self {
        Self { msg_id, already_committed: false, confirmation: Ended::Awaited(confirmation) }
    }

    pub(crate) fn of_earlier_send(msg_id: String, confirmation: Confirmation) -> Self {
        Self { msg_id, already_committed: true, confirmation: Ended::Known(confirmation) }
    }

    /// The message's id.
    #[must_use]
    pub fn msg_id(&self) -> &str {
        &self.msg_id
    }

    /// Whether an earlier send had committed this message id already, so that `execute` did not run now.
    #[must_use]
    pub fn already_committed(&self) -> bool {
        self.already_committed
    }

    /// Waits until the broker has acknowledged the end, or it is known that it did not in time. Bounded by the broker's
    /// request time-out.
    pub async fn confirmation(&mut self) -> Confirmation {
        if let Ended::Awaited(receiver) = &mut self.confirmation {
            // The sending half goes away unused only with the runtime.
            self.confirmation = Ended::Known(receiver.await.unwrap_or(Confirmation::Pending));
        }
        match self.confirmation {
            Ended::Known(confirmation) => confirmation,
            Ended::Awaited(_) => Confirmation::Pending,
        }
    }
}

/// The state of a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// Never sent, or purged after the retention.
    NotFound,
    /// An attempt is under way, or died and will be settled.
    Preparing,
    /// The business rows are committed.
    Committed(Confirmation),
    /// The last attempt was rolled back; the message may be sent again.
    RolledBack,
}
