//! What a user of the crate writes: the message, the local transaction, the producer.

use std::{path::Path, time::Duration};

use rocketmq_tx::{
    Builder, MessageId, RocketMq, TransactionListener, TransactionMessage, TransactionProducer, Tx,
    broker::rocketmq::CheckSchedule,
};
use serde::{Deserialize, Serialize};
use sqlx::{
    Sqlite, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions},
};

use crate::BROKER;

pub const TOPIC: &str = "orders";
/// The shop refuses orders above this, in cents.
const CREDIT: i64 = 100_000;

/// "This order was placed": the message that other services wait for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OrderPlaced {
    pub order_id: String,
    pub cents: i64,
}

impl TransactionMessage for OrderPlaced {
    const KIND: &'static str = "order.placed";
    const TOPIC: &'static str = TOPIC;

    fn msg_id(&self) -> MessageId {
        format!("{}:OrderPlaced", self.order_id).into()
    }

    fn ordering_key(&self) -> Option<&str> {
        Some(&self.order_id)
    }
}

/// The local transaction of [`OrderPlaced`]: it writes the order.
pub struct PlaceOrder;

#[derive(Debug, thiserror::Error)]
pub enum PlaceOrderError {
    #[error("{cents} cents are above the credit of {CREDIT}")]
    AboveCredit { cents: i64 },
    #[error("the order could not be written")]
    Database(#[from] sqlx::Error),
}

impl TransactionListener<Sqlite> for PlaceOrder {
    type Message = OrderPlaced;
    type Error = PlaceOrderError;

    async fn execute(&self, tx: &mut Tx<'_, Sqlite>, order: &OrderPlaced) -> Result<(), PlaceOrderError> {
        insert(tx, order).await?;
        // After the insert, to show that it is undone.
        if order.cents > CREDIT {
            return Err(PlaceOrderError::AboveCredit { cents: order.cents });
        }
        Ok(())
    }
}

pub async fn insert(tx: &mut Tx<'_, Sqlite>, order: &OrderPlaced) -> sqlx::Result<()> {
    let insert = sqlx::query("INSERT INTO orders (id, cents) VALUES (?, ?)").bind(&order.order_id).bind(order.cents);
    insert.execute(&mut *tx).await.map(drop)
}

/// The last message about an order. It has the same ordering key, so it is stored in the same queue: once the consumer
/// has it, whatever that queue will ever hold of the order was delivered before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastWord {
    pub order_id: String,
}

impl TransactionMessage for LastWord {
    const KIND: &'static str = "order.last_word";
    const TOPIC: &'static str = TOPIC;

    fn msg_id(&self) -> MessageId {
        format!("{}:LastWord", self.order_id).into()
    }

    fn ordering_key(&self) -> Option<&str> {
        Some(&self.order_id)
    }
}

/// Opens the database file, with the SDK's tables and the shop's own.
pub async fn open_database(file: &Path) -> Result<SqlitePool, crate::Error> {
    let options = SqliteConnectOptions::new().filename(file).create_if_missing(true);
    let pool = SqlitePoolOptions::new()
        .max_connections(4)
        .test_before_acquire(false)
        .connect_with(options.journal_mode(SqliteJournalMode::Wal))
        .await?;
    rocketmq_tx::migrate(&pool).await?;
    let table = "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)";
    sqlx::query(table).execute(&pool).await?;
    Ok(pool)
}

/// The cluster, and the group whose producers answer for each other.
pub fn cluster(name_server: &str) -> RocketMq {
    // The Java broker tells these by itself; the Rust broker does not.
    let schedule = CheckSchedule {
        transaction_timeout: BROKER.transaction_timeout,
        check_interval: BROKER.check_interval,
        check_max: BROKER.check_max,
    };
    RocketMq::at(name_server).group("shop").check_schedule_if_unreported(schedule)
}

/// A producer for impatient readers: by default an attempt that died is rolled back after 60 s.
pub fn producer(pool: SqlitePool) -> Builder<Sqlite> {
    TransactionProducer::builder(pool)
        .listener(PlaceOrder)
        .message::<LastWord>()
        .execute_timeout(Duration::from_secs(3))
        .database_timeout(Duration::from_secs(2))
        .settle_deadline(Duration::from_secs(6))
}
