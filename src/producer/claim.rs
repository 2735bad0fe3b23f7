//! Group commit of claims: those that arrive while one batch is under way go into the next one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{
    protocol::ClaimAnswer,
    store::{Claim, ClaimError, ClaimOutcome, Claims, MAX_CLAIMS, Store, StoreError, SupportedDatabase},
};

struct Request {
    claim: Claim,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<ClaimOutcome, ClaimError>>;

/// Where sends hand in their claims.
pub(super) struct Claimer {
    requests: mpsc::Sender<Request>,
    patience: Duration,
}

/// Enough for the next batches to gather without a wake-up each.
const QUEUE: usize = 4 * MAX_CLAIMS;
/// What the claims of one statement hold together: a large one delays the others of its batch.
const BATCH_BYTES: usize = 1 << 20;
/// How many time-outs of the database a claim may wait for: a crowd that waits for a database that does not answer would
/// else wait for one of them for each batch.
const PATIENCE: u32 = 2;
/// Without a claim for this long, the database connection goes back to its pool.
const IDLE: Duration = Duration::from_millis(100);

impl Claimer {
    /// Starts the task that writes claims, each of whose statements takes `database_timeout` at most. It ends when this is
    /// dropped.
    pub fn spawn<DB: SupportedDatabase>(store: Arc<Store<DB>>, database_timeout: Duration) -> Self {
        let (requests, incoming) = mpsc::channel(QUEUE);
        tokio::spawn(serve(store, incoming));
        Self { requests, patience: database_timeout.saturating_mul(PATIENCE) }
    }

    /// Writes PREPARING for `claim`, or tells why not.
    pub async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, ClaimError> {
        let (answer, answered) = oneshot::channel();
        let gone = || Arc::new(StoreError::Sqlx(sqlx::Error::PoolClosed));
        let claimed = async {
            self.requests.send(Request { claim, answer }).await.map_err(|_| gone())?;
            answered.await.map_err(|_| gone())?
        };
        let in_time = timeout(self.patience, claimed).await;
        in_time.unwrap_or_else(|_| Err(Arc::new(StoreError::TimedOut(self.patience))))
    }
}

async fn serve<DB: SupportedDatabase>(store: Arc<Store<DB>>, mut incoming: mpsc::Receiver<Request>) {
    let mut writer = Claims::of(&store);
    let most = store.max_statement().map_or(BATCH_BYTES, |max| BATCH_BYTES.min(max as usize / 2));
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
        let batch = next_batch(&mut waiting, most);
        if batch.is_empty() {
            continue;
        }
        let claims: Vec<&Claim> = batch.iter().map(|contest| &contest.claim).collect();
        let outcomes = writer.write_all(&claims).await;
        for (contest, outcome) in batch.into_iter().zip(outcomes) {
            contest.decide(outcome);
        }
    }
}

/// Requests for one message id that came together: the first one's claim is written.
struct Contest {
    claim: Claim,
    first: Answer,
    others: Vec<Answer>,
}

impl Contest {
    fn decide(self, outcome: Result<ClaimOutcome, ClaimError>) {
        for other in self.others {
            // At the moment after the first one.
            let _ = other.send(match &outcome {
                Ok(ClaimOutcome::Won) => Ok(ClaimOutcome::Lost(ClaimAnswer::InFlight)),
                outcome => outcome.clone(),
            });
        }
        // A caller that is gone leaves a PREPARING row to the settler.
        let _ = self.first.send(outcome);
    }
}

/// Claims of `most` bytes together; at least one, however large.
fn next_batch(waiting: &mut VecDeque<Request>, most: usize) -> Vec<Contest> {
    let mut places: HashMap<String, usize> = HashMap::with_capacity(waiting.len());
    let mut bytes = 0;
    let mut batch: Vec<Contest> = Vec::with_capacity(waiting.len());
    let mut later = VecDeque::new();
    // Nobody waits for those of a caller who has lost patience.
    for Request { claim, answer } in waiting.drain(..).filter(|request| !request.answer.is_closed()) {
        let together = bytes + claim.bytes();
        if let Some(&place) = places.get(&claim.msg_id) {
            batch[place].others.push(answer);
        } else if batch.is_empty() || together <= most {
            bytes = together;
            places.insert(claim.msg_id.clone(), batch.len());
            batch.push(Contest { claim, first: answer, others: Vec::new() });
        } else {
            later.push_back(Request { claim, answer });
        }
    }
    *waiting = later;
    batch
}
