//! The adapter to a real RocketMQ cluster.
//!
//! ```no_run
//! use rocketmq_tx::broker::rocketmq::RocketMq;
//!
//! let settings = RocketMq::at("namesrv-a:9876;namesrv-b:9876").group("order-service");
//! ```
//!
//! # How it talks to the brokers
//!
//! One pipelined connection per broker carries everything: halves, ends, heartbeats, and the broker's check-backs in
//! the other direction. The adapter speaks the protocol itself, over `rocketmq-transport`, for what the stock
//! `TransactionMQProducer` cannot give:
//!
//! - a half is written at most once, and a failure tells whether it can have reached the broker;
//! - an end is a request that the broker answers;
//! - a check-back is handed on by the task that read it, so there is no queue between that can drop it;
//! - the start waits until every broker has acknowledged this producer.
//!
//! # Map
//!
//! | file | concept |
//! |---|---|
//! | `config` | what a user can set, and its defaults |
//! | `connect` | the start, and the running adapter |
//! | `engine` | threads and the transport client: start and stop |
//! | `slot` | one producer of a group per process |
//! | `link` | one request to one address, and how far a failed one got |
//! | `knock` | whether anybody listens at an address |
//! | `names` | namespaces |
//! | `directory` | which broker serves a topic, and where it is |
//! | `presence` | heartbeats: brokers know this producer |
//! | `half` | the first phase |
//! | `end` | the second phase |
//! | `check` | check-backs |
//! | `settings` | what the broker says about its own timing |

mod check;
mod config;
mod connect;
mod directory;
mod end;
mod engine;
mod half;
mod knock;
mod link;
mod names;
mod presence;
mod settings;
mod slot;

pub use config::{CheckSchedule, RocketMq};
