use tokio::{io::AsyncReadExt, net::TcpListener};

use super::*;
use crate::broker::{
    CheckSink,
    rocketmq::{RocketMq, engine::Engine, names::Names},
};

pub(super) fn link(timeout: Duration) -> (Engine, Link) {
    let (sink, _) = CheckSink::bounded(1);
    let settings = RocketMq::at("127.0.0.1:1").group("g").request_timeout(timeout);
    let engine = Engine::start(&settings, CheckReceiver::new(sink, Names::new(None))).expect("starts");
    let link = Link::new(engine.client(), settings.name_server_list(), timeout);
    (engine, link)
}

fn heartbeat(link: &Link) -> RemotingCommand {
    link.bare_command(RequestCode::HeartBeat).set_body("{}")
}

#[test]
fn only_a_request_that_was_not_written_reached_nothing() {
    assert_eq!(Reached::from(Some(OutboundRequestStage::BeforeWrite)), Reached::Nothing);
    for stage in
        [OutboundRequestStage::Writing, OutboundRequestStage::AwaitingResponse, OutboundRequestStage::ResponseReceived]
    {
        assert_eq!(Reached::from(Some(stage)), Reached::Perhaps);
    }
    assert_eq!(Reached::from(None), Reached::Perhaps);
}

#[test]
fn a_refusal_shows_code_name_and_a_bounded_remark() {
    let answer = RemotingCommand::create_response_command_with_code_remark(
        ResponseCode::NoPermission.to_i32(),
        "x".repeat(10_000),
    );
    let refusal = Refusal::from(&answer);
    assert!(refusal.is_no_permission());
    let shown = refusal.to_string();
    assert!(shown.contains("16 (NoPermission)") && shown.len() < 400, "{shown}");
}

#[tokio::test]
async fn nobody_there_means_nothing_was_reached() {
    let (_engine, link) = link(Duration::from_secs(2));
    let failure = link.request("127.0.0.1:1", heartbeat(&link)).await.err().expect("nobody listens there");
    assert_eq!(failure.reached, Reached::Nothing, "{failure}");
}

#[tokio::test]
async fn case_53_a_broker_that_was_away_for_long_is_reached_as_soon_as_it_is_back() {
    let (_engine, link) = link(Duration::from_secs(2));
    let address = TcpListener::bind("127.0.0.1:0").await.expect("binds").local_addr().expect("bound").to_string();
    for _ in 0..20 {
        let failure = link.request(&address, heartbeat(&link)).await.err().expect("away");
        assert_eq!(failure.reached, Reached::Nothing, "{failure}");
    }
    let back = TcpListener::bind(&address).await.expect("binds again");
    let request = tokio::spawn(async move { link.request(&address, heartbeat(&link)).await.map(|_| ()) });
    // The knock, and then the transport's own connection with the request on it.
    let mut bytes = 0;
    while bytes == 0 {
        let (mut connection, _) = back.accept().await.expect("accepts");
        bytes = connection.read(&mut [0; 64]).await.unwrap_or_default();
    }
    request.abort();
}

#[tokio::test]
async fn case_31_a_silent_broker_may_have_seen_the_request_and_keeps_its_connection() {
    let (_engine, link) = link(Duration::from_millis(300));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    let broker = tokio::spawn(async move {
        let mut bytes = 0;
        let mut buffer = [0; 1024];
        while bytes == 0 {
            let (mut connection, _) = listener.accept().await.expect("accepts");
            while let Ok(read @ 1..) = connection.read(&mut buffer).await {
                bytes += read;
            }
        }
        bytes
    });
    let failure = link.request(&address, heartbeat(&link)).await.err().expect("no answer");
    assert_eq!(failure.reached, Reached::Perhaps, "{failure}");
    assert!(link.is_connected(&address), "one slow answer must not cost the other requests their connection");

    let failure = link.probe(&address, heartbeat(&link)).await.err().expect("no answer");
    assert_eq!(failure.reached, Reached::Perhaps, "{failure}");
    assert!(!link.is_connected(&address), "a heartbeat without an answer closes the connection");
    assert!(broker.await.expect("ran") > 0);
}

#[tokio::test]
async fn a_connection_that_breaks_while_waiting_may_have_carried_the_request() {
    let (_engine, link) = link(Duration::from_millis(500));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while !matches!(listener.accept().await.expect("accepts").0.read(&mut buffer).await, Ok(1..)) {}
    });
    let failure = link.request(&address, heartbeat(&link)).await.err().expect("cut");
    assert_eq!(failure.reached, Reached::Perhaps, "{failure}");
    assert!(!link.is_connected(&address), "the heartbeats see that the connection is gone");
}

#[tokio::test]
async fn a_closed_link_refuses_before_anything_is_written() {
    let (_engine, link) = link(Duration::from_secs(1));
    link.close();
    let failure = link.request("127.0.0.1:1", heartbeat(&link)).await.err().expect("closed");
    assert_eq!(failure.reached, Reached::Nothing);
    assert!(failure.to_string().contains("shut down"));
}
