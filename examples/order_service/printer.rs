//! Some other service: it consumes the orders, with RocketMQ's stock push consumer, and prints them.

use std::{sync::Arc, thread};

use rocketmq_client_rust::{
    ClientConfig, ClientResult, ClientRuntime, ClientRuntimeConfig, ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus, DefaultMQPushConsumer, MQPushConsumer, MessageListenerConcurrently, TelemetryHandle,
};
use rocketmq_model::common::{
    consumer::consume_from_where::ConsumeFromWhere,
    message::{MessageTrait, message_ext::MessageExt},
};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use rocketmq_tx::broker::property;

use crate::{Error, orders::Order};

/// How many messages may be handled at once. The stock consumer runs its listener on a pool of blocking threads whose
/// size comes from the number of processors; what finds no room there is bounced to the retry topic unhandled.
const AT_ONCE: usize = 64;
/// How many may wait for their turn: more than the consumer ever pulls ahead.
const WAITING: usize = 16_384;
/// How often to look for a topic that does not exist yet, in milliseconds; the client takes no less.
const LOOK_FOR_TOPIC_EVERY: u32 = 10_000;

struct Print;

impl MessageListenerConcurrently for Print {
    fn consume_message(
        &self,
        messages: &[&MessageExt],
        _: &ConsumeConcurrentlyContext,
    ) -> ClientResult<ConsumeConcurrentlyStatus> {
        for message in messages {
            // Delivery is at least once: a real consumer remembers this id in the transaction of its own effect.
            let msg_id = message.property(&property::MSG_ID.into()).unwrap_or_default();
            let body = message.get_body().map(|body| body.to_vec()).unwrap_or_default();
            match serde_json::from_slice::<Order>(&body) {
                Ok(order) => println!("received {msg_id}: order {} of {} cents", order.id, order.cents),
                // Trying again would not make it readable.
                Err(error) => println!("received {msg_id}, which is no order: {error}"),
            }
        }
        Ok(ConsumeConcurrentlyStatus::ConsumeSuccess)
    }
}

pub struct Printer {
    consumer: DefaultMQPushConsumer,
    client: Arc<ClientRuntime>,
    owner: RuntimeOwner,
}

impl Printer {
    pub async fn start(name_server: &str, group: &str, topic: &str) -> Result<Self, Error> {
        let mut runtime = RuntimeConfig::for_parallelism("printer", AT_ONCE / 2);
        runtime.worker_threads = thread::available_parallelism().map_or(2, Into::into);
        runtime.blocking_lane_policies.metadata_io.max_queue_depth = WAITING;
        let owner = RuntimeOwner::plan(runtime)?.build()?;
        let context = owner.root_context().component("printer");
        let client = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), TelemetryHandle::noop())?;

        let mut config = ClientConfig::default();
        config.set_namesrv_addr(name_server.into());
        config.set_poll_name_server_interval(LOOK_FOR_TOPIC_EVERY);
        let mut consumer = DefaultMQPushConsumer::builder(Arc::clone(&client))
            .client_config(config)
            .consumer_group(group)
            .consume_from_where(ConsumeFromWhere::ConsumeFromFirstOffset)
            .build();
        consumer.subscribe(topic, "*").await?;
        consumer.register_message_listener_concurrently(Print);
        consumer.start().await?;
        Ok(Self { consumer, client, owner })
    }

    pub async fn shutdown(mut self) {
        self.consumer.shutdown().await;
        self.client.shutdown().await;
        self.owner.shutdown_tasks().await;
        self.owner.shutdown_background();
    }
}
