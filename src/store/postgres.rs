//! PostgreSQL.

use futures_util::future::BoxFuture;
use sqlx::{
    Pool, Postgres,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use super::{
    database::{SupportedDatabase, sealed::Sealed, sqlx_driver, test_rested},
    statement::Dialect,
};

impl Sealed for Postgres {}

impl SupportedDatabase for Postgres {
    const DIALECT: Dialect = Dialect::Postgres;
    const BEGIN_LOCAL: &'static str = "BEGIN";
    const BEGIN_OWN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED";
    // The extended protocol takes one statement, and no function called from DML can end its transaction.
    const PREPARED_IS_ONE_STATEMENT: bool = true;
    const MAY_END_UNNOTICED: bool = false;
    // The server itself refuses them.
    const RUNS_ON_WHEN_DOOMED: bool = false;

    sqlx_driver!(Postgres);

    fn dooms(error: &sqlx::Error) -> bool {
        // Any error of the server aborts the transaction; COMMIT would then answer ROLLBACK, which sqlx reports as Ok.
        error.as_database_error().is_some()
    }

    fn ends_transaction(_: &sqlx::Error) -> bool {
        false
    }

    fn own_options(user: &PgConnectOptions) -> PgConnectOptions {
        user.clone().statement_cache_capacity(super::STATEMENT_CACHE)
    }

    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>> {
        let options = Self::own_options(&user.connect_options());
        let pool = PgPoolOptions::new().max_connections(connections).test_before_acquire(false);
        Box::pin(pool.before_acquire(test_rested).connect_with(options))
    }
}
