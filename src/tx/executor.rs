//! [`Tx`](super::Tx) as an sqlx executor.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::{Stream, stream::BoxStream};

use super::watch::Watch;
use crate::store::SupportedDatabase;

/// The results of one statement, looked at as they pass.
struct WatchedStream<'e, DB, T> {
    results: BoxStream<'e, sqlx::Result<T>>,
    watch: Arc<Watch>,
    /// Also polled once more, it counts once.
    ended: bool,
    database: std::marker::PhantomData<fn(DB)>,
}

impl<DB: SupportedDatabase, T> Stream for WatchedStream<'_, DB, T> {
    type Item = sqlx::Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.results.as_mut().poll_next(cx);
        match &next {
            Poll::Ready(None) if !self.ended => {
                self.ended = true;
                self.watch.succeeded();
            }
            Poll::Ready(Some(Err(error))) => self.watch.failed::<DB>(error),
            Poll::Ready(None | Some(Ok(_))) | Poll::Pending => {}
        }
        next
    }
}

/// sqlx cannot express this for every database at once: its `Executor` is implemented for `&mut PgConnection` and its
/// like, and the compiler cannot name that bound for an associated connection type.
macro_rules! executor {
    ($database:ty) => {
        impl<'c> sqlx::Executor<'c> for &'c mut super::Tx<'_, $database> {
            type Database = $database;

            fn fetch_many<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> futures_util::stream::BoxStream<
                'e,
                sqlx::Result<
                    sqlx::Either<<$database as sqlx::Database>::QueryResult, <$database as sqlx::Database>::Row>,
                >,
            >
            where
                'c: 'e,
                E: 'q + sqlx::Execute<'q, $database>,
            {
                if let Err(error) = self.watch.refuse_if_doomed::<$database>() {
                    return Box::pin(futures_util::stream::once(std::future::ready(Err(error))));
                }
                self.watch.begun();
                let query = super::watch::Watched::new(query, &self.watch);
                Box::pin(super::executor::WatchedStream::<$database, _> {
                    watch: std::sync::Arc::clone(&self.watch),
                    ended: false,
                    results: self.conn.get().fetch_many(query),
                    database: std::marker::PhantomData,
                })
            }

            fn fetch_optional<'e, 'q: 'e, E>(
                self,
                query: E,
            ) -> futures_util::future::BoxFuture<'e, sqlx::Result<Option<<$database as sqlx::Database>::Row>>>
            where
                'c: 'e,
                E: 'q + sqlx::Execute<'q, $database>,
            {
                // One row may be all that is read of it.
                self.watch.lose_sight();
                let query = super::watch::Watched::new(query, &self.watch);
                Box::pin(async move {
                    self.watch.refuse_if_doomed::<$database>()?;
                    let row = self.conn.get().fetch_optional(query).await;
                    row.inspect_err(|error| self.watch.failed::<$database>(error))
                })
            }

            fn prepare_with<'e>(
                self,
                sql: sqlx::SqlStr,
                parameters: &'e [<$database as sqlx::Database>::TypeInfo],
            ) -> futures_util::future::BoxFuture<'e, sqlx::Result<<$database as sqlx::Database>::Statement>>
            where
                'c: 'e,
            {
                Box::pin(async move {
                    self.watch.refuse_if_doomed::<$database>()?;
                    let statement = self.conn.get().prepare_with(sql, parameters).await;
                    statement.inspect_err(|error| self.watch.failed::<$database>(error))
                })
            }

            fn describe<'e>(
                self,
                sql: sqlx::SqlStr,
            ) -> futures_util::future::BoxFuture<'e, sqlx::Result<sqlx::Describe<$database>>>
            where
                'c: 'e,
            {
                self.watch.lose_sight();
                self.conn.get().describe(sql)
            }
        }
    };
}

#[cfg(feature = "postgres")]
executor!(sqlx::Postgres);
#[cfg(feature = "mysql")]
executor!(sqlx::MySql);
#[cfg(feature = "sqlite")]
executor!(sqlx::Sqlite);
