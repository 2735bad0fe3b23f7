//! The business database: orders, and for the subjects without the SDK a log of their own. The peers' tables and statements.

use std::future::Future;

use rocketmq_tx::SupportedDatabase;
use sqlx::{Connection, MySql, Pool, Postgres};

use crate::{
    AnyError,
    measure::Order,
    options::{Options, address},
};

/// Emptied at each start by being made anew; whatever else the server holds is left alone.
const NAME: &str = "rocketmq_tx_bench";

const TABLES: [&str; 2] = [
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, amount BIGINT NOT NULL)",
    "CREATE TABLE stock_log (msg_id VARCHAR(64) PRIMARY KEY, state VARCHAR(16) NOT NULL, created_at TIMESTAMP NOT NULL)",
];

pub trait Database: SupportedDatabase {
    /// An empty database with the tables.
    fn fresh(options: &Options) -> impl Future<Output = Result<Pool<Self>, AnyError>> + Send;

    /// BEGIN, INSERT order, INSERT log, COMMIT.
    fn pay(pool: &Pool<Self>, order: &Order) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The documented protocol: PREPARING in a transaction of its own; then [`pay`](Self::pay) with an update of that row.
    fn pay_prepared(pool: &Pool<Self>, order: &Order) -> impl Future<Output = sqlx::Result<()>> + Send;

    /// The first column of the only row.
    fn count(pool: &Pool<Self>, sql: &'static str) -> impl Future<Output = sqlx::Result<i64>> + Send;
}

macro_rules! database {
    ($db:ty, $options:ty, $pool:ty, $url:literal, $drop:literal, $order:literal, $log:literal, $prepare:literal, $commit:literal) => {
        impl Database for $db {
            async fn fresh(options: &Options) -> Result<Pool<Self>, AnyError> {
                let connect: $options = address($url)?.parse()?;
                let mut server = <$db as sqlx::Database>::Connection::connect_with(&connect).await?;
                sqlx::raw_sql($drop).execute(&mut server).await?;
                sqlx::raw_sql("CREATE DATABASE rocketmq_tx_bench").execute(&mut server).await?;
                server.close().await?;
                let pool = <$pool>::new()
                    .max_connections(options.pool_size())
                    // As a service that follows the SDK's advice.
                    .test_before_acquire(false)
                    .connect_with(connect.database(NAME))
                    .await?;
                for table in TABLES {
                    sqlx::raw_sql(table).execute(&pool).await?;
                }
                Ok(pool)
            }

            async fn pay(pool: &Pool<Self>, order: &Order) -> sqlx::Result<()> {
                let mut tx = pool.begin().await?;
                sqlx::query($order).bind(order.id).bind(order.amount).execute(&mut *tx).await?;
                sqlx::query($log).bind(&order.msg_id).execute(&mut *tx).await?;
                tx.commit().await
            }

            async fn pay_prepared(pool: &Pool<Self>, order: &Order) -> sqlx::Result<()> {
                sqlx::query($prepare).bind(&order.msg_id).execute(pool).await?;
                let mut tx = pool.begin().await?;
                sqlx::query($order).bind(order.id).bind(order.amount).execute(&mut *tx).await?;
                sqlx::query($commit).bind(&order.msg_id).execute(&mut *tx).await?;
                tx.commit().await
            }

            async fn count(pool: &Pool<Self>, sql: &'static str) -> sqlx::Result<i64> {
                sqlx::query_scalar(sql).fetch_one(pool).await
            }
        }
    };
}

database!(
    Postgres,
    sqlx::postgres::PgConnectOptions,
    sqlx::postgres::PgPoolOptions,
    "POSTGRES_DATABASE_URL",
    "DROP DATABASE IF EXISTS rocketmq_tx_bench WITH (FORCE)",
    "INSERT INTO orders(id, amount) VALUES ($1, $2)",
    "INSERT INTO stock_log(msg_id, state, created_at) VALUES ($1, 'COMMITTED', now())",
    "INSERT INTO stock_log(msg_id, state, created_at) VALUES ($1, 'PREPARING', now())",
    "UPDATE stock_log SET state = 'COMMITTED' WHERE msg_id = $1 AND state = 'PREPARING'"
);

database!(
    MySql,
    sqlx::mysql::MySqlConnectOptions,
    sqlx::mysql::MySqlPoolOptions,
    "MYSQL_DATABASE_URL",
    "DROP DATABASE IF EXISTS rocketmq_tx_bench",
    "INSERT INTO orders(id, amount) VALUES (?, ?)",
    "INSERT INTO stock_log(msg_id, state, created_at) VALUES (?, 'COMMITTED', now())",
    "INSERT INTO stock_log(msg_id, state, created_at) VALUES (?, 'PREPARING', now())",
    "UPDATE stock_log SET state = 'COMMITTED' WHERE msg_id = ? AND state = 'PREPARING'"
);
