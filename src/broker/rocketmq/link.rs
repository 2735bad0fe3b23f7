//! One request to one address, and how far a failed one got.

use std::{
    collections::HashMap,
    error::Error as StdError,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    protocol::{
        SerializeType,
        command_custom_header::CommandCustomHeader,
        remoting_command::RemotingCommand,
        remoting_command_defaults::{RemotingCommandDefaults, RemotingCommandFactory},
    },
    version::CURRENT_VERSION,
};
use rocketmq_transport::api::{
    CachedConnectionState, OutboundRequestOutcome, OutboundRequestRejectionReason, OutboundRequestStage,
    RemotingClient, RequestDeadline, RequestTarget, TransportError,
};
use tokio::{
    sync::{Notify, Semaphore},
    time,
};

use super::{check::CheckReceiver, knock::Knocks};
use crate::broker::BrokerError;

/// How much later than ours the transport's own deadline is. The transport closes the connection when its deadline
/// passes, and so fails every other request in flight on it; one slow answer must not do that. A connection that is
/// really dead is closed by the heartbeat, which uses the transport's deadline.
const TRANSPORT_GRACE: Duration = Duration::from_secs(30);

/// How many requests may wait for one broker's answers at once; more wait for their turn. The transport refuses what does
/// not fit into its queue of about a thousand, and a broker that is given too many at once refuses some of them as busy.
const IN_FLIGHT_MAX: usize = 512;

/// The longest part of a broker's remark that an error repeats, in characters.
const REMARK_MAX: usize = 300;

/// The client side of all connections.
pub(super) struct Link {
    client: Arc<RemotingClient<CheckReceiver>>,
    commands: RemotingCommandFactory,
    name_servers: Vec<String>,
    /// Index of the name server that answered last.
    preferred: AtomicUsize,
    knocks: Knocks,
    /// The turns of each address.
    turns: Mutex<HashMap<String, Arc<Semaphore>>>,
    timeout: Duration,
    closed: AtomicBool,
    /// Told when a request failed, so that heartbeats probe the connections at once.
    pub(super) trouble: Notify,
}

impl Link {
    pub(super) fn new(
        client: Arc<RemotingClient<CheckReceiver>>,
        name_servers: Vec<String>,
        timeout: Duration,
    ) -> Self {
        // The binary header costs both sides less than JSON; brokers answer in the request's own format.
        let defaults = RemotingCommandDefaults::new(CURRENT_VERSION as i32, SerializeType::ROCKETMQ);
        Self {
            client,
            commands: RemotingCommandFactory::new(defaults),
            name_servers,
            preferred: AtomicUsize::new(0),
            knocks: Knocks::default(),
            turns: Mutex::default(),
            timeout,
            closed: AtomicBool::new(false),
            trouble: Notify::new(),
        }
    }

    /// A request with a typed header.
    pub(super) fn command<H>(&self, code: RequestCode, header: H) -> RemotingCommand
    where
        H: CommandCustomHeader + Send + Sync + 'static,
    {
        self.commands.create_request_command(code, header)
    }

    /// A request without a header.
    pub(super) fn bare_command(&self, code: RequestCode) -> RemotingCommand {
        self.commands.create_remoting_command(code)
    }

    pub(super) fn name_servers(&self) -> String {
        self.name_servers.join(";")
    }

    /// Refuses every later request.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether a connection to `address` is open, as far as this side knows.
    pub(super) fn is_connected(&self, address: &str) -> bool {
        self.client.reconcile_cached_connection(&address.into()) == CachedConnectionState::Healthy
    }

    /// Sends a request and waits for its answer, whatever its code.
    pub(super) async fn request(
        &self,
        address: &str,
        command: RemotingCommand,
    ) -> Result<RemotingCommand, RequestFailure> {
        self.refuse_when_closed()?;
        let deadline = RequestDeadline::after(self.timeout + TRANSPORT_GRACE);
        let turns = self.turns(address);
        let started = Instant::now();
        let Ok(Ok(_turn)) = time::timeout(self.timeout, turns.acquire()).await else {
            let reason = format!("{IN_FLIGHT_MAX} other requests waited for this broker for {:?}", self.timeout);
            return Err(RequestFailure { reached: Reached::Nothing, reason });
        };
        let request = async {
            self.find_somebody(address).await?;
            let target = RequestTarget::Endpoint(address.into());
            self.answer(self.client.request(target, command, deadline).await)
        };
        let answer = match time::timeout(self.timeout.saturating_sub(started.elapsed()), request).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(RequestFailure::no_answer(self.timeout)),
        };
        if answer.is_err() {
            self.trouble.notify_one();
        }
        answer
    }

    /// Like [`request`](Self::request), but a missing answer closes the connection. Allowed after
    /// [`close`](Self::close), for the last words to the brokers.
    pub(super) async fn probe(
        &self,
        address: &str,
        command: RemotingCommand,
    ) -> Result<RemotingCommand, RequestFailure> {
        let deadline = RequestDeadline::after(self.timeout);
        self.find_somebody(address).await?;
        let outcome = self.client.request(RequestTarget::Endpoint(address.into()), command, deadline).await;
        self.answer(outcome)
    }

    /// Asks the name servers one after the other, the one that answered last first.
    pub(super) async fn ask_name_server(
        &self,
        doing: &str,
        command: impl Fn() -> RemotingCommand,
    ) -> Result<RemotingCommand, BrokerError> {
        self.refuse_when_closed().map_err(|failure| BrokerError::new(format!("{doing} failed"), failure))?;
        let count = self.name_servers.len();
        let first = self.preferred.load(Ordering::Relaxed);
        let mut failures = Vec::new();
        for index in (first..first + count).map(|index| index % count) {
            let address = &self.name_servers[index];
            match self.probe(address, command()).await {
                Ok(answer) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(failure) => failures.push(format!("{address}: {failure}")),
            }
        }
        Err(BrokerError::new(
            format!("{doing} failed: no name server answered; is the address right, and is one running there?"),
            failures.join("; "),
        ))
    }

    fn turns(&self, address: &str) -> Arc<Semaphore> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        match turns.get(address) {
            Some(of_address) => of_address.clone(),
            None => turns.entry(address.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(IN_FLIGHT_MAX))).clone(),
        }
    }

    async fn find_somebody(&self, address: &str) -> Result<(), RequestFailure> {
        if self.is_connected(address) {
            return Ok(());
        }
        // Shorter than the request, so that an address that swallows attempts is told from one that does not answer.
        let nobody = |reason| RequestFailure { reached: Reached::Nothing, reason };
        self.knocks.at(address, self.timeout / 2).await.map_err(nobody)
    }

    fn refuse_when_closed(&self) -> Result<(), RequestFailure> {
        if self.is_closed() {
            return Err(RequestFailure { reached: Reached::Nothing, reason: "this producer was shut down".to_owned() });
        }
        Ok(())
    }

    fn answer(
        &self,
        outcome: Result<OutboundRequestOutcome, TransportError>,
    ) -> Result<RemotingCommand, RequestFailure> {
        let (stage, reason) = match outcome {
            Ok(OutboundRequestOutcome::Response(answer)) => return Ok(answer),
            Ok(OutboundRequestOutcome::Rejected(rejection)) => (
                Some(rejection.stage()),
                match rejection.reason() {
                    OutboundRequestRejectionReason::DeadlineExpired => {
                        return Err(RequestFailure {
                            reached: Reached::from(Some(rejection.stage())),
                            ..RequestFailure::no_answer(self.timeout)
                        });
                    }
                    OutboundRequestRejectionReason::Cancelled => "the request was cancelled".to_owned(),
                    OutboundRequestRejectionReason::ClientStopping => "this producer is shutting down".to_owned(),
                    OutboundRequestRejectionReason::SessionClosed => "the connection was closed".to_owned(),
                    OutboundRequestRejectionReason::QueueSaturated => {
                        "too many requests are waiting on this connection".to_owned()
                    }
                    OutboundRequestRejectionReason::EndpointUnavailable => {
                        "no connection; after five failed attempts the next one waits 30 s".to_owned()
                    }
                },
            ),
            Ok(OutboundRequestOutcome::Contract(_)) => {
                (Some(OutboundRequestStage::BeforeWrite), "the request had no address".to_owned())
            }
            Err(error) => (error.request_stage(), chain(&error)),
        };
        Err(RequestFailure { reached: Reached::from(stage), reason })
    }
}

/// How far a request without an answer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reached {
    /// Nothing was written: the other side cannot have seen it.
    Nothing,
    /// Some of it may have arrived.
    Perhaps,
}

impl From<Option<OutboundRequestStage>> for Reached {
    fn from(stage: Option<OutboundRequestStage>) -> Self {
        match stage {
            Some(OutboundRequestStage::BeforeWrite) => Self::Nothing,
            _ => Self::Perhaps,
        }
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(super) struct RequestFailure {
    pub(super) reached: Reached,
    reason: String,
}

impl RequestFailure {
    fn no_answer(timeout: Duration) -> Self {
        Self { reached: Reached::Perhaps, reason: format!("no answer within {timeout:?}") }
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl StdError for RequestFailure {}

/// An answer that says no.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: i32,
    remark: String,
}

impl Refusal {
    pub(super) fn from(answer: &RemotingCommand) -> Self {
        let remark = answer.remark().map(|remark| remark.chars().take(REMARK_MAX).collect()).unwrap_or_default();
        Self { code: answer.code(), remark }
    }

    /// Whether a retry is pointless until somebody changes the credentials or the broker.
    pub(super) fn is_no_permission(&self) -> bool {
        self.code == ResponseCode::NoPermission.to_i32()
    }

    pub(super) fn remark(&self) -> &str {
        &self.remark
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the answer was code {} ({:?})", self.code, ResponseCode::from(self.code))?;
        if !self.remark.is_empty() {
            write!(f, ": {}", self.remark)?;
        }
        Ok(())
    }
}

impl StdError for Refusal {}

pub(super) fn is_success(answer: &RemotingCommand) -> bool {
    answer.code() == ResponseCode::Success.to_i32()
}

/// The error and its causes on one line: the transport's own errors say little without their causes.
pub(super) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.ends_with(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

/// A link for unit tests that never reaches anything; its threads stop at once.
#[cfg(test)]
pub(super) fn offline() -> Link {
    let (engine, link) = tests::link(Duration::from_secs(1));
    drop(engine);
    link
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
