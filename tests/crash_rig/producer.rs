//! The producer process: several senders at once, until it is told to finish or dies.

use std::{process::ExitCode, sync::Arc, time::Duration};

use futures_util::future::join_all;
use rocketmq_tx::{SendError, TransactionProducer};
use serde::{Deserialize, Serialize};
use sqlx::{MySql, Pool, Postgres, Sqlite, pool::PoolOptions};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    chance::Chance,
    lifeline,
    mortal::{Fate, Mortal, Worker},
    report::{Outcome, Report},
    stories::scene::{Part, chain},
    support::{Order, TestDatabase},
};

/// The first argument of this part of the program; its [`Role`] is the second.
pub const ARGUMENT: &str = "producer";
/// The line on standard input after which no new message is sent.
pub const FINISH: &str = "finish";

/// Much longer than all times of a send together, stalls and stops included.
const SEND_LIMIT: Duration = Duration::from_secs(120);
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
/// A service gives up and is started again.
const START_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause of one sender between two messages.
const PAUSE_MAX: Duration = Duration::from_millis(120);
/// Ids of one process, of which there are so many.
const IDS: i64 = 1_000_000;
/// One in so many sends repeats an id of this or an earlier process.
const REPEATED_ONE_IN: u64 = 6;
/// One in so many local transactions fails.
const FAILING_ONE_IN: u64 = 8;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    pub part: Part,
    pub seed: u64,
    /// Counts the processes from one on; ids contain it, so that each process has its own.
    pub number: i64,
    pub senders: u32,
    pub slow_one_in: u64,
}

pub async fn serve(role: &str) -> ExitCode {
    lifeline::die_with_parent();
    std::panic::set_hook(Box::new(|panic| Report::Panicked { message: panic.to_string() }.tell()));
    let role: Role = serde_json::from_str(role).expect("a role");
    let served = match role.part.url.split(':').next() {
        Some("postgres") => play::<Postgres>(role).await,
        Some("mysql") => play::<MySql>(role).await,
        Some("sqlite") => play::<Sqlite>(role).await,
        other => panic!("no such database: {other:?}"),
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            Report::NotStarted { error }.tell();
            ExitCode::FAILURE
        }
    }
}

async fn play<DB: TestDatabase>(role: Role) -> Result<(), String> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut chance = Chance::of(role.seed, role.number as u64);
    let settle = role.part.cluster.settle;
    let fate = Fate::new(Chance::of(chance.next(), 0), settle, settle / 2, role.slow_one_in);
    let fate = Arc::new(fate);
    let started = tokio::select! {
        started = start::<DB>(&role, &fate, chance.one_in(2)) => started,
        // The driver's: nothing was sent, so there is nothing to finish.
        line = lines.next_line() => return line.map(drop).map_err(|error| error.to_string()),
    };
    let producer = started?;
    Report::Started.tell();
    let (stop, stopped) = watch::channel(false);
    let senders = (0..role.senders).map(|_| {
        let (producer, chance, stopped) = (producer.clone(), Chance::of(chance.next(), 0), stopped.clone());
        let number = role.number;
        tokio::spawn(async move { send_until(stopped, &producer, number, chance).await })
    });
    let senders: Vec<_> = senders.collect();
    if lines.next_line().await.ok().flatten().as_deref() != Some(FINISH) {
        // The driver is gone.
        std::process::exit(1);
    }
    fate.spare();
    stop.send_replace(true);
    for sender in join_all(senders).await {
        sender.map_err(|error| error.to_string())?;
    }
    producer.shutdown(SHUTDOWN_LIMIT).await;
    Ok(())
}

async fn start<DB: TestDatabase>(
    role: &Role,
    fate: &Arc<Fate>,
    pass_on: bool,
) -> Result<TransactionProducer<DB>, String> {
    let settle = role.part.cluster.settle;
    let pool: Pool<DB> = PoolOptions::new()
        .max_connections(role.senders)
        .acquire_timeout(settle / 2)
        .test_before_acquire(false)
        .connect(&role.part.url)
        .await
        .map_err(|error| chain(&error))?;
    let cluster = role.part.cluster.rocketmq(&role.part.group).start_timeout(START_TIMEOUT);
    TransactionProducer::builder(pool)
        .broker(Mortal { cluster, fate: fate.clone() })
        .settle_deadline(settle)
        .execute_timeout(settle / 2)
        .database_timeout(settle * 2 / 5)
        .housekeeping_interval(Duration::from_millis(200))
        .pass_on_connections(pass_on)
        .listener_on(role.part.topic.clone(), Worker(fate.clone()))
        .start()
        .await
        .map_err(|error| chain(&error))
}

/// Sends one message after the other, fresh ones and some that somebody sent before.
async fn send_until<DB: TestDatabase>(
    stopped: watch::Receiver<bool>,
    producer: &TransactionProducer<DB>,
    number: i64,
    mut chance: Chance,
) {
    // Each sender has ids of its own, too.
    let mut next = chance.below(1_000) as i64 * 1_000;
    let mut sent = Vec::new();
    while !*stopped.borrow() {
        let order = if chance.one_in(REPEATED_ONE_IN) && !sent.is_empty() {
            chance.pick(&sent)
        } else if chance.one_in(REPEATED_ONE_IN) {
            // Of all processes: each draws from the same few ids, at the same time or later.
            chance.below(number as u64) as i64 * IDS + IDS - 1 - chance.below(8) as i64
        } else {
            next += 1;
            number * IDS + next
        };
        sent.push(order);
        let order = Order { fail: chance.one_in(FAILING_ONE_IN), ..Order::new(order) };
        send(producer, order).await;
        sleep(chance.between(Duration::ZERO, PAUSE_MAX)).await;
    }
}

async fn send<DB: TestDatabase>(producer: &TransactionProducer<DB>, order: Order) {
    let id = super::stories::stage::id_of(&order);
    let (outcome, error) = match timeout(SEND_LIMIT, producer.send(order)).await {
        Ok(Ok(receipt)) if receipt.already_committed() => (Outcome::AlreadyCommitted, None),
        Ok(Ok(_)) => (Outcome::Committed, None),
        Ok(Err(error)) => {
            let outcome = match &error {
                SendError::NotStarted { .. } => Outcome::NotStarted,
                SendError::RolledBack { .. } => Outcome::RolledBack,
                SendError::InDoubt { .. } => Outcome::InDoubt,
                SendError::InFlight { .. } => Outcome::InFlight,
                _ => Outcome::Other,
            };
            (outcome, Some(chain(&error)))
        }
        Err(_elapsed) => (Outcome::Hung, None),
    };
    eprintln!("{id} sent: {outcome:?} {}", error.as_deref().unwrap_or_default());
    Report::Sent { id, outcome, error }.tell();
}
