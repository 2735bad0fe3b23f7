//! Step 2 of the protocol: claims, written in batches on a connection of their own.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;

use super::{
    Claim, ClaimOutcome, MAX_CLAIMS, Seen, Store, StoreError, SupportedDatabase, Taken, acquire, change_locked,
    database, run_on, statements,
};
use crate::protocol::{ClaimAnswer, LogRow, answer_claim};

/// How long the connection is kept between two batches. A pool tests a connection that comes back and replaces one that
/// is too old, which costs a round trip that the next batch would wait for each time.
const KEPT: Duration = Duration::from_secs(1);

/// Each look decides one claim at least, unless somebody deletes rows as fast as others write them.
const LOOKS_MAX: usize = 2 * MAX_CLAIMS;

/// Why a claim was not written.
pub(crate) type ClaimError = Arc<StoreError>;

/// Whether the database answered, with an error of its own.
fn is_refusal(error: &StoreError) -> bool {
    matches!(error, StoreError::Sqlx(sqlx::Error::Database(_)))
}

/// The one who writes claims.
pub(crate) struct Claims<'s, DB: SupportedDatabase> {
    store: &'s Store<DB>,
    conn: Option<(PoolConnection<DB>, Instant)>,
}

impl<'s, DB: SupportedDatabase> Claims<'s, DB> {
    pub fn of(store: &'s Store<DB>) -> Self {
        Self { store, conn: None }
    }

    /// Writes PREPARING for every claim, or tells why not. Message ids must be distinct.
    pub async fn write_all(&mut self, claims: &[&Claim]) -> Vec<Result<ClaimOutcome, ClaimError>> {
        let mut outcomes = vec![None; claims.len()];
        let Err(mut error) = self.decide(claims, &mut outcomes).await.map_err(Arc::new) else {
            return outcomes.into_iter().map(|outcome| Ok(outcome.expect("all are decided"))).collect();
        };
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, mut outcome) in claims.iter().zip(outcomes) {
            // The database may refuse what one of them holds; the others are nevertheless good.
            let alone_too = outcome.is_none() && claims.len() > 1 && is_refusal(&error);
            if alone_too && let Err(alone) = self.decide(&[claim], std::slice::from_mut(&mut outcome)).await {
                error = Arc::new(alone);
            }
            answers.push(outcome.ok_or_else(|| Arc::clone(&error)));
        }
        answers
    }

    async fn decide(&mut self, claims: &[&Claim], outcomes: &mut [Option<ClaimOutcome>]) -> Result<(), StoreError> {
        if self.store.inserts_at_once && self.insert(claims.to_vec(), true).await? {
            outcomes.fill(Some(ClaimOutcome::Won));
            return Ok(());
        }
        let mut tried = vec![None; claims.len()];
        for _ in 0..LOOKS_MAX {
            let open: Vec<usize> = (0..claims.len()).filter(|&claim| outcomes[claim].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            // Before the INSERT, which would wait for the running transaction of a duplicate, and all claims with it.
            let mut rows = match self.look(open.iter().map(|&claim| &*claims[claim].msg_id)).await {
                // Where the role's isolation is SERIALIZABLE, reading may conflict as well.
                Err(StoreError::Sqlx(error)) if database::is_conflict(&error) => continue,
                rows => rows?,
            };
            let (mut fresh, mut replaceable) = (Vec::new(), Vec::new());
            for claim in open {
                match rows.remove(&claims[claim].msg_id).map(answer_claim) {
                    None => fresh.push(claim),
                    Some(ClaimAnswer::MayReplace { rolled_back_token }) => {
                        if tried[claim].as_ref() == Some(&rolled_back_token) {
                            // Somebody holds its lock, as who replaces it does.
                            outcomes[claim] = Some(ClaimOutcome::Lost(ClaimAnswer::InFlight));
                        } else {
                            tried[claim] = Some(rolled_back_token.clone());
                            replaceable.push((claim, rolled_back_token));
                        }
                    }
                    Some(answer) => outcomes[claim] = Some(ClaimOutcome::Lost(answer)),
                }
            }
            if !replaceable.is_empty() {
                let replaced =
                    self.replace(replaceable.iter().map(|(claim, token)| (claims[*claim], &**token))).await?;
                for (claim, _) in replaceable.iter().filter(|(claim, _)| replaced.contains(&claims[*claim].msg_id)) {
                    outcomes[*claim] = Some(ClaimOutcome::Won);
                }
            }
            if !fresh.is_empty() && self.insert(fresh.iter().map(|&claim| claims[claim]).collect(), false).await? {
                fresh.iter().for_each(|&claim| outcomes[claim] = Some(ClaimOutcome::Won));
            }
        }
        Err(sqlx::Error::Protocol("others kept writing and deleting the rows of these message ids".into()).into())
    }

    async fn look<'a>(
        &mut self,
        msg_ids: impl IntoIterator<Item = &'a str>,
    ) -> Result<HashMap<String, LogRow>, StoreError> {
        let statement = statements::read(DB::DIALECT, msg_ids);
        let rows = self.run(|conn| DB::rows(conn, statement, Seen::COLUMNS)).await?;
        Ok(rows.iter().map(Seen::from).map(|seen| (seen.msg_id, seen.row)).collect())
    }

    /// `false` when one of them met a row, or, `at_once`, would have to wait to know.
    async fn insert(&mut self, mut claims: Vec<&Claim>, at_once: bool) -> Result<bool, StoreError> {
        // Two instances that claim the same ids in the same order cannot deadlock.
        claims.sort_unstable_by(|a, b| a.msg_id.cmp(&b.msg_id));
        let statement = statements::claim(DB::DIALECT, &claims, at_once);
        match self.write(|conn| DB::run(conn, statement)).await {
            Ok(_) => Ok(true),
            Err(StoreError::Sqlx(error)) if database::is_conflict(&error) || at_once && DB::dooms(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Claims the ids of rolled-back rows, and returns those that it got: not of a row that has changed meanwhile, nor
    /// of one that is locked, for which the other claims would have to wait.
    async fn replace<'a>(
        &mut self,
        claims: impl Iterator<Item = (&'a Claim, &'a str)> + Clone,
    ) -> Result<HashSet<String>, StoreError> {
        let rows = claims.clone().map(|(claim, rolled_back_token)| (&*claim.msg_id, rolled_back_token));
        let select = statements::replaceable(DB::DIALECT, rows);
        let mut replace: HashMap<_, _> = claims
            .map(|(claim, token)| (claim.msg_id.clone(), statements::replace_claim(DB::DIALECT, claim, token)))
            .collect();
        let change = move |rows: &[Taken]| rows.iter().filter_map(|row| replace.remove(&row.msg_id)).collect();
        match self.write(|conn| change_locked::<DB>(conn, select, change)).await {
            Ok(replaced) => Ok(replaced.into_iter().map(|row| row.msg_id).collect()),
            Err(StoreError::Sqlx(error)) if database::is_conflict(&error) => Ok(HashSet::new()),
            Err(error) => Err(error),
        }
    }

    async fn write<T>(
        &mut self,
        work: impl for<'c> FnOnce(&'c mut DB::Connection) -> BoxFuture<'c, sqlx::Result<T>>,
    ) -> Result<T, StoreError> {
        let _turn = self.store.write_turn().await;
        self.run(work).await
    }

    async fn run<T>(
        &mut self,
        work: impl for<'c> FnOnce(&'c mut DB::Connection) -> BoxFuture<'c, sqlx::Result<T>>,
    ) -> Result<T, StoreError> {
        let timeout = self.store.timeout;
        let (conn, since) = match self.conn.take().filter(|(_, since)| since.elapsed() < KEPT) {
            Some(kept) => kept,
            None => (acquire(self.store.claims(), timeout).await?, Instant::now()),
        };
        let (value, conn) = run_on(conn, timeout, work).await?;
        // Where writers queue, the one whose turn it is may need this very connection.
        if self.store.writers.is_none() {
            self.conn = Some((conn, since));
        }
        Ok(value)
    }

    /// Gives the connection back to the pool.
    pub fn rest(&mut self) {
        self.conn = None;
    }
}
