//! One message, from the caller's hand to the receipt: the six steps of the protocol.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bytes::Bytes;
use tracing::Instrument;
use uuid::Uuid;

use super::{
    core::Core,
    listener::Work,
    local_transaction::{self, Attempt, Outcome},
};
use crate::{
    broker::{HalfError, HalfMessage, property},
    counters::Counting,
    error::{RollbackCause, SendError},
    message::TransactionMessage,
    protocol::{ClaimAnswer, Names},
    receipt::{Confirmation, Receipt},
    store::{Claim, ClaimOutcome, SupportedDatabase},
};

/// Runs the protocol for one message. Nothing in here is cancelled by a caller who goes away.
pub(super) async fn send<DB, M, W>(
    core: Arc<Core<DB>>,
    message: M,
    work: W,
) -> Result<(Receipt, Option<W::Value>), SendError>
where
    DB: SupportedDatabase,
    M: TransactionMessage,
    W: Work<DB, M>,
{
    // 1. Validate.
    let prepared = catch_unwind(AssertUnwindSafe(|| prepare(&core, &message)));
    let prepared = prepared.unwrap_or_else(|_| Err(format!("the code of message type {:?} panicked", M::KIND)));
    let (claim, half_message) = prepared.map_err(SendError::Invalid)?;
    let (msg_id, token) = (claim.msg_id.clone(), claim.token.clone());
    let not_started = |reason, source| SendError::NotStarted { msg_id: msg_id.clone(), reason, source };

    // 2. Claim.
    let claimed = core.claimer.claim(claim).instrument(tracing::debug_span!("claim")).await;
    match claimed.map_err(|error| not_started("the claim could not be written", error.into()))? {
        ClaimOutcome::Won => {}
        ClaimOutcome::Lost(answer) => return answer_duplicate(&core, msg_id, answer).await,
    }

    // 3. Half message.
    let sent = core.broker.send_half(half_message).instrument(tracing::debug_span!("half")).await;
    let half = match sent {
        Ok(half) => half,
        Err(error) => {
            if let Err(error) = core.store.roll_back(&msg_id, &token).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "left to the settler");
            }
            if let HalfError::NotSafe { half, .. } = &error {
                core.end_rolled_back(&msg_id, (**half).clone());
            }
            return Err(not_started("the half message could not be sent", error.into()));
        }
    };

    // 4. Local transaction.
    let attempt = Attempt { msg_id: &msg_id, token: &token };
    let outcome = local_transaction::run(&core.store, &core.connections, &core.timing, attempt, &message, work)
        .instrument(tracing::debug_span!("local_transaction"))
        .await;

    // 5. End, and 6. failures.
    match outcome {
        Outcome::Committed(value) => {
            Counting::add(&core.counting.committed, 1);
            let confirmation = core.end_committed(msg_id.clone(), half);
            Ok((Receipt::of_this_send(msg_id, confirmation), Some(value)))
        }
        Outcome::Escaped => {
            Counting::add(&core.counting.committed, 1);
            core.end_committed(msg_id.clone(), half);
            Err(SendError::Escaped { msg_id })
        }
        Outcome::RolledBack { cause, proven } => {
            Counting::add(&core.counting.rolled_back, 1);
            if proven {
                core.end_rolled_back(&msg_id, half);
            }
            Err(rolled_back(msg_id, cause))
        }
        Outcome::NotBegun(error) => {
            core.end_rolled_back(&msg_id, half);
            Err(not_started("the local transaction could not begin", error))
        }
        // The half is left to a check-back, which reads what the database decided.
        Outcome::InDoubt(source) => {
            Counting::add(&core.counting.in_doubt, 1);
            Err(SendError::InDoubt { msg_id, source })
        }
    }
}

fn rolled_back(msg_id: String, cause: RollbackCause) -> SendError {
    tracing::debug!(%cause, "rolled back");
    SendError::RolledBack { msg_id, cause }
}

/// Everything that can be known before anything is written.
fn prepare<DB: SupportedDatabase, M: TransactionMessage>(
    core: &Core<DB>,
    message: &M,
) -> Result<(Claim, HalfMessage), String> {
    let topic = core.kinds.topic_of::<M>()?;
    let msg_id = message.msg_id();
    let headers = message.headers();
    let (tag, ordering_key) = (message.tag(), message.ordering_key());
    Names { msg_id: msg_id.as_str(), tag, ordering_key, headers: &headers }.check()?;
    let body = Bytes::from(message.encode().map_err(|error| format!("the body could not be encoded: {error}"))?);
    core.limits.check_body(&body)?;

    let token = Uuid::new_v4().simple().to_string();
    let sdk = [
        // RocketMQ's KEYS repeats the message id.
        ("KEYS", msg_id.as_str()),
        (property::MSG_ID, msg_id.as_str()),
        (property::TOKEN, &token),
        (property::KIND, M::KIND),
        (property::SCOPE, core.store.scope()),
    ];
    let named = [("TAGS", tag), ("__SHARDINGKEY", ordering_key)];
    let named = named.iter().filter_map(|(name, value)| value.map(|value| (*name, value)));
    let own = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    core.limits.check_properties(sdk.into_iter().chain(named).chain(own))?;

    let half = HalfMessage {
        topic: topic.to_owned(),
        tag: tag.map(ToOwned::to_owned),
        ordering_key: ordering_key.map(ToOwned::to_owned),
        msg_id: msg_id.as_str().to_owned(),
        token: token.clone(),
        kind: M::KIND.to_owned(),
        scope: core.store.scope().to_owned(),
        body: body.clone(),
        headers: headers.clone(),
    };
    let claim = Claim {
        msg_id: half.msg_id.clone(),
        token,
        kind: half.kind.clone(),
        producer_group: core.group.clone(),
        topic: half.topic.clone(),
        tag: half.tag.clone(),
        ordering_key: half.ordering_key.clone(),
        payload: body,
        headers: serde_json::to_string(&headers).map_err(|error| format!("the headers could not be kept: {error}"))?,
        deadline: core.timing.settle_deadline,
    };
    Ok((claim, half))
}

/// The message id has a row that is not this attempt's: nothing runs again.
async fn answer_duplicate<DB: SupportedDatabase, T>(
    core: &Core<DB>,
    msg_id: String,
    answer: ClaimAnswer,
) -> Result<(Receipt, Option<T>), SendError> {
    match answer {
        ClaimAnswer::AlreadyCommitted => {
            let seen = core.store.read([msg_id.as_str()]).await.ok().and_then(|mut rows| rows.pop());
            let confirmed = seen.is_some_and(|seen| seen.confirmed);
            let confirmation = if confirmed { Confirmation::Confirmed } else { Confirmation::Pending };
            Ok((Receipt::of_earlier_send(msg_id, confirmation), None))
        }
        // The store replaces a rolled-back row; it answers so only to one who lost that race.
        ClaimAnswer::InFlight | ClaimAnswer::MayReplace { .. } => Err(SendError::InFlight { msg_id }),
        ClaimAnswer::Unreadable(state) => Err(SendError::NotStarted {
            msg_id,
            reason: "its row has a state that this version does not know",
            source: state.into(),
        }),
    }
}
