//! A RocketMQ name server and broker inside this process, for a first run without a cluster and for tests.
//!
//! Both come from the Rust port of RocketMQ, listen on loopback only, keep everything under one directory and create
//! topics on first use. Several may run in one process, at once or one after the other: the process-wide wire
//! defaults that they share are the same for all, and ports and stores are their own.
#![allow(dead_code, reason = "each program that includes this file uses a part of it")]

use std::{
    error::Error as StdError,
    future::{Future, pending},
    io,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rocketmq_broker::config::{broker_config::BrokerConfig, validated::ValidatedBrokerConfig};
use rocketmq_model::version::CURRENT_VERSION;
use rocketmq_namesrv::NamesrvConfig;
use rocketmq_observability::{TelemetryHandle, TelemetryRuntimeGuard};
use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    protocol::{
        header::client_request_header::GetRouteInfoRequestHeader, remoting_command::RemotingCommand,
        remoting_command_facade::initialize_remoting_defaults,
    },
};
use rocketmq_runtime::{ChildServiceContext, RuntimeConfig, RuntimeOwner, ShutdownDeadline};
use rocketmq_store::MessageStoreConfig;
use rocketmq_transport::api::{
    DefaultRequestProcessor, OutboundRequestOutcome, ServerConfig, TransportClient, TransportClientConfig,
};
use tokio::sync::oneshot;

/// What can go wrong at a start; only shown, never matched on.
pub type Error = Box<dyn StdError + Send + Sync>;

/// A start takes well under a second; this is for a machine that is busy with something else.
const START_LIMIT: Duration = Duration::from_secs(20);
/// For the broker's own orderly stop, and again for whatever its runtime still runs afterwards.
const STOP_LIMIT: Duration = Duration::from_secs(4);
/// Between two looks at something that is about to be ready.
const POLL: Duration = Duration::from_millis(10);
/// The topic whose route lets producers create their own topics on first use.
const AUTO_CREATE_TOPIC: &str = "TBW102";

/// How the broker treats half messages.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How old a half message is before its first check-back.
    pub transaction_timeout: Duration,
    /// The time between two rounds of check-backs.
    pub check_interval: Duration,
    /// How many rounds a half message gets.
    pub check_max: u32,
}

impl Default for Settings {
    /// Short enough to watch a check-back happen; a real broker waits 6 s and 30 s.
    fn default() -> Self {
        Self { transaction_timeout: Duration::from_secs(1), check_interval: Duration::from_secs(1), check_max: 15 }
    }
}

/// The ports that one name server and broker listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The name server's.
    pub namesrv: u16,
    /// The broker's; it also takes the one two below.
    pub broker: u16,
    /// The broker's, for replicas.
    pub ha: u16,
}

impl Ports {
    /// Four ports in a row that are free now, below the range from which the system picks the near end of outgoing
    /// connections: a client that keeps calling a stopped broker inside that range can end up connected to itself, and
    /// the broker then cannot take its port back.
    pub fn free() -> io::Result<Self> {
        // Processes that start together must not look in the same place, hence the process id beside the time.
        let nanos = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.subsec_nanos());
        let mut seed = u64::from(std::process::id()) << 32 | u64::from(nanos);
        for _ in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = 10_000 + u16::try_from((seed >> 33) % 5_500).unwrap_or(0) * 4;
            let probes: Result<Vec<_>, _> =
                (first..first + 4).map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))).collect();
            if probes.is_ok() {
                return Ok(Self { namesrv: first, ha: first + 2, broker: first + 3 });
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no four free ports in a row"))
    }
}

/// A running name server and broker. Dropping it stops both, in at most some seconds.
pub struct EmbeddedRocketMq {
    // Fields drop in this order: the broker says goodbye to a name server that is still there.
    _broker: Server,
    _name_server: Server,
    ports: Ports,
}

impl EmbeddedRocketMq {
    /// Starts both with their files under `dir`, which must exist, and returns once a producer can send to a topic
    /// that nobody created. Blocks the calling thread meanwhile.
    pub fn start(dir: &Path, settings: Settings) -> Result<Self, Error> {
        // Another process may take a port between the look and the bind.
        let mut failed = None;
        for _ in 0..3 {
            match Self::start_on(dir, settings, Ports::free()?) {
                Ok(started) => return Ok(started),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| "not tried".into()))
    }

    /// The same on given ports: with the `dir` and ports of an earlier one, clients find all that it had stored.
    pub fn start_on(dir: &Path, settings: Settings, ports: Ports) -> Result<Self, Error> {
        // All programs in a process share these; asking for the same ones again is fine.
        initialize_remoting_defaults(CURRENT_VERSION as i32)?;
        let name_server_dir = text(&dir.join("namesrv"));
        let name_server = Server::start("namesrv", move |context, ready, stop| {
            run_name_server(context, name_server_dir, ports, ready, stop)
        })?;
        let config = broker_config(dir, settings, ports)?;
        let broker = Server::start("broker", move |context, ready, stop| run_broker(context, config, ready, stop))?;
        Ok(Self { _broker: broker, _name_server: name_server, ports })
    }

    /// The name server's address, as clients want it.
    pub fn namesrv_addr(&self) -> String {
        address(self.ports.namesrv)
    }

    /// Where it listens.
    pub fn ports(&self) -> Ports {
        self.ports
    }

    /// Stops both without blocking the async caller; returns when they are gone.
    pub async fn shutdown(self) {
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

/// One server on a thread and a runtime of its own, so that it can be dropped anywhere: a tokio runtime that is dropped
/// by an async task panics.
struct Server {
    stop: Option<oneshot::Sender<()>>,
    stopped: mpsc::Receiver<()>,
}

impl Server {
    fn start<F, R>(name: &'static str, run: F) -> Result<Self, Error>
    where
        F: FnOnce(ChildServiceContext, mpsc::Sender<Result<(), Error>>, oneshot::Receiver<()>) -> R + Send + 'static,
        R: Future<Output = Result<(), Error>>,
    {
        let (ready, is_ready) = mpsc::channel();
        let (stop, stop_asked) = oneshot::channel();
        let (gone, stopped) = mpsc::channel();
        thread::Builder::new().name(format!("embedded-{name}")).spawn(move || {
            let _gone_when_dropped = gone;
            let outcome = RuntimeOwner::plan(RuntimeConfig::server_default(name))
                .map_err(Error::from)
                .and_then(|plan| Ok(plan.build()?))
                .and_then(|owner| {
                    let context = owner.root_context().component(name);
                    let outcome = owner.block_on(run(context, ready.clone(), stop_asked));
                    let _ = owner.shutdown_runtime_blocking_until(ShutdownDeadline::after(STOP_LIMIT));
                    outcome
                });
            if let Err(error) = outcome {
                let _ = ready.send(Err(error));
            }
        })?;
        let server = Self { stop: Some(stop), stopped };
        match is_ready.recv_timeout(START_LIMIT) {
            Ok(Ok(())) => Ok(server),
            Ok(Err(error)) => Err(format!("the embedded {name} did not start: {}", with_causes(&*error)).into()),
            Err(_) => Err(format!("the embedded {name} was not ready within {START_LIMIT:?}").into()),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        // An error is the answer: the thread is gone, and with it the other end.
        let _ = self.stopped.recv_timeout(STOP_LIMIT * 2);
    }
}

async fn run_name_server(
    context: ChildServiceContext,
    dir: String,
    ports: Ports,
    ready: mpsc::Sender<Result<(), Error>>,
    stop: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let config = NamesrvConfig {
        kv_config_path: format!("{dir}/kvConfig.json"),
        config_store_path: format!("{dir}/namesrv.properties"),
        rocketmq_home: dir,
        ..NamesrvConfig::default()
    };
    // Not the boot under a `ServiceLifecycle`: that one takes the process's Ctrl-C and SIGTERM for itself, for good.
    let serve = rocketmq_namesrv::bootstrap::Builder::new(context, TelemetryHandle::noop())
        .set_name_server_config(config)
        .set_server_config(listen_on(ports.namesrv))
        .build()
        .boot_with_shutdown(async move {
            let _ = stop.await;
        });
    let tell_when_ready = async {
        while tokio::net::TcpStream::connect(address(ports.namesrv)).await.is_err() {
            tokio::time::sleep(POLL).await;
        }
        let _ = ready.send(Ok(()));
        pending().await
    };
    tokio::select! {
        served = serve => Ok(served?),
        () = tell_when_ready => Ok(()),
    }
}

async fn run_broker(
    context: ChildServiceContext,
    config: ValidatedBrokerConfig,
    ready: mpsc::Sender<Result<(), Error>>,
    stop: oneshot::Receiver<()>,
) -> Result<(), Error> {
    let namesrv = config.broker().namesrv_addr.clone().unwrap_or_default().to_string();
    let running = rocketmq_broker::Builder::new(context.clone(), TelemetryRuntimeGuard::noop())
        .with_validated_config(config)
        .build()
        .initialize()
        .await?
        .start()
        .await?;
    let visible = wait_for_route(&context, &namesrv).await;
    let started = visible.is_ok();
    let _ = ready.send(visible);
    if started {
        let _ = stop.await;
    }
    let _ = tokio::time::timeout(STOP_LIMIT, running.shutdown()).await;
    Ok(())
}

/// A broker that runs is of no use before the name server tells clients of it.
async fn wait_for_route(context: &ChildServiceContext, namesrv: &str) -> Result<(), Error> {
    let config = TransportClientConfig::default().into();
    let client = TransportClient::builder(config, DefaultRequestProcessor, context.component("route-probe")).build()?;
    let client = Arc::new(client);
    client.start().await?;
    let deadline = Instant::now() + START_LIMIT;
    let found = loop {
        let header = GetRouteInfoRequestHeader::new(AUTO_CREATE_TOPIC, Some(true));
        let request = RemotingCommand::create_request_command(RequestCode::GetRouteinfoByTopic, header);
        if let Ok(OutboundRequestOutcome::Response(answer)) =
            client.invoke_request(Some(&namesrv.into()), request, 1_000).await
            && ResponseCode::from(answer.code()) == ResponseCode::Success
        {
            break Ok(());
        }
        if Instant::now() > deadline {
            break Err(Error::from(format!("the name server {namesrv} does not know the broker")));
        }
        tokio::time::sleep(POLL).await;
    };
    client.shutdown_with_report(Duration::from_secs(1)).await;
    found
}

fn broker_config(dir: &Path, settings: Settings, ports: Ports) -> Result<ValidatedBrokerConfig, Error> {
    let root = text(&dir.join("store"));
    let mut broker = BrokerConfig {
        broker_ip1: Ipv4Addr::LOCALHOST.to_string().into(),
        listen_port: ports.broker.into(),
        broker_server_config: listen_on(ports.broker),
        namesrv_addr: Some(address(ports.namesrv).into()),
        store_path_root_dir: root.clone().into(),
        auto_create_topic_enable: true,
        transaction_timeout: millis(settings.transaction_timeout),
        transaction_check_interval: millis(settings.check_interval),
        transaction_check_max: settings.check_max,
        // The broker notes ends in batches; a round of checks that comes before the note asks about halves that were
        // already ended, and they are delivered a second time.
        transaction_op_batch_interval: (millis(settings.check_interval) / 10).clamp(10, 200),
        ..BrokerConfig::default()
    };
    broker.broker_identity.broker_name = "embedded".into();
    let store = MessageStoreConfig {
        store_path_commit_log: Some(format!("{root}/commitlog").into()),
        store_path_root_dir: root.into(),
        ha_listen_address: Ipv4Addr::LOCALHOST.into(),
        ha_listen_port: ports.ha.into(),
        // Small files: a start maps and fills several of them. The largest message is 4 MiB.
        mapped_file_size_commit_log: 32 << 20,
        mapped_file_size_consume_queue: 20 * 10_000,
        max_hash_slot_num: 10_000,
        max_index_num: 40_000,
        ..MessageStoreConfig::default()
    };
    Ok(ValidatedBrokerConfig::try_from_parts(broker, store)?)
}

fn listen_on(port: u16) -> ServerConfig {
    ServerConfig { listen_port: port.into(), bind_address: Ipv4Addr::LOCALHOST.to_string(), ..ServerConfig::default() }
}

fn address(port: u16) -> String {
    format!("{}:{port}", Ipv4Addr::LOCALHOST)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The servers' own errors say little without what caused them.
fn with_causes(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
