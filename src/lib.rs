//! RocketMQ transactional messages that commit together with your sqlx transaction.
//!
//! # The problem
//!
//! A service that commits to its database and then sends a message may die in between, and nobody hears of what it did.
//! One that sends first may fail to commit, and others act on what never happened. RocketMQ's half messages solve this
//! for an application that can tell the broker, after any crash, what became of a database transaction. This crate
//! tells it.
//!
//! # The guarantee
//!
//! For every message that [`send`](TransactionProducer::send) accepts: its business rows are committed if and only if
//! the message is delivered to its topic, at least once; they are rolled back if and only if it is never delivered;
//! whichever process, connection or server crashes, and whenever.
//!
//! It does not reach further than the servers do: a database or broker that acknowledges before the data is safe may
//! lose it, and a broker gives up a message about which nobody could answer for its whole
//! [check budget](broker::BrokerSettings::check_budget). It covers what goes through [`Tx`], and nothing else.
//!
//! # A first message
//!
//! A message type names its kind, its topic and its [id](MessageId); a listener writes the business rows.
//!
//! ```no_run
//! # #[cfg(feature = "sqlite")] mod example {
//! use rocketmq_tx::{MessageId, RocketMq, TransactionListener, TransactionMessage, TransactionProducer, Tx};
//! use sqlx::{Sqlite, SqlitePool};
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct OrderPaid { order_id: String }
//!
//! impl TransactionMessage for OrderPaid {
//!     const KIND: &'static str = "order.paid";
//!     const TOPIC: &'static str = "orders";
//!     fn msg_id(&self) -> MessageId { format!("{}:OrderPaid", self.order_id).into() }
//! }
//!
//! struct PayOrder;
//!
//! impl TransactionListener<Sqlite> for PayOrder {
//!     type Message = OrderPaid;
//!     type Error = sqlx::Error;
//!
//!     async fn execute(&self, tx: &mut Tx<'_, Sqlite>, paid: &OrderPaid) -> sqlx::Result<()> {
//!         sqlx::query("UPDATE orders SET state = 'PAID' WHERE id = ?").bind(&paid.order_id).execute(&mut *tx).await?;
//!         Ok(())
//!     }
//! }
//!
//! async fn pay(pool: SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
//!     rocketmq_tx::migrate(&pool).await?;
//!     let producer = TransactionProducer::builder(pool)
//!         .rocketmq(RocketMq::at("localhost:9876").group("order-service"))
//!         .listener(PayOrder)
//!         .start()
//!         .await?;
//!     producer.send(OrderPaid { order_id: "order-42".into() }).await?;
//!     Ok(())
//! }
//! # }
//! ```
//!
//! `cargo run --example quickstart --features sqlite` shows the endings that a message can have, on a real broker that
//! it starts itself.
//!
//! # Map
//!
//! | to | see |
//! |---|---|
//! | describe messages and write their rows | [`TransactionMessage`], [`TransactionListener`], [`Tx`], [`Savepoint`] |
//! | start and stop | [`TransactionProducer`], [`Builder`], [`RocketMq`], [`migrate`] or [`ddl`], [`StartError`] |
//! | know what became of a message | [`Receipt`], [`SendError`], [`Status`] |
//! | watch | [`Counters`], [`ShutdownReport`] |
//! | test without a broker | [`broker::memory`] |
//! | connect something else than RocketMQ | [`broker`] |
//! | read the rules that decide | [`protocol`] |
//!
//! Crate features: `postgres`, `mysql` (MariaDB too) and `sqlite`. At least one is needed.
#![deny(missing_docs, unsafe_code)]
// Without a database, as the model of the protocol uses it, most of the crate has no user.
#![cfg_attr(not(any(feature = "postgres", feature = "mysql", feature = "sqlite")), allow(unused))]

pub mod broker;
mod check_back;
mod confirm;
mod counters;
mod error;
mod housekeeping;
mod message;
mod producer;
pub mod protocol;
mod receipt;
mod store;
mod tx;

#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../README.md")]
mod readme {}

pub use broker::rocketmq::RocketMq;
pub use counters::Counters;
pub use error::{BusinessRows, RollbackCause, SendError, StartError, StatusError};
pub use message::{BoxError, MessageId, TransactionMessage};
pub use producer::{Builder, ShutdownReport, TransactionListener, TransactionProducer};
pub use receipt::{Confirmation, Receipt, Status};
pub use store::{MigrateError, OpenError, SupportedDatabase, ddl, migrate};
pub use tx::{Savepoint, Tx};
