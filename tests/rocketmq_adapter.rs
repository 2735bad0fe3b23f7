//! The adapter against a real cluster, named by `ROCKETMQ_NAMESRV_ADDR`.
//!
//! The cluster must create topics by itself, and should ask early (`transactionTimeOut=3000`,
//! `transactionCheckInterval=2000`, `transactionOpBatchInterval=200`), or the check-back tests take minutes.

#[path = "rocketmq_adapter/cluster.rs"]
mod cluster;

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use cluster::{Reader, connect, fresh, half, settings};
use rocketmq_tx::broker::{CheckBack, End, EndOrigin, HalfError, rocketmq::RocketMq};
use tokio::{sync::mpsc::Receiver, time::timeout};

/// Longer than a broker with its default timing needs for a first check.
const CHECK_WITHIN: Duration = Duration::from_secs(100);

async fn next_check(checks: &mut Receiver<CheckBack>, msg_id: &str) -> CheckBack {
    timeout(CHECK_WITHIN, async {
        loop {
            let check = checks.recv().await.expect("the adapter is alive");
            if check.identity.as_ref().is_some_and(|identity| identity.msg_id == msg_id) {
                return check;
            }
        }
    })
    .await
    .expect("a check-back in time")
}

#[tokio::test]
async fn a_committed_half_is_delivered_as_it_was_given_and_a_rolled_back_one_never() {
    let topic = fresh("commit");
    let (broker, mut checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    let dropped = broker.send_half(half(&topic, "dropped")).await.unwrap();
    let kept = broker.send_half(half(&topic, "kept")).await.unwrap();
    let reader = Reader::new();
    assert!(reader.read(&topic).await.is_empty(), "a half is invisible");

    broker.end(&dropped, End::Rollback, EndOrigin::Sender).await.unwrap();
    broker.end(&kept, End::Commit, EndOrigin::Sender).await.unwrap();
    let delivered = reader.read_until(&topic, |all| !all.is_empty()).await;
    assert_eq!(delivered.len(), 1);
    let message = &delivered[0];
    assert_eq!((message.msg_id.as_str(), message.body.as_slice()), ("kept", b"body of kept".as_slice()));
    for (name, value) in [
        ("KEYS", "kept"),
        ("TAGS", "paid"),
        ("tenant", "acme"),
        ("TX_TOKEN", "token of kept"),
        ("TX_KIND", "order.paid"),
        ("TX_SCOPE", "scope"),
        ("UNIQ_KEY", kept.unique_key.as_str()),
    ] {
        assert_eq!(message.properties.get(name).map(String::as_str), Some(value), "{name}");
    }
    // Two rounds of checks later nobody has asked, and nothing more has come.
    assert!(timeout(Duration::from_secs(8), checks.recv()).await.is_err(), "an ended half is not asked about");
    assert_eq!(reader.read(&topic).await.len(), 1);
    broker.shutdown().await;
}

#[tokio::test]
async fn case_9_an_idle_producer_is_known_to_the_brokers_when_connect_returns() {
    let (topic, group) = (fresh("idle"), fresh("group"));
    let reader = Reader::new();
    let (broker, _checks) = connect(settings(&group), &topic).await.unwrap();
    assert_eq!(reader.producers(&topic, &group).await, 1);
    broker.shutdown().await;
    assert_eq!(reader.producers(&topic, &group).await, 0, "it said that it leaves");
}

#[tokio::test]
async fn case_44_a_half_left_alone_is_asked_about_at_another_instance_and_arrives_whole() {
    let (topic, group) = (fresh("check"), fresh("group"));
    let body: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (first, _checks) = connect(settings(&group), &topic).await.unwrap();
    let mut left = half(&topic, "left");
    left.body = body.clone().into();
    let sent = first.send_half(left).await.unwrap();
    first.send_half(half(&topic, "abandoned")).await.unwrap();
    first.shutdown().await;

    let (second, mut checks) = connect(settings(&group), &topic).await.unwrap();
    let check = next_check(&mut checks, "left").await;
    let identity = check.identity.unwrap();
    assert_eq!((identity.token.as_str(), identity.kind.as_str()), ("token of left", "order.paid"));
    assert_eq!(identity.scope, "scope");
    assert_eq!((check.half.topic.as_str(), &check.half.unique_key), (topic.as_str(), &sent.unique_key));
    assert_eq!(check.half.broker_name, sent.broker_name);
    second.end(&check.half, End::Commit, EndOrigin::CheckBack).await.unwrap();
    let check = next_check(&mut checks, "abandoned").await;
    second.end(&check.half, End::Rollback, EndOrigin::CheckBack).await.unwrap();

    let delivered = Reader::new().read_until(&topic, |all| !all.is_empty()).await;
    assert_eq!(delivered.len(), 1);
    assert!(delivered[0].body == body, "the same bytes");
    second.shutdown().await;
}

#[tokio::test]
async fn case_45_commit_rollback_and_check_back_work_in_a_namespace() {
    let (topic, group) = (fresh("ns-topic"), fresh("group"));
    let namespaced = || settings(&group).namespace("shop");
    let (first, _checks) = connect(namespaced(), &topic).await.unwrap();
    let kept = first.send_half(half(&topic, "kept")).await.unwrap();
    let dropped = first.send_half(half(&topic, "dropped")).await.unwrap();
    first.send_half(half(&topic, "left")).await.unwrap();
    assert_eq!(kept.topic, topic);
    first.end(&kept, End::Commit, EndOrigin::Sender).await.unwrap();
    first.end(&dropped, End::Rollback, EndOrigin::Sender).await.unwrap();
    let reader = Reader::new();
    assert_eq!(reader.producers(&format!("shop%{topic}"), &format!("shop%{group}")).await, 1);
    first.shutdown().await;

    let (second, mut checks) = connect(namespaced(), &topic).await.unwrap();
    let check = next_check(&mut checks, "left").await;
    assert_eq!(check.half.topic, topic);
    second.end(&check.half, End::Commit, EndOrigin::CheckBack).await.unwrap();
    let delivered = reader.read_until(&format!("shop%{topic}"), |all| all.len() >= 2).await;
    let ids: HashSet<_> = delivered.iter().map(|message| message.msg_id.as_str()).collect();
    assert_eq!(ids, HashSet::from(["kept", "left"]));
    assert!(delivered.iter().all(|message| message.properties["INSTANCE_ID"] == "shop"));
    second.shutdown().await;
}

#[tokio::test]
async fn sixty_four_halves_at_once_are_stored_and_ended_each_once() {
    let topic = fresh("many");
    let (broker, _checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    let sends = (0..64).map(|number| {
        let (broker, message) = (broker.clone(), half(&topic, &format!("m-{number}")));
        tokio::spawn(async move {
            let half = broker.send_half(message).await.unwrap();
            broker.end(&half, End::Commit, EndOrigin::Sender).await.unwrap();
            half
        })
    });
    let mut halves = Vec::new();
    for send in sends.collect::<Vec<_>>() {
        halves.push(send.await.unwrap());
    }
    let places: HashSet<_> = halves.iter().map(|half| (&half.broker_name, half.commit_log_offset)).collect();
    let keys: HashSet<_> = halves.iter().map(|half| &half.unique_key).collect();
    assert_eq!((places.len(), keys.len()), (64, 64));
    let delivered = Reader::new().read_until(&topic, |all| all.len() >= 64).await;
    let ids: HashSet<_> = delivered.iter().map(|message| &message.msg_id).collect();
    assert_eq!((delivered.len(), ids.len()), (64, 64));
    broker.shutdown().await;
}

#[tokio::test]
async fn one_ordering_key_goes_to_one_queue_in_order() {
    let topic = fresh("ordered");
    let (broker, _checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    for number in 0..20 {
        let mut message = half(&topic, &format!("m-{number:02}"));
        message.ordering_key = Some(format!("key-{}", number % 2));
        let sent = broker.send_half(message).await.unwrap();
        broker.end(&sent, End::Commit, EndOrigin::Sender).await.unwrap();
    }
    let delivered = Reader::new().read_until(&topic, |all| all.len() >= 20).await;
    for key in ["key-0", "key-1"] {
        let of_key: Vec<_> = delivered.iter().filter(|message| message.properties["__SHARDINGKEY"] == key).collect();
        let queues: HashSet<_> = of_key.iter().map(|message| &message.queue).collect();
        assert_eq!((of_key.len(), queues.len()), (10, 1), "{key}");
        assert!(of_key.is_sorted_by_key(|message| &message.msg_id), "{key}");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn case_65_the_settings_come_from_the_broker() {
    let topic = fresh("settings");
    let (broker, _checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    let all = broker.settings().await.unwrap();
    assert!(!all.is_empty());
    for one in all {
        assert!(!one.broker_name.is_empty());
        assert!(one.transaction_timeout > Duration::ZERO && one.check_interval > Duration::ZERO && one.check_max > 0);
        assert!(one.max_message_size.is_some_and(|bytes| bytes >= 1024 * 1024), "{one:?}");
        assert!(one.op_batch_interval.is_some() && one.file_reserved.is_some(), "{one:?}");
    }
    broker.shutdown().await;
}

#[tokio::test]
async fn an_end_that_the_broker_refuses_is_an_error() {
    let topic = fresh("refused");
    let (broker, _checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    let sent = broker.send_half(half(&topic, "m")).await.unwrap();
    let mut elsewhere = sent.clone();
    elsewhere.queue_offset += 1_000_000;
    let error = broker.end(&elsewhere, End::Commit, EndOrigin::Sender).await.expect_err("not that half").to_string();
    assert!(error.contains(&topic) && error.contains(&sent.broker_name), "{error}");
    // A broker that nobody knows by name is reached at the store host.
    let mut renamed = sent.clone();
    renamed.broker_name = "a-name-without-a-route".to_owned();
    broker.end(&renamed, End::Rollback, EndOrigin::Sender).await.unwrap();
    broker.shutdown().await;
}

#[tokio::test]
async fn case_53_an_unknown_name_server_is_a_clear_error_within_the_start_timeout() {
    let started = Instant::now();
    let settings = RocketMq::at("127.0.0.1:1").group(fresh("group")).start_timeout(Duration::from_secs(2));
    let error = connect(settings, "t").await.err().expect("nobody listens there").to_string();
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    assert!(error.contains("127.0.0.1:1") && error.contains("check that address"), "{error}");
}

#[tokio::test]
async fn the_same_group_runs_once_per_process_and_is_free_after_shutdown_and_after_drop() {
    let (topic, group) = (fresh("twice"), fresh("group"));
    let (first, _checks) = connect(settings(&group), &topic).await.unwrap();
    let error = connect(settings(&group), &topic).await.err().expect("taken").to_string();
    assert!(error.contains(&group) && error.contains("already runs"), "{error}");
    first.shutdown().await;
    let (second, _checks) = connect(settings(&group), &topic).await.expect("free after shutdown");
    let dropping = Instant::now();
    drop(second);
    assert!(dropping.elapsed() < Duration::from_millis(200), "a drop does not block");
    let (third, _checks) = connect(settings(&group), &topic).await.expect("free after drop");
    third.shutdown().await;
}

#[tokio::test]
async fn case_47_shutdown_may_be_called_twice_and_at_once_and_later_calls_fail() {
    let topic = fresh("shutdown");
    let (broker, _checks) = connect(settings(&fresh("group")), &topic).await.unwrap();
    let sent = broker.send_half(half(&topic, "m")).await.unwrap();
    let at_once: Vec<_> = (0..4)
        .map(|_| {
            let broker = broker.clone();
            tokio::spawn(async move { broker.shutdown().await })
        })
        .collect();
    for one in at_once {
        timeout(Duration::from_secs(10), one).await.expect("in time").unwrap();
    }
    broker.shutdown().await;
    assert!(matches!(broker.send_half(half(&topic, "late")).await, Err(HalfError::Refused(_))));
    assert!(broker.end(&sent, End::Rollback, EndOrigin::Sender).await.is_err());
    assert!(broker.settings().await.is_err());
}

#[test]
fn case_48_it_outlives_the_runtime_that_started_it() {
    let topic = fresh("runtimes");
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (build(), build());
    let (broker, _checks) = first.block_on(connect(settings(&fresh("group")), &topic)).unwrap();
    drop(first);
    let sent = second.block_on(broker.send_half(half(&topic, "m"))).unwrap();
    second.block_on(broker.end(&sent, End::Commit, EndOrigin::Sender)).unwrap();
    second.block_on(async move { drop(broker) });
}
