//! What must be true of a database before the first message, and the words for what is not.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use sqlx::Pool;

use super::{
    Seen, Store, StoreError, SupportedDatabase, UserPool, acquire, migrate,
    statement::{Column, Dialect, Row, Statement},
    statements, within,
};

/// Why a database cannot be used. The text names the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No connection.
    #[error("could not connect to the database; check its URL, that it runs, and that its user may log in")]
    Connect(#[source] sqlx::Error),
    /// It did not answer.
    #[error("the database did not answer within {0:?}; check that it is not overloaded or locked")]
    TimedOut(Duration),
    /// A check failed to run.
    #[error(
        "the database refused a query of the start-up checks; the user needs SELECT, INSERT, UPDATE and DELETE on tx_log"
    )]
    Query(#[source] sqlx::Error),
    /// A pooler that is not safe for prepared statements.
    #[error(
        "a pooler before the database confuses the prepared statements of its clients; let it keep track of them \
         (PgBouncer 1.21 or newer with max_prepared_statements above 0), or pool sessions, or connect without it"
    )]
    Pooler(#[source] sqlx::Error),
    /// A standby, or a server with `read_only`.
    #[error(
        "the database is a read-only replica; connect to the primary (check-backs must read committed rows without lag)"
    )]
    Replica,
    /// It cannot hold every message id.
    #[error("the database's encoding is {0}, which cannot hold every message id; use a database with encoding UTF8")]
    Encoding(String),
    /// Too old.
    #[error("{server} is too old: {needed} is needed, for {why}; upgrade the database server")]
    TooOld {
        /// The server and its version.
        server: String,
        /// The oldest that works.
        needed: &'static str,
        /// The feature that it lacks.
        why: &'static str,
    },
    /// Tables or columns are missing.
    #[error(
        "the database lacks {}; run `rocketmq_tx::migrate(&pool)`, or apply the script of `rocketmq_tx::ddl` with \
         your own migrations", .missing.join(", ")
    )]
    Schema {
        /// Each missing table, or column as `table.column`.
        missing: Vec<String>,
    },
    /// The user's pool sees other tables.
    #[error(
        "the connections of your pool see other tables than those that this crate opens with the same options; \
         database, schema and role belong into the connect options, or on the server into ALTER ROLE .. SET: \
         the pool's after_connect runs for its own connections only"
    )]
    OtherTables,
    /// The scope's row is missing.
    #[error("table tx_scope is empty; apply the INSERT at the end of the first script of `rocketmq_tx::ddl`")]
    NoScope,
}

impl OpenError {
    fn of(error: StoreError) -> Self {
        match error {
            StoreError::TimedOut(timeout) => Self::TimedOut(timeout),
            StoreError::Sqlx(
                error
                @ (sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed),
            ) => Self::Connect(error),
            StoreError::Sqlx(error) if is_mix_up(&error) => Self::Pooler(error),
            StoreError::Sqlx(error) => Self::Query(error),
        }
    }
}

/// PostgreSQL: duplicate_prepared_statement, invalid_sql_statement_name. Every connection of sqlx counts its statements
/// from one, so that two of them on one session meet.
fn is_mix_up(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    matches!(code.as_deref(), Some("42P05" | "26000"))
}

/// What the first connections are given at least: a log-in takes longer than a statement.
const CONNECT: Duration = Duration::from_secs(10);
/// Connections for checks and housekeeping: a lock wait, a batch and a question may run at once.
const OWN_CONNECTIONS: u32 = 3;
/// One batch of claims is under way while the next one gathers.
const CLAIM_CONNECTIONS: u32 = 1;

impl<DB: SupportedDatabase> Store<DB> {
    /// Connects to the database of `user` and checks it. Nothing is written.
    pub async fn open(user: &Pool<DB>, timeout: Duration) -> Result<Self, OpenError> {
        let connect = |connections| async move {
            // sqlx tries a refused connection again and again: no answer is mostly a wrong address.
            let connected = tokio::time::timeout(timeout.max(CONNECT), DB::own_pool(user, connections)).await;
            connected.unwrap_or(Err(sqlx::Error::PoolTimedOut)).map_err(OpenError::Connect)
        };
        let followed = user.connect_options();
        let pool = connect(OWN_CONNECTIONS).await?;
        let shares_pool = Arc::ptr_eq(&pool.connect_options(), &user.connect_options());
        let server = check_server(&pool, timeout).await?;
        if !shares_pool {
            check_sessions(&pool, timeout).await?;
        }
        let missing = migrate::missing(&pool, timeout).await.map_err(OpenError::of)?;
        if !missing.is_empty() {
            let others = migrate::missing(user, timeout).await;
            let only_here = !shares_pool && others.is_ok_and(|missing| missing.is_empty());
            return Err(if only_here { OpenError::OtherTables } else { OpenError::Schema { missing } });
        }
        let scope = read_scope(&pool, timeout).await?;
        if !shares_pool {
            match read_scope(user, timeout).await {
                Ok(theirs) if theirs == scope => {}
                Err(OpenError::Connect(_) | OpenError::TimedOut(_)) => {
                    tracing::warn!("no connection of the pool was free to see whether it leads to the same tables");
                }
                Ok(_) | Err(_) => return Err(OpenError::OtherTables),
            }
        }
        // A check-back must be able to read; without the right to, it would say Unknown for ever.
        ask(&pool, timeout, statements::read(DB::DIALECT, [""]), Seen::COLUMNS).await?;
        for statement in statements::rights(DB::DIALECT) {
            within(&pool, timeout, |conn| DB::run(conn, statement)).await.map_err(OpenError::of)?;
        }
        let writers = DB::writers(user).await.map_err(OpenError::Connect)?;
        let anchor = DB::anchor(user).await.map_err(OpenError::Connect)?;
        let claims = connect(CLAIM_CONNECTIONS).await?;
        Ok(Self {
            pool,
            claims,
            user: UserPool { pool: user.clone(), followed: Mutex::new(followed) },
            max_statement: server.max_packet,
            inserts_at_once: DB::DIALECT == Dialect::MySql && is_mariadb(&server.version),
            shares_pool,
            scope,
            timeout,
            writers,
            _anchor: anchor,
        })
    }
}

/// Which database this is.
async fn read_scope<DB: SupportedDatabase>(pool: &Pool<DB>, timeout: Duration) -> Result<String, OpenError> {
    let rows = ask(pool, timeout, statements::scope(DB::DIALECT), &[Column::Text, Column::Int]).await?;
    Ok(rows.first().ok_or(OpenError::NoScope)?.text(0).to_owned())
}

/// Runs the same statement on two connections in turns: a pooler that puts both on one session without keeping track of
/// their statements would some time run the wrong one.
async fn check_sessions<DB: SupportedDatabase>(pool: &Pool<DB>, timeout: Duration) -> Result<(), OpenError> {
    let mut sessions = Vec::new();
    for _ in 0..2 {
        sessions.push(acquire(pool, timeout).await.map_err(OpenError::of)?);
    }
    for _ in 0..2 {
        for session in &mut sessions {
            let rows = tokio::time::timeout(timeout, DB::rows(session, statements::server(DB::DIALECT), &[]));
            rows.await.map_err(|_| OpenError::TimedOut(timeout))?.map_err(|error| OpenError::of(error.into()))?;
        }
    }
    Ok(())
}

async fn ask<DB: SupportedDatabase>(
    pool: &Pool<DB>,
    timeout: Duration,
    statement: Statement,
    columns: &'static [Column],
) -> Result<Vec<Row>, OpenError> {
    within(pool, timeout, |conn| DB::rows(conn, statement, columns)).await.map_err(OpenError::of)
}

/// What a server says of itself.
struct Server {
    version: String,
    max_packet: Option<u64>,
}

async fn check_server<DB: SupportedDatabase>(pool: &Pool<DB>, timeout: Duration) -> Result<Server, OpenError> {
    let columns = &[Column::Text, Column::Int, Column::Int, Column::Text];
    let rows = ask(pool, timeout, statements::server(DB::DIALECT), columns).await?;
    let row = &rows[0];
    check_version(DB::DIALECT, row.text(0))?;
    if row.int(1) != Some(1) {
        return Err(OpenError::Replica);
    }
    if !["UTF8", "SQL_ASCII"].contains(&row.text(3)) {
        return Err(OpenError::Encoding(row.text(3).to_owned()));
    }
    Ok(Server { version: row.text(0).to_owned(), max_packet: row.int(2).map(i64::unsigned_abs) })
}

fn is_mariadb(version: &str) -> bool {
    version.contains("MariaDB")
}

fn check_version(dialect: Dialect, version: &str) -> Result<(), OpenError> {
    let mariadb = is_mariadb(version);
    // Old MariaDB servers put 5.5.5- before their version, for replicas that are older still.
    let numbers = version.strip_prefix("5.5.5-").filter(|_| mariadb).unwrap_or(version);
    let mut parts = numbers.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().unwrap_or(0));
    let found = [(); 3].map(|()| parts.next().unwrap_or(0));
    let (name, needed, minimum, why) = match (dialect, mariadb) {
        (Dialect::Postgres, _) => ("PostgreSQL", "PostgreSQL 13", [13, 0, 0], "pg_current_xact_id()"),
        (Dialect::MySql, true) => ("MariaDB", "MariaDB 10.6", [10, 6, 0], "FOR UPDATE SKIP LOCKED"),
        (Dialect::MySql, false) => ("MySQL", "MySQL 8.0.1", [8, 0, 1], "FOR UPDATE SKIP LOCKED"),
        (Dialect::Sqlite, _) => ("SQLite", "SQLite 3.42", [3, 42, 0], "unixepoch('subsec')"),
    };
    if found < minimum {
        return Err(OpenError::TooOld { server: format!("{name} {version}"), needed, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_without_skip_locked_are_refused_by_name() {
        for (dialect, version, good) in [
            (Dialect::Postgres, "15.18 (Debian 15.18-0+deb12u1)", true),
            (Dialect::Postgres, "13.0", true),
            (Dialect::Postgres, "12.22", false),
            (Dialect::MySql, "10.11.19-MariaDB-0+deb12u1", true),
            (Dialect::MySql, "5.5.5-10.6.1-MariaDB", true),
            (Dialect::MySql, "10.5.23-MariaDB", false),
            (Dialect::MySql, "8.4.2", true),
            (Dialect::MySql, "8.0.0-dmr", false),
            (Dialect::MySql, "5.7.44-log", false),
            (Dialect::Sqlite, "3.50.2", true),
            (Dialect::Sqlite, "3.39.0", false),
        ] {
            let result = check_version(dialect, version);
            assert_eq!(result.is_ok(), good, "{version}");
            if let Err(error) = result {
                assert!(error.to_string().contains(version) && error.to_string().contains("upgrade"), "{error}");
            }
        }
    }
}
