//! Rows of `tx_log` and halves as another process would have left them.

use rocketmq_tx::{
    TransactionProducer,
    broker::{HalfMessage, memory::MemoryBroker},
    protocol::Unresolved,
};

use super::{Db, TestDatabase, eventually};

/// A time that is always in the future, in microseconds since the epoch.
pub const FAR: i64 = 9_000_000_000_000_000;

/// A row of `tx_log`; everything else in it is plausible.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    pub msg_id: &'a str,
    pub token: &'a str,
    pub state: &'a str,
    pub deadline_at: i64,
    /// When it became final.
    pub updated_at: i64,
    pub confirmed_at: Option<i64>,
}

impl<'a> Row<'a> {
    /// A row that housekeeping leaves alone.
    pub fn new(msg_id: &'a str, token: &'a str, state: &'a str) -> Self {
        Self { msg_id, token, state, deadline_at: FAR, updated_at: FAR, confirmed_at: None }
    }
}

/// Inserts these rows with one statement.
pub async fn insert<DB: TestDatabase>(db: &Db<DB>, rows: impl IntoIterator<Item = Row<'_>>) {
    let values: Vec<_> = rows
        .into_iter()
        .map(|row| {
            let Row { msg_id, token, state, deadline_at, updated_at, confirmed_at } = row;
            let confirmed_at = confirmed_at.map_or("NULL".to_owned(), |time| time.to_string());
            format!(
                "('{msg_id}', '{token}', 1, '{state}', 'order.placed', 'orders', 'orders', 'x', '[]', \
                 0, {deadline_at}, {updated_at}, {confirmed_at})"
            )
        })
        .collect();
    db.run(format!(
        "INSERT INTO tx_log (msg_id, token, attempts, state, kind, producer_group, topic, payload, headers, \
         created_at, deadline_at, updated_at, confirmed_at) VALUES {}",
        values.join(", ")
    ))
    .await;
}

/// A half message of `db`, to plant in a broker.
pub async fn half<DB: TestDatabase>(db: &Db<DB>, msg_id: &str, token: &str) -> HalfMessage {
    HalfMessage {
        topic: "orders".into(),
        tag: None,
        ordering_key: None,
        msg_id: msg_id.into(),
        token: token.into(),
        kind: "order.placed".into(),
        scope: DB::texts(&db.pool, "SELECT scope FROM tx_scope").await.remove(0),
        body: "{}".into(),
        headers: Vec::new(),
    }
}

/// How long the only row has until its deadline by the database's clock, in microseconds.
pub async fn until_deadline<DB: TestDatabase>(db: &Db<DB>) -> i64 {
    let text = match DB::name() {
        "PostgreSQL" => "SELECT deadline_at - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM tx_log",
        "MySQL" => "SELECT deadline_at - TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM tx_log",
        _ => "SELECT deadline_at - CAST(unixepoch('subsec') * 1000000 AS INTEGER) FROM tx_log",
    };
    DB::numbers(&db.pool, text).await[0]
}

/// How many check-backs `producer` could not resolve for this reason.
pub fn unknown<DB: TestDatabase>(producer: &TransactionProducer<DB>, reason: Unresolved) -> u64 {
    let counters = producer.counters();
    counters.checks_unknown.iter().find(|(known, _)| *known == reason).map_or(0, |(_, count)| *count)
}

/// Asks once about every open half, and waits until `producer` has answered that it does not know for this reason.
pub async fn check_is_unknown<DB: TestDatabase>(
    broker: &MemoryBroker,
    producer: &TransactionProducer<DB>,
    reason: Unresolved,
) {
    let before = unknown(producer, reason);
    let asked = broker.check_back();
    assert_eq!(broker.open_halves().len(), asked, "none of them is ended meanwhile");
    eventually("the check is answered", async || unknown(producer, reason) >= before + asked as u64).await;
    assert_eq!(broker.open_halves().len(), asked);
}

/// Asks until every half is ended. Whoever is asked must know the answer soon.
pub async fn check_until_ended(broker: &MemoryBroker) {
    eventually("check-backs end every half", async || broker.check_back() == 0).await;
}
