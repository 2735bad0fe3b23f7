//! The port to the message broker: what the SDK needs of RocketMQ, in its own words.
//!
//! A [`Connector`] turns settings into a running [`Broker`]. The SDK gives it a [`Registration`]: the topics whose
//! brokers must know this producer before any send, and the [`CheckSink`] that takes their check-backs.
//! [`rocketmq`] is the real adapter, [`memory`] the one of the test kit.

pub mod memory;
pub mod rocketmq;

use std::{error::Error as StdError, fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

pub use crate::protocol::{BrokerSettings, property};

/// Everything a broker must store for one half message.
#[derive(Clone)]
pub struct HalfMessage {
    /// The topic that consumers read, without the namespace.
    pub topic: String,
    /// The tag that consumers can filter on.
    pub tag: Option<String>,
    /// Messages of one ordering key go to one queue.
    pub ordering_key: Option<String>,
    /// The message id.
    pub msg_id: String,
    /// The token of this attempt; one half message per token.
    pub token: String,
    /// The kind.
    pub kind: String,
    /// The scope of the database that holds the row.
    pub scope: String,
    /// The encoded message.
    pub body: Bytes,
    /// The user's own properties.
    pub headers: Vec<(String, String)>,
}

/// Where a half message is, as the end of it must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalfCoordinates {
    /// The topic, without the namespace.
    pub topic: String,
    /// The name of the broker that holds the half.
    pub broker_name: String,
    /// The address (`host:port`) where that broker stored it; used only while its name has no route.
    pub store_host: Option<String>,
    /// Its offset in the commit log.
    pub commit_log_offset: u64,
    /// Its offset in the queue of half messages.
    pub queue_offset: u64,
    /// RocketMQ's unique id of the half, made by the client.
    pub unique_key: String,
    /// RocketMQ's transaction id.
    pub transaction_id: String,
}

/// How a half message is ended. There is no default: a caller that does not know must not end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Deliver it to its topic.
    Commit,
    /// Drop it.
    Rollback,
}

/// Who asks for the end: the sender, or the answer to a check-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOrigin {
    /// The instance that sent the half, after its local transaction.
    Sender,
    /// The answer to the broker's question.
    CheckBack,
}

/// The broker's question about one half message.
#[derive(Clone, Debug)]
pub struct CheckBack {
    /// Where the half is: a check renews a half, so these differ from those of the send.
    pub half: HalfCoordinates,
    /// The SDK's properties, absent when another program made the half.
    pub identity: Option<HalfIdentity>,
}

/// What the SDK's properties on a half message say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HalfIdentity {
    /// The message id.
    pub msg_id: String,
    /// The token of the attempt.
    pub token: String,
    /// The kind.
    pub kind: String,
    /// The scope.
    pub scope: String,
}

/// Takes check-backs from the client library without ever blocking it.
#[derive(Clone, Debug)]
pub struct CheckSink(mpsc::Sender<CheckBack>);

impl CheckSink {
    /// A sink that holds up to `capacity` questions, and the end that reads them.
    pub fn bounded(capacity: usize) -> (Self, mpsc::Receiver<CheckBack>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self(sender), receiver)
    }

    /// Queues a question. `false` when it had no room: the broker asks again in its next round.
    #[must_use]
    pub fn offer(&self, check: CheckBack) -> bool {
        self.0.try_send(check).is_ok()
    }
}

/// What the SDK tells a broker adapter when it starts.
#[derive(Clone, Debug)]
pub struct Registration {
    /// Every topic that may be sent to. The brokers of all of them know this producer before the first send,
    /// so that a restarted, idle process is asked about the halves it left.
    pub topics: Vec<String>,
    /// Where check-backs go.
    pub checks: CheckSink,
}

/// Why a half message cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HalfError {
    /// It was certainly not stored: the broker or the client refused it.
    #[error("the half message was refused")]
    Refused(#[source] BrokerError),
    /// It was stored, but not as safely as asked (`FLUSH_DISK_TIMEOUT`, `FLUSH_SLAVE_TIMEOUT`,
    /// `SLAVE_NOT_AVAILABLE`), so it must be ended with [`End::Rollback`].
    #[error("the broker stored the half message with status {status} instead of SEND_OK")]
    NotSafe {
        /// RocketMQ's name of the status.
        status: String,
        /// Where it is.
        half: Box<HalfCoordinates>,
    },
    /// It may or may not have been stored: a time-out, a lost connection.
    #[error("it is not known whether the broker stored the half message")]
    Unknown(#[source] BrokerError),
}

/// A request to a broker, or its start, that failed.
///
/// `Display` says what was being done, to which address, group or topic; the cause is the
/// [`source`](StdError::source).
#[derive(Debug)]
pub struct BrokerError {
    doing: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl BrokerError {
    /// `doing` in words that end an error sentence: "sending a half message to topic orders".
    pub fn new(doing: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { doing: doing.into(), source: Some(source.into()) }
    }

    /// An error whose words say it all.
    pub fn message(what: impl Into<String>) -> Self {
        Self { doing: what.into(), source: None }
    }
}

impl fmt::Display for BrokerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.doing)
    }
}

impl StdError for BrokerError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

/// Settings that can become a running [`Broker`].
#[async_trait]
pub trait Connector: Send + 'static {
    /// The transaction group: its producers answer each other's check-backs.
    fn group(&self) -> &str;

    /// Checks the settings without any I/O: names, sizes, contradictions. The error names the remedy.
    fn validate(&self) -> Result<(), BrokerError>;

    /// Connects and registers with the brokers of all topics in `registration`, retrying with backoff while the
    /// name server is not up yet. Returns once check-backs can arrive.
    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError>;
}

/// A connected broker cluster.
///
/// Methods may be called from any task at once; none of them retries under the same token.
#[async_trait]
pub trait Broker: Send + Sync + 'static {
    /// The settings of every broker that serves the registered topics.
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError>;

    /// Stores a half message. `Ok` only for `SEND_OK`.
    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError>;

    /// Ends a half with a two-way request to the broker that holds it: by its name through the current route, else
    /// at its store host. `Ok` only when that broker acknowledged it.
    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError>;

    /// Leaves the cluster and stops everything the adapter runs. Later calls fail; a second one does nothing.
    async fn shutdown(&self);
}
