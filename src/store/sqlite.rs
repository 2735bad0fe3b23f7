//! SQLite.

use futures_util::future::BoxFuture;
use sqlx::{Pool, Sqlite, sqlite::SqlitePoolOptions};

use super::{
    database::{SupportedDatabase, sealed::Sealed, sqlx_driver},
    statement::{Column, Dialect, Statement},
};

impl Sealed for Sqlite {}

impl SupportedDatabase for Sqlite {
    const DIALECT: Dialect = Dialect::Sqlite;
    // IMMEDIATE takes the write lock at once: a transaction that read first could not upgrade. The savepoint is gone
    // when anything ended the transaction behind the SDK's back.
    const BEGIN_LOCAL: &'static str = "BEGIN IMMEDIATE; SAVEPOINT rocketmq_tx";
    const BEGIN_OWN: &'static str = "BEGIN IMMEDIATE";
    // sqlx runs every statement of a text here, arguments or not.
    const PREPARED_IS_ONE_STATEMENT: bool = false;

    sqlx_driver!(Sqlite);

    fn dooms(_: &sqlx::Error) -> bool {
        // A failed statement leaves the transaction as it was, or rolls it back, which the last read sees.
        false
    }

    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>> {
        Box::pin(async move {
            if is_in_memory(user).await? {
                return Ok(user.clone());
            }
            let options = (*user.connect_options()).clone().statement_cache_capacity(super::STATEMENT_CACHE);
            SqlitePoolOptions::new().max_connections(connections).test_before_acquire(false).connect_with(options).await
        })
    }
}

/// Another connection to a database in memory would open another database.
async fn is_in_memory(pool: &Pool<Sqlite>) -> sqlx::Result<bool> {
    let mut conn = pool.acquire().await?;
    let query = Statement::new(Dialect::Sqlite, "SELECT file FROM pragma_database_list WHERE name = 'main'");
    let rows = Sqlite::rows(&mut conn, query, &[Column::Text]).await?;
    Ok(rows.first().is_none_or(|row| row.text(0).is_empty()))
}
