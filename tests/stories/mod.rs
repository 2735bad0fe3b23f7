//! Stories of whole processes, real brokers and real databases, told once for all of them.
//!
//! A story is told in a [`Scene`]: a database, a topic and a group of its own. Its producers stand on a [`Stage`], which
//! notes what they and the brokers say to each other and can stop a message at a point; a [`Child`] is a producer in
//! another process, to be killed there.
#![allow(dead_code, reason = "each test program tells its own stories")]

pub mod child;
pub mod clock;
#[path = "../../examples/quickstart/consumer.rs"]
pub mod consumer;
pub mod crashes;
pub mod database_crash;
pub mod load;
pub mod log;
pub mod messages;
pub mod scene;
pub mod slow;
pub mod stage;
pub mod stopped;
pub mod termination;
pub mod topic;

pub use child::Child;
pub use log::{By, Event, Point};
pub use scene::{Cluster, Scene};
pub use stage::Stage;
