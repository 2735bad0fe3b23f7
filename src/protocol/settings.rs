//! What a broker says of its own timing and sizes.

use std::time::Duration;

/// The settings of one broker that bind the SDK's own timing, read from the broker itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerSettings {
    /// The broker's name.
    pub broker_name: String,
    /// `transactionTimeOut`: how old a half is before its first check.
    pub transaction_timeout: Duration,
    /// `transactionCheckInterval`: the time between two rounds of checks.
    pub check_interval: Duration,
    /// `transactionCheckMax`: how many rounds a half gets.
    pub check_max: u32,
    /// `transactionOpBatchInterval`: a shorter check interval checks again what was already ended.
    pub op_batch_interval: Option<Duration>,
    /// `fileReservedTime`: how long the broker keeps messages at all.
    pub file_reserved: Option<Duration>,
    /// `maxMessageSize` in bytes: the largest message that the broker stores.
    pub max_message_size: Option<u64>,
}

impl BrokerSettings {
    /// The time after which the broker has stopped asking about a half:
    /// `transactionTimeOut + interval x (max + 1)`.
    #[must_use]
    pub fn check_budget(&self) -> Duration {
        let rounds = self.check_max.saturating_add(1);
        self.transaction_timeout.saturating_add(self.check_interval.saturating_mul(rounds))
    }
}
