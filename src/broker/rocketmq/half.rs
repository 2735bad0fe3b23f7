//! The first phase: one half message, written at most once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rocketmq_model::common::{
    hasher::string_hasher::JavaStringHasher,
    message::{MessageConst, message_client_id_setter::MessageClientIDSetter},
    sys_flag::message_sys_flag::MessageSysFlag,
    topic::TopicValidator,
};
use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    common::message::message_decoder::{NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, decode_message_id},
    protocol::{
        header::message_operation_header::{
            send_message_request_header_v2::SendMessageRequestHeaderV2,
            send_message_response_header::SendMessageResponseHeader,
        },
        remoting_command::RemotingCommand,
    },
};

use super::{
    directory::{Directory, NEW_TOPIC_QUEUES, Queue},
    link::{Link, Reached, Refusal, RequestFailure},
    names::Names,
};
use crate::{
    broker::{BrokerError, HalfCoordinates, HalfError, HalfMessage, property},
    protocol::check_headers,
};

/// How long the free choice of a queue passes over a broker that did not answer.
const AVOID_FOR: Duration = Duration::from_secs(5);

/// Sends halves.
pub(super) struct HalfSender {
    link: Arc<Link>,
    directory: Arc<Directory>,
    names: Names,
    group: String,
    turn: AtomicUsize,
    avoided: Mutex<HashMap<Arc<str>, Instant>>,
}

impl HalfSender {
    pub(super) fn new(link: Arc<Link>, directory: Arc<Directory>, names: Names, group: String) -> Self {
        Self { link, directory, names, group, turn: AtomicUsize::new(0), avoided: Mutex::default() }
    }

    pub(super) async fn send(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        let topic = self.names.on_the_wire(&message.topic);
        let unique_key = MessageClientIDSetter::create_uniq_id();
        let properties = self.properties(&message, &unique_key).map_err(HalfError::Refused)?;
        let route = self.directory.route(&topic).await.map_err(|error| {
            HalfError::Refused(BrokerError::new(format!("no route for a half message to topic {topic}"), error))
        })?;
        let queue = self.choose(&route.queues, message.ordering_key.as_deref());
        let doing = || {
            format!(
                "sending a half message to topic {topic} at broker {} ({}), group {}",
                queue.broker, queue.address, self.group
            )
        };

        let command = self.command(&topic, queue, properties, message.body);
        let answer = self.link.request(&queue.address, command).await.map_err(|failure| {
            self.avoid(&queue.address);
            not_answered(doing(), failure)
        })?;
        self.read(&answer, message.topic, &queue.broker, unique_key, doing)
    }

    fn command(&self, topic: &str, queue: &Queue, properties: String, body: bytes::Bytes) -> RemotingCommand {
        let header = SendMessageRequestHeaderV2 {
            a: self.group.as_str().into(),
            b: topic.into(),
            c: TopicValidator::AUTO_CREATE_TOPIC_KEY_TOPIC.into(),
            d: NEW_TOPIC_QUEUES as i32,
            e: queue.id,
            f: MessageSysFlag::TRANSACTION_PREPARED_TYPE,
            g: now_in_millis(),
            h: 0,
            i: Some(properties.into()),
            j: Some(0),
            k: Some(false),
            m: Some(false),
            n: Some(queue.broker.as_ref().into()),
            ..Default::default()
        };
        self.link.command(RequestCode::SendMessageV2, header).set_body(body)
    }

    /// All properties of a half in the broker's own format.
    fn properties(&self, message: &HalfMessage, unique_key: &str) -> Result<String, BrokerError> {
        let mut text = String::with_capacity(512);
        let mut put = |name: &str, value: &str| {
            let separators = [NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR];
            if name.is_empty() || name.contains(separators) || value.contains(separators) {
                return Err(BrokerError::message(format!(
                    "the message property {name:?} has an empty name, or contains one of RocketMQ's separators \\u0001 \
                     and \\u0002: take them out"
                )));
            }
            text.push_str(name);
            text.push(NAME_VALUE_SEPARATOR);
            text.push_str(value);
            text.push(PROPERTY_SEPARATOR);
            Ok(())
        };
        put(MessageConst::PROPERTY_TRANSACTION_PREPARED, "true")?;
        put(MessageConst::PROPERTY_PRODUCER_GROUP, &self.group)?;
        put(MessageConst::PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, unique_key)?;
        put(MessageConst::PROPERTY_KEYS, &message.msg_id)?;
        put(property::MSG_ID, &message.msg_id)?;
        put(property::TOKEN, &message.token)?;
        put(property::KIND, &message.kind)?;
        put(property::SCOPE, &message.scope)?;
        if let Some(tag) = &message.tag {
            put(MessageConst::PROPERTY_TAGS, tag)?;
        }
        if let Some(key) = &message.ordering_key {
            put(MessageConst::PROPERTY_SHARDING_KEY, key)?;
        }
        if let Some(namespace) = self.names.namespace() {
            put(MessageConst::PROPERTY_INSTANCE_ID, namespace)?;
        }
        check_headers(&message.headers).map_err(BrokerError::message)?;
        for (name, value) in &message.headers {
            put(name, value)?;
        }
        Ok(text)
    }

    /// One ordering key always goes to one queue, even to a broker that is down; other messages take turns.
    fn choose<'q>(&self, queues: &'q [Queue], ordering_key: Option<&str>) -> &'q Queue {
        if let Some(key) = ordering_key {
            // The stock clients' choice, so that all of them agree.
            let hash = JavaStringHasher::hash_str(key).unsigned_abs() as usize;
            return &queues[hash % queues.len()];
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        if !avoided.is_empty() {
            avoided.retain(|_, until| Instant::now() < *until);
        }
        (0..queues.len())
            .map(|step| &queues[turn.wrapping_add(step) % queues.len()])
            .find(|queue| !avoided.contains_key(&queue.address))
            .unwrap_or(&queues[turn % queues.len()])
    }

    fn avoid(&self, address: &Arc<str>) {
        let mut avoided = self.avoided.lock().unwrap_or_else(PoisonError::into_inner);
        avoided.insert(address.clone(), Instant::now() + AVOID_FOR);
    }

    fn read(
        &self,
        answer: &RemotingCommand,
        topic: String,
        broker: &str,
        unique_key: String,
        doing: impl Fn() -> String,
    ) -> Result<HalfCoordinates, HalfError> {
        let status = match ResponseCode::from(answer.code()) {
            ResponseCode::Success if answer.code() == 0 => None,
            ResponseCode::FlushDiskTimeout => Some("FLUSH_DISK_TIMEOUT"),
            ResponseCode::FlushSlaveTimeout => Some("FLUSH_SLAVE_TIMEOUT"),
            ResponseCode::SlaveNotAvailable => Some("SLAVE_NOT_AVAILABLE"),
            _ => return Err(refused(doing(), Refusal::from(answer))),
        };
        let half = coordinates(answer, topic, broker, unique_key)
            .map_err(|reason| HalfError::Unknown(BrokerError::new(doing(), reason)))?;
        match status {
            None => Ok(half),
            Some(status) => Err(HalfError::NotSafe { status: status.to_owned(), half: Box::new(half) }),
        }
    }
}

fn coordinates(
    answer: &RemotingCommand,
    topic: String,
    broker: &str,
    unique_key: String,
) -> Result<HalfCoordinates, String> {
    let header: SendMessageResponseHeader = answer
        .decode_command_custom_header_fast()
        .map_err(|error| format!("the half was stored, but the answer is not readable: {error}"))?;
    let stored = decode_message_id(header.msg_id())
        .map_err(|error| format!("the half was stored, but its id does not say where: {error}"))?;
    let offset = |value: i64| u64::try_from(value).map_err(|_| format!("the answer has the offset {value}"));
    Ok(HalfCoordinates {
        topic,
        broker_name: broker.to_owned(),
        store_host: Some(stored.address.to_string()),
        commit_log_offset: offset(stored.offset)?,
        queue_offset: offset(header.queue_offset())?,
        transaction_id: header.transaction_id().map_or_else(|| unique_key.clone(), str::to_owned),
        unique_key,
    })
}

fn not_answered(doing: String, failure: RequestFailure) -> HalfError {
    let reached = failure.reached;
    let error = BrokerError::new(doing, failure);
    match reached {
        Reached::Nothing => HalfError::Refused(error),
        Reached::Perhaps => HalfError::Unknown(error),
    }
}

/// Only codes with which brokers answer before they store anything say for sure that a half was not stored.
fn refused(doing: String, refusal: Refusal) -> HalfError {
    let advice = match ResponseCode::from(refusal.code) {
        ResponseCode::TopicNotExist => "; create the topic with `mqadmin updateTopic -t <topic> -c <cluster>`",
        ResponseCode::NoPermission => {
            "; check the credentials, the topic's write permission, and that the broker does not set \
             rejectTransactionMessage"
        }
        ResponseCode::MessageIllegal if refusal.remark().to_ascii_lowercase().contains("message type") => {
            "; the topic is of another type: create it with `mqadmin updateTopic -t <topic> -c <cluster> -a \
             +message.type=TRANSACTION`"
        }
        ResponseCode::MessageIllegal => {
            "; the message, its properties or its topic name is too large or malformed, or the topic's type is not \
             TRANSACTION (`mqadmin updateTopic .. -a +message.type=TRANSACTION`)"
        }
        ResponseCode::SystemBusy
        | ResponseCode::FlowControl
        | ResponseCode::ServiceNotAvailable
        | ResponseCode::GoAway
        | ResponseCode::NotLeaderForQueue
        | ResponseCode::RequestCodeNotSupported
        | ResponseCode::VersionNotSupported => "",
        _ => return HalfError::Unknown(BrokerError::new(doing, refusal)),
    };
    HalfError::Refused(BrokerError::new(format!("{doing}{advice}"), refusal))
}

fn now_in_millis() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "half_tests.rs"]
mod tests;
