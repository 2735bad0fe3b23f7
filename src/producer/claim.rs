//! Group commit of claims: those that arrive while one batch is under way go into the next one.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::store::{Claim, ClaimOutcome, Claims, MAX_CLAIMS, Store, StoreError, SupportedDatabase};

/// Why a claim failed; one failure is that of a whole batch.
pub(super) type ClaimError = Arc<StoreError>;

struct Request {
    claim: Claim,
    answer: oneshot::Sender<Result<ClaimOutcome, ClaimError>>,
}

/// Where sends hand in their claims.
pub(super) struct Claimer(mpsc::Sender<Request>);

/// Enough for the next batches to gather without a wake-up each.
const QUEUE: usize = 4 * MAX_CLAIMS;
/// What the claims of one statement hold together: MariaDB refuses more than `max_allowed_packet`, 16 MiB by default, and
/// a large statement delays the others of its batch.
const BATCH_BYTES: usize = 1 << 20;
/// Without a claim for this long, the database connection goes back to its pool.
const IDLE: Duration = Duration::from_millis(100);

impl Claimer {
    /// Starts the task that writes claims. It ends when this is dropped.
    pub fn spawn<DB: SupportedDatabase>(store: Arc<Store<DB>>) -> Self {
        let (requests, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(serve(store, incoming));
        Self(requests)
    }

    /// Writes PREPARING for `claim`, or tells why not.
    pub async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, ClaimError> {
        let (answer, answered) = oneshot::channel();
        let gone = || Arc::new(StoreError::Sqlx(sqlx::Error::PoolClosed));
        self.0.send(Request { claim, answer }).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

async fn serve<DB: SupportedDatabase>(store: Arc<Store<DB>>, mut incoming: mpsc::Receiver<Request>) {
    let mut writer = Claims::of(&store);
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            let next = match timeout(IDLE, incoming.recv()).await {
                Ok(next) => next,
                Err(_) => {
                    writer.rest();
                    incoming.recv().await
                }
            };
            match next {
                Some(request) => waiting.push_back(request),
                None => return,
            }
        }
        while waiting.len() < MAX_CLAIMS
            && let Ok(request) = incoming.try_recv()
        {
            waiting.push_back(request);
        }
        let batch = next_batch(&mut waiting);
        let claims: Vec<&Claim> = batch.iter().map(|request| &request.claim).collect();
        match writer.write_all(&claims).await {
            Ok(outcomes) => {
                for (request, outcome) in batch.into_iter().zip(outcomes) {
                    // A caller that is gone leaves a PREPARING row to the settler.
                    let _ = request.answer.send(Ok(outcome));
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for request in batch {
                    let _ = request.answer.send(Err(Arc::clone(&error)));
                }
            }
        }
    }
}

/// One request per message id; a second one for the same id waits for what the first becomes. And at least one, however
/// large.
fn next_batch(waiting: &mut VecDeque<Request>) -> Vec<Request> {
    let mut ids = std::collections::HashSet::with_capacity(waiting.len());
    let mut bytes = 0;
    let mut batch = Vec::with_capacity(waiting.len());
    let mut later = VecDeque::new();
    for request in waiting.drain(..) {
        let together = bytes + request.claim.bytes();
        let fits = batch.is_empty() || together <= BATCH_BYTES;
        if ids.insert(request.claim.msg_id.clone()) && fits {
            bytes = together;
            batch.push(request);
        } else {
            later.push_back(request);
        }
    }
    *waiting = later;
    batch
}
