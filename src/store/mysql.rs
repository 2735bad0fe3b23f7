//! MySQL and MariaDB.

use futures_util::future::BoxFuture;
use sqlx::{
    MySql, Pool,
    mysql::{MySqlDatabaseError, MySqlPoolOptions},
};

use super::{
    database::{SupportedDatabase, sealed::Sealed, sqlx_driver, test_rested},
    statement::Dialect,
};

/// `ER_LOCK_DEADLOCK`: the server rolled the whole transaction back, and autocommits what follows.
const DEADLOCK: u16 = 1213;
/// `ER_LOCK_WAIT_TIMEOUT`: the server rolled back the statement, or with `innodb_rollback_on_timeout` everything.
const LOCK_WAIT_TIMEOUT: u16 = 1205;

impl Sealed for MySql {}

impl SupportedDatabase for MySql {
    const DIALECT: Dialect = Dialect::MySql;
    // The savepoint is gone when anything ended the transaction behind the SDK's back.
    const BEGIN_LOCAL: &'static str = "BEGIN; SAVEPOINT rocketmq_tx";
    // READ COMMITTED is the session's; see `own_pool`.
    const BEGIN_OWN: &'static str = "BEGIN";
    // A prepared text is one statement, and functions and triggers may not commit (MySQL manual, 27.8).
    const PREPARED_IS_ONE_STATEMENT: bool = true;
    // In autocommit mode, once a deadlock has ended the transaction.
    const RUNS_ON_WHEN_DOOMED: bool = true;

    sqlx_driver!(MySql);

    fn dooms(error: &sqlx::Error) -> bool {
        matches!(number(error), Some(DEADLOCK | LOCK_WAIT_TIMEOUT))
    }

    fn ends_transaction(error: &sqlx::Error) -> bool {
        number(error) == Some(DEADLOCK)
    }

    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>> {
        let options = Self::own_options(&user.connect_options());
        let pool = MySqlPoolOptions::new().max_connections(connections).test_before_acquire(false);
        // The default, REPEATABLE READ, locks every row that a statement looks at: where the server chooses to look at
        // all, confirmations would wait for local transactions that have nothing to do with them.
        // And a server may be set up so that a statement alone is not committed.
        let pool = pool.after_connect(|conn, _| {
            let session =
                sqlx::raw_sql("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET SESSION autocommit = 1");
            Box::pin(async move { session.execute(conn).await.map(drop) })
        });
        Box::pin(pool.before_acquire(test_rested).connect_with(options))
    }
}

/// The server's number of an error.
fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}
