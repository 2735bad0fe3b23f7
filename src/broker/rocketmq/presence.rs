//! Heartbeats: every broker of the cluster knows this producer, so that it can ask it about halves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use rocketmq_protocol::{
    code::request_code::RequestCode, protocol::header::unregister_client_request_header::UnregisterClientRequestHeader,
};
use tokio::time;

use super::{
    directory::Directory,
    link::{Link, Refusal, is_success},
};
use crate::broker::BrokerError;

/// How often a broker hears of this producer; it forgets one after two minutes of silence.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);

/// How often the routes are asked for again. The stock clients' value.
const REFRESH_EVERY: Duration = Duration::from_secs(30);

/// How often the connections are looked at, without any traffic. A broker forgets a producer the moment that its
/// connection closes, and learns of it again only from a heartbeat.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The pause after a heartbeat that failed, and between two looks for a broker that is away.
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// This producer, as brokers know it.
pub(super) struct Presence {
    link: Arc<Link>,
    directory: Arc<Directory>,
    group: String,
    client_id: String,
    heard: Mutex<HashMap<Arc<str>, Heard>>,
}

/// What one address said to the last heartbeat.
#[derive(Clone, Copy)]
struct Heard {
    at: Instant,
    acknowledged: bool,
}

/// The outcome of one round of heartbeats.
#[derive(Default)]
pub(super) struct Round {
    pub(super) acknowledged: usize,
    pub(super) failed: Vec<BrokerError>,
    /// A broker refuses this producer for good.
    pub(super) refused: Option<BrokerError>,
}

impl Presence {
    pub(super) fn new(link: Arc<Link>, directory: Arc<Directory>, group: String) -> Self {
        let client_id = format!("rocketmq-tx@{}@{}", std::process::id(), uuid::Uuid::new_v4().simple());
        Self { link, directory, group, client_id, heard: Mutex::default() }
    }

    /// Announces this producer to every broker that may ask it.
    pub(super) async fn announce(&self) -> Round {
        self.heartbeats(self.directory.askers()).await
    }

    /// Keeps the brokers informed for as long as it runs.
    pub(super) async fn keep(self: Arc<Self>) {
        let mut refreshed = Instant::now();
        loop {
            let in_trouble = tokio::select! {
                () = time::sleep(LOOK_EVERY) => false,
                () = self.link.trouble.notified() => true,
            };
            if in_trouble {
                // Requests fail in crowds; one look after a moment answers for all of them.
                time::sleep(Duration::from_millis(100)).await;
            }
            let awaiting = self.directory.awaits_a_broker() && refreshed.elapsed() >= RETRY_AFTER;
            if refreshed.elapsed() >= REFRESH_EVERY || in_trouble || awaiting {
                refreshed = Instant::now();
                if let Err(error) = self.directory.refresh().await {
                    tracing::warn!(%error, cause = cause(&error), "the routes could not be refreshed");
                }
            }
            let due = self.due(in_trouble);
            if !due.is_empty() {
                self.heartbeats(due).await;
            }
        }
    }

    /// Tells the brokers that this producer leaves, so that they ask another one.
    pub(super) async fn leave(&self) {
        let farewells = self.directory.askers().into_values().filter(|address| self.link.is_connected(address)).map(
            |address| async move {
                let header = UnregisterClientRequestHeader {
                    client_id: self.client_id.as_str().into(),
                    producer_group: Some(self.group.as_str().into()),
                    ..Default::default()
                };
                let command = self.link.command(RequestCode::UnregisterClient, header);
                if let Err(failure) = self.link.probe(&address, command).await {
                    tracing::debug!(%address, %failure, "a broker was not told that this producer leaves");
                }
            },
        );
        join_all(farewells).await;
    }

    fn due(&self, in_trouble: bool) -> BTreeMap<String, Arc<str>> {
        let mut askers = self.directory.askers();
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let current: BTreeSet<&Arc<str>> = askers.values().collect();
        heard.retain(|address, _| current.contains(address));
        askers.retain(|_, address| match heard.get(address) {
            None => true,
            Some(last) if !last.acknowledged => last.at.elapsed() >= RETRY_AFTER,
            Some(last) => last.at.elapsed() >= HEARTBEAT_EVERY || in_trouble || !self.link.is_connected(address),
        });
        askers
    }

    async fn heartbeats(&self, brokers: BTreeMap<String, Arc<str>>) -> Round {
        let beats = brokers.into_iter().map(|(broker, address)| async move {
            let outcome = self.heartbeat(&broker, &address).await;
            (broker, address, outcome)
        });
        let mut round = Round::default();
        for (broker, address, outcome) in join_all(beats).await {
            let acknowledged = outcome.is_ok();
            let before = {
                let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
                heard.insert(address.clone(), Heard { at: Instant::now(), acknowledged })
            };
            match outcome {
                Ok(()) => {
                    round.acknowledged += 1;
                    if before.is_none_or(|before| !before.acknowledged) {
                        tracing::info!(%broker, %address, group = %self.group, "the broker knows this producer");
                    }
                }
                Err(error) => {
                    if before.is_none_or(|before| before.acknowledged) {
                        tracing::warn!(%error, cause = cause(&error.0), "a broker cannot ask this producer");
                    }
                    if error.1 && round.refused.is_none() {
                        round.refused = Some(error.0);
                    } else {
                        round.failed.push(error.0);
                    }
                }
            }
        }
        round
    }

    async fn heartbeat(&self, broker: &str, address: &str) -> Result<(), HeartbeatError> {
        let doing = || format!("registering producer group {} with broker {broker} at {address} failed", self.group);
        let body = serde_json::json!({
            "clientID": self.client_id,
            "producerDataSet": [{ "groupName": self.group }],
            "consumerDataSet": [],
            "heartbeatFingerprint": 0,
            "withoutSub": false,
        });
        let command = self.link.bare_command(RequestCode::HeartBeat).set_body(body.to_string());
        let answer = self
            .link
            .probe(address, command)
            .await
            .map_err(|failure| HeartbeatError(BrokerError::new(doing(), failure), false))?;
        if is_success(&answer) {
            return Ok(());
        }
        let refusal = Refusal::from(&answer);
        if refusal.is_no_permission() {
            let advice = format!("{}: check the credentials and what the broker grants them", doing());
            return Err(HeartbeatError(BrokerError::new(advice, refusal), true));
        }
        Err(HeartbeatError(BrokerError::new(doing(), refusal), false))
    }
}

/// The error, and whether it is final.
struct HeartbeatError(BrokerError, bool);

impl std::fmt::Display for HeartbeatError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

pub(super) fn cause(error: &BrokerError) -> String {
    std::error::Error::source(error).map(super::link::chain).unwrap_or_default()
}
