//! How many messages a topic has, asked of its brokers.

use std::{mem::ManuallyDrop, sync::Arc, time::Duration};

use rocketmq_protocol::{
    code::request_code::RequestCode,
    protocol::{
        header::{
            client_request_header::GetRouteInfoRequestHeader, get_max_offset_request_header::GetMaxOffsetRequestHeader,
            get_max_offset_response_header::GetMaxOffsetResponseHeader,
        },
        remoting_command::RemotingCommand,
        route::topic_route_data::TopicRouteData,
    },
};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use rocketmq_transport::api::{
    DefaultRequestProcessor, OutboundRequestOutcome, RemotingClient, RequestDeadline, RequestTarget,
};

use crate::AnyError;

/// Asks name server and brokers, apart from whatever is measured.
pub struct Topics {
    name_server: String,
    client: RemotingClient<DefaultRequestProcessor>,
    // The process ends with the measurement; a runtime must not be stopped from inside of another one.
    _owner: ManuallyDrop<RuntimeOwner>,
}

impl Topics {
    pub fn of(name_server: String) -> Result<Self, AnyError> {
        let owner = RuntimeOwner::plan(RuntimeConfig::for_parallelism("topics", 1))
            .map_err(|error| error.to_string())?
            .build()
            .map_err(|error| error.to_string())?;
        let context = owner.root_context().component("topics");
        let client = RemotingClient::builder(Arc::default(), DefaultRequestProcessor, context)
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { name_server, client, _owner: ManuallyDrop::new(owner) })
    }

    /// The sum of its queues' offsets, which only grow; 0 for a topic that does not exist.
    pub async fn messages(&self, topic: &str) -> Result<u64, AnyError> {
        let header = GetRouteInfoRequestHeader::new(topic, Some(true));
        let command = RemotingCommand::create_request_command(RequestCode::GetRouteinfoByTopic, header);
        let answer = self.ask(&self.name_server, command).await?;
        if answer.code() != 0 {
            return Ok(0);
        }
        let route = TopicRouteData::decode(answer.body().ok_or("the route is empty")?)?;
        let mut sum = 0;
        for queues in &route.queue_datas {
            let holder = route.broker_datas.iter().find(|broker| broker.broker_name() == queues.broker_name());
            let address = holder.and_then(|broker| broker.broker_addrs().get(&0)).ok_or("no master")?;
            for queue in 0..queues.read_queue_nums() {
                sum += self.offset(address, topic, queue).await?;
            }
        }
        Ok(sum)
    }

    async fn offset(&self, address: &str, topic: &str, queue: u32) -> Result<u64, AnyError> {
        let header = GetMaxOffsetRequestHeader {
            topic: topic.into(),
            queue_id: queue.try_into()?,
            committed: true,
            topic_request_header: None,
        };
        let command = RemotingCommand::create_request_command(RequestCode::GetMaxOffset, header);
        let answer = self.ask(address, command).await?;
        let header: GetMaxOffsetResponseHeader =
            answer.decode_command_custom_header_fast().map_err(|error| error.to_string())?;
        Ok(header.offset.try_into()?)
    }

    async fn ask(&self, address: &str, command: RemotingCommand) -> Result<RemotingCommand, AnyError> {
        let deadline = RequestDeadline::after(Duration::from_secs(10));
        match self.client.request(RequestTarget::Endpoint(address.into()), command, deadline).await {
            Ok(OutboundRequestOutcome::Response(answer)) => Ok(answer),
            other => Err(format!("{address} did not answer: {other:?}").into()),
        }
    }
}
