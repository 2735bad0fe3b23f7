//! Step 4: the local transaction, and what became of it.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt;
use sqlx::Transaction;
use tokio::time::timeout;

use super::{connections::Connections, listener::Work};
use crate::{
    error::RollbackCause,
    message::BoxError,
    protocol::{State, Timing},
    store::{Store, StoreError, SupportedDatabase, statement::Column, statements},
    tx::{Tx, Watch},
};

/// What became of a local transaction.
pub(super) enum Outcome<T> {
    /// The business rows are committed.
    Committed(T),
    /// The user's code committed by itself; the row says COMMITTED.
    Escaped,
    /// Nothing is stored. `proven` when the row says so, or can never say otherwise.
    RolledBack { cause: RollbackCause, proven: bool },
    /// The user's code did not run, and never will under this token.
    NotBegun(BoxError),
    /// The COMMIT was sent, or the user's code may have committed, and the database did not say what became of it.
    InDoubt(Option<BoxError>),
}

/// Which attempt of which message.
pub(super) struct Attempt<'a> {
    pub msg_id: &'a str,
    pub token: &'a str,
}

enum Ran<T> {
    Committed(T),
    /// COMMIT was sent and not answered with Ok.
    Undecided(T, Option<BoxError>),
    Failed(Failure),
}

enum Failure {
    /// The user's code did not run. The connection is in an unknown state.
    Begin(BoxError),
    /// Rolled back, and the connection is clean.
    Clean(RollbackCause),
    /// The connection is in an unknown state and must be closed, which rolls back.
    Unclean(RollbackCause),
}

/// Runs `work` in a transaction that commits only together with the attempt's row.
pub(super) async fn run<DB, M, W>(
    store: &Store<DB>,
    connections: &Connections<DB>,
    timing: &Timing,
    attempt: Attempt<'_>,
    message: &M,
    work: W,
) -> Outcome<W::Value>
where
    DB: SupportedDatabase,
    M: Sync,
    W: Work<DB, M>,
{
    // Who waits for a connection must not keep others from writing, nor hold one for which who writes may wait.
    let early_turn = if store.shares_pool() { store.write_turn().await } else { None };
    let mut lent = match connections.acquire().await {
        Ok(lent) => lent,
        Err(error) => {
            drop(early_turn);
            let _ = roll_back(store, &attempt).await;
            return Outcome::NotBegun(error.into());
        }
    };
    let turn = if early_turn.is_some() { early_turn } else { store.write_turn().await };
    let watch = Arc::new(Watch::default());
    let ran = begin_to_commit::<DB, M, W>(&mut lent, timing, &attempt, message, work, &watch).await;
    let clean = match &ran {
        Ran::Committed(_) => true,
        // Whatever ran on the raw connection may have left an answer for the next one.
        Ran::Failed(Failure::Clean(_)) => !watch.may_have_ended(),
        Ran::Failed(_) | Ran::Undecided(..) => false,
    };
    if !clean || watch.left_unanswered() {
        lent.close();
    } else if watch.left_the_session_alone() {
        lent.pass_on();
    } else {
        // To the pool, whose hooks may clean it.
        drop(lent);
    }
    drop(turn);
    let failure = match ran {
        Ran::Committed(value) => return Outcome::Committed(value),
        Ran::Undecided(value, error) => return settle(store, &attempt, value, error).await,
        Ran::Failed(failure) => failure,
    };
    let state = roll_back(store, &attempt).await;
    match (failure, state) {
        (Failure::Begin(error), _) => Outcome::NotBegun(error),
        (_, Ok(Some(State::Committed))) => Outcome::Escaped,
        (Failure::Clean(cause) | Failure::Unclean(cause), Err(())) if watch.may_have_ended() => {
            Outcome::InDoubt(Some(cause.into()))
        }
        (Failure::Clean(cause) | Failure::Unclean(cause), state) => {
            Outcome::RolledBack { cause, proven: matches!(state, Ok(Some(State::RolledBack) | None)) }
        }
    }
}

async fn begin_to_commit<DB, M, W>(
    conn: &mut DB::Connection,
    timing: &Timing,
    attempt: &Attempt<'_>,
    message: &M,
    work: W,
    watch: &Arc<Watch>,
) -> Ran<W::Value>
where
    DB: SupportedDatabase,
    M: Sync,
    W: Work<DB, M>,
{
    let limit = timing.database_timeout;
    let tx = match timeout(limit, begin::<DB>(conn, attempt)).await {
        Ok(Ok(tx)) => tx,
        Ok(Err(failure)) => return Ran::Failed(failure),
        Err(_) => return Ran::Failed(Failure::Begin(StoreError::TimedOut(limit).into())),
    };
    let limit = timing.execute_timeout;
    let prepared = AssertUnwindSafe(prepare::<DB, M, W>(tx, attempt, message, work, watch)).catch_unwind();
    let (tx, value) = match timeout(limit, prepared).await {
        Ok(Ok(Ok(prepared))) => prepared,
        Ok(Ok(Err(failure))) => return Ran::Failed(failure),
        Ok(Err(_panic)) => return Ran::Failed(Failure::Unclean(RollbackCause::Panicked)),
        Err(_) => return Ran::Failed(Failure::Unclean(RollbackCause::TimedOut(limit))),
    };
    // From here on only the database knows.
    match timeout(limit, tx.commit()).await {
        Ok(Ok(())) => Ran::Committed(value),
        Ok(Err(error)) => Ran::Undecided(value, Some(error.into())),
        Err(_) => Ran::Undecided(value, None),
    }
}

/// BEGIN and the fence.
async fn begin<'c, DB: SupportedDatabase>(
    conn: &'c mut DB::Connection,
    attempt: &Attempt<'_>,
) -> Result<Transaction<'c, DB>, Failure> {
    let not_begun = |error: sqlx::Error| Failure::Begin(error.into());
    let mut tx = DB::begin(conn, DB::BEGIN_LOCAL).await.map_err(not_begun)?;
    let fence = statements::commit(DB::DIALECT, attempt.msg_id, attempt.token);
    if DB::run(&mut tx, fence).await.map_err(not_begun)? == 0 {
        return Err(undo(tx, RollbackCause::Settled).await);
    }
    Ok(tx)
}

/// The user's code, up to the last read before COMMIT.
async fn prepare<'c, DB, M, W>(
    mut tx: Transaction<'c, DB>,
    attempt: &Attempt<'_>,
    message: &M,
    work: W,
    watch: &Arc<Watch>,
) -> Result<(Transaction<'c, DB>, W::Value), Failure>
where
    DB: SupportedDatabase,
    M: Sync,
    W: Work<DB, M>,
{
    let result = work.run(&mut Tx::lend(&mut *tx, Arc::clone(watch)), message).await;
    let value = match result {
        Ok(value) => value,
        Err(error) => return Err(undo(tx, RollbackCause::Execute(error)).await),
    };
    if watch.make_sure::<DB>(&mut tx).await.is_err() || watch.is_doomed() {
        return Err(undo(tx, RollbackCause::Swallowed).await);
    }
    if !watch.saw_only_success() {
        last_read::<DB>(&mut tx, attempt).await.map_err(Failure::Unclean)?;
    }
    Ok((tx, value))
}

/// Catches what a driver's `Ok` hides: that the transaction was aborted, rolled back or ended, and is not the one that
/// began. On failure nobody knows what state the connection is in.
async fn last_read<DB: SupportedDatabase>(
    conn: &mut DB::Connection,
    attempt: &Attempt<'_>,
) -> Result<(), RollbackCause> {
    let statement = statements::last_read(DB::DIALECT, attempt.msg_id, attempt.token);
    // An aborted PostgreSQL transaction refuses to read.
    let rows = DB::rows(conn, statement, &[Column::Text, Column::Int]).await.map_err(|_| RollbackCause::Swallowed)?;
    let intact = rows.first().is_some_and(|row| row.text(0) == State::Committed.as_str() && row.int(1) == Some(1));
    if !intact {
        return Err(RollbackCause::EndedByExecute);
    }
    if let Some(release) = statements::release_savepoint(DB::DIALECT) {
        DB::script(conn, release).await.map_err(|_| RollbackCause::EndedByExecute)?;
    }
    Ok(())
}

async fn undo<DB: SupportedDatabase>(tx: Transaction<'_, DB>, cause: RollbackCause) -> Failure {
    match tx.rollback().await {
        Ok(()) => Failure::Clean(cause),
        Err(_) => Failure::Unclean(cause),
    }
}

/// The COMMIT was sent. Reading PREPARING would prove nothing, since it may still be on its way: the compare-and-swap
/// waits for the row's lock, and what it finds is final.
async fn settle<DB: SupportedDatabase, T>(
    store: &Store<DB>,
    attempt: &Attempt<'_>,
    value: T,
    error: Option<BoxError>,
) -> Outcome<T> {
    match roll_back(store, attempt).await {
        Ok(Some(State::Committed)) => Outcome::Committed(value),
        Ok(Some(State::RolledBack)) => {
            let cause = error.unwrap_or_else(|| "COMMIT was not answered in time".into());
            Outcome::RolledBack { cause: RollbackCause::Database(cause), proven: true }
        }
        Ok(Some(State::Preparing) | None) | Err(()) => Outcome::InDoubt(error),
    }
}

async fn roll_back<DB: SupportedDatabase>(store: &Store<DB>, attempt: &Attempt<'_>) -> Result<Option<State>, ()> {
    store.roll_back(attempt.msg_id, attempt.token).await.map_err(|error: StoreError| {
        tracing::warn!(msg_id = attempt.msg_id, error = &error as &dyn std::error::Error, "left to the settler");
    })
}
