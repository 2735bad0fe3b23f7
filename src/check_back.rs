//! Check-backs: coordinates in, one batched read of the primary, two-way ends out.
//!
//! It never runs user code and never writes to `tx_log`, except to note that an answer was acknowledged.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    broker::{Broker, CheckBack, End, EndOrigin, HalfIdentity},
    confirm::Confirmer,
    counters::Counting,
    housekeeping::Missing,
    protocol::{Resolution, Unresolved, resolve},
    store::{Seen, Store, SupportedDatabase, Tombstone},
};

/// Questions answered by one read.
const BATCH: usize = 256;
/// Answers under way at once: enough to fill the connections, little enough to leave room for live sends.
const ENDS: usize = 256;

pub(crate) struct Answerer<DB: SupportedDatabase> {
    pub store: Arc<Store<DB>>,
    pub broker: Arc<dyn Broker>,
    pub confirmer: Confirmer,
    pub counting: Arc<Counting>,
    pub missing: Missing,
    pub group: String,
}

/// Answers `questions` until `stop`, or until nobody can ask any more.
pub(crate) fn spawn<DB: SupportedDatabase>(
    answerer: Answerer<DB>,
    mut questions: mpsc::Receiver<CheckBack>,
    stop: CancellationToken,
) {
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(ENDS));
        let mut ends = JoinSet::new();
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let received = tokio::select! {
                received = questions.recv_many(&mut batch, BATCH) => received,
                () = stop.cancelled() => 0,
            };
            if received == 0 {
                break;
            }
            for (check, resolution) in answerer.decide(std::mem::take(&mut batch)).await {
                answerer.counting.check_answered(&resolution);
                let end = match resolution {
                    Resolution::Commit => End::Commit,
                    Resolution::Rollback => End::Rollback,
                    // The broker was told Unknown when it asked, and asks again.
                    Resolution::Unknown(reason) => {
                        tracing::debug!(
                            msg_id = check.msg_id(),
                            kind = check.kind(),
                            ?reason,
                            "check-back not resolved"
                        );
                        continue;
                    }
                };
                let permit = Arc::clone(&permits).acquire_owned().await;
                let (broker, confirmer) = (Arc::clone(&answerer.broker), answerer.confirmer.clone());
                let counting = Arc::clone(&answerer.counting);
                let span = tracing::debug_span!("check_back", msg_id = check.msg_id(), kind = check.kind());
                let answering = async move {
                    let _permit = permit;
                    answer(&*broker, &confirmer, &counting, check, end).await;
                };
                ends.spawn(answering.instrument(span));
                while ends.try_join_next().is_some() {}
            }
        }
        while ends.join_next().await.is_some() {}
    });
}

impl CheckBack {
    fn msg_id(&self) -> &str {
        self.identity.as_ref().map_or("", |identity| &identity.msg_id)
    }

    fn kind(&self) -> &str {
        self.identity.as_ref().map_or("", |identity| &identity.kind)
    }
}

async fn answer(broker: &dyn Broker, confirmer: &Confirmer, counting: &Counting, check: CheckBack, end: End) {
    let span = tracing::debug_span!("end", ?end);
    match broker.end(&check.half, end, EndOrigin::CheckBack).instrument(span).await {
        Ok(()) if end == End::Commit => {
            if let Some(identity) = check.identity {
                counting.check_acknowledged(&identity.msg_id);
                confirmer.confirmed(identity.msg_id);
            }
        }
        Ok(()) => {}
        Err(error) => {
            Counting::add(&counting.ends_failed, 1);
            tracing::warn!(error = &error as &dyn std::error::Error, "a check-back's answer was lost; it comes again");
        }
    }
}

/// Of the questions that gathered about one half, only the last: a check renews the half, and its older copies are done
/// with. Ending them too would deliver the message once for each.
fn latest(checks: Vec<CheckBack>) -> Vec<CheckBack> {
    let mut asked = HashSet::new();
    let mut latest: Vec<_> =
        checks.into_iter().rev().filter(|check| asked.insert(check.half.unique_key.clone())).collect();
    latest.reverse();
    latest
}

impl<DB: SupportedDatabase> Answerer<DB> {
    async fn decide(&self, checks: Vec<CheckBack>) -> Vec<(CheckBack, Resolution)> {
        let checks = latest(checks);
        let ids: Vec<&str> = checks.iter().filter_map(|check| self.ours(check).ok()).map(|id| &*id.msg_id).collect();
        let rows: Result<HashMap<String, Seen>, Unresolved> = if ids.is_empty() {
            Ok(HashMap::new())
        } else {
            match self.store.read(ids).await {
                Ok(rows) => Ok(rows.into_iter().map(|seen| (seen.msg_id.clone(), seen)).collect()),
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "check-backs wait for the database");
                    Err(Unresolved::DatabaseError)
                }
            }
        };
        let resolution = |check: &CheckBack| match (self.ours(check), &rows) {
            (Ok(identity), Ok(rows)) => self.resolve(check, identity, rows.get(&identity.msg_id)),
            (Err(reason), _) => Resolution::Unknown(reason),
            (Ok(_), Err(reason)) => Resolution::Unknown(*reason),
        };
        checks.into_iter().map(|check| (resolution(&check), check)).map(|(answer, check)| (check, answer)).collect()
    }

    /// The identity of a half that this database may be asked about.
    fn ours<'c>(&self, check: &'c CheckBack) -> Result<&'c HalfIdentity, Unresolved> {
        let identity = check.identity.as_ref().ok_or(Unresolved::NoIdentity)?;
        if identity.scope == self.store.scope() { Ok(identity) } else { Err(Unresolved::ForeignScope) }
    }

    fn resolve(&self, check: &CheckBack, identity: &HalfIdentity, seen: Option<&Seen>) -> Resolution {
        if seen.is_some_and(|seen| !seen.on_primary) {
            return Resolution::Unknown(Unresolved::NotPrimary);
        }
        if seen.is_none() {
            self.missing.note(Tombstone {
                msg_id: identity.msg_id.clone(),
                token: identity.token.clone(),
                kind: identity.kind.clone(),
                producer_group: self.group.clone(),
                topic: check.half.topic.clone(),
            });
        }
        resolve(&identity.token, seen.map(|seen| &seen.row))
    }
}
