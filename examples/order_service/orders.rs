//! The business: an order, its table, and the local transaction that writes it together with its message.

use rocketmq_tx::{MessageId, SupportedDatabase, TransactionListener, TransactionMessage, Tx};
use serde::{Deserialize, Serialize};
use sqlx::{MySql, MySqlPool, PgPool, Pool, Postgres, mysql::MySqlPoolOptions, postgres::PgPoolOptions};

/// An order: what a client posts, the message that others receive, and the row.
#[derive(Clone, Debug, Serialize, Deserialize, sqlx::FromRow)]
pub struct Order {
    pub id: String,
    pub cents: i64,
}

/// The message id of an order's message. It comes from the business, so that a client who posts again after a time-out
/// means the same message.
pub fn message_id(order_id: &str) -> String {
    format!("{order_id}:OrderPlaced")
}

impl TransactionMessage for Order {
    const KIND: &'static str = "order.placed";
    const TOPIC: &'static str = "orders";

    fn msg_id(&self) -> MessageId {
        message_id(&self.id).into()
    }
}

/// Writes the order. It commits if and only if the message is delivered.
pub struct PlaceOrder;

#[derive(Debug, thiserror::Error)]
pub enum PlaceOrderError {
    #[error("an order costs more than nothing")]
    NotPositive,
    #[error("there is another order of this id")]
    Exists,
    #[error("the order could not be written")]
    Database(#[source] sqlx::Error),
}

impl<DB: OrdersDatabase> TransactionListener<DB> for PlaceOrder {
    type Message = Order;
    type Error = PlaceOrderError;

    async fn execute(&self, tx: &mut Tx<'_, DB>, order: &Order) -> Result<(), PlaceOrderError> {
        if order.cents <= 0 {
            return Err(PlaceOrderError::NotPositive);
        }
        DB::insert(tx, order).await.map_err(|error| match error {
            sqlx::Error::Database(refusal) if refusal.is_unique_violation() => PlaceOrderError::Exists,
            other => PlaceOrderError::Database(other),
        })
    }
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(64) PRIMARY KEY, cents BIGINT NOT NULL)";

/// What differs between the two databases that this example can use. A service that has one database needs none of it.
pub trait OrdersDatabase: SupportedDatabase {
    fn open(url: &str) -> impl Future<Output = sqlx::Result<Pool<Self>>> + Send;
    fn create_orders(pool: &Pool<Self>) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn insert(tx: &mut Tx<'_, Self>, order: &Order) -> impl Future<Output = sqlx::Result<()>> + Send;
    fn find(pool: &Pool<Self>, id: &str) -> impl Future<Output = sqlx::Result<Option<Order>>> + Send;
}

macro_rules! orders_database {
    ($database:ty, $pool:ty, $options:ty, $insert:literal, $find:literal) => {
        impl OrdersDatabase for $database {
            async fn open(url: &str) -> sqlx::Result<$pool> {
                // As many local transactions at once as connections. Without the test before each of them, which would
                // be a round trip; the SDK reports a connection that broke as a send that may be repeated.
                <$options>::new().max_connections(16).test_before_acquire(false).connect(url).await
            }

            async fn create_orders(pool: &$pool) -> sqlx::Result<()> {
                sqlx::raw_sql(TABLE).execute(pool).await.map(drop)
            }

            async fn insert(tx: &mut Tx<'_, Self>, order: &Order) -> sqlx::Result<()> {
                sqlx::query($insert).bind(&order.id).bind(order.cents).execute(&mut *tx).await.map(drop)
            }

            async fn find(pool: &$pool, id: &str) -> sqlx::Result<Option<Order>> {
                sqlx::query_as($find).bind(id).fetch_optional(pool).await
            }
        }
    };
}

orders_database!(
    Postgres,
    PgPool,
    PgPoolOptions,
    "INSERT INTO orders (id, cents) VALUES ($1, $2)",
    "SELECT id, cents FROM orders WHERE id = $1"
);
orders_database!(
    MySql,
    MySqlPool,
    MySqlPoolOptions,
    "INSERT INTO orders (id, cents) VALUES (?, ?)",
    "SELECT id, cents FROM orders WHERE id = ?"
);
