//! SQLite.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use futures_util::future::BoxFuture;
use sqlx::{
    Pool, Sqlite,
    sqlite::{SqliteConnectOptions, SqlitePoolOptions},
};

use super::{
    Writers,
    database::{SupportedDatabase, sealed::Sealed, sqlx_driver, test_rested},
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
    // ON CONFLICT ROLLBACK, RAISE(ROLLBACK), and some errors of disk and memory do (SQLite, C interface, result codes and
    // "Response To Errors Within A Transaction").
    const MAY_END_UNNOTICED: bool = true;
    // In autocommit mode, once an error has rolled everything back.
    const RUNS_ON_WHEN_DOOMED: bool = true;

    sqlx_driver!(Sqlite);

    fn dooms(_: &sqlx::Error) -> bool {
        // A failed statement leaves the transaction as it was, or rolls it back: see `MAY_END_UNNOTICED`.
        false
    }

    fn ends_transaction(_: &sqlx::Error) -> bool {
        false
    }

    fn own_options(user: &SqliteConnectOptions) -> SqliteConnectOptions {
        user.clone().statement_cache_capacity(super::STATEMENT_CACHE)
    }

    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>> {
        Box::pin(async move {
            if file(user).await?.is_none() {
                // Without a shared cache, another connection would open another database.
                return Ok(user.clone());
            }
            let options = Self::own_options(&user.connect_options());
            let pool = SqlitePoolOptions::new().max_connections(connections).test_before_acquire(false);
            pool.before_acquire(test_rested).connect_with(options).await
        })
    }

    fn writers(user: &Pool<Self>) -> BoxFuture<'_, sqlx::Result<Option<Writers>>> {
        Box::pin(async move { Ok(Some(file(user).await?.map_or_else(Writers::default, writers_of))) })
    }

    fn anchor(user: &Pool<Self>) -> BoxFuture<'_, sqlx::Result<Option<Pool<Self>>>> {
        Box::pin(async move {
            if file(user).await?.is_some() {
                return Ok(None);
            }
            let options = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
            options.connect_with((*user.connect_options()).clone()).await.map(Some)
        })
    }
}

/// The queue of all producers of this process that write to one file.
fn writers_of(file: String) -> Writers {
    static QUEUES: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>> = Mutex::new(BTreeMap::new());
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    queues.retain(|_, writers| writers.strong_count() > 0);
    if let Some(writers) = queues.get(&file).and_then(Weak::upgrade) {
        return writers;
    }
    let writers = Writers::default();
    queues.insert(file, Arc::downgrade(&writers));
    writers
}

/// The absolute path of the database, or `None` when it is in memory.
async fn file(pool: &Pool<Sqlite>) -> sqlx::Result<Option<String>> {
    let mut conn = pool.acquire().await?;
    let query = Statement::new(Dialect::Sqlite, "SELECT file FROM pragma_database_list WHERE name = 'main'");
    let rows = Sqlite::rows(&mut conn, query, &[Column::Text]).await?;
    Ok(rows.first().map(|row| row.text(0).to_owned()).filter(|file| !file.is_empty()))
}
