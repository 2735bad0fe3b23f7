//! The message that most tests send: an order, whose row is its number.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;
use rocketmq_tx::broker::memory::MemoryBroker;
use rocketmq_tx::{Builder, MessageId, TransactionListener, TransactionMessage, TransactionProducer, Tx};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Db, TestDatabase};

/// An order to write and to tell others of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub id: i64,
    /// The message id, when it is not `order-<id>`.
    pub msg_id: Option<String>,
    /// `execute` fails after its insert.
    pub fail: bool,
}

impl Order {
    pub fn new(id: i64) -> Self {
        Self { id, msg_id: None, fail: false }
    }

    pub fn failing(id: i64) -> Self {
        Self { fail: true, ..Self::new(id) }
    }

    pub fn named(id: i64, msg_id: &str) -> Self {
        Self { msg_id: Some(msg_id.into()), ..Self::new(id) }
    }
}

impl TransactionMessage for Order {
    const KIND: &'static str = "order.placed";
    const TOPIC: &'static str = "orders";

    fn msg_id(&self) -> MessageId {
        self.msg_id.clone().unwrap_or_else(|| format!("order-{}", self.id)).into()
    }
}

/// Inserts the order.
pub struct Orders;

/// What [`Orders`] fails with when told to.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("told to fail")]
    ToldTo,
    #[error(transparent)]
    Sqlx(#[from] sqlx::Error),
}

impl<DB: TestDatabase> TransactionListener<DB> for Orders {
    type Message = Order;
    type Error = OrderError;

    async fn execute(&self, tx: &mut Tx<'_, DB>, order: &Order) -> Result<(), OrderError> {
        DB::insert(tx, order.id).await?;
        if order.fail { Err(OrderError::ToldTo) } else { Ok(()) }
    }
}

/// The message ids of orders that have no other.
pub fn ids(orders: impl IntoIterator<Item = i64>) -> BTreeSet<String> {
    orders.into_iter().map(|id| format!("order-{id}")).collect()
}

/// A producer of orders on the broker in memory.
pub fn builder<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> Builder<DB> {
    TransactionProducer::builder(db.pool.clone())
        .broker(broker.connector("orders"))
        .listener(Orders)
        .housekeeping_interval(std::time::Duration::from_millis(50))
}

/// [`builder`], started.
pub async fn producer<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> TransactionProducer<DB> {
    builder(db, broker).start().await.expect("the producer starts")
}

/// A closure for `send_with` that runs texts in turn and goes on whatever they answer.
pub fn swallowing<DB: TestDatabase>(
    texts: &'static [&'static str],
) -> impl for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a Order) -> BoxFuture<'a, Result<(), sqlx::Error>> + Send {
    move |tx, _| {
        Box::pin(async move {
            for text in texts {
                let _ = DB::sql(tx, text).await;
            }
            Ok(())
        })
    }
}

/// A closure for `send_with` that inserts its order and then panics.
pub fn panicking<DB: TestDatabase>()
-> impl for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a Order) -> BoxFuture<'a, Result<(), sqlx::Error>> + Send {
    |tx, order| {
        Box::pin(async move {
            DB::insert(tx, order.id).await?;
            panic!("a defect in execute");
        })
    }
}

/// A closure for `send_with` that inserts its order and then never ends.
pub fn endless<DB: TestDatabase>()
-> impl for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a Order) -> BoxFuture<'a, Result<(), sqlx::Error>> + Send {
    |tx, order| {
        Box::pin(async move {
            DB::insert(tx, order.id).await?;
            std::future::pending().await
        })
    }
}

/// A closure for `send_with` that inserts its order and then waits.
#[allow(clippy::type_complexity, reason = "a closure's type has no name to shorten it by")]
pub fn held<DB: TestDatabase>()
-> (impl for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a Order) -> BoxFuture<'a, Result<(), OrderError>> + Send, Held) {
    let (inserted, began) = oneshot::channel();
    let (release, released) = oneshot::channel();
    (wait_in_the_middle(inserted, released), Held { began, release })
}

fn wait_in_the_middle<DB: TestDatabase>(
    inserted: oneshot::Sender<()>,
    released: oneshot::Receiver<()>,
) -> impl for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a Order) -> BoxFuture<'a, Result<(), OrderError>> + Send {
    move |tx, order| {
        Box::pin(async move {
            DB::insert(tx, order.id).await?;
            let _ = inserted.send(());
            let _ = released.await;
            if order.fail { Err(OrderError::ToldTo) } else { Ok(()) }
        })
    }
}

/// The two ends of a [`held`] closure.
pub struct Held {
    /// Comes when it has inserted.
    pub began: oneshot::Receiver<()>,
    /// Lets it go on; so does dropping this.
    pub release: oneshot::Sender<()>,
}
