//! What the brokers say about their own timing.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use rocketmq_protocol::code::request_code::RequestCode;

use super::{
    config::CheckSchedule,
    directory::Directory,
    link::{Link, Refusal, is_success},
};
use crate::broker::{BrokerError, BrokerSettings};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Reads the settings of every broker that serves the registered topics.
pub(super) async fn read_all(
    link: &Arc<Link>,
    directory: &Directory,
    unreported: Option<CheckSchedule>,
) -> Result<Vec<BrokerSettings>, BrokerError> {
    let brokers = directory.serving();
    let answers = brokers.iter().map(|(broker, address)| read(link, broker, address, unreported));
    join_all(answers).await.into_iter().collect()
}

async fn read(
    link: &Link,
    broker: &str,
    address: &str,
    unreported: Option<CheckSchedule>,
) -> Result<BrokerSettings, BrokerError> {
    let doing = || format!("reading the settings of broker {broker} at {address}");
    let answer = link
        .request(address, link.bare_command(RequestCode::GetBrokerConfig))
        .await
        .map_err(|failure| BrokerError::new(doing(), failure))?;
    if !is_success(&answer) {
        let refusal = Refusal::from(&answer);
        if refusal.is_no_permission() {
            if unreported.is_some() {
                return parse(broker, "", unreported);
            }
            return Err(BrokerError::new(
                format!(
                    "{}: grant these credentials the right to read them (Cluster:*, Get), or state them with \
                     RocketMq::check_schedule_if_unreported",
                    doing()
                ),
                refusal,
            ));
        }
        return Err(BrokerError::new(doing(), refusal));
    }
    let text = std::str::from_utf8(answer.body().map(AsRef::as_ref).unwrap_or_default())
        .map_err(|error| BrokerError::new(doing(), error))?;
    parse(broker, text, unreported)
}

fn parse(broker: &str, text: &str, unreported: Option<CheckSchedule>) -> Result<BrokerSettings, BrokerError> {
    let table = Table { broker, values: text.lines().filter_map(entry).collect() };
    // The Java broker's spelling, then the Rust broker's.
    let transaction_timeout = table
        .millis(&["transactionTimeOut", "transactionTimeout"])?
        .or(unreported.map(|schedule| schedule.transaction_timeout));
    let check_interval =
        table.millis(&["transactionCheckInterval"])?.or(unreported.map(|schedule| schedule.check_interval));
    let check_max = match table.number(&["transactionCheckMax"])? {
        Some(max) => Some(u32::try_from(max).map_err(|_| table.bad("transactionCheckMax", "too large"))?),
        None => unreported.map(|schedule| schedule.check_max),
    };
    Ok(BrokerSettings {
        broker_name: broker.to_owned(),
        transaction_timeout: transaction_timeout.ok_or_else(|| table.missing("transactionTimeOut"))?,
        check_interval: check_interval.ok_or_else(|| table.missing("transactionCheckInterval"))?,
        check_max: check_max.ok_or_else(|| table.missing("transactionCheckMax"))?,
        op_batch_interval: table.millis(&["transactionOpBatchInterval"])?,
        file_reserved: table
            .number(&["fileReservedTime"])?
            .map(|hours| HOUR.saturating_mul(u32::try_from(hours).unwrap_or(u32::MAX))),
        max_message_size: table.number(&["maxMessageSize"])?,
    })
}

/// One line of settings: the Java broker writes `name=value`, the Rust broker `name:value`.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (name, value) = line.split_once(['=', ':'])?;
    Some((name.trim(), value.trim()))
}

struct Table<'t> {
    broker: &'t str,
    values: HashMap<&'t str, &'t str>,
}

impl Table<'_> {
    fn number(&self, spellings: &[&str]) -> Result<Option<u64>, BrokerError> {
        let found = spellings.iter().find_map(|name| self.values.get(name).map(|value| (*name, *value)));
        found.map(|(name, value)| value.parse().map_err(|_| self.bad(name, "not a whole number"))).transpose()
    }

    fn millis(&self, spellings: &[&str]) -> Result<Option<Duration>, BrokerError> {
        Ok(self.number(spellings)?.map(Duration::from_millis))
    }

    fn bad(&self, name: &str, what: &str) -> BrokerError {
        let value = self.values.get(name).copied().unwrap_or_default();
        BrokerError::message(format!("broker {} reports {name} = {value:?}, which is {what}", self.broker))
    }

    fn missing(&self, name: &str) -> BrokerError {
        BrokerError::message(format!(
            "broker {} does not report {name}, and it must not be guessed: state it with \
             RocketMq::check_schedule_if_unreported",
            self.broker
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const JAVA: &str = "brokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:9876\ntransactionTimeOut=6000\n\
                        transactionCheckInterval=30000\ntransactionCheckMax=15\ntransactionOpBatchInterval=3000\n\
                        fileReservedTime=72\nmaxMessageSize=4194304\nmessageDelayLevel=1s 5s=x\n";

    #[test]
    fn case_65_the_java_brokers_settings_are_read() {
        let settings = parse("broker-a", JAVA, None).expect("complete");
        assert_eq!(settings.transaction_timeout, Duration::from_secs(6));
        assert_eq!(settings.check_interval, Duration::from_secs(30));
        assert_eq!(settings.check_max, 15);
        assert_eq!(settings.op_batch_interval, Some(Duration::from_secs(3)));
        assert_eq!(settings.file_reserved, Some(HOUR * 72));
        assert_eq!(settings.max_message_size, Some(4 * 1024 * 1024));
        assert_eq!(settings.check_budget(), Duration::from_secs(6 + 30 * 16));
    }

    #[test]
    fn the_rust_brokers_spelling_and_separator_are_read() {
        let rust = JAVA.replace('=', ":").replace("TimeOut", "Timeout");
        assert_eq!(parse("broker-a", &rust, None).expect("complete"), parse("broker-a", JAVA, None).expect("complete"));
    }

    #[test]
    fn what_is_missing_is_named_and_never_guessed() {
        for name in ["transactionTimeOut", "transactionCheckInterval", "transactionCheckMax"] {
            let without: String =
                JAVA.lines().filter(|line| !line.starts_with(name)).map(|l| format!("{l}\n")).collect();
            let error = parse("broker-a", &without, None).expect_err("incomplete").to_string();
            assert!(error.contains("broker-a") && error.contains(name), "{error}");
        }
        let without: String = JAVA.lines().filter(|line| !line.starts_with("file")).map(|l| format!("{l}\n")).collect();
        assert_eq!(parse("broker-a", &without, None).expect("optional").file_reserved, None);
        assert!(parse("b", &JAVA.replace("30000", "30s"), None).expect_err("no number").to_string().contains("30s"));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "(transaction(TimeOut|CheckInterval|CheckMax)[=:]?[-0-9]{0,30}\n|.{0,20}\n){0,8}") {
            if let Ok(settings) = parse("broker-a", &text, None) {
                // However large, its times add up.
                prop_assert!(settings.check_budget() >= settings.check_interval);
            }
        }
    }

    #[test]
    fn what_is_stated_fills_gaps_only() {
        let stated = CheckSchedule { transaction_timeout: HOUR, check_interval: Duration::from_secs(5), check_max: 3 };
        let gap: String = JAVA.lines().filter(|line| !line.contains("CheckMax")).map(|l| format!("{l}\n")).collect();
        let settings = parse("broker-a", &gap, Some(stated)).expect("filled");
        assert_eq!((settings.check_max, settings.transaction_timeout), (3, Duration::from_secs(6)));
        assert_eq!(parse("broker-a", "", Some(stated)).expect("all stated").check_interval, Duration::from_secs(5));
    }
}
