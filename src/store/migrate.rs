//! The SDK's tables: created, and found missing.

use std::time::Duration;

use sqlx::Pool;

use super::{
    StoreError, SupportedDatabase,
    statement::{Column, Dialect, Statement},
    statements, within,
};

/// One script. Each is written so that running it twice does no harm: MySQL cannot roll DDL back.
struct Migration {
    version: i64,
    name: &'static str,
    postgres: &'static str,
    mysql: &'static str,
    sqlite: &'static str,
}

impl Migration {
    fn sql(&self, dialect: Dialect) -> &'static str {
        match dialect {
            Dialect::Postgres => self.postgres,
            Dialect::MySql => self.mysql,
            Dialect::Sqlite => self.sqlite,
        }
    }
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            postgres: include_str!(concat!("../../migrations/postgres/", $name, ".sql")),
            mysql: include_str!(concat!("../../migrations/mysql/", $name, ".sql")),
            sqlite: include_str!(concat!("../../migrations/sqlite/", $name, ".sql")),
        }
    };
}

const MIGRATIONS: [Migration; 1] = [migration!(1, "0001_tx_log")];

/// What the migrations above create, for the check at start.
const TABLES: [(&str, &[&str]); 2] = [
    (
        "tx_log",
        &[
            "msg_id",
            "token",
            "attempts",
            "state",
            "kind",
            "producer_group",
            "topic",
            "tag",
            "ordering_key",
            "payload",
            "headers",
            "created_at",
            "deadline_at",
            "updated_at",
            "confirmed_at",
        ],
    ),
    ("tx_scope", &["id", "scope"]),
];

/// Where the SDK notes what it ran; a user's `_sqlx_migrations` is never touched.
const BOOKKEEPING: &str = "CREATE TABLE IF NOT EXISTS rocketmq_tx_migrations \
                           (version BIGINT NOT NULL PRIMARY KEY, name VARCHAR(64) NOT NULL, applied_at BIGINT NOT NULL)";

/// How long one instance waits for another one that migrates.
const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Why the tables could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// The database refused a statement.
    #[error("could not create the SDK's tables; the database user needs the right to create tables")]
    Database(#[source] sqlx::Error),
    /// Another instance holds the lock.
    #[error("another instance has been migrating this database for {LOCK_WAIT:?}; look for a stuck one")]
    Locked,
}

/// Creates or upgrades the SDK's tables.
///
/// Any number of instances may call it at once, at every start: one works, the others wait for it. What was applied is
/// kept in `rocketmq_tx_migrations`. The database user needs the right to create tables and indexes.
///
/// # Errors
///
/// [`MigrateError`] when the database refuses, or another instance is stuck. PostgreSQL and SQLite are then left as
/// they were; on MySQL and MariaDB the next call goes on where this one stopped.
pub async fn migrate<DB: SupportedDatabase>(pool: &Pool<DB>) -> Result<(), MigrateError> {
    let result = within(pool, LOCK_WAIT, |conn| Box::pin(run::<DB>(conn))).await;
    match result {
        Ok(true) => Ok(()),
        Ok(false) | Err(StoreError::TimedOut(_)) => Err(MigrateError::Locked),
        Err(StoreError::Sqlx(error)) => Err(MigrateError::Database(error)),
    }
}

/// The DDL of the SDK's tables as one script per migration, oldest first, for those who run their own migrations.
///
/// Each can be run twice without harm. A row of `rocketmq_tx_migrations` is not needed: the check at start looks at the
/// tables themselves.
#[must_use]
pub fn ddl<DB: SupportedDatabase>() -> Vec<&'static str> {
    MIGRATIONS.iter().map(|migration| migration.sql(DB::DIALECT)).collect()
}

/// `false` when the lock could not be had.
async fn run<DB: SupportedDatabase>(conn: &mut DB::Connection) -> sqlx::Result<bool> {
    let dialect = DB::DIALECT;
    match dialect {
        Dialect::Postgres | Dialect::Sqlite => {
            let mut tx = DB::begin(conn, DB::BEGIN_OWN).await?;
            if dialect == Dialect::Postgres {
                // Advisory locks are per database; the number is "rocketmq" in ASCII.
                DB::script(&mut tx, "SELECT pg_advisory_xact_lock(8245926464785345905)").await?;
            }
            apply::<DB>(&mut tx).await?;
            tx.commit().await?;
        }
        // DDL commits by itself: the lock is the session's, and named for the database, since it is the server's.
        Dialect::MySql => {
            let seconds = LOCK_WAIT.as_secs() as i64 - 1;
            let lock = Statement::new(dialect, "SELECT GET_LOCK(MD5(CONCAT('rocketmq_tx:', DATABASE())), ");
            let locked = DB::rows(conn, lock.bind(seconds).sql(")"), &[Column::Int]).await?;
            if locked[0].int(0) != Some(1) {
                return Ok(false);
            }
            let applied = apply::<DB>(conn).await;
            DB::script(conn, "DO RELEASE_LOCK(MD5(CONCAT('rocketmq_tx:', DATABASE())))").await?;
            applied?;
        }
    }
    Ok(true)
}

async fn apply<DB: SupportedDatabase>(conn: &mut DB::Connection) -> sqlx::Result<()> {
    DB::script(conn, BOOKKEEPING).await?;
    let applied = Statement::new(DB::DIALECT, "SELECT version FROM rocketmq_tx_migrations");
    let applied: Vec<_> = DB::rows(conn, applied, &[Column::Int]).await?.iter().map(|row| row.int(0)).collect();
    for migration in MIGRATIONS.iter().filter(|migration| !applied.contains(&Some(migration.version))) {
        DB::script(conn, migration.sql(DB::DIALECT)).await?;
        let note =
            Statement::new(DB::DIALECT, "INSERT INTO rocketmq_tx_migrations (version, name, applied_at) VALUES (");
        let note = note.bind(migration.version).sql(", ").bind(migration.name).sql(", ").now().sql(")");
        DB::run(conn, note).await?;
    }
    Ok(())
}

/// The tables and columns that are not there.
pub(super) async fn missing<DB: SupportedDatabase>(
    pool: &Pool<DB>,
    timeout: Duration,
) -> Result<Vec<String>, StoreError> {
    let mut missing = Vec::new();
    for (table, columns) in TABLES {
        let statement = statements::columns(DB::DIALECT, table);
        let found = within(pool, timeout, |conn| DB::rows(conn, statement, &[Column::Text])).await?;
        if found.is_empty() {
            missing.push(format!("table {table}"));
            continue;
        }
        let absent = columns.iter().filter(|column| !found.iter().any(|row| row.text(0) == **column));
        missing.extend(absent.map(|column| format!("column {table}.{column}")));
    }
    Ok(missing)
}
