//! The shop: a producer, its database, and a consumer that stands for everybody else.

use std::{
    collections::HashSet,
    fmt::Debug,
    path::{Path, PathBuf},
    time::Duration,
};

use rocketmq_tx::{Status, TransactionMessage, TransactionProducer};
use sqlx::{Sqlite, SqlitePool};
use tokio::time::{Instant, sleep};

use crate::{
    Error,
    consumer::{Reader, Received},
    order::{self, LastWord, OrderPlaced},
    wire::Wire,
};

/// For anything that must happen. On an idle machine each takes a fraction of it.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Shop {
    pub producer: TransactionProducer<Sqlite>,
    pub wire: Wire,
    pub file: PathBuf,
    pub name_server: String,
    pool: SqlitePool,
    reader: Reader,
    seen: Vec<Received>,
}

/// Both tables, for one order.
#[derive(Debug, PartialEq, Eq)]
pub struct Rows {
    pub orders: i64,
    /// The state in `tx_log`.
    pub state: Option<String>,
}

impl Rows {
    pub fn are(&self, orders: i64, state: &str) -> bool {
        self.orders == orders && self.state.as_deref() == Some(state)
    }
}

impl std::fmt::Display for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rows = match self.orders {
            0 => "no row".to_owned(),
            1 => "1 row".to_owned(),
            more => format!("{more} rows"),
        };
        write!(f, "{rows} in orders; tx_log says {}", self.state.as_deref().unwrap_or("nothing"))
    }
}

/// What the consumer got of one message.
pub struct Deliveries {
    pub count: usize,
    /// Of how many half messages. A broker may deliver one half more than once: consumers are promised at least once.
    pub halves: usize,
}

impl Shop {
    pub async fn open(file: &Path, name_server: &str) -> Result<Self, Error> {
        let pool = order::open_database(file).await?;
        let wire = Wire::default();
        let cluster = wire.tap(order::cluster(name_server));
        let producer = order::producer(pool.clone()).broker(cluster).start().await?;
        let reader = Reader::start(name_server, "other-services", order::TOPIC).await?;
        let (file, name_server) = (file.to_owned(), name_server.to_owned());
        Ok(Self { producer, wire, file, name_server, pool, reader, seen: Vec::new() })
    }

    /// What committed readers see.
    pub async fn rows(&self, order: &OrderPlaced) -> Result<Rows, Error> {
        let query = "SELECT (SELECT count(*) FROM orders WHERE id = ?), (SELECT state FROM tx_log WHERE msg_id = ?)";
        let query = sqlx::query_as(query).bind(&order.order_id).bind(order.msg_id().as_str().to_owned());
        let (orders, state) = query.fetch_one(&self.pool).await?;
        Ok(Rows { orders, state })
    }

    /// Waits until the SDK says `status` of the message.
    pub async fn until_status(&self, order: &OrderPlaced, status: Status) -> Result<(), Error> {
        let msg_id = order.msg_id();
        until(msg_id.as_str(), status, async || Ok(self.producer.status(msg_id.as_str()).await?)).await
    }

    /// Waits until the SDK has counted the row that it settled, a moment after others see it.
    pub async fn until_settled(&self) -> Result<(), Error> {
        until("the count of settled rows", 1, async || Ok(self.producer.counters().settled)).await
    }

    /// Waits until the consumer has this message.
    pub async fn until_seen(&mut self, message: &impl TransactionMessage) -> Result<(), Error> {
        let msg_id = message.msg_id();
        let deadline = Instant::now() + PATIENCE;
        while !self.seen.iter().any(|received| received.msg_id == msg_id.as_str()) {
            let left = deadline.saturating_duration_since(Instant::now());
            let received = self.reader.next(left).await;
            self.seen.push(received.ok_or_else(|| format!("the consumer did not get {msg_id} within {PATIENCE:?}"))?);
        }
        Ok(())
    }

    /// Everything that the consumer will ever get of this order's message, whose half is ended: the shop sends the last
    /// word on the order, and waits until the consumer has that.
    pub async fn all_deliveries(&mut self, order: &OrderPlaced) -> Result<Deliveries, Error> {
        let last_word = LastWord { order_id: order.order_id.clone() };
        let nothing = self.producer.send_with(last_word.clone(), |_, _| Box::pin(async { Ok::<_, sqlx::Error>(()) }));
        nothing.await?;
        self.until_seen(&last_word).await?;
        let msg_id = order.msg_id();
        let of_order: Vec<_> = self.seen.iter().filter(|received| received.msg_id == msg_id.as_str()).collect();
        let halves: HashSet<_> = of_order.iter().map(|received| received.properties.get("TX_TOKEN")).collect();
        Ok(Deliveries { count: of_order.len(), halves: halves.len() })
    }

    pub async fn close(self) -> Result<(), Error> {
        let report = self.producer.shutdown(Duration::from_secs(5)).await;
        self.reader.shutdown().await;
        self.pool.close().await;
        if report.unfinished > 0 {
            return Err(format!("the producer left something behind: {report:?}").into());
        }
        Ok(())
    }
}

async fn until<T: PartialEq + Debug>(
    what: &str,
    wanted: T,
    look: impl AsyncFn() -> Result<T, Error>,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = look().await?;
        if found == wanted {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{what} is {found:?}, not {wanted:?}, after {PATIENCE:?}").into());
        }
        sleep(Duration::from_millis(10)).await;
    }
}
