//! Half message and acknowledged end alone, through the SDK's port to the broker.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use rocketmq_tx::{
    RocketMq,
    broker::{CheckSink, Connector, End, EndOrigin, HalfMessage, Registration},
};

use crate::{
    AnyError,
    delivered::Topics,
    measure::{BODY_BYTES, Outcome, Report, measure},
    options::{Options, address},
};

pub async fn run(options: &Options) -> Result<Report, AnyError> {
    let name_server = address("ROCKETMQ_NAMESRV_ADDR")?;
    let topic = options.topic.clone();
    let (checks, _questions) = CheckSink::bounded(1024);
    let settings = RocketMq::at(&name_server).group(format!("bench_broker_{topic}"));
    let broker = Box::new(settings).connect(Registration { topics: vec![topic.clone()], checks }).await?;
    let topics = Topics::of(name_server)?;
    let before = topics.messages(&topic).await?;

    let body = Bytes::from(vec![b'x'; BODY_BYTES]);
    let unacknowledged = Arc::new(AtomicU64::new(0));
    let call = {
        let (broker, unacknowledged) = (Arc::clone(&broker), Arc::clone(&unacknowledged));
        move |order: crate::measure::Order| {
            let half = HalfMessage {
                topic: topic.clone(),
                tag: None,
                ordering_key: None,
                token: format!("{:032x}", order.id),
                msg_id: order.msg_id,
                kind: "order.paid".to_owned(),
                scope: "0123456789abcdef0123456789abcdef".to_owned(),
                body: body.clone(),
                headers: Vec::new(),
            };
            let (broker, unacknowledged) = (Arc::clone(&broker), Arc::clone(&unacknowledged));
            async move {
                let half = match broker.send_half(half).await {
                    Ok(half) => half,
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "half");
                        return Outcome::Failed;
                    }
                };
                match broker.end(&half, End::Commit, EndOrigin::Sender).await {
                    Ok(()) => Outcome::Committed,
                    Err(error) => {
                        tracing::warn!(error = &error as &dyn std::error::Error, "end");
                        unacknowledged.fetch_add(1, Relaxed);
                        Outcome::Failed
                    }
                }
            }
        }
    };
    let mut report = measure(options, "broker", call).await;
    report.timed_out = unacknowledged.load(Relaxed);
    report.delivered(topics.messages(&options.topic).await? - before);
    broker.shutdown().await;
    Ok(report)
}
