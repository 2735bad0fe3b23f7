//! Creates topics on every broker of a cluster, as an administrator does.

use std::time::Duration;

use rocketmq_protocol::{
    code::request_code::RequestCode,
    protocol::{
        body::broker_body::cluster_info::ClusterInfo, header::client_request_header::GetRouteInfoRequestHeader,
        header::create_topic_request_header::CreateTopicRequestHeader, remoting_command::RemotingCommand,
        route::topic_route_data::TopicRouteData,
    },
};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use rocketmq_transport::api::{
    DefaultRequestProcessor, OutboundRequestOutcome, RemotingClient, RequestDeadline, RequestTarget,
};

use crate::support::eventually;

/// Returns when the name server tells of the topic on every broker; how many these are.
pub async fn create(namesrv: &str, topic: &str) -> usize {
    let owner = RuntimeOwner::plan(RuntimeConfig::for_parallelism("admin", 1)).unwrap().build().unwrap();
    let context = owner.root_context().component("admin");
    let client = RemotingClient::builder(std::sync::Arc::default(), DefaultRequestProcessor, context).build().unwrap();
    let admin = Admin(client);

    let answer = admin.ask(namesrv, RemotingCommand::create_remoting_command(RequestCode::GetBrokerClusterInfo)).await;
    let brokers = ClusterInfo::decode(answer.body().expect("the brokers")).expect("readable").broker_addr_table;
    let brokers = brokers.unwrap_or_default();
    for broker in brokers.values() {
        let header = CreateTopicRequestHeader {
            topic: topic.into(),
            default_topic: "TBW102".into(),
            read_queue_nums: 4,
            write_queue_nums: 4,
            perm: 6,
            topic_filter_type: "SINGLE_TAG".into(),
            topic_sys_flag: Some(0),
            order: false,
            attributes: None,
            force: Some(false),
            topic_request_header: None,
        };
        let command = RemotingCommand::create_request_command(RequestCode::UpdateAndCreateTopic, header);
        let answer = admin.ask(broker.broker_addrs().get(&0).expect("a master"), command).await;
        assert_eq!(answer.code(), 0, "{:?}", answer.remark());
    }
    eventually("the name server knows the topic", || async {
        let header = GetRouteInfoRequestHeader::new(topic, Some(true));
        let command = RemotingCommand::create_request_command(RequestCode::GetRouteinfoByTopic, header);
        let answer = admin.ask(namesrv, command).await;
        answer.code() == 0
            && TopicRouteData::decode(answer.body().expect("a route")).expect("readable").queue_datas.len()
                == brokers.len()
    })
    .await;
    drop(admin);
    owner.shutdown_background();
    brokers.len()
}

struct Admin(RemotingClient<DefaultRequestProcessor>);

impl Admin {
    async fn ask(&self, address: &str, command: RemotingCommand) -> RemotingCommand {
        let deadline = RequestDeadline::after(Duration::from_secs(10));
        match self.0.request(RequestTarget::Endpoint(address.into()), command, deadline).await {
            Ok(OutboundRequestOutcome::Response(answer)) => answer,
            other => panic!("{address} did not answer: {other:?}"),
        }
    }
}
