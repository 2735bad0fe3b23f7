//! What the tests share: a fresh database for each, and messages that write an order.
#![allow(dead_code, unused_imports, reason = "each test program uses its own part")]

pub mod database;
pub mod order;

pub use database::{Db, TestDatabase};
pub use order::Order;

use std::{future::Future, time::Duration};

/// The value of a variable that `scripts/test` sets.
pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run the tests with scripts/test"))
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
