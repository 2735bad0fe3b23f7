//! What the SDK saw of the statements of one local transaction.
//!
//! It answers two questions when the user's code returns `Ok`: did a statement fail in a way that forbids COMMIT, and
//! was everything so plain that the last read of the row can be spared.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
};

use sqlx::{Execute, SqlStr, error::BoxDynError};

use crate::store::SupportedDatabase;

/// Shared by the transaction and the queries that it runs.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    doomed: AtomicBool,
    sight_lost: AtomicBool,
    /// Statements that were begun and not seen to their end.
    open: AtomicUsize,
    session: Arc<Session>,
}

/// What holds for a transaction and all savepoints in it.
#[derive(Debug, Default)]
struct Session {
    /// The server has ended the transaction, savepoints and all.
    ended: AtomicBool,
    /// Something ran that may have committed or rolled back by itself.
    may_have_ended: AtomicBool,
    /// Something ran whose effect may outlast the transaction on its connection.
    touched: AtomicBool,
    /// A statement failed, and the database was not asked since whether the transaction is still there.
    unsure: AtomicBool,
    /// Statements on their way, whose answer has not begun to come.
    unanswered: AtomicUsize,
}

impl Watch {
    /// For what runs in a savepoint of the transaction that `self` watches.
    pub fn nested(&self) -> Self {
        Self { session: Arc::clone(&self.session), ..Self::default() }
    }

    /// A statement's failure forbids COMMIT, whatever the user's code made of it.
    pub fn is_doomed(&self) -> bool {
        self.doomed.load(Relaxed) || self.session.ended.load(Relaxed)
    }

    /// Refuses a statement that the server would run, and perhaps commit by itself, where the transaction was.
    pub fn refuse_if_doomed<DB: SupportedDatabase>(&self) -> sqlx::Result<()> {
        if DB::RUNS_ON_WHEN_DOOMED && self.is_doomed() {
            let why = "an earlier statement failed and took the transaction with it: this one would commit by itself";
            return Err(sqlx::Error::Protocol(why.into()));
        }
        Ok(())
    }

    /// As [`refuse_if_doomed`](Self::refuse_if_doomed), after it has asked the database where an error does not tell.
    pub async fn make_sure<DB: SupportedDatabase>(&self, conn: &mut DB::Connection) -> sqlx::Result<()> {
        let unsure = DB::MAY_END_UNNOTICED && self.session.unsure.swap(false, Relaxed);
        // There is none within another one: where it succeeds, the other one is gone.
        if unsure && DB::script(conn, "BEGIN").await.is_ok() {
            self.session.ended.store(true, Relaxed);
            DB::script(conn, "ROLLBACK").await?;
        }
        self.refuse_if_doomed::<DB>()
    }

    pub fn doom(&self) {
        self.doomed.store(true, Relaxed);
    }

    /// Something ran that the SDK did not see, or not to its end.
    pub fn lose_sight(&self) {
        self.sight_lost.store(true, Relaxed);
    }

    /// Something runs that may end the transaction by itself.
    pub fn let_go(&self) {
        self.lose_sight();
        self.session.may_have_ended.store(true, Relaxed);
    }

    /// Whether the user's code can have committed by itself.
    pub fn may_have_ended(&self) -> bool {
        self.session.may_have_ended.load(Relaxed)
    }

    /// Whether the next transaction on the connection finds the session as this one did.
    pub fn left_the_session_alone(&self) -> bool {
        !self.may_have_ended() && !self.session.touched.load(Relaxed)
    }

    /// A statement goes to the database.
    pub fn asked(&self) {
        self.session.unanswered.fetch_add(1, Relaxed);
    }

    /// Its answer has begun to come.
    pub fn answered(&self) {
        self.session.unanswered.fetch_sub(1, Relaxed);
    }

    /// Whether a statement was given up before its answer. sqlx does not wait for that where the statement was being
    /// prepared: on MySQL the next statement takes it for its own.
    pub fn left_unanswered(&self) -> bool {
        self.session.unanswered.load(Relaxed) > 0
    }

    /// Every statement was plain DML and was seen to succeed: the row is as this transaction left it.
    pub fn saw_only_success(&self) -> bool {
        !self.is_doomed() && !self.sight_lost.load(Relaxed) && self.open.load(Relaxed) == 0
    }

    pub(super) fn begun(&self) {
        self.open.fetch_add(1, Relaxed);
    }

    pub(super) fn succeeded(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    pub(super) fn failed<DB: SupportedDatabase>(&self, error: &sqlx::Error) {
        self.lose_sight();
        if DB::dooms(error) {
            self.doom();
        }
        if DB::ends_transaction(error) {
            self.session.ended.store(true, Relaxed);
        }
        self.session.unsure.store(true, Relaxed);
    }
}

/// A query on its way to the database, looked at as it passes.
pub(super) struct Watched<E> {
    query: E,
    watch: std::sync::Arc<Watch>,
}

impl<E> Watched<E> {
    pub fn new(query: E, watch: &std::sync::Arc<Watch>) -> Self {
        Self { query, watch: std::sync::Arc::clone(watch) }
    }
}

impl<'q, DB: SupportedDatabase, E: Execute<'q, DB>> Execute<'q, DB> for Watched<E> {
    fn sql(self) -> SqlStr {
        let sql = self.query.sql();
        if !is_plain_dml(sql.as_str()) {
            self.watch.let_go();
        }
        if may_touch_session(sql.as_str()) {
            self.watch.session.touched.store(true, Relaxed);
        }
        sql
    }

    fn statement(&self) -> Option<&DB::Statement> {
        self.query.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<DB::Arguments>, BoxDynError> {
        let arguments = self.query.take_arguments()?;
        // Without arguments the text is sent as it is, and may hold several statements.
        if arguments.is_none() || !DB::PREPARED_IS_ONE_STATEMENT {
            self.watch.let_go();
        }
        Ok(arguments)
    }

    fn persistent(&self) -> bool {
        self.query.persistent()
    }
}

/// Whether a single statement certainly neither ends a transaction nor changes how it runs, by its first word.
fn is_plain_dml(sql: &str) -> bool {
    let word = sql.trim_start().split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    ["SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE"].iter().any(|plain| word.eq_ignore_ascii_case(plain))
        // It may touch the very row that the last read would look at.
        && !contains(sql, "tx_log")
}

/// Whether plain DML does what stays with the connection: PostgreSQL's `set_config`, advisory locks and `SELECT .. INTO
/// TEMP`, MySQL's `GET_LOCK` and user variables.
fn may_touch_session(sql: &str) -> bool {
    ["@", "_lock", "set_config", "temp"].iter().any(|part| contains(sql, part))
}

/// Whatever the case.
fn contains(sql: &str, part: &str) -> bool {
    sql.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::{is_plain_dml, may_touch_session};

    #[test]
    fn only_plain_dml_spares_the_last_read() {
        for sql in ["select 1", "  INSERT INTO t VALUES ($1)", "Update t SET a = 1", "DELETE FROM t", "REPLACE INTO t"]
        {
            assert!(is_plain_dml(sql), "{sql}");
        }
        for sql in [
            "",
            "COMMIT",
            "BEGIN",
            "CREATE TABLE t (a INT)",
            "CALL p()",
            "DO $$ BEGIN COMMIT; END $$",
            "/* c */ SELECT 1",
            "/*! START TRANSACTION */",
            "SELECTED",
            "UPDATE TX_LOG SET state = 'ROLLED_BACK'",
            "SET autocommit = 1",
        ] {
            assert!(!is_plain_dml(sql), "{sql}");
        }
    }

    #[test]
    fn what_stays_with_a_connection_is_noticed() {
        for sql in [
            "SELECT set_config('app.tenant', $1, false)",
            "select SET_CONFIG($1, $2, $3)",
            "SELECT pg_advisory_lock(1)",
            "SELECT pg_try_advisory_lock_shared($1)",
            "SELECT GET_LOCK(?, 1)",
            "SELECT @a := ?",
            "UPDATE t SET a = (@b := ?)",
            "SELECT * INTO TEMPORARY copies FROM orders WHERE id = $1",
        ] {
            assert!(may_touch_session(sql), "{sql}");
        }
        for sql in ["SELECT id FROM orders WHERE id = $1 FOR UPDATE", "INSERT INTO blocks (id) VALUES (?)"] {
            assert!(!may_touch_session(sql), "{sql}");
        }
    }
}
