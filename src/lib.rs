//! RocketMQ transactional messages that commit together with your sqlx transaction.
#![deny(missing_docs, unsafe_code)]

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

pub use broker::rocketmq::RocketMq;
pub use counters::Counters;
pub use error::{BusinessRows, RollbackCause, SendError, StartError, StatusError};
pub use message::{BoxError, MessageId, TransactionMessage};
pub use producer::{Builder, ShutdownReport, TransactionListener, TransactionProducer};
pub use receipt::{Confirmation, Receipt, Status};
pub use store::{MigrateError, OpenError, SupportedDatabase, ddl, migrate};
pub use tx::{Savepoint, Tx};
