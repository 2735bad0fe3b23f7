//! The port to the databases: what the SDK needs of one, and the code that all three adapters share.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{Connection, Pool, pool::PoolConnectionMetadata};

use super::{
    Writers,
    statement::{Column, Dialect, Row, Statement},
};

/// A database that can hold `tx_log`: [`sqlx::Postgres`], [`sqlx::MySql`] (MariaDB too) or [`sqlx::Sqlite`], each
/// behind the crate feature of its name.
///
/// Sealed: the guarantees rest on how each database locks, reads and commits.
pub trait SupportedDatabase: sqlx::Database + sealed::Sealed {
    /// Which SQL it speaks.
    #[doc(hidden)]
    const DIALECT: Dialect;

    /// Begins the local transaction.
    #[doc(hidden)]
    const BEGIN_LOCAL: &'static str;

    /// Begins a transaction of the SDK's own: READ COMMITTED, or the write lock where there is but one.
    #[doc(hidden)]
    const BEGIN_OWN: &'static str;

    /// Whether a text of DML with bound arguments is certainly one statement that cannot end the transaction.
    #[doc(hidden)]
    const PREPARED_IS_ONE_STATEMENT: bool;

    /// Whether an error does not tell if it has ended the transaction.
    #[doc(hidden)]
    const MAY_END_UNNOTICED: bool;

    /// Whether the server runs further statements after an error that [`dooms`](Self::dooms), and may commit each by
    /// itself.
    #[doc(hidden)]
    const RUNS_ON_WHEN_DOOMED: bool;

    /// Runs one statement and counts its rows.
    #[doc(hidden)]
    fn run(conn: &mut Self::Connection, statement: Statement) -> BoxFuture<'_, sqlx::Result<u64>>;

    /// Runs one query and reads all of its rows.
    #[doc(hidden)]
    fn rows<'c>(
        conn: &'c mut Self::Connection,
        statement: Statement,
        columns: &'static [Column],
    ) -> BoxFuture<'c, sqlx::Result<Vec<Row>>>;

    /// Runs a script without arguments.
    #[doc(hidden)]
    fn script<'c>(conn: &'c mut Self::Connection, sql: &'static str) -> BoxFuture<'c, sqlx::Result<()>>;

    /// Begins a transaction on `conn`.
    #[doc(hidden)]
    fn begin<'c>(
        conn: &'c mut Self::Connection,
        sql: &'static str,
    ) -> BoxFuture<'c, sqlx::Result<sqlx::Transaction<'c, Self>>>;

    /// Whether `error` means that the transaction it came from must not commit, even when the user's code goes on.
    #[doc(hidden)]
    fn dooms(error: &sqlx::Error) -> bool;

    /// Whether with `error` the server has ended the whole transaction, savepoints and all.
    #[doc(hidden)]
    fn ends_transaction(error: &sqlx::Error) -> bool;

    /// How a pool of the SDK's own connects, given how the user's does.
    #[doc(hidden)]
    fn own_options(user: &<Self::Connection as Connection>::Options) -> <Self::Connection as Connection>::Options;

    /// A small pool of the SDK's own to the same database, or `user` itself where that cannot be (SQLite in memory).
    #[doc(hidden)]
    fn own_pool(user: &Pool<Self>, connections: u32) -> BoxFuture<'_, sqlx::Result<Pool<Self>>>;

    /// What the writers of this process queue for, where the database has one writer at a time.
    #[doc(hidden)]
    fn writers(_user: &Pool<Self>) -> BoxFuture<'_, sqlx::Result<Option<Writers>>> {
        Box::pin(async { Ok(None) })
    }

    /// A connection that keeps a database alive which lives only as long as it has one.
    #[doc(hidden)]
    fn anchor(_user: &Pool<Self>) -> BoxFuture<'_, sqlx::Result<Option<Pool<Self>>>> {
        Box::pin(async { Ok(None) })
    }
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// How long a connection of the SDK's own may rest before it is tested: a server that was restarted meanwhile must not
/// fail the next batch of claims, and a busy connection needs no test.
const RESTED: Duration = Duration::from_secs(1);

/// Lets a pool replace a connection that broke while it rested.
pub(crate) fn test_rested<C: Connection>(
    conn: &mut C,
    rested: PoolConnectionMetadata,
) -> BoxFuture<'_, sqlx::Result<bool>> {
    Box::pin(async move {
        if rested.idle_for >= RESTED {
            conn.ping().await?;
        }
        Ok(true)
    })
}

/// Whether `error` is about the data, which another try would meet again (SQLSTATE class 23, integrity constraint
/// violation; SQLite's own numbers).
pub(crate) fn is_constraint(error: &sqlx::Error) -> bool {
    use sqlx::error::ErrorKind::{CheckViolation, ForeignKeyViolation, NotNullViolation, UniqueViolation};
    error.as_database_error().is_some_and(|error| {
        matches!(error.kind(), UniqueViolation | ForeignKeyViolation | NotNullViolation | CheckViolation)
            || error.code().is_some_and(|code| code.len() == 5 && code.starts_with("23"))
    })
}

/// Whether another statement, run alone, may well succeed where `error` came from.
pub(crate) fn is_conflict(error: &sqlx::Error) -> bool {
    let Some(error) = error.as_database_error() else { return false };
    // PostgreSQL: deadlock_detected, serialization_failure. MySQL and MariaDB: 40001 is their deadlock.
    error.is_unique_violation() || matches!(error.code().as_deref(), Some("40P01" | "40001"))
}

/// The parts of [`SupportedDatabase`] that read the same for every sqlx driver.
macro_rules! sqlx_driver {
    ($database:ty) => {
        fn run(
            conn: &mut <$database as sqlx::Database>::Connection,
            statement: crate::store::statement::Statement,
        ) -> futures_util::future::BoxFuture<'_, sqlx::Result<u64>> {
            Box::pin(async move {
                let query = $crate::store::database::bind!($database, statement);
                Ok(query.execute(conn).await?.rows_affected())
            })
        }

        fn rows<'c>(
            conn: &'c mut <$database as sqlx::Database>::Connection,
            statement: crate::store::statement::Statement,
            columns: &'static [crate::store::statement::Column],
        ) -> futures_util::future::BoxFuture<'c, sqlx::Result<Vec<crate::store::statement::Row>>> {
            use crate::store::statement::{Column, Row, Value};
            use sqlx::Row as _;
            Box::pin(async move {
                let query = $crate::store::database::bind!($database, statement);
                let rows = query.fetch_all(conn).await?;
                rows.iter()
                    .map(|row| {
                        let value = |(position, column): (usize, &Column)| match column {
                            // As bytes, since MySQL's keys are VARBINARY; unchecked, for the same reason.
                            Column::Text => row
                                .try_get_unchecked::<Option<Vec<u8>>, _>(position)?
                                .map(String::from_utf8)
                                .transpose()
                                .map(Value::Text)
                                .map_err(|error| sqlx::Error::Decode(Box::new(error))),
                            Column::Int => Ok(Value::Int(row.try_get_unchecked(position)?)),
                        };
                        columns.iter().enumerate().map(value).collect::<sqlx::Result<Vec<_>>>().map(Row)
                    })
                    .collect()
            })
        }

        fn script<'c>(
            conn: &'c mut <$database as sqlx::Database>::Connection,
            sql: &'static str,
        ) -> futures_util::future::BoxFuture<'c, sqlx::Result<()>> {
            Box::pin(async move { sqlx::raw_sql(sql).execute(conn).await.map(drop) })
        }

        fn begin<'c>(
            conn: &'c mut <$database as sqlx::Database>::Connection,
            sql: &'static str,
        ) -> futures_util::future::BoxFuture<'c, sqlx::Result<sqlx::Transaction<'c, Self>>> {
            Box::pin(sqlx::Connection::begin_with(conn, sql))
        }
    };
}

macro_rules! bind {
    ($database:ty, $statement:expr) => {{
        use crate::store::statement::Arg;
        let (sql, args) = $statement.into_parts();
        let mut query = sqlx::query::<$database>(sqlx::AssertSqlSafe(sql));
        for arg in args {
            query = match arg {
                Arg::Text(text) => query.bind(text),
                Arg::Bytes(bytes) => query.bind(Vec::from(bytes)),
                Arg::Int(number) => query.bind(number),
            };
        }
        query
    }};
}

pub(crate) use {bind, sqlx_driver};
