//! The embedded name server and broker do what the quickstart and the other tests rely on: halves are committed,
//! rolled back and checked, and nothing stored is lost when the process dies.

use std::{
    any::Any,
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rocketmq_client_rust::{
    ClientRuntime, ClientRuntimeConfig, LocalTransactionState, SendStatus, TelemetryHandle, TransactionListener,
    TransactionMQProducer,
};
use rocketmq_model::common::message::{MessageTrait, message_ext::MessageExt, message_single::Message};
use rocketmq_runtime::{RuntimeConfig, RuntimeOwner};

use self::{
    broker_process::{BrokerProcess, serve_if_child, this_program},
    consumer::Reader,
    embedded::{EmbeddedRocketMq, Settings},
};

#[path = "../examples/quickstart/broker_process.rs"]
mod broker_process;
#[path = "../examples/quickstart/consumer.rs"]
mod consumer;
#[path = "../examples/quickstart/embedded.rs"]
mod embedded;

const TOPIC: &str = "orders";

/// Ends a half as its body says, and says Commit when asked back.
#[derive(Clone, Default)]
struct AsTheBodySays {
    checks: Arc<AtomicUsize>,
}

impl TransactionListener for AsTheBodySays {
    fn execute_local_transaction(
        &self,
        message: &dyn MessageTrait,
        _argument: Option<&(dyn Any + Send + Sync)>,
    ) -> LocalTransactionState {
        match message.get_body().map(|body| body.as_ref()) {
            Some(b"commit") => LocalTransactionState::CommitMessage,
            Some(b"roll back") => LocalTransactionState::RollbackMessage,
            _ => LocalTransactionState::Unknown,
        }
    }

    fn check_local_transaction(&self, _message: &MessageExt) -> LocalTransactionState {
        self.checks.fetch_add(1, Ordering::SeqCst);
        LocalTransactionState::CommitMessage
    }
}

/// The stock producer on a client runtime of its own.
struct Producer {
    producer: TransactionMQProducer,
    client: Arc<ClientRuntime>,
    owner: RuntimeOwner,
}

impl Producer {
    async fn start(namesrv: &str, listener: AsTheBodySays) -> Self {
        let owner = RuntimeOwner::plan(RuntimeConfig::server_default("test-producer")).unwrap().build().unwrap();
        let context = owner.root_context().component("client");
        let client = ClientRuntime::try_new(context, ClientRuntimeConfig::default(), TelemetryHandle::noop()).unwrap();
        let mut producer = TransactionMQProducer::builder(client.clone())
            .producer_group("embedded-test".to_owned())
            .name_server_addr(namesrv.to_owned())
            .topics(vec![TOPIC])
            .transaction_listener(listener)
            .build();
        producer.start().await.unwrap();
        Self { producer, client, owner }
    }

    async fn send(&mut self, key: &str, body: &str) -> Result<SendStatus, String> {
        let mut message = Message::builder().topic(TOPIC).tags("paid").body_slice(body.as_bytes()).build_unchecked();
        message.set_keys(key.into());
        message.put_user_property("TX_MSG_ID".into(), key.into()).unwrap();
        let sent = self.producer.send_message_in_transaction::<(), _>(message, None).await;
        sent.map_err(|error| error.to_string()).and_then(|sent| {
            sent.send_result.map(|result| result.send_status).ok_or_else(|| "no send result".to_owned())
        })
    }

    async fn shutdown(mut self) {
        self.producer.shutdown().await;
        self.client.shutdown().await;
        self.owner.shutdown_tasks().await;
        self.owner.shutdown_background();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn halves_are_committed_rolled_back_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let begun = Instant::now();
    let rocketmq = EmbeddedRocketMq::start(dir.path(), Settings::default()).unwrap();
    println!("start: {:?}", begun.elapsed());
    let listener = AsTheBodySays::default();
    let mut producer = Producer::start(&rocketmq.namesrv_addr(), listener.clone()).await;
    let mut reader = Reader::start(&rocketmq.namesrv_addr(), "readers", TOPIC).await.unwrap();

    producer.send("order-1", "commit").await.unwrap();
    let committed = reader.next(Duration::from_secs(5)).await.expect("the committed message");
    assert_eq!(committed.msg_id, "order-1");
    assert_eq!(committed.keys.as_deref(), Some("order-1"));
    assert_eq!(committed.tag.as_deref(), Some("paid"));
    assert_eq!(committed.topic, TOPIC);
    assert_eq!(&committed.body[..], b"commit");
    assert_eq!(committed.queue_offset, 0);

    producer.send("order-2", "roll back").await.unwrap();
    producer.send("order-3", "wait to be asked").await.unwrap();
    let asked = Instant::now();
    let checked = reader.next(Duration::from_secs(15)).await.expect("the message of the checked half");
    println!("check-back to delivery: {:?}", asked.elapsed());
    assert_eq!(checked.msg_id, "order-3");

    // Longer than a round of checks: what was ended must not be asked about or delivered again.
    let more = reader.drain_until_quiet(Duration::from_secs(3)).await;
    assert!(more.is_empty(), "delivered beyond the two: {more:?}");
    assert_eq!(listener.checks.load(Ordering::SeqCst), 1);

    reader.shutdown().await;
    producer.shutdown().await;
    let begun = Instant::now();
    rocketmq.shutdown().await;
    println!("shutdown: {:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_run_in_one_process_and_may_be_dropped_by_async_code() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = EmbeddedRocketMq::start(here.path(), Settings::default()).unwrap();
    let second = EmbeddedRocketMq::start(there.path(), Settings::default()).unwrap();
    assert_ne!(first.namesrv_addr(), second.namesrv_addr());

    let mut producer = Producer::start(&second.namesrv_addr(), AsTheBodySays::default()).await;
    producer.send("order-1", "commit").await.unwrap();
    let mut of_first = Reader::start(&first.namesrv_addr(), "readers", TOPIC).await.unwrap();
    let mut of_second = Reader::start(&second.namesrv_addr(), "readers", TOPIC).await.unwrap();
    assert_eq!(of_second.next(Duration::from_secs(5)).await.expect("the message").msg_id, "order-1");
    assert!(of_first.next(Duration::from_millis(300)).await.is_none());

    let (ports, settings) = (second.ports(), Settings::default());
    drop(first);
    drop(second);
    let again = EmbeddedRocketMq::start_on(there.path(), settings, ports).unwrap();
    // The same clients, and a new reader, against the same store.
    let mut after = Reader::start(&again.namesrv_addr(), "readers", TOPIC).await.unwrap();
    assert_eq!(after.next(Duration::from_secs(5)).await.expect("the stored message").msg_id, "order-1");
    producer.send("order-2", "commit").await.unwrap();
    assert_eq!(of_second.next(Duration::from_secs(10)).await.expect("the new message").msg_id, "order-2");

    for reader in [of_first, of_second, after] {
        reader.shutdown().await;
    }
    producer.shutdown().await;
}

/// Not a test by itself: what the child of the next one runs.
#[test]
fn broker_child() {
    serve_if_child().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_process_comes_back_with_its_messages_and_open_halves() {
    let dir = tempfile::tempdir().unwrap();
    let command = this_program(&["broker_child", "--exact"]);
    // Rounds are used up while no producer is known, too.
    let settings = Settings { check_max: 100, ..Settings::default() };
    let mut process = BrokerProcess::spawn(command, dir.path(), settings).unwrap();
    let mut producer = Producer::start(&process.namesrv_addr(), AsTheBodySays::default()).await;
    let mut reader = Reader::start(&process.namesrv_addr(), "readers", TOPIC).await.unwrap();
    producer.send("order-1", "commit").await.unwrap();
    assert_eq!(reader.next(Duration::from_secs(5)).await.expect("the first message").msg_id, "order-1");
    producer.send("order-2", "wait to be asked").await.unwrap();

    process.kill().unwrap();
    assert!(std::net::TcpStream::connect(process.namesrv_addr()).is_err());
    let begun = Instant::now();
    process.restart().unwrap();
    println!("restart: {:?}", begun.elapsed());

    let begun = Instant::now();
    // A restarted broker asks nobody before it hears from a producer: at the latest with a heartbeat, every 30 s, at
    // once when the producer connects to it.
    producer.send("order-3", "commit").await.unwrap();
    // The broker notes ends a little later than it carries them out, so the kill may have made it forget the first
    // one: that half is then checked, and its message delivered again.
    let mut missing = BTreeSet::from(["order-2", "order-3"]);
    while !missing.is_empty() {
        let received = reader.next(Duration::from_secs(20)).await.expect("both messages");
        println!("{} after restart: {:?}", received.msg_id, begun.elapsed());
        assert!(missing.remove(received.msg_id.as_str()) || received.msg_id == "order-1", "{received:?}");
    }

    reader.shutdown().await;
    producer.shutdown().await;
    let begun = Instant::now();
    process.stop().unwrap();
    println!("stop: {:?}", begun.elapsed());
}
