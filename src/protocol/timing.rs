//! The SDK's time-outs, and whether they fit each other and the broker's.

use std::time::Duration;

use super::BrokerSettings;

/// The times that bind one message. All are validated together, and with every broker's settings, at start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long `execute` may run, from BEGIN to the last read before COMMIT. Then it is rolled back.
    pub execute_timeout: Duration,
    /// How old a PREPARING row may become before the settler may roll it back, by the database's clock. A local
    /// transaction that still runs holds the row's lock and is left alone.
    pub settle_deadline: Duration,
    /// How long the SDK waits for the database to say what became of a COMMIT whose answer was lost, and for the
    /// answers of its own short statements.
    pub database_timeout: Duration,
    /// How long final rows are kept. A message id can be sent again, as a new message, once its row is purged.
    pub retention: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            // Far above a healthy transaction, well under the settle deadline.
            execute_timeout: Duration::from_secs(30),
            // Two minutes of checks (6 s + 4 rounds of 30 s) still follow within the broker's default budget.
            settle_deadline: Duration::from_secs(60),
            // Longer than a fail-over's hiccup, short enough for a caller to wait.
            database_timeout: Duration::from_secs(5),
            // RocketMQ keeps messages for 72 hours by default; a week outlives every redelivery of them.
            retention: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// Times that do not fit. The text names the setting to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimingError {
    /// A time-out of zero.
    #[error("{0} is zero; give it a positive duration")]
    Zero(&'static str),
    /// The settler could roll back attempts that are still waiting to begin.
    #[error(
        "settle_deadline ({settle:?}) must be longer than execute_timeout ({execute:?}) plus database_timeout \
         ({database:?}); raise settle_deadline or lower execute_timeout"
    )]
    SettleTooShort {
        /// The settle deadline.
        settle: Duration,
        /// The time-out of `execute`.
        execute: Duration,
        /// The time-out of the database.
        database: Duration,
    },
    /// The broker stops asking before the settler has decided.
    #[error(
        "broker {broker} discards a half message after {budget:?} (transactionTimeOut + transactionCheckInterval x \
         (transactionCheckMax + 1)), before settle_deadline ({settle:?}) and one more check have passed; lower \
         settle_deadline or raise the broker's transactionCheckMax"
    )]
    BudgetTooShort {
        /// The broker.
        broker: String,
        /// Its check budget.
        budget: Duration,
        /// The settle deadline.
        settle: Duration,
    },
    /// Rows would be purged while their half messages can still be asked about or redelivered.
    #[error("retention ({retention:?}) must be longer than {what} of broker {broker} ({needed:?}); raise retention")]
    RetentionTooShort {
        /// The retention.
        retention: Duration,
        /// The broker.
        broker: String,
        /// Which of its times.
        what: &'static str,
        /// How long that is.
        needed: Duration,
    },
}

impl Timing {
    /// Checks the SDK's own times against each other.
    pub fn check(&self) -> Result<(), TimingError> {
        for (name, value) in [
            ("execute_timeout", self.execute_timeout),
            ("settle_deadline", self.settle_deadline),
            ("database_timeout", self.database_timeout),
            ("retention", self.retention),
        ] {
            if value.is_zero() {
                return Err(TimingError::Zero(name));
            }
        }
        if self.settle_deadline <= self.execute_timeout.saturating_add(self.database_timeout) {
            return Err(TimingError::SettleTooShort {
                settle: self.settle_deadline,
                execute: self.execute_timeout,
                database: self.database_timeout,
            });
        }
        Ok(())
    }

    /// Checks the SDK's times against one broker's.
    pub fn check_against(&self, broker: &BrokerSettings) -> Result<(), TimingError> {
        let budget = broker.check_budget();
        if self.settle_deadline.saturating_add(broker.check_interval) >= budget {
            return Err(TimingError::BudgetTooShort {
                broker: broker.broker_name.clone(),
                budget,
                settle: self.settle_deadline,
            });
        }
        let kept = [("the check budget", Some(budget)), ("fileReservedTime", broker.file_reserved)];
        for (what, needed) in kept {
            if let Some(needed) = needed.filter(|needed| self.retention <= *needed) {
                return Err(TimingError::RetentionTooShort {
                    retention: self.retention,
                    broker: broker.broker_name.clone(),
                    what,
                    needed,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker() -> BrokerSettings {
        BrokerSettings {
            broker_name: "broker-a".into(),
            transaction_timeout: Duration::from_secs(6),
            check_interval: Duration::from_secs(30),
            check_max: 15,
            op_batch_interval: Some(Duration::from_secs(3)),
            file_reserved: Some(Duration::from_secs(72 * 3600)),
            max_message_size: Some(4 << 20),
        }
    }

    #[test]
    fn the_defaults_fit_each_other_and_a_default_broker() {
        assert_eq!(Timing::default().check(), Ok(()));
        assert_eq!(Timing::default().check_against(&broker()), Ok(()));
    }

    #[test]
    fn a_settler_faster_than_execute_is_refused() {
        let timing = Timing { settle_deadline: Duration::from_secs(35), ..Timing::default() };
        assert!(matches!(timing.check(), Err(TimingError::SettleTooShort { .. })));
        let timing = Timing { settle_deadline: Duration::from_millis(35_001), ..Timing::default() };
        assert_eq!(timing.check(), Ok(()));
    }

    #[test]
    fn zero_is_refused_by_name() {
        let timing = Timing { execute_timeout: Duration::ZERO, ..Timing::default() };
        assert_eq!(timing.check(), Err(TimingError::Zero("execute_timeout")));
    }

    #[test]
    fn a_budget_that_ends_before_the_settler_is_refused() {
        let few = BrokerSettings { check_max: 1, ..broker() };
        assert!(matches!(Timing::default().check_against(&few), Err(TimingError::BudgetTooShort { .. })));
    }

    #[test]
    fn a_retention_shorter_than_the_brokers_files_is_refused() {
        let timing = Timing { retention: Duration::from_secs(72 * 3600), ..Timing::default() };
        let error = timing.check_against(&broker()).unwrap_err();
        assert!(error.to_string().contains("fileReservedTime"), "{error}");
    }
}
