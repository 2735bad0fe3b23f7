//! The end of a run: whatever was left is settled, and business rows are compared with deliveries.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    time::{Duration, Instant},
};

use super::{
    notes::Noted,
    stories::{
        Event, Scene, Stage,
        scene::{Deliveries, Producer, Refund},
    },
    support::{Db, TestDatabase},
};

/// For all rows to be settled once everything runs.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// For all halves to be ended: many rounds of checks.
const ENDED_WITHIN: Duration = Duration::from_secs(120);
/// For the consumer, which may have to find its brokers again.
const READ_WITHIN: Duration = Duration::from_secs(30);
const QUIET: Duration = Duration::from_secs(3);

/// Where brokers put what nobody could answer for.
const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";

pub struct Verdict {
    committed: BTreeSet<String>,
    delivered: BTreeMap<String, usize>,
    unended: BTreeSet<String>,
    /// Messages whose `send` said that they are committed, and are not.
    broken: Vec<String>,
    defects: usize,
    /// What the database says of messages that went wrong.
    rows: Vec<String>,
}

impl Verdict {
    /// Lets a producer that sends nothing resolve what is left, and compares.
    pub async fn reach<DB: TestDatabase>(scene: &Scene<DB>, mut reader: Deliveries, noted: &Noted) -> Self {
        // The connections of before did not survive the database's restart.
        let db = scene.db.again(8).await;
        let Producer { producer, stage } =
            scene.start(|stage| scene.part.bare(db.pool.clone(), stage).message_on::<Refund>(&scene.part.topic)).await;
        all_settled(&db).await;
        let unended = all_ended(&stage, &scene.part.topic).await;
        let committed: BTreeSet<String> = db.orders().await.iter().map(|order| format!("order-{order}")).collect();
        all_read(&mut reader, &committed).await;
        let broken = noted.accepted.difference(&committed).cloned().collect();
        let delivered = reader.counts();
        let mut verdict =
            Self { committed, delivered, unended, broken, defects: noted.defects.len(), rows: Vec::new() };
        for id in verdict.wrong() {
            verdict.rows.push(format!("{id}: {:?}", producer.status(&id).await));
        }
        for id in verdict.lost() {
            for topic in [&scene.part.topic, GIVEN_UP] {
                eprintln!("{id} in {topic}: {}", found_by_key(topic, id));
            }
        }
        producer.shutdown(Duration::from_secs(5)).await;
        db.pool.close().await;
        verdict
    }

    fn wrong(&self) -> BTreeSet<String> {
        let ids = self.lost().into_iter().chain(self.phantom()).chain(&self.unended).chain(&self.broken);
        ids.cloned().collect()
    }

    fn lost(&self) -> Vec<&String> {
        self.committed.iter().filter(|id| !self.delivered.contains_key(*id)).collect()
    }

    fn phantom(&self) -> Vec<&String> {
        self.delivered.keys().filter(|id| !self.committed.contains(*id)).collect()
    }

    pub fn holds(&self) -> bool {
        self.wrong().is_empty() && self.defects == 0 && !self.committed.is_empty()
    }

    /// The one line.
    pub fn line(&self) -> String {
        let deliveries: usize = self.delivered.values().sum();
        format!(
            "committed {} delivered {} lost {} phantom {} duplicates {} unended-halves {}",
            self.committed.len(),
            self.delivered.len(),
            self.lost().len(),
            self.phantom().len(),
            deliveries - self.delivered.len(),
            self.unended.len(),
        )
    }

    /// Which messages went wrong, to be looked up in the logs.
    pub fn details(&self) -> String {
        format!(
            "lost: {:?}\nphantom: {:?}\nunended: {:?}\naccepted and not committed: {:?}\nrows: {:#?}",
            self.lost(),
            self.phantom(),
            self.unended,
            self.broken,
            self.rows
        )
    }
}

/// What RocketMQ's own administration finds of a message: whether a broker has it and the consumer missed it, or a broker
/// gave it up. Only the Java broker has that.
fn found_by_key(topic: &str, id: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services");
    let query = Command::new(script).args(["admin", "queryMsgByKey", "-t", topic, "-k", id]).output();
    query.map_or_else(|error| error.to_string(), |output| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Waits until the consumer has all that was committed, and has found nothing more for a while.
async fn all_read(reader: &mut Deliveries, committed: &BTreeSet<String>) {
    let begun = Instant::now();
    let mut grew = Instant::now();
    while grew.elapsed() < QUIET {
        let before = reader.all.len();
        reader.until_quiet().await;
        let counts = reader.counts();
        let misses_some = committed.iter().any(|id| !counts.contains_key(id)) && begun.elapsed() < READ_WITHIN;
        if reader.all.len() > before || misses_some {
            grew = Instant::now();
        }
    }
}

/// Waits until no attempt is left undecided.
async fn all_settled<DB: TestDatabase>(db: &Db<DB>) {
    let begun = Instant::now();
    loop {
        let left = db.in_state("PREPARING").await;
        if left == 0 {
            return;
        }
        assert!(begun.elapsed() < SETTLED_WITHIN, "{left} rows are PREPARING still, {SETTLED_WITHIN:?} after the end");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for a round in which the brokers ask about no half, and returns what they still ask about when there is none.
async fn all_ended(stage: &Stage, topic: &str) -> BTreeSet<String> {
    let begun = Instant::now();
    loop {
        let before = stage.log.all().len();
        stage.a_round_passes(topic).await;
        let asked: BTreeSet<String> = stage.log.all().into_iter().skip(before).filter_map(asked).collect();
        if asked.is_empty() || begun.elapsed() > ENDED_WITHIN {
            return asked;
        }
    }
}

fn asked(event: Event) -> Option<String> {
    match event {
        Event::Checked { id } if id.starts_with("order-") => Some(id),
        _ => None,
    }
}
