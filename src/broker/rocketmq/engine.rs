//! The threads and the transport client under the adapter: their start, and their stop in the right order.

use std::{future::Future, pin::Pin, sync::Arc, thread, time::Duration};

use rocketmq_client_rust::{AclClientRPCHook, SessionCredentials};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner, ShutdownDeadline};
use rocketmq_transport::api::{RemotingClient, TransportClientConfig};
use tokio::sync::oneshot;

use super::{check::CheckReceiver, config::RocketMq, link::chain};
use crate::broker::BrokerError;

/// The most threads that read and write sockets. One keeps up with more halves than two cores can execute.
const WORKERS_MAX: usize = 2;

/// How long the brokers are given to hear that this producer leaves.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long connections and tasks are given to end by themselves.
const STOP: Duration = Duration::from_secs(3);

/// What is said to the brokers before the connections close.
type Farewell = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Owns a runtime of its own, so that the adapter works under any runtime of the caller, and outlives a `block_on`.
pub(super) struct Engine(Option<Parts>);

struct Parts {
    owner: RuntimeOwner,
    client: Arc<RemotingClient<CheckReceiver>>,
    farewell: Option<Farewell>,
}

impl Engine {
    pub(super) fn start(settings: &RocketMq, receiver: CheckReceiver) -> Result<Self, BrokerError> {
        let threads = thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2)).min(WORKERS_MAX);
        let failed = |doing: &str, cause: String| BrokerError::new(format!("{doing} failed"), cause);
        let owner = RuntimeOwner::plan(RuntimeConfig::for_parallelism("rocketmq-tx", threads))
            .map_err(|violation| failed("planning the RocketMQ threads", violation.to_string()))?
            .build()
            .map_err(|error| failed("starting the RocketMQ threads", chain(&error)))?;

        let mut transport = TransportClientConfig::default();
        transport.tls.enable = settings.tls;
        // An address that swallows connection attempts must not use up the time that the answer has.
        transport.connect.timeout = settings.request_timeout / 2;
        let context = owner.root_context().component("transport");
        let client = RemotingClient::builder(Arc::new(transport), receiver, context)
            .build()
            .map_err(|error| failed("building the RocketMQ transport", chain(error.as_ref())))?;
        if let Some(credentials) = &settings.credentials {
            let keys = SessionCredentials::with_keys(credentials.access_key.as_str(), credentials.secret_key.as_str());
            client.register_rpc_hook(Arc::new(AclClientRPCHook::new(keys)));
        }
        Ok(Self(Some(Parts { owner, client: Arc::new(client), farewell: None })))
    }

    pub(super) fn client(&self) -> Arc<RemotingClient<CheckReceiver>> {
        self.parts().client.clone()
    }

    /// Runs a task until the engine stops, and says `farewell` then.
    pub(super) fn run(
        &mut self,
        task: impl Future<Output = ()> + Send + 'static,
        farewell: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), BrokerError> {
        let context = self.parts().owner.root_context().component("presence");
        context
            .spawn_cancellable_service("heartbeats", task)
            .map_err(|error| BrokerError::new("starting the heartbeats failed", chain(&error)))?;
        if let Some(parts) = &mut self.0 {
            parts.farewell = Some(Box::pin(farewell));
        }
        Ok(())
    }

    /// Stops everything and waits for it. It goes on when the caller does not wait.
    pub(super) async fn stop(mut self) {
        if let Some(parts) = self.0.take()
            && let Some(stopped) = parts.stop()
        {
            let _ = stopped.await;
        }
    }

    fn parts(&self) -> &Parts {
        self.0.as_ref().expect("an engine has its parts until it is stopped, which consumes it")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(parts) = self.0.take() {
            // Nobody waits: a drop must not block, and may be inside of a runtime.
            let _ = parts.stop();
        }
    }
}

impl Parts {
    /// Stops on a thread, since the runtime of `owner` must not be stopped from inside of a runtime. `None` when there
    /// is no thread to be had: then the parts were dropped, which also stops them, without a farewell.
    fn stop(self) -> Option<oneshot::Receiver<()>> {
        let (done, stopped) = oneshot::channel();
        let work = move || {
            let Self { owner, client, farewell } = self;
            if let Some(farewell) = farewell {
                let _ = owner.block_on(async { tokio::time::timeout(FAREWELL, farewell).await });
            }
            let deadline = ShutdownDeadline::after(STOP);
            if let Err(error) = owner.block_on(client.shutdown_until(deadline)) {
                tracing::warn!(error = chain(error.as_ref()), "the RocketMQ connections did not close in order");
            }
            drop(client);
            if let Err(error) = owner.shutdown_runtime_blocking_until(deadline) {
                tracing::warn!(error = chain(&error), "the RocketMQ threads did not stop in order");
            }
            let _ = done.send(());
        };
        thread::Builder::new().name("rocketmq-tx-stop".to_owned()).spawn(work).ok().map(|_detached| stopped)
    }
}
