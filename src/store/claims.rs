//! Step 2 of the protocol: claims, written in batches on a connection of their own.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;

use super::{Claim, ClaimOutcome, Seen, Store, StoreError, SupportedDatabase, acquire, database, run_on, statements};
use crate::protocol::{ClaimAnswer, LogRow, answer_claim};

/// How long the connection is kept between two batches. A pool tests a connection that comes back and replaces one that
/// is too old, which costs a round trip that the next batch would wait for each time.
const KEPT: Duration = Duration::from_secs(1);

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
    pub async fn write_all(&mut self, claims: &[&Claim]) -> Result<Vec<ClaimOutcome>, StoreError> {
        if self.store.inserts_at_once && self.insert(claims.to_vec(), true).await? {
            return Ok(vec![ClaimOutcome::Won; claims.len()]);
        }
        // Looks first: an INSERT would wait for the running transaction of a duplicate, and all other claims with it.
        let seen = self.look(claims.iter().map(|claim| &*claim.msg_id)).await?;
        let mut rows: HashMap<_, _> = seen.into_iter().map(|seen| (seen.msg_id, seen.row)).collect();
        let fresh: Vec<_> = claims.iter().copied().filter(|claim| !rows.contains_key(&claim.msg_id)).collect();
        let inserted = fresh.is_empty() || self.insert(fresh, false).await?;
        let mut outcomes = Vec::with_capacity(claims.len());
        for claim in claims {
            let outcome = match rows.remove(&claim.msg_id) {
                Some(row) => self.replace(claim, row).await?,
                None => inserted.then_some(ClaimOutcome::Won),
            };
            outcomes.push(match outcome {
                Some(outcome) => outcome,
                None => self.write_one(claim).await?,
            });
        }
        Ok(outcomes)
    }

    /// Rows come and go between the statements below; each loss of a race is followed by a fresh look.
    async fn write_one(&mut self, claim: &Claim) -> Result<ClaimOutcome, StoreError> {
        loop {
            let outcome = match self.look([claim.msg_id.as_str()]).await?.pop() {
                Some(seen) => self.replace(claim, seen.row).await?,
                None => self.insert(vec![claim], false).await?.then_some(ClaimOutcome::Won),
            };
            if let Some(outcome) = outcome {
                return Ok(outcome);
            }
        }
    }

    async fn look<'a>(&mut self, msg_ids: impl IntoIterator<Item = &'a str>) -> Result<Vec<Seen>, StoreError> {
        let statement = statements::read(DB::DIALECT, msg_ids);
        let rows = self.run(|conn| DB::rows(conn, statement, Seen::COLUMNS)).await?;
        Ok(rows.iter().map(Seen::from).collect())
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

    /// `None` when the row has changed meanwhile.
    async fn replace(&mut self, claim: &Claim, row: LogRow) -> Result<Option<ClaimOutcome>, StoreError> {
        let rolled_back_token = match answer_claim(row) {
            ClaimAnswer::MayReplace { rolled_back_token } => rolled_back_token,
            answer => return Ok(Some(ClaimOutcome::Lost(answer))),
        };
        let replace = statements::replace_claim(DB::DIALECT, claim, &rolled_back_token);
        // The token is in the condition and changes, so that matched rows are changed rows.
        let replaced = self.write(|conn| DB::run(conn, replace)).await?;
        Ok((replaced == 1).then_some(ClaimOutcome::Won))
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
            None => (acquire(&self.store.claims, timeout).await?, Instant::now()),
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
