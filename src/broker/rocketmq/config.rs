//! What a user can set, and the defaults.

use std::{fmt, time::Duration};

use rocketmq_model::common::topic::TopicValidator;

use super::names::Names;
use crate::broker::BrokerError;

/// How long one request waits for its answer. The stock clients' value.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// How long the start waits for a name server and for the brokers: longer than a broker takes to boot.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest group that brokers accept, in bytes, its namespace included.
const GROUP_MAX: usize = 120;

/// The group that brokers reserve for producers that were given none.
const RESERVED_GROUP: &str = "DEFAULT_PRODUCER";

/// The settings of a producer of transactional messages on a RocketMQ cluster.
///
/// All checks are made when the producer starts; the setters only store.
#[derive(Clone)]
pub struct RocketMq {
    pub(super) name_servers: String,
    pub(super) group: String,
    pub(super) namespace: Option<String>,
    pub(super) credentials: Option<Credentials>,
    pub(super) tls: bool,
    pub(super) request_timeout: Duration,
    pub(super) start_timeout: Duration,
    pub(super) unreported: Option<CheckSchedule>,
}

#[derive(Clone)]
pub(super) struct Credentials {
    pub(super) access_key: String,
    pub(super) secret_key: String,
}

/// When a broker asks about a half message that was not ended; see
/// [`RocketMq::check_schedule_if_unreported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckSchedule {
    /// `transactionTimeOut`: how old a half is before its first check.
    pub transaction_timeout: Duration,
    /// `transactionCheckInterval`: the time between two rounds of checks.
    pub check_interval: Duration,
    /// `transactionCheckMax`: how many rounds a half gets.
    pub check_max: u32,
}

impl RocketMq {
    /// A cluster, by its name servers: `host:port`, several separated by `;`.
    pub fn at(name_servers: impl Into<String>) -> Self {
        Self {
            name_servers: name_servers.into(),
            group: String::new(),
            namespace: None,
            credentials: None,
            tls: false,
            request_timeout: REQUEST_TIMEOUT,
            start_timeout: START_TIMEOUT,
            unreported: None,
        }
    }

    /// The transaction group. Required. Its producers answer each other's check-backs, so all of them must use the
    /// same database.
    #[must_use]
    pub fn group(mut self, group: impl Into<String>) -> Self {
        self.group = group.into();
        self
    }

    /// The namespace of topics and group. None by default.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Signs every request, for brokers with access control. None by default.
    #[must_use]
    pub fn credentials(mut self, access_key: impl Into<String>, secret_key: impl Into<String>) -> Self {
        self.credentials = Some(Credentials { access_key: access_key.into(), secret_key: secret_key.into() });
        self
    }

    /// Encrypts all connections. Off by default. Certificates are verified against the system's roots; `SSL_CERT_FILE`
    /// names another file of them.
    #[must_use]
    pub fn tls(mut self, on: bool) -> Self {
        self.tls = on;
        self
    }

    /// How long one request waits for its answer. 3 s by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// How long the start retries while the name server or the brokers are not up. 30 s by default.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// What the broker's settings are where it does not tell: access control can keep them from a producer, and the
    /// Rust broker leaves these three out.
    ///
    /// A value that the broker does tell always wins. None by default: then such a broker is an error at start.
    #[must_use]
    pub fn check_schedule_if_unreported(mut self, schedule: CheckSchedule) -> Self {
        self.unreported = Some(schedule);
        self
    }

    pub(super) fn names(&self) -> Names {
        Names::new(self.namespace.clone())
    }

    /// The name servers one by one; checked by [`check`](Self::check).
    pub(super) fn name_server_list(&self) -> Vec<String> {
        self.name_servers.split(';').map(str::trim).filter(|one| !one.is_empty()).map(str::to_owned).collect()
    }

    pub(super) fn check(&self) -> Result<(), BrokerError> {
        self.check_name_servers()?;
        self.check_group()?;
        if let Some(namespace) = &self.namespace
            && (namespace.is_empty() || namespace.contains('%') || TopicValidator::is_topic_or_group_illegal(namespace))
        {
            return Err(BrokerError::message(format!(
                "the namespace {namespace:?} is not usable: it needs one or more of a-z A-Z 0-9 _ - |; leave \
                 .namespace(..) out when the cluster has none"
            )));
        }
        if let Some(Credentials { access_key, secret_key }) = &self.credentials
            && (access_key.is_empty() || secret_key.is_empty())
        {
            let missing = if access_key.is_empty() { "access key" } else { "secret key" };
            return Err(BrokerError::message(format!(
                "the credentials have no {missing}: give .credentials(access_key, secret_key) both, or leave it out \
                 when the brokers have no access control"
            )));
        }
        for (name, value) in [("request_timeout", self.request_timeout), ("start_timeout", self.start_timeout)] {
            if value.is_zero() {
                return Err(BrokerError::message(format!(
                    "{name} is zero, so nothing could ever succeed: give it some seconds"
                )));
            }
        }
        Ok(())
    }

    fn check_name_servers(&self) -> Result<(), BrokerError> {
        let servers = self.name_server_list();
        if servers.is_empty() {
            return Err(BrokerError::message(
                "no name server address is set: use RocketMq::at(\"host:9876\"), several separated by ';'",
            ));
        }
        for server in servers {
            let usable = server.rsplit_once(':').is_some_and(|(host, port)| {
                let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
                let host_is_usable = match bare {
                    Some(ipv6) => ipv6.parse::<std::net::Ipv6Addr>().is_ok(),
                    None => !host.is_empty() && !host.contains([':', '/', '@', ',']),
                };
                host_is_usable
                    && !host.contains(char::is_whitespace)
                    && port.parse::<u16>().is_ok_and(|number| number > 0)
            });
            if !usable {
                return Err(BrokerError::message(format!(
                    "the name server address {server:?} is not host:port: write it like \"namesrv:9876\", without a \
                     scheme, several separated by ';'"
                )));
            }
        }
        Ok(())
    }

    fn check_group(&self) -> Result<(), BrokerError> {
        let group = &self.group;
        if group.trim().is_empty() {
            return Err(BrokerError::message(
                "no group is set: use .group(\"order-service\"), one name per service and database",
            ));
        }
        if TopicValidator::is_topic_or_group_illegal(group) {
            return Err(BrokerError::message(format!(
                "the group {group:?} has a character that RocketMQ does not accept: use only a-z A-Z 0-9 _ - | %"
            )));
        }
        let length = self.names().on_the_wire(group).len();
        if length > GROUP_MAX {
            return Err(BrokerError::message(format!(
                "the group {group:?} is {length} bytes long with its namespace, and RocketMQ accepts {GROUP_MAX}: use \
                 a shorter one"
            )));
        }
        if group == RESERVED_GROUP {
            return Err(BrokerError::message(format!(
                "the group {RESERVED_GROUP} is reserved by RocketMQ: use the name of your service"
            )));
        }
        Ok(())
    }
}

impl fmt::Debug for RocketMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocketMq")
            .field("name_servers", &self.name_servers)
            .field("group", &self.group)
            .field("namespace", &self.namespace)
            .field("credentials", &self.credentials)
            .field("tls", &self.tls)
            .field("request_timeout", &self.request_timeout)
            .field("start_timeout", &self.start_timeout)
            .field("check_schedule_if_unreported", &self.unreported)
            .finish()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(settings: RocketMq) -> String {
        settings.check().expect_err("must be refused").to_string()
    }

    fn good() -> RocketMq {
        RocketMq::at("localhost:9876").group("order-service")
    }

    #[test]
    fn case_68_groups_are_checked_as_brokers_check_them() {
        assert!(good().group("g".repeat(120)).check().is_ok());
        assert!(refusal(good().group("g".repeat(121))).contains("shorter"));
        assert!(good().namespace("n").group("g".repeat(118)).check().is_ok());
        assert!(refusal(good().namespace("n").group("g".repeat(119))).contains("namespace"));
        assert!(refusal(good().group("")).contains(".group("));
        assert!(refusal(good().group("  ")).contains(".group("));
        assert!(refusal(good().group("order service")).contains("character"));
        assert!(refusal(good().group("bestellungen-ü")).contains("character"));
        assert!(refusal(good().group("DEFAULT_PRODUCER")).contains("reserved"));
    }

    #[test]
    fn name_server_addresses_are_checked() {
        for address in ["h:9876", "h:9876;i:9876", " h:9876 ; i:1 ", "10.0.0.1:9876", "[::1]:9876", "h:9876;"] {
            assert!(RocketMq::at(address).group("g").check().is_ok(), "{address}");
        }
        for address in ["", ";", "h", "h:", ":9876", "h:0", "h:70000", "http://h:9876", "h:9876,i:9876", "::1:9876"] {
            assert!(RocketMq::at(address).group("g").check().is_err(), "{address}");
        }
        assert_eq!(RocketMq::at(" h:1 ;i:2;").name_server_list(), ["h:1", "i:2"]);
    }

    #[test]
    fn half_set_credentials_name_the_missing_half() {
        assert!(refusal(good().credentials("ak", "")).contains("secret key"));
        assert!(refusal(good().credentials("", "sk")).contains("access key"));
        assert!(good().credentials("ak", "sk").check().is_ok());
    }

    #[test]
    fn namespaces_and_timeouts_are_checked() {
        assert!(refusal(good().namespace("")).contains(".namespace("));
        assert!(refusal(good().namespace("a%b")).contains("namespace"));
        assert!(refusal(good().request_timeout(Duration::ZERO)).contains("request_timeout"));
        assert!(refusal(good().start_timeout(Duration::ZERO)).contains("start_timeout"));
    }

    #[test]
    fn debug_hides_the_credentials() {
        let shown = format!("{:?}", good().credentials("the-access-key", "the-secret-key"));
        assert!(shown.contains("order-service"), "{shown}");
        assert!(!shown.contains("the-secret-key") && !shown.contains("the-access-key"), "{shown}");
    }
}
