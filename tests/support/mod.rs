//! What the tests share: a fresh database for each, and messages that write an order.
#![allow(dead_code, unused_imports, reason = "each test program uses its own part")]

pub mod database;
pub mod log;
pub mod order;
pub mod proxy;
pub mod raw;

pub use database::{Db, TestDatabase};
pub use order::Order;

use std::{error::Error, future::Future, time::Duration};

/// The value of a variable that `scripts/test` sets.
pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run the tests with scripts/test"))
}

/// Starts a server that few tests need, unless it runs, and returns its address.
pub fn start_server(name: &str, variable: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services");
    let status = std::process::Command::new(script).args(["start", name]).status().expect("scripts/services runs");
    assert!(status.success(), "{name} does not start");
    env(variable)
}

/// Waits until `condition` holds, and fails the test when it does not within 30 s.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    let waited = tokio::time::timeout(Duration::from_secs(30), async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(waited.await.is_ok(), "not within 30 s: {what}");
}

/// An error and its causes, in one line.
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
