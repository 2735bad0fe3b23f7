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
    seen: Seen,
    database: std::marker::PhantomData<fn(DB)>,
}

/// What was seen of a statement.
#[derive(PartialEq, Eq)]
enum Seen {
    /// It is sent when somebody asks for its first result.
    Nothing,
    Asked,
    Answered,
    End,
}

impl<DB: SupportedDatabase, T> Stream for WatchedStream<'_, DB, T> {
    type Item = sqlx::Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.seen == Seen::Nothing {
            self.seen = Seen::Asked;
            self.watch.asked();
        }
        let next = self.results.as_mut().poll_next(cx);
        if next.is_ready() && self.seen == Seen::Asked {
            self.seen = Seen::Answered;
            self.watch.answered();
        }
        match &next {
            Poll::Ready(None) if self.seen != Seen::End => {
                self.seen = Seen::End;
                self.watch.succeeded();
            }
            Poll::Ready(Some(Err(error))) => self.watch.failed::<DB>(error),
            Poll::Ready(None | Some(Ok(_))) | Poll::Pending => {}
        }
        next
    }
}

/// Runs what asks the database, so that it is noticed when it is given up before the answer.
async fn seen<DB: SupportedDatabase, T>(
    watch: &Watch,
    asking: impl Future<Output = sqlx::Result<T>>,
) -> sqlx::Result<T> {
    watch.asked();
    let answer = asking.await;
    watch.answered();
    answer.inspect_err(|error| watch.failed::<DB>(error))
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
                self.watch.begun();
                let query = super::watch::Watched::new(query, &self.watch);
                let (watch, conn) = (std::sync::Arc::clone(&self.watch), self.conn.get());
                let results = async move {
                    watch.make_sure::<$database>(conn).await?;
                    Ok(sqlx::Executor::fetch_many(conn, query))
                };
                Box::pin(super::executor::WatchedStream::<$database, _> {
                    watch: std::sync::Arc::clone(&self.watch),
                    seen: super::executor::Seen::Nothing,
                    results: Box::pin(futures_util::TryFutureExt::try_flatten_stream(results)),
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
                    self.watch.make_sure::<$database>(self.conn.get()).await?;
                    super::executor::seen::<$database, _>(&self.watch, self.conn.get().fetch_optional(query)).await
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
                self.watch.lose_sight();
                Box::pin(async move {
                    self.watch.make_sure::<$database>(self.conn.get()).await?;
                    let prepared = self.conn.get().prepare_with(sql, parameters);
                    super::executor::seen::<$database, _>(&self.watch, prepared).await
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
                Box::pin(async move {
                    self.watch.make_sure::<$database>(self.conn.get()).await?;
                    super::executor::seen::<$database, _>(&self.watch, self.conn.get().describe(sql)).await
                })
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
