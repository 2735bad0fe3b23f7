//! RocketMQ transactional messages that commit together with your sqlx transaction.

pub mod broker;
