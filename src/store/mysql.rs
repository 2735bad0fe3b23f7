//! MySQL and MariaDB.

use futures_util::future::BoxFuture;
use sqlx::{
    MySql, Pool,
    mysql::{MySqlConnectOptions, MySqlDatabaseError, MySqlPoolOptions},
};

use super::{
    database::{SupportedDatabase, sealed::Sealed, sqlx_driver, test_rested},
    statement::Dialect,
};

/// `ER_LOCK_DEADLOCK`: the server rolled the whole transaction back, and autocommits what follows.
const DEADLOCK: u16 = 1213;
/// `ER_CHECKREAD`, with `innodb_snapshot_isolation` (MariaDB's default from 11.6.2 on): a row changed since the snapshot.
const SNAPSHOT_TOO_OLD: u16 = 1020;
/// `ER_LOCK_TABLE_FULL`.
const LOCK_TABLE_FULL: u16 = 1206;
/// `ER_SP_DOES_NOT_EXIST`, which is also said of a savepoint: it went with its transaction.
const DOES_NOT_EXIST: u16 = 1305;
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
    const MAY_END_UNNOTICED: bool = false;
    // In autocommit mode, once a deadlock has ended the transaction.
    const RUNS_ON_WHEN_DOOMED: bool = true;

    sqlx_driver!(MySql);

    fn dooms(error: &sqlx::Error) -> bool {
        number(error) == Some(LOCK_WAIT_TIMEOUT) || Self::ends_transaction(error)
    }

    fn ends_transaction(error: &sqlx::Error) -> bool {
        match number(error) {
            Some(DEADLOCK | SNAPSHOT_TOO_OLD | LOCK_TABLE_FULL) => true,
            Some(DOES_NOT_EXIST) => {
                error.as_database_error().is_some_and(|error| error.message().starts_with("SAVEPOINT "))
            }
            _ => false,
        }
    }

    fn own_options(user: &MySqlConnectOptions) -> MySqlConnectOptions {
        // Tags and kinds are text in any script, whatever the user's own tables need.
        user.clone().statement_cache_capacity(super::STATEMENT_CACHE).charset("utf8mb4")
    }

    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>> {
        let options = Self::own_options(&user.connect_options());
        let pool = MySqlPoolOptions::new().max_connections(connections).test_before_acquire(false);
        // The default, REPEATABLE READ, locks every row that a statement looks at: where the server chooses to look at
        // all, confirmations would wait for local transactions that have nothing to do with them.
        // And a server may be set up so that a statement alone is not committed, or COMMIT begins the next transaction.
        let pool = pool.after_connect(|conn, _| {
            let session = sqlx::raw_sql(
                "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; SET autocommit = 1, completion_type = 0",
            );
            Box::pin(async move { session.execute(conn).await.map(drop) })
        });
        Box::pin(pool.before_acquire(test_rested).connect_with(options))
    }
}

/// The server's number of an error.
fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}
