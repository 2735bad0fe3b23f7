//! The SDK's `send`, with everything that it does around and after it.

use std::time::{Duration, Instant};

use rocketmq_tx::{MessageId, RocketMq, TransactionListener, TransactionMessage, TransactionProducer, Tx};
use sqlx::{MySql, Postgres};

use crate::{
    AnyError,
    database::Database,
    delivered::Topics,
    measure::{BODY_BYTES, Order, Outcome, Report, measure},
    options::{Options, address},
};

/// How long ends that are under way at the end may take.
const DRAIN: Duration = Duration::from_secs(30);

impl TransactionMessage for Order {
    const KIND: &'static str = "order.paid";
    const TOPIC: &'static str = "orders";

    fn msg_id(&self) -> MessageId {
        self.msg_id.clone().into()
    }

    fn encode(&self) -> Result<Vec<u8>, rocketmq_tx::BoxError> {
        Ok(vec![b'x'; BODY_BYTES])
    }
}

pub struct PayOrder;

impl TransactionListener<Postgres> for PayOrder {
    type Message = Order;
    type Error = sqlx::Error;

    async fn execute(&self, tx: &mut Tx<'_, Postgres>, order: &Order) -> sqlx::Result<()> {
        let insert = sqlx::query("INSERT INTO orders(id, amount) VALUES ($1, $2)");
        insert.bind(order.id).bind(order.amount).execute(&mut *tx).await.map(drop)
    }
}

impl TransactionListener<MySql> for PayOrder {
    type Message = Order;
    type Error = sqlx::Error;

    async fn execute(&self, tx: &mut Tx<'_, MySql>, order: &Order) -> sqlx::Result<()> {
        let insert = sqlx::query("INSERT INTO orders(id, amount) VALUES (?, ?)");
        insert.bind(order.id).bind(order.amount).execute(&mut *tx).await.map(drop)
    }
}

/// A database for which [`PayOrder`] is written.
pub trait Listened: Database {
    fn listened(builder: rocketmq_tx::Builder<Self>, topic: &str) -> rocketmq_tx::Builder<Self>;
}

impl Listened for Postgres {
    fn listened(builder: rocketmq_tx::Builder<Self>, topic: &str) -> rocketmq_tx::Builder<Self> {
        builder.listener_on(topic, PayOrder)
    }
}

impl Listened for MySql {
    fn listened(builder: rocketmq_tx::Builder<Self>, topic: &str) -> rocketmq_tx::Builder<Self> {
        builder.listener_on(topic, PayOrder)
    }
}

pub async fn run<DB: Listened>(options: &Options) -> Result<Report, AnyError> {
    let name_server = address("ROCKETMQ_NAMESRV_ADDR")?;
    let pool = DB::fresh(options).await?;
    rocketmq_tx::migrate(&pool).await?;
    let topics = Topics::of(name_server.clone())?;
    let before = topics.messages(&options.topic).await?;
    let cluster = RocketMq::at(name_server).group(format!("bench_sdk_{}", options.topic));
    let builder = TransactionProducer::builder(pool.clone()).rocketmq(cluster);
    let producer = DB::listened(builder, &options.topic).start().await?;

    let sender = producer.clone();
    let call = move |order| {
        let producer = sender.clone();
        async move {
            match producer.send(order).await {
                Ok(_receipt) => Outcome::Committed,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "send");
                    match error {
                        rocketmq_tx::SendError::InDoubt { .. } => Outcome::Unknown,
                        _ => Outcome::Failed,
                    }
                }
            }
        }
    };
    let mut report = measure(options, "sdk", call).await;

    let drain = Instant::now();
    let remained = producer.shutdown(DRAIN).await;
    report.drain_ms = Some(drain.elapsed().as_secs_f64() * 1000.0);
    report.timed_out = producer.counters().ends_failed;
    report.delivered(topics.messages(&options.topic).await?);
    tracing::debug!(?remained, counters = ?producer.counters());

    // Rows, log and topic must tell the same story.
    let committed = report.all_committed as i64;
    let rows = DB::count(&pool, "SELECT COUNT(*) FROM orders").await?;
    let logged = DB::count(&pool, "SELECT COUNT(*) FROM tx_log WHERE state = 'COMMITTED'").await?;
    if report.unknown == 0 && (rows != committed || logged != committed || before != 0) {
        return Err(format!("{committed} sends committed, but {rows} orders and {logged} rows of tx_log did").into());
    }
    Ok(report)
}
