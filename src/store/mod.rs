//! `tx_log` in the user's database: the flow of each operation, written once for all dialects.
//!
//! [`SupportedDatabase`] is the port, `postgres`, `mysql` and `sqlite` are its adapters, and `statements` has all SQL.

mod claims;
pub(crate) mod database;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
pub(crate) mod statement;
pub(crate) mod statements;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use sqlx::{Pool, pool::PoolConnection};
use tokio::sync::{Mutex, MutexGuard};

use crate::protocol::{ClaimAnswer, LogRow, State};
pub(crate) use claims::{ClaimError, Claims};
pub use database::SupportedDatabase;
pub(crate) use database::is_constraint;
pub use migrate::{MigrateError, ddl, migrate};
pub use open::OpenError;
use statement::{Column, Row, Statement};

/// Claims come in batches of 1 to [`MAX_CLAIMS`] rows, each size a statement of its own.
const STATEMENT_CACHE: usize = 512;
/// Rows of one claim statement. Beyond it a batch saves no more round trips that matter.
pub(crate) const MAX_CLAIMS: usize = 128;

/// One that waits for the row's lock finds it changed at most once: what it is then is final.
const ROLL_BACK_TRIES: u32 = 3;

/// One attempt to send one message, as `tx_log` keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub msg_id: String,
    pub token: String,
    pub kind: String,
    pub producer_group: String,
    pub topic: String,
    pub tag: Option<String>,
    pub ordering_key: Option<String>,
    pub payload: Bytes,
    /// JSON: an array of pairs.
    pub headers: String,
    pub deadline: Duration,
}

impl Claim {
    /// What it adds to a statement.
    pub fn bytes(&self) -> usize {
        let texts = [&self.msg_id, &self.token, &self.kind, &self.producer_group, &self.topic, &self.headers];
        let optional = [&self.tag, &self.ordering_key].into_iter().flatten();
        texts.into_iter().chain(optional).map(String::len).sum::<usize>() + self.payload.len()
    }

    fn deadline_micros(&self) -> i64 {
        micros(self.deadline)
    }
}

/// What a claim was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClaimOutcome {
    /// The row is PREPARING under this attempt's token.
    Won,
    /// The row is somebody else's.
    Lost(ClaimAnswer),
}

/// A half whose claim never came.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tombstone {
    pub msg_id: String,
    pub token: String,
    pub kind: String,
    pub producer_group: String,
    pub topic: String,
}

/// The row of a message id, and who showed it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub msg_id: String,
    pub row: LogRow,
    pub on_primary: bool,
    pub confirmed: bool,
}

/// A row that housekeeping changed or deleted.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub msg_id: String,
    pub kind: String,
}

impl From<&Row> for Taken {
    fn from(row: &Row) -> Self {
        Self { msg_id: row.text(0).to_owned(), kind: row.text(1).to_owned() }
    }
}

/// A statement of the SDK's own that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    #[error("the database answered with an error")]
    Sqlx(#[from] sqlx::Error),
    #[error("the database did not answer within {0:?}")]
    TimedOut(Duration),
}

/// The SDK's own way to `tx_log`: a few connections that the users' transactions cannot starve.
pub(crate) struct Store<DB: SupportedDatabase> {
    /// For checks and housekeeping.
    pool: Pool<DB>,
    /// For claims alone: a statement that waits for a lock must not hold them up.
    claims: Pool<DB>,
    user: UserPool<DB>,
    /// The largest statement with its arguments, in bytes, where the server has such a limit.
    max_statement: Option<u64>,
    /// Whether the server can be told not to wait for the running transaction of a duplicate.
    inserts_at_once: bool,
    shares_pool: bool,
    scope: String,
    timeout: Duration,
    writers: Option<Writers>,
    /// Keeps a database in memory while a connection of the user's pool is replaced.
    _anchor: Option<Pool<DB>>,
}

/// The pool that the SDK's own ones follow.
struct UserPool<DB: SupportedDatabase> {
    pool: Pool<DB>,
    /// The log-in that the SDK's own pools were given last.
    followed: std::sync::Mutex<Arc<ConnectOptions<DB>>>,
}

/// How a pool connects.
type ConnectOptions<DB> = <<DB as sqlx::Database>::Connection as sqlx::Connection>::Options;

/// What the writers of one process to one database queue for, where that has one writer at a time.
pub(crate) type Writers = Arc<Mutex<()>>;

/// Held while one writes to a database that has one writer at a time.
pub(crate) type WriteTurn<'a> = Option<MutexGuard<'a, ()>>;

impl<DB: SupportedDatabase> Store<DB> {
    /// Which database this is.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Waits for this process's turn to write. SQLite has one write lock, and its own waiting is neither fair nor
    /// long enough for many: writers of one process queue here instead.
    pub async fn write_turn(&self) -> WriteTurn<'_> {
        match &self.writers {
            Some(writers) => Some(writers.lock().await),
            None => None,
        }
    }

    /// Whether the SDK's own statements run on the user's pool: a database in memory has no other way in.
    pub fn shares_pool(&self) -> bool {
        self.shares_pool
    }

    /// The largest statement with its arguments, in bytes, where the server has such a limit.
    pub fn max_statement(&self) -> Option<u64> {
        self.max_statement
    }

    fn pool(&self) -> &Pool<DB> {
        self.follow_user();
        &self.pool
    }

    fn claims(&self) -> &Pool<DB> {
        self.follow_user();
        &self.claims
    }

    /// `Pool::set_connect_options` on the user's pool, as after a change of passwords, holds for the SDK's own too.
    fn follow_user(&self) {
        let current = self.user.pool.connect_options();
        let mut followed = self.user.followed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if self.shares_pool || Arc::ptr_eq(&current, &followed) {
            return;
        }
        for pool in [&self.pool, &self.claims] {
            pool.set_connect_options(DB::own_options(&current));
        }
        *followed = current;
    }

    /// Closes the SDK's own connections. The user's pool stays open.
    pub async fn close(&self) {
        if !self.shares_pool {
            self.pool.close().await;
            self.claims.close().await;
        }
    }

    /// Makes sure that the attempt can never commit any more, unless it already has, and tells what it became.
    /// `None` when its row is not there, or not its own any more.
    pub async fn roll_back(&self, msg_id: &str, token: &str) -> Result<Option<State>, StoreError> {
        // A role's isolation may be higher: having waited for a COMMIT, the statement then fails, and finds it next time.
        let mut tries = 1..=ROLL_BACK_TRIES;
        let rolled_back = loop {
            let last = tries.next() == Some(ROLL_BACK_TRIES);
            let statement = statements::roll_back(DB::DIALECT, msg_id, token);
            match self.write(|conn| DB::run(conn, statement)).await {
                Err(StoreError::Sqlx(error)) if database::is_conflict(&error) && !last => {}
                result => break result?,
            }
        };
        if rolled_back == 1 {
            return Ok(Some(State::RolledBack));
        }
        let seen = self.read([msg_id]).await?.pop();
        Ok(seen.filter(|seen| seen.row.token == token).and_then(|seen| seen.row.state.ok()))
    }

    /// The rows of these message ids; none for an id without a row.
    pub async fn read<'a>(&self, msg_ids: impl IntoIterator<Item = &'a str>) -> Result<Vec<Seen>, StoreError> {
        let statement = statements::read(DB::DIALECT, msg_ids);
        let rows = within(self.pool(), self.timeout, |conn| DB::rows(conn, statement, Seen::COLUMNS)).await?;
        Ok(rows.iter().map(Seen::from).collect())
    }

    /// Whether the database takes writes where it is read now.
    pub async fn is_primary(&self) -> Result<bool, StoreError> {
        let statement = statements::scope(DB::DIALECT);
        let rows =
            within(self.pool(), self.timeout, |conn| DB::rows(conn, statement, &[Column::Text, Column::Int])).await?;
        Ok(rows.first().is_some_and(|row| row.int(1) == Some(1)))
    }

    /// Notes that the broker acknowledged the end of these committed messages.
    pub async fn confirm(&self, msg_ids: &[String]) -> Result<(), StoreError> {
        let statement = statements::confirm(DB::DIALECT, msg_ids.iter().map(String::as_str));
        self.write(|conn| DB::run(conn, statement)).await.map(drop)
    }

    /// Rolls back up to `limit` PREPARING rows that are past their deadline and not locked, and returns them.
    pub async fn settle_expired(&self, limit: usize) -> Result<Vec<Taken>, StoreError> {
        self.take(statements::expired(DB::DIALECT, limit as i64), |rows| {
            statements::settle(DB::DIALECT, rows.iter().map(|taken| &*taken.msg_id))
        })
        .await
    }

    /// Deletes up to `limit` rows of which nothing has been left to do for the retention, and returns how many.
    pub async fn purge(&self, retention: Duration, limit: usize) -> Result<usize, StoreError> {
        let select = statements::purgeable(DB::DIALECT, micros(retention), limit as i64);
        let delete = |rows: &[Taken]| statements::purge(DB::DIALECT, rows.iter().map(|taken| &*taken.msg_id));
        Ok(self.take(select, delete).await?.len())
    }

    /// Writes a tombstone, unless the message id has a row.
    pub async fn bury(&self, tombstone: &Tombstone) -> Result<(), StoreError> {
        let statement = statements::bury(DB::DIALECT, tombstone);
        match self.write(|conn| DB::run(conn, statement)).await {
            Ok(_) => Ok(()),
            // The row that came first decides.
            Err(StoreError::Sqlx(error)) if database::is_conflict(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Locks the rows that `select` finds and changes them, in one transaction.
    async fn take(
        &self,
        select: Statement,
        change: impl FnOnce(&[Taken]) -> Statement + Send + 'static,
    ) -> Result<Vec<Taken>, StoreError> {
        self.write(|conn| change_locked::<DB>(conn, select, |rows| vec![change(rows)])).await
    }

    async fn write<T>(
        &self,
        work: impl for<'c> FnOnce(&'c mut DB::Connection) -> BoxFuture<'c, sqlx::Result<T>>,
    ) -> Result<T, StoreError> {
        let _turn = self.write_turn().await;
        within(self.pool(), self.timeout, work).await
    }
}

/// Locks the rows that `select` finds, runs what `change` makes of them, and returns them. In one transaction.
fn change_locked<'c, DB: SupportedDatabase>(
    conn: &'c mut DB::Connection,
    select: Statement,
    change: impl FnOnce(&[Taken]) -> Vec<Statement> + Send + 'static,
) -> BoxFuture<'c, sqlx::Result<Vec<Taken>>> {
    Box::pin(async move {
        let mut tx = DB::begin(conn, DB::BEGIN_OWN).await?;
        let rows = DB::rows(&mut tx, select, &[Column::Text, Column::Text]).await?;
        let taken: Vec<Taken> = rows.iter().map(Taken::from).collect();
        if !taken.is_empty() {
            for statement in change(&taken) {
                DB::run(&mut tx, statement).await?;
            }
        }
        tx.commit().await?;
        Ok(taken)
    })
}

/// Runs `work` on a connection of `pool`.
async fn within<DB: SupportedDatabase, T>(
    pool: &Pool<DB>,
    timeout: Duration,
    work: impl for<'c> FnOnce(&'c mut DB::Connection) -> BoxFuture<'c, sqlx::Result<T>>,
) -> Result<T, StoreError> {
    run_on(acquire(pool, timeout).await?, timeout, work).await.map(|(value, _)| value)
}

async fn acquire<DB: SupportedDatabase>(pool: &Pool<DB>, timeout: Duration) -> Result<PoolConnection<DB>, StoreError> {
    let acquired = tokio::time::timeout(timeout, pool.acquire()).await;
    Ok(acquired.map_err(|_| StoreError::TimedOut(timeout))??)
}

/// Runs `work`, and returns the connection with its value. After an error the pool tests the connection; one whose work
/// was cut off is closed, never given back.
async fn run_on<DB: SupportedDatabase, T>(
    mut conn: PoolConnection<DB>,
    timeout: Duration,
    work: impl for<'c> FnOnce(&'c mut DB::Connection) -> BoxFuture<'c, sqlx::Result<T>>,
) -> Result<(T, PoolConnection<DB>), StoreError> {
    match tokio::time::timeout(timeout, work(&mut conn)).await {
        Ok(result) => Ok((result?, conn)),
        Err(_) => {
            drop(conn.detach());
            Err(StoreError::TimedOut(timeout))
        }
    }
}

impl Seen {
    /// The columns of [`statements::read`].
    const COLUMNS: &[Column] = &[Column::Text, Column::Text, Column::Text, Column::Int, Column::Int];
}

impl From<&Row> for Seen {
    fn from(row: &Row) -> Self {
        Self {
            msg_id: row.text(0).to_owned(),
            row: LogRow { token: row.text(1).to_owned(), state: row.text(2).parse() },
            on_primary: row.int(3) == Some(1),
            confirmed: row.int(4) == Some(1),
        }
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 2)
}
