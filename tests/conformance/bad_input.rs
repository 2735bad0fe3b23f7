//! Messages that cannot be sent as they are: each is refused in words, before anything is written.

use crate::on_every_database;
use crate::support::{Db, Order, TestDatabase, order::builder, raw::Raw};
use rocketmq_tx::{
    BoxError, BusinessRows, MessageId, SendError, TransactionMessage, TransactionProducer,
    broker::{memory::MemoryBroker, property},
};
use serde::{Deserialize, Serialize};

on_every_database!(2: ids tags_and_ordering_keys headers case_39_delay_properties case_42_an_empty_body
    case_41_bodies_at_the_limit case_41_properties_at_the_limit a_body_that_fails_to_encode
    kinds_that_are_not_registered);

/// RocketMQ's default `maxMessageSize`, which the broker in memory has.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// What a half message may carry: RocketMQ's limit, less the room for its own.
const MAX_PROPERTIES: usize = 32_767 - 1024;

/// What an error must say.
type Words = &'static [&'static str];

async fn producer<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> TransactionProducer<DB> {
    builder(db, broker).message::<Raw>().start().await.unwrap()
}

/// Sends it with a closure that writes an order.
async fn send<DB: TestDatabase, M: TransactionMessage>(
    producer: &TransactionProducer<DB>,
    message: M,
) -> Result<(), SendError> {
    let sent = producer.send_with(message, |tx, _| Box::pin(async move { DB::insert(tx, 1).await }));
    let (mut receipt, _) = sent.await?;
    receipt.confirmation().await;
    Ok(())
}

/// Sends it, and expects an error with these words and that nothing came of it anywhere.
async fn is_refused<DB: TestDatabase, M: TransactionMessage>(
    db: &Db<DB>,
    broker: &MemoryBroker,
    producer: &TransactionProducer<DB>,
    message: M,
    words: &[&str],
) {
    let error = send(producer, message).await.expect_err(&words.join(", "));
    is_invalid(db, broker, &error, words).await;
}

async fn is_invalid<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker, error: &SendError, words: &[&str]) {
    assert!(matches!(error, SendError::Invalid(_)), "{error:?}");
    assert_eq!(error.business_rows(), BusinessRows::Untouched);
    assert!(!error.is_transient(), "the same message will be refused again: {error}");
    let text = error.to_string();
    assert!(text.len() < 1000, "an error is for people: {} bytes", text.len());
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log").await, [0], "{text}");
    assert!(broker.open_halves().is_empty() && broker.ended().is_empty(), "{text}");
    assert!(db.orders().await.is_empty(), "{text}");
}

async fn are_refused<DB: TestDatabase>(db: &Db<DB>, messages: impl IntoIterator<Item = (Raw, Words)>) {
    let broker = MemoryBroker::new();
    let producer = producer(db, &broker).await;
    for (message, words) in messages {
        is_refused(db, &broker, &producer, message, words).await;
    }
}

async fn ids<DB: TestDatabase>(db: Db<DB>) {
    let (long, wide) = ("x".repeat(256), "é".repeat(128));
    let bad: [(&str, Words); 7] = [
        ("", &["message id", "empty"]),
        (&long, &["message id", "256 bytes", "255"]),
        (&wide, &["message id", "256 bytes", "255"]),
        ("a\nb", &["message id", "control character"]),
        ("a\0b", &["message id", "control character"]),
        ("a\u{1}b", &["message id", "control character"]),
        ("a\u{85}b", &["message id", "control character"]),
    ];
    are_refused(&db, bad.map(|(id, words)| (Raw::new(id), words))).await;
}

async fn tags_and_ordering_keys<DB: TestDatabase>(db: Db<DB>) {
    let long = "x".repeat(129);
    let tags: [(&str, Words); 4] = [
        ("", &["tag", "empty"]),
        (&long, &["tag", "129 bytes", "128"]),
        ("a || b", &["tag", "'|'"]),
        ("a\u{2}", &["tag", "control character"]),
    ];
    are_refused(&db, tags.map(|(tag, words)| (Raw { tag: Some(tag.into()), ..Raw::new("raw") }, words))).await;
    let long = "x".repeat(256);
    let keys: [(&str, Words); 3] = [
        ("", &["ordering key", "empty"]),
        (&long, &["ordering key", "256 bytes", "255"]),
        ("\u{1}", &["ordering key", "control character"]),
    ];
    let keyed = |key: &str| Raw { ordering_key: Some(key.into()), ..Raw::new("raw") };
    are_refused(&db, keys.map(|(key, words)| (keyed(key), words))).await;
}

async fn headers<DB: TestDatabase>(db: Db<DB>) {
    let long = "x".repeat(129);
    let mut bad: Vec<(Raw, Words)> = vec![
        (Raw::header("", "1"), &["header name", "empty"]),
        (Raw::header(&long, "1"), &["header name", "129 bytes"]),
        (Raw::header("a\u{1}b", "1"), &["header name", "control character"]),
        (Raw::header("empty", ""), &["\"empty\"", "is empty"]),
        (Raw::header("split", "a\u{2}TRAN_MSG\u{1}false"), &["\"split\"", "control character"]),
        (Raw::header("CHECK_IMMUNITY_TIME_IN_SECONDS", "60"), &["CHECK_IMMUNITY_TIME_IN_SECONDS", "settle_deadline"]),
    ];
    let twice = ["1", "2"].map(|value| ("tenant".to_owned(), value.to_owned())).to_vec();
    bad.push((Raw { headers: twice, ..Raw::new("raw") }, &["\"tenant\"", "twice"]));
    for name in ["TRAN_MSG", "PGROUP", "KEYS", "TAGS", "UNIQ_KEY", "WAIT", "__SHARDINGKEY", "REAL_TOPIC"] {
        bad.push((Raw::header(name, "1"), &["reserved"]));
    }
    for name in property::ALL {
        bad.push((Raw::header(name, "1"), &["reserved"]));
    }
    are_refused(&db, bad).await;
}

async fn case_39_delay_properties<DB: TestDatabase>(db: Db<DB>) {
    let delays = ["DELAY", "__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];
    are_refused(&db, delays.map(|name| (Raw::header(name, "3"), &["delays the message"] as Words))).await;
}

async fn case_42_an_empty_body<DB: TestDatabase>(db: Db<DB>) {
    are_refused(&db, [(Raw::body(vec![]), &["body", "empty"] as Words)]).await;
}

async fn case_41_bodies_at_the_limit<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let words = ["4194305 bytes", "maxMessageSize", "4194304"];
    is_refused(&db, &broker, &producer, Raw::body(vec![b'x'; MAX_BODY + 1]), &words).await;
    for (id, size) in [(1, MAX_BODY - 1), (2, MAX_BODY)] {
        let message = Raw { body: Some(vec![b'x'; size]), ..Raw::new(&size.to_string()) };
        let sent = producer.send_with(message, move |tx, _| Box::pin(async move { DB::insert(tx, id).await }));
        sent.await.unwrap().0.confirmation().await;
    }
    assert_eq!(broker.delivered().iter().map(|half| half.body.len()).collect::<Vec<_>>(), [MAX_BODY - 1, MAX_BODY]);
    let stored = DB::numbers(&db.pool, "SELECT length(payload) + 0 FROM tx_log ORDER BY 1").await;
    assert_eq!(stored.len(), 2);
    assert_eq!(db.orders().await, [1, 2]);
    producer.shutdown(std::time::Duration::from_secs(30)).await;
}

/// RocketMQ writes each property as its name, one byte, its value, one byte.
async fn case_41_properties_at_the_limit<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let id = "message-1";
    let scope = DB::texts(&db.pool, "SELECT scope FROM tx_scope").await.remove(0);
    let size = |properties: &[(&str, &str)]| -> usize {
        properties.iter().map(|(name, value)| name.len() + value.len() + 2).sum()
    };
    let sdk = size(&[
        ("KEYS", id),
        (property::MSG_ID, id),
        (property::TOKEN, &"t".repeat(32)),
        (property::KIND, Raw::KIND),
        (property::SCOPE, &scope),
        ("TAGS", "tag"),
        ("__SHARDINGKEY", "key"),
    ]);
    let room = MAX_PROPERTIES - sdk - size(&[("filler", "")]);
    let filled = |id: &str, room: usize| Raw {
        tag: Some("tag".into()),
        ordering_key: Some("key".into()),
        headers: vec![("filler".into(), "x".repeat(room))],
        ..Raw::new(id)
    };
    let words = ["properties", "31744 bytes", "31743"];
    is_refused(&db, &broker, &producer, filled(id, room + 1), &words).await;
    for (order, room) in [(1, room), (2, room - 1)] {
        let message = filled(&format!("message-{order}"), room);
        let sent = producer.send_with(message, move |tx, _| Box::pin(async move { DB::insert(tx, order).await }));
        sent.await.unwrap().0.confirmation().await;
    }
    let delivered = broker.delivered();
    assert_eq!(delivered.iter().map(|half| half.headers[0].1.len()).collect::<Vec<_>>(), [room, room - 1]);
    assert_eq!(db.orders().await, [1, 2]);
    producer.shutdown(std::time::Duration::from_secs(30)).await;
}

async fn a_body_that_fails_to_encode<DB: TestDatabase>(db: Db<DB>) {
    let message = Raw { body: None, ..Raw::new("raw") };
    are_refused(&db, [(message, &["encoded", "told to fail"] as Words)]).await;
}

/// A type that claims the kind of [`Raw`].
#[derive(Serialize, Deserialize)]
struct Impostor;

impl TransactionMessage for Impostor {
    const KIND: &'static str = Raw::KIND;
    const TOPIC: &'static str = "elsewhere";

    fn msg_id(&self) -> MessageId {
        "impostor".into()
    }
}

#[derive(Serialize, Deserialize)]
struct Stranger;

impl TransactionMessage for Stranger {
    const KIND: &'static str = "stranger";
    const TOPIC: &'static str = "elsewhere";

    fn msg_id(&self) -> MessageId {
        "stranger".into()
    }

    fn encode(&self) -> Result<Vec<u8>, BoxError> {
        unreachable!("it is refused before that")
    }
}

async fn kinds_that_are_not_registered<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    is_refused(&db, &broker, &producer, Stranger, &["\"stranger\"", "not registered", "builder"]).await;
    is_refused(&db, &broker, &producer, Impostor, &["\"raw\"", "another message type"]).await;
    let error = producer.send(Stranger).await.unwrap_err();
    is_invalid(&db, &broker, &error, &["\"stranger\"", "not registered"]).await;
    let error = producer.send(Raw::new("raw")).await.unwrap_err();
    is_invalid(&db, &broker, &error, &["\"raw\"", "no listener", "send_with"]).await;
    // The one that is registered with a listener works.
    producer.send(Order::new(7)).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![7], vec!["order-7".to_owned()]));
    producer.shutdown(std::time::Duration::from_secs(30)).await;
}
