//! The stock Rust client's transactional producer, whose listener runs the documented protocol.

use std::{any::Any, sync::Arc};

use rocketmq_client_rust::{
    ClientRuntime, ClientRuntimeConfig, LocalTransactionState, TelemetryHandle, TransactionListener,
    TransactionMQProducer,
};
use rocketmq_model::common::message::{MessageTrait, message_ext::MessageExt, message_single::Message};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};
use sqlx::Pool;
use tokio::runtime::Handle;

use crate::{
    AnyError,
    database::Database,
    measure::{BODY_BYTES, Order, Outcome, Report, measure},
    options::{Options, address},
};

/// The client calls it on a thread that may block.
struct PayOrder<DB: Database> {
    pool: Pool<DB>,
    runtime: Handle,
}

impl<DB: Database> TransactionListener for PayOrder<DB> {
    fn execute_local_transaction(
        &self,
        _message: &dyn MessageTrait,
        argument: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        let Some(order) = argument.and_then(|argument| argument.downcast_ref::<Order>()) else {
            return LocalTransactionState::Unknown;
        };
        match self.runtime.block_on(DB::pay_prepared(&self.pool, order)) {
            Ok(()) => LocalTransactionState::CommitMessage,
            Err(error) => {
                tracing::warn!(%error, "local transaction");
                LocalTransactionState::Unknown
            }
        }
    }

    fn check_local_transaction(&self, _message: &MessageExt) -> LocalTransactionState {
        LocalTransactionState::Unknown
    }
}

pub async fn run<DB: Database>(options: &Options) -> Result<Report, AnyError> {
    let pool = DB::fresh(options).await?;
    let owner = RuntimeOwner::plan(RuntimeConfig { thread_name: "stock".to_owned(), ..Default::default() })
        .map_err(|error| error.to_string())?
        .build()
        .map_err(|error| error.to_string())?;
    let context = owner.root_context().component("client");
    let runtime = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), TelemetryHandle::noop())?;
    let mut producer = TransactionMQProducer::builder(runtime)
        .producer_group(format!("bench_stock_{}", options.topic))
        .name_server_addr(address("ROCKETMQ_NAMESRV_ADDR")?)
        .topics(vec![options.topic.clone()])
        .transaction_listener(PayOrder { pool, runtime: Handle::current() })
        .build();
    producer.start().await?;
    let producer = Arc::new(producer);

    let topic = options.topic.clone();
    let call = move |order: Order| {
        let (producer, topic) = (Arc::clone(&producer), topic.clone());
        async move {
            let message =
                Message::builder().topic(topic).key(&order.msg_id).body(vec![b'x'; BODY_BYTES]).build_unchecked();
            match producer.send_message_in_transaction(message, Some(order)).await {
                Ok(result) => match result.local_transaction_state {
                    Some(LocalTransactionState::CommitMessage) => Outcome::Committed,
                    Some(LocalTransactionState::RollbackMessage) => Outcome::Failed,
                    _ => Outcome::Unknown,
                },
                Err(error) => {
                    tracing::debug!(%error, "send");
                    Outcome::Failed
                }
            }
        }
    };
    let report = measure(options, "stock", call).await;
    // The process ends next; an orderly stop of the client's threads measures nothing.
    std::mem::forget(owner);
    Ok(report)
}
