//! Reads a topic from its first message on, every queue, as often as each message was delivered.
//!
//! It asks the brokers for each queue by offset, in RocketMQ's own protocol, and is no member of a consumer group: it
//! neither waits for an assignment nor sends anything to a retry topic, so what it returns is exactly what the queues
//! hold. Works with the Rust and the Java broker.
#![allow(dead_code, reason = "each program that includes this file uses a part of it")]

use std::{collections::HashMap, error::Error as StdError, sync::Arc, time::Duration};

use bytes::Bytes;
use rocketmq_model::common::{message::message_ext::MessageExt, sys_flag::pull_sys_flag::PullSysFlag};
use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    common::message::message_decoder,
    protocol::{
        header::{
            client_request_header::GetRouteInfoRequestHeader, pull_message_request_header::PullMessageRequestHeader,
            pull_message_response_header::PullMessageResponseHeader,
        },
        remoting_command::RemotingCommand,
        route::topic_route_data::TopicRouteData,
    },
};
use rocketmq_runtime::{ChildServiceContext, RootServiceContext, RuntimeConfig, RuntimeOwner};
use rocketmq_transport::api::{
    DefaultRequestProcessor, OutboundRequestOutcome, TransportClient, TransportClientConfig,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

/// Between two looks at queues that had nothing new.
const IDLE: Duration = Duration::from_millis(20);
/// Between two looks for queues that were not there before: a new topic, another broker.
const REFRESH: Duration = Duration::from_millis(500);
/// The same while there are none at all, and before a new client after an error.
const RETRY: Duration = Duration::from_millis(100);
const REQUEST_LIMIT: Duration = Duration::from_secs(2);
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// The most messages of one pull; brokers give no more by default.
const BATCH: i32 = 32;

/// What can go wrong; only shown, never matched on.
pub type Error = Box<dyn StdError + Send + Sync>;

/// One delivery.
#[derive(Clone, Debug)]
pub struct Received {
    /// The property `TX_MSG_ID`, else the first of `KEYS`, else RocketMQ's own id.
    pub msg_id: String,
    pub topic: String,
    pub body: Bytes,
    pub tag: Option<String>,
    /// The property `KEYS`.
    pub keys: Option<String>,
    /// Which queue of which broker, and where in it.
    pub broker_name: String,
    pub queue_id: i32,
    pub queue_offset: i64,
    pub properties: HashMap<String, String>,
}

/// Reads one topic in the background.
pub struct Reader {
    deliveries: mpsc::UnboundedReceiver<Received>,
    /// Dropped to stop the reading thread.
    stop: Option<oneshot::Sender<()>>,
    stopped: oneshot::Receiver<()>,
}

impl Reader {
    /// Starts reading; neither the topic nor a broker need be there yet. Every reader begins at the first message: the
    /// group's offsets are neither read nor written.
    pub async fn start(namesrv: &str, group: &str, topic: &str) -> Result<Self, Error> {
        let (deliver, deliveries) = mpsc::unbounded_channel();
        let (stop, stop_asked) = oneshot::channel();
        let (gone, stopped) = oneshot::channel();
        let (started, is_started) = oneshot::channel();
        let source = Source {
            namesrv: namesrv.to_owned(),
            group: group.to_owned(),
            topic: topic.to_owned(),
            deliver,
            queues: Vec::new(),
        };
        // The client library wants a runtime of its own, and that runtime must not be dropped by an async task.
        std::thread::Builder::new().name("reader".into()).spawn(move || {
            let _gone_when_dropped = gone;
            let owner = RuntimeOwner::plan(RuntimeConfig::server_default("reader"))
                .map_err(Error::from)
                .and_then(|plan| Ok(plan.build()?));
            match owner {
                Ok(owner) => {
                    let _ = started.send(Ok(()));
                    owner.block_on(source.run(owner.root_context(), stop_asked));
                    let _ = owner.shutdown_runtime_blocking_with_timeout(STOP_LIMIT);
                }
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        is_started.await??;
        Ok(Self { deliveries, stop: Some(stop), stopped })
    }

    /// The next delivery, or nothing within `limit`.
    pub async fn next(&mut self, limit: Duration) -> Option<Received> {
        timeout(limit, self.deliveries.recv()).await.ok().flatten()
    }

    /// Everything that comes until nothing came for `quiet`: for tests that must see that a message does not come, or
    /// does not come twice.
    pub async fn drain_until_quiet(&mut self, quiet: Duration) -> Vec<Received> {
        let mut all = Vec::new();
        while let Some(received) = self.next(quiet).await {
            all.push(received);
        }
        all
    }

    /// Stops reading and waits until the client is gone. A dropped reader stops too, in the background.
    pub async fn shutdown(mut self) {
        drop(self.stop.take());
        let _ = (&mut self.stopped).await;
    }
}

/// What the reading thread knows.
struct Source {
    namesrv: String,
    group: String,
    topic: String,
    deliver: mpsc::UnboundedSender<Received>,
    /// The queues found so far; they outlive a client.
    queues: Vec<Queue>,
}

struct Queue {
    broker_name: String,
    address: String,
    id: i32,
    /// Of the next message to ask for.
    offset: i64,
}

type Client = Arc<TransportClient<DefaultRequestProcessor>>;

impl Source {
    /// Reads until it is told to stop, with a new client after every error: after five of them a client's circuit
    /// breaker would refuse to connect for 30 s, however soon the broker comes back.
    async fn run(mut self, context: &RootServiceContext, mut stop: oneshot::Receiver<()>) {
        loop {
            if let Ok(client) = connect(context.component("reader")).await {
                let told_to_stop = tokio::select! {
                    _ = self.read(&client) => false,
                    _ = &mut stop => true,
                };
                client.shutdown_with_report(STOP_LIMIT).await;
                if told_to_stop {
                    return;
                }
            }
            if timeout(RETRY, &mut stop).await.is_ok() {
                return;
            }
        }
    }

    /// Pulls all queues in turn until something fails.
    async fn read(&mut self, client: &Client) -> Result<(), Error> {
        let mut refresh_at = Instant::now();
        loop {
            if Instant::now() >= refresh_at {
                self.find_queues(client).await?;
                refresh_at = Instant::now() + if self.queues.is_empty() { RETRY } else { REFRESH };
            }
            let mut found = false;
            for index in 0..self.queues.len() {
                match self.pull(client, index).await {
                    Ok(some) => found |= some,
                    Err(error) => {
                        // Next time the queues of other brokers come before this one.
                        self.queues.rotate_left(index + 1);
                        return Err(error);
                    }
                }
            }
            if !found {
                sleep(IDLE).await;
            }
        }
    }

    async fn find_queues(&mut self, client: &Client) -> Result<(), Error> {
        let header = GetRouteInfoRequestHeader::new(self.topic.as_str(), Some(true));
        let request = RemotingCommand::create_request_command(RequestCode::GetRouteinfoByTopic, header);
        let name_server = self.namesrv.split(';').next().unwrap_or_default();
        let answer = ask(client, name_server, request).await?;
        if ResponseCode::from(answer.code()) != ResponseCode::Success {
            // The topic does not exist yet.
            return Ok(());
        }
        let route = TopicRouteData::decode(&answer.get_body().cloned().unwrap_or_default())?;
        for queues in &route.queue_datas {
            let broker = route.broker_datas.iter().find(|broker| broker.broker_name() == queues.broker_name());
            let Some(address) = broker.and_then(|broker| broker.broker_addrs().get(&0)) else { continue };
            for id in 0..i32::try_from(queues.read_queue_nums())? {
                let known = |queue: &&mut Queue| queue.broker_name == queues.broker_name().as_str() && queue.id == id;
                match self.queues.iter_mut().find(known) {
                    Some(queue) => queue.address = address.to_string(),
                    None => self.queues.push(Queue {
                        broker_name: queues.broker_name().to_string(),
                        address: address.to_string(),
                        id,
                        offset: 0,
                    }),
                }
            }
        }
        Ok(())
    }

    /// Passes on what one queue has at its offset; whether that was anything.
    async fn pull(&mut self, client: &Client, index: usize) -> Result<bool, Error> {
        let queue = &mut self.queues[index];
        let header = PullMessageRequestHeader {
            consumer_group: self.group.as_str().into(),
            topic: self.topic.as_str().into(),
            queue_id: queue.id,
            queue_offset: queue.offset,
            max_msg_nums: BATCH,
            // The request brings its own subscription, since the group has no member that told the broker one; and it
            // wants an answer at once, since the other queues wait for their turn.
            sys_flag: PullSysFlag::build_sys_flag(false, false, true, false).cast_signed(),
            subscription: Some("*".into()),
            expression_type: Some("TAG".into()),
            ..PullMessageRequestHeader::default()
        };
        let request = RemotingCommand::create_request_command(RequestCode::PullMessage, header);
        let answer = ask(client, &queue.address, request).await?;
        let code = ResponseCode::from(answer.code());
        if !matches!(
            code,
            ResponseCode::Success
                | ResponseCode::PullNotFound
                | ResponseCode::PullRetryImmediately
                | ResponseCode::PullOffsetMoved
        ) {
            return Err(format!("a pull was answered {code:?}").into());
        }
        // Never back: a broker that just started may not know yet how long its queues are.
        let pulled = answer.decode_command_custom_header::<PullMessageResponseHeader>()?;
        queue.offset = queue.offset.max(pulled.next_begin_offset);
        if code != ResponseCode::Success {
            return Ok(false);
        }
        let mut body = answer.get_body().cloned().unwrap_or_default();
        for message in message_decoder::decodes_batch(&mut body, true, true) {
            // Fails when the reader was dropped, and `run` is about to hear of that.
            let _ = self.deliver.send(received(&queue.broker_name, &message));
        }
        Ok(true)
    }
}

async fn connect(context: ChildServiceContext) -> Result<Client, Error> {
    let config = Arc::new(TransportClientConfig::default());
    let client = Arc::new(TransportClient::builder(config, DefaultRequestProcessor, context).build()?);
    client.start().await?;
    Ok(client)
}

async fn ask(client: &Client, address: &str, request: RemotingCommand) -> Result<RemotingCommand, Error> {
    let limit = u64::try_from(REQUEST_LIMIT.as_millis())?;
    match client.invoke_request(Some(&address.into()), request, limit).await? {
        OutboundRequestOutcome::Response(answer) => Ok(answer),
        _ => Err(format!("no answer from {address}").into()),
    }
}

fn received(broker_name: &str, message: &MessageExt) -> Received {
    let properties: HashMap<_, _> =
        message.properties().iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let keys = properties.get("KEYS").cloned();
    let first_key = keys.as_ref().and_then(|keys| keys.split_whitespace().next()).map(str::to_owned);
    Received {
        msg_id: properties
            .get("TX_MSG_ID")
            .cloned()
            .or(first_key)
            .or_else(|| properties.get("UNIQ_KEY").cloned())
            .unwrap_or_else(|| message.msg_id().to_string()),
        topic: message.topic().to_string(),
        body: message.body().unwrap_or_default(),
        tag: message.get_tags().map(|tag| tag.to_string()),
        keys,
        broker_name: broker_name.to_owned(),
        queue_id: message.queue_id(),
        queue_offset: message.queue_offset(),
        properties,
    }
}
