use std::collections::HashMap;

use rocketmq_model::common::message::STRING_HASH_SET;
use rocketmq_protocol::{common::message::message_decoder::str_to_message_properties, protocol::remoting_command};

use super::*;
use crate::broker::rocketmq::link::offline;

fn sender(namespace: Option<&str>) -> HalfSender {
    let link = Arc::new(offline());
    let directory = Arc::new(Directory::new(link.clone(), Vec::new()));
    HalfSender::new(link, directory, Names::new(namespace.map(str::to_owned)), "order-service".to_owned())
}

fn message() -> HalfMessage {
    HalfMessage {
        topic: "orders".to_owned(),
        tag: Some("paid".to_owned()),
        ordering_key: Some("order-42".to_owned()),
        msg_id: "order-42:OrderPaid".to_owned(),
        token: "token".to_owned(),
        kind: "order.paid".to_owned(),
        scope: "scope".to_owned(),
        body: "body".into(),
        headers: vec![("tenant".to_owned(), "acme".to_owned())],
    }
}

fn properties(namespace: Option<&str>, message: &HalfMessage) -> Result<HashMap<String, String>, BrokerError> {
    let text = sender(namespace).properties(message, "UNIQUE")?;
    let read = str_to_message_properties(Some(&text));
    Ok(read.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect())
}

#[test]
fn a_half_carries_all_that_a_check_back_and_a_consumer_need() {
    let properties = properties(Some("shop"), &message()).expect("good");
    for (name, value) in [
        ("TRAN_MSG", "true"),
        ("PGROUP", "order-service"),
        ("UNIQ_KEY", "UNIQUE"),
        ("KEYS", "order-42:OrderPaid"),
        ("TAGS", "paid"),
        ("__SHARDINGKEY", "order-42"),
        ("INSTANCE_ID", "shop"),
        ("TX_MSG_ID", "order-42:OrderPaid"),
        ("TX_TOKEN", "token"),
        ("TX_KIND", "order.paid"),
        ("TX_SCOPE", "scope"),
        ("tenant", "acme"),
    ] {
        assert_eq!(properties.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert_eq!(properties.len(), 12);
}

#[test]
fn case_39_headers_that_rocketmq_would_act_on_are_refused() {
    let delays = ["DELAY", "__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];
    let of_rocketmq = STRING_HASH_SET.iter().map(|name| name.as_ref());
    for name in delays.into_iter().chain(property::ALL).chain(of_rocketmq) {
        let mut message = message();
        message.headers.push((name.to_owned(), "1".to_owned()));
        let error = properties(None, &message).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn separators_cannot_smuggle_in_properties() {
    for (name, value) in [("a\u{1}b", "v"), ("a\u{2}b", "v"), ("", "v"), ("a", "v\u{2}PGROUP\u{1}x")] {
        let mut message = message();
        message.headers = vec![(name.to_owned(), value.to_owned())];
        assert!(properties(None, &message).is_err(), "{name:?}={value:?}");
    }
}

fn queues() -> Vec<Queue> {
    ["a", "b"]
        .into_iter()
        .flat_map(|broker| {
            (0..4).map(move |id| Queue { broker: broker.into(), address: format!("{broker}:10911").into(), id })
        })
        .collect()
}

#[test]
fn one_ordering_key_always_goes_to_one_queue_even_of_a_silent_broker() {
    let (sender, queues) = (sender(None), queues());
    for key in (0..100).map(|number| format!("key-{number}")) {
        let first = sender.choose(&queues, Some(&key)).clone();
        sender.avoid(&first.address);
        assert_eq!(sender.choose(&queues, Some(&key)), &first);
    }
    // What `Math.abs("order-42".hashCode()) % 8` is in Java.
    let java = "order-42".bytes().fold(0i32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    assert_eq!(sender.choose(&queues, Some("order-42")), &queues[java.unsigned_abs() as usize % 8]);
}

#[test]
fn other_messages_take_turns_and_pass_over_a_silent_broker() {
    let (sender, queues) = (sender(None), queues());
    let mut seen: Vec<_> = (0..8).map(|_| sender.choose(&queues, None).clone()).collect();
    seen.sort_by_key(|queue| (queue.broker.clone(), queue.id));
    assert_eq!(seen, queues);

    sender.avoid(&"a:10911".into());
    assert!((0..16).all(|_| &*sender.choose(&queues, None).broker == "b"));
    sender.avoid(&"b:10911".into());
    sender.choose(&queues, None);
}

fn answer(code: ResponseCode) -> RemotingCommand {
    let header = SendMessageResponseHeader::new("7F00000100002A9F0000000000001267".into(), 3, 7, None, None, None);
    let mut answer =
        remoting_command::RemotingCommand::create_response_command_with_code_and_header(code.to_i32(), header);
    answer.make_custom_header_to_net();
    answer
}

fn outcome(answer: &RemotingCommand) -> Result<HalfCoordinates, HalfError> {
    sender(None).read(answer, "orders".to_owned(), "broker-a", "UNIQUE".to_owned(), || "sending".to_owned())
}

#[test]
fn send_ok_gives_the_coordinates_that_an_end_needs() {
    let half = outcome(&answer(ResponseCode::Success)).expect("SEND_OK");
    assert_eq!((half.commit_log_offset, half.queue_offset), (0x1267, 7));
    assert_eq!(half.store_host.as_deref(), Some("127.0.0.1:10911"));
    assert_eq!((half.unique_key.as_str(), half.transaction_id.as_str()), ("UNIQUE", "UNIQUE"));
}

#[test]
fn case_15_a_half_that_is_stored_but_not_safe_says_where_it_is() {
    for (code, name) in [
        (ResponseCode::FlushDiskTimeout, "FLUSH_DISK_TIMEOUT"),
        (ResponseCode::FlushSlaveTimeout, "FLUSH_SLAVE_TIMEOUT"),
        (ResponseCode::SlaveNotAvailable, "SLAVE_NOT_AVAILABLE"),
    ] {
        match outcome(&answer(code)) {
            Err(HalfError::NotSafe { status, half }) => assert_eq!((status.as_str(), half.queue_offset), (name, 7)),
            other => panic!("{code:?} gave {other:?}"),
        }
    }
}

#[test]
fn only_answers_given_before_storing_are_refusals() {
    for code in [
        ResponseCode::SystemBusy,
        ResponseCode::FlowControl,
        ResponseCode::TopicNotExist,
        ResponseCode::NoPermission,
        ResponseCode::MessageIllegal,
        ResponseCode::ServiceNotAvailable,
    ] {
        assert!(matches!(outcome(&answer(code)), Err(HalfError::Refused(_))), "{code:?}");
    }
    assert!(matches!(outcome(&answer(ResponseCode::SystemError)), Err(HalfError::Unknown(_))));
    // A code that nobody knows yet must not pass for a refusal, nor for a success.
    let unheard_of = remoting_command::RemotingCommand::create_response_command_with_code(4711);
    assert!(matches!(outcome(&unheard_of), Err(HalfError::Unknown(_))));
    // Stored, but where? It must not pass for a refusal.
    let unreadable = remoting_command::RemotingCommand::create_response_command_with_code(0);
    assert!(matches!(outcome(&unreadable), Err(HalfError::Unknown(_))));
}

#[test]
fn case_52_a_topic_of_the_wrong_type_names_the_fix() {
    let wrong_type = remoting_command::RemotingCommand::create_response_command_with_code_remark(
        ResponseCode::MessageIllegal.to_i32(),
        "the message type TRANSACTION does not match the topic's NORMAL",
    );
    match outcome(&wrong_type) {
        Err(HalfError::Refused(error)) => assert!(error.to_string().contains("+message.type=TRANSACTION"), "{error}"),
        other => panic!("{other:?}"),
    }
}
