//! The cluster under test, and a reader of what consumers would see.

use std::{collections::HashMap, sync::Arc, time::Duration};

use rocketmq_protocol::{
    code::request_code::RequestCode,
    common::message::message_decoder,
    protocol::{
        body::producer_connection::ProducerConnection,
        header::{
            client_request_header::GetRouteInfoRequestHeader,
            get_producer_connection_list_request_header::GetProducerConnectionListRequestHeader,
            pull_message_request_header::PullMessageRequestHeader,
        },
        remoting_command::RemotingCommand,
        route::topic_route_data::TopicRouteData,
    },
};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use rocketmq_transport::api::{
    DefaultRequestProcessor, OutboundRequestOutcome, RemotingClient, RemotingDeserializable, RequestDeadline,
    RequestTarget,
};
use rocketmq_tx::broker::{
    Broker, BrokerError, CheckBack, CheckSink, Connector, HalfMessage, Registration, rocketmq::RocketMq,
};
use tokio::sync::mpsc::Receiver;

/// The cluster's name server. Never skipped in silence: without one these tests prove nothing.
pub fn name_server() -> String {
    std::env::var("ROCKETMQ_NAMESRV_ADDR")
        .expect("these tests need a RocketMQ cluster: start one and set ROCKETMQ_NAMESRV_ADDR=host:port (see scripts/)")
}

pub fn settings(group: &str) -> RocketMq {
    RocketMq::at(name_server()).group(group)
}

/// A name that no other test and no earlier run uses.
pub fn fresh(what: &str) -> String {
    format!("{what}-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])
}

pub async fn connect(settings: RocketMq, topic: &str) -> Result<(Arc<dyn Broker>, Receiver<CheckBack>), BrokerError> {
    let (checks, receiver) = CheckSink::bounded(1024);
    settings.validate()?;
    let broker = Box::new(settings).connect(Registration { topics: vec![topic.to_owned()], checks }).await?;
    Ok((broker, receiver))
}

pub fn half(topic: &str, msg_id: &str) -> HalfMessage {
    HalfMessage {
        topic: topic.to_owned(),
        tag: Some("paid".to_owned()),
        ordering_key: None,
        msg_id: msg_id.to_owned(),
        token: format!("token of {msg_id}"),
        kind: "order.paid".to_owned(),
        scope: "scope".to_owned(),
        body: format!("body of {msg_id}").into(),
        headers: vec![("tenant".to_owned(), "acme".to_owned())],
    }
}

/// A message as a consumer sees it.
#[derive(Debug)]
pub struct Delivered {
    pub msg_id: String,
    pub body: Vec<u8>,
    pub queue: (String, i32),
    pub properties: HashMap<String, String>,
}

/// Reads topics from their beginning, without any consumer state.
pub struct Reader {
    _owner: RuntimeOwner,
    client: RemotingClient<DefaultRequestProcessor>,
}

impl Reader {
    pub fn new() -> Self {
        let owner = RuntimeOwner::plan(RuntimeConfig::for_parallelism("reader", 1)).unwrap().build().unwrap();
        let context = owner.root_context().component("reader");
        let client = RemotingClient::builder(Arc::default(), DefaultRequestProcessor, context).build().unwrap();
        Self { _owner: owner, client }
    }

    async fn ask(&self, address: &str, command: RemotingCommand) -> RemotingCommand {
        let deadline = RequestDeadline::after(Duration::from_secs(5));
        match self.client.request(RequestTarget::Endpoint(address.into()), command, deadline).await {
            Ok(OutboundRequestOutcome::Response(answer)) => answer,
            other => panic!("{address} did not answer: {other:?}"),
        }
    }

    async fn route(&self, topic: &str) -> Option<TopicRouteData> {
        let header = GetRouteInfoRequestHeader::new(topic, Some(true));
        let command = RemotingCommand::create_request_command(RequestCode::GetRouteinfoByTopic, header);
        let answer = self.ask(&name_server(), command).await;
        (answer.code() == 0).then(|| TopicRouteData::decode(answer.body().unwrap()).unwrap())
    }

    /// Everything delivered to the topic so far; `topic` with its namespace.
    pub async fn read(&self, topic: &str) -> Vec<Delivered> {
        let mut all = Vec::new();
        let Some(route) = self.route(topic).await else { return all };
        for queues in &route.queue_datas {
            let name = queues.broker_name();
            let broker = route.broker_datas.iter().find(|broker| broker.broker_name() == name).unwrap();
            let address = broker.broker_addrs().get(&0).unwrap().to_string();
            for queue in 0..queues.read_queue_nums() as i32 {
                let mut offset = 0;
                while let Some(batch) = self.pull(&address, topic, queue, offset).await {
                    offset += batch.len() as i64;
                    all.extend(batch.into_iter().map(|mut message| {
                        message.queue.0 = name.to_string();
                        message
                    }));
                }
            }
        }
        all
    }

    async fn pull(&self, address: &str, topic: &str, queue: i32, offset: i64) -> Option<Vec<Delivered>> {
        let header = PullMessageRequestHeader {
            consumer_group: "rocketmq-tx-test-reader".into(),
            topic: topic.into(),
            queue_id: queue,
            queue_offset: offset,
            max_msg_nums: 32,
            // The subscription travels with the request.
            sys_flag: 1 << 2,
            subscription: Some("*".into()),
            expression_type: Some("TAG".into()),
            ..Default::default()
        };
        let command = RemotingCommand::create_request_command(RequestCode::PullMessage, header);
        let answer = self.ask(address, command).await;
        if answer.code() != 0 {
            return None;
        }
        let messages = message_decoder::decodes_batch(&mut answer.body().cloned().unwrap(), true, true);
        let delivered = messages.into_iter().map(|message| {
            use rocketmq_model::common::message::MessageTrait;
            let properties: HashMap<String, String> =
                message.get_properties().iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            Delivered {
                msg_id: properties.get("TX_MSG_ID").cloned().unwrap_or_default(),
                body: message.get_body().map(|body| body.to_vec()).unwrap_or_default(),
                queue: (String::new(), queue),
                properties,
            }
        });
        Some(delivered.collect())
    }

    /// Waits until `done` accepts what was delivered.
    pub async fn read_until(&self, topic: &str, done: impl Fn(&[Delivered]) -> bool) -> Vec<Delivered> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let delivered = self.read(topic).await;
            if done(&delivered) {
                return delivered;
            }
            assert!(tokio::time::Instant::now() < deadline, "not delivered in time; so far: {delivered:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// How many producers of `group` the broker that serves `topic` knows; `None` when it knows none at all.
    pub async fn producers(&self, topic: &str, group: &str) -> usize {
        let route = self.route(topic).await.or(self.route("TBW102").await).expect("some route");
        let mut fewest = usize::MAX;
        for broker in &route.broker_datas {
            let header = GetProducerConnectionListRequestHeader { producer_group: group.into(), ..Default::default() };
            let command = RemotingCommand::create_request_command(RequestCode::GetProducerConnectionList, header);
            let answer = self.ask(broker.broker_addrs().get(&0).unwrap(), command).await;
            let known = match answer.code() {
                0 => ProducerConnection::decode(answer.body().unwrap()).unwrap().connection_set().len(),
                _ => 0,
            };
            fewest = fewest.min(known);
        }
        fewest
    }
}
