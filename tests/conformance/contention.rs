//! Many at once: dropped futures, contended ids, small pools.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    Db, Order, TestDatabase, log,
    order::{OrderError, builder, held, producer},
    raw::Raw,
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::{Receipt, SendError, Status, TransactionProducer, broker::memory::MemoryBroker};
use tokio::{task::JoinSet, time::timeout};

on_every_database!(1: case_2_dropped_sends_strand_nothing case_30_a_pool_of_one;
    8: case_25_one_winner_per_row case_30_a_pool_of_eight duplicates_in_flight a_duplicate_after_a_rollback
    many_sends_of_one_id);
// With one writer at a time there is no crowd that waits for a connection.
on_every_server!(1: neighbours_of_a_pool_get_their_turn; 8: large_bodies_at_once a_locked_row_holds_up_nobody
    a_claim_that_the_database_refuses a_database_that_does_not_answer);

/// Far beyond what any of these needs, even on a busy machine.
const SOON: Duration = Duration::from_secs(120);

async fn case_2_dropped_sends_strand_nothing<DB: TestDatabase>(db: Db<DB>) {
    const SENDS: i64 = 300;
    let broker = MemoryBroker::new();
    let others = db.again(1).await;
    let producer = producer(&db, &broker).await;
    let mut dropped = 0;
    for id in 0..SENDS {
        let patience = Duration::from_micros(id as u64 * 37 % 51 * 100);
        match timeout(patience, producer.send(Order::new(id))).await {
            Ok(sent) => drop(sent.unwrap()),
            Err(_) => dropped += 1,
        }
    }
    assert!(dropped >= SENDS / 51, "a patience of zero is never enough: {dropped}");
    for id in SENDS..SENDS + 20 {
        producer.send(Order::new(id)).await.unwrap();
        assert!(others.orders().await.contains(&id), "committed readers see it");
    }
    let report = producer.shutdown(SOON).await;
    assert!(report.is_clean(), "{report:?}");
    // The pool's only connection is outside of any transaction, or nobody else would see this.
    db.run("INSERT INTO orders (id) VALUES (-1)").await;
    assert_eq!(others.orders().await, (-1..SENDS + 20).collect::<Vec<_>>());
    assert_eq!(others.in_state("COMMITTED").await, SENDS + 20);
    assert!(broker.open_halves().is_empty());
    let delivered = broker.delivered_ids();
    assert_eq!(delivered.len() as i64, SENDS + 20);
    assert_eq!(delivered.into_iter().collect::<BTreeSet<_>>(), ids(0..SENDS + 20));
    others.pool.close().await;
}

/// In half of the rounds the two meet an empty place, in the other half a row to replace by compare-and-swap.
async fn case_25_one_winner_per_row<DB: TestDatabase>(db: Db<DB>) {
    const ROUNDS: i64 = 1000;
    const AT_ONCE: usize = 25;
    let broker = MemoryBroker::new();
    let names: Vec<_> = (0..ROUNDS).map(|round| format!("round-{round}")).collect();
    let rolled_back = names.iter().step_by(2).map(|id| log::Row::new(id, "earlier", "ROLLED_BACK"));
    log::insert(&db, rolled_back).await;
    let others = db.again(8).await;
    let producers = [producer(&db, &broker).await, producer(&others, &broker).await];
    let mut winners = 0;
    for (chunk, names) in names.chunks(AT_ONCE).enumerate() {
        let mut sends = JoinSet::new();
        for (place, name) in names.iter().enumerate() {
            let round = (chunk * AT_ONCE + place) as i64;
            for (claimer, producer) in producers.iter().enumerate() {
                let (producer, order) = (producer.clone(), Order::named(2 * round + claimer as i64, name));
                sends.spawn(async move { (round, producer.send(order).await) });
            }
        }
        let mut rounds = vec![];
        while let Some(sent) = sends.join_next().await {
            let (round, sent) = sent.unwrap();
            if won(sent) {
                rounds.push(round);
            }
        }
        rounds.sort_unstable();
        let first = (chunk * AT_ONCE) as i64;
        assert_eq!(rounds, (first..first + names.len() as i64).collect::<Vec<_>>(), "one winner each");
        winners += rounds.len() as i64;
    }
    assert_eq!(winners, ROUNDS);
    for producer in &producers {
        assert!(producer.shutdown(SOON).await.is_clean());
    }
    let orders = db.orders().await;
    assert_eq!(orders.iter().map(|id| id / 2).collect::<Vec<_>>(), (0..ROUNDS).collect::<Vec<_>>());
    let mut delivered = broker.delivered_ids();
    delivered.sort_unstable();
    let mut names = names;
    names.sort_unstable();
    assert_eq!(delivered, names);
    assert!(broker.open_halves().is_empty());
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log WHERE attempts = 2").await, [ROUNDS / 2]);
    others.pool.close().await;
}

fn won(sent: Result<Receipt, SendError>) -> bool {
    match sent {
        Ok(receipt) => !receipt.already_committed(),
        Err(SendError::InFlight { .. }) => false,
        Err(error) => panic!("{error:?}"),
    }
}

async fn case_30_a_pool_of_one<DB: TestDatabase>(db: Db<DB>) {
    a_crowd_finishes(db, 64).await;
}

async fn case_30_a_pool_of_eight<DB: TestDatabase>(db: Db<DB>) {
    a_crowd_finishes(db, 64).await;
}

/// Sends at once, every fourth of which fails, while checks go round and housekeeping has work.
async fn a_crowd_finishes<DB: TestDatabase>(db: Db<DB>, sends: i64) {
    let broker = MemoryBroker::new();
    let producer = builder(&db, &broker).pass_on_connections(true).start().await.unwrap();
    let dead: Vec<_> = (0..50).map(|id| format!("dead-{id}")).collect();
    let died = |id| log::Row { deadline_at: 0, ..log::Row::new(id, id, "PREPARING") };
    log::insert(&db, dead.iter().map(|id| died(id))).await;
    for id in &dead {
        broker.plant(log::half(&db, id, id).await);
    }
    let asking = tokio::spawn({
        let broker = broker.clone();
        async move {
            let mut rounds = tokio::time::interval(Duration::from_millis(20));
            loop {
                rounds.tick().await;
                broker.check_back();
            }
        }
    });
    timeout(SOON, crowd(&producer, sends)).await.expect("all finish");
    crate::support::eventually("the settler finds the dead", async || db.in_state("PREPARING").await == 0).await;
    asking.abort();
    let _ = asking.await;
    log::check_until_ended(&broker).await;
    assert_eq!(producer.shutdown(SOON).await.unfinished, 0);
    all_back(&db).await;
    let good: Vec<_> = (0..sends).filter(|id| id % 4 != 0).collect();
    assert_eq!(db.orders().await, good);
    assert_eq!(broker.delivered_ids().into_iter().collect::<BTreeSet<_>>(), ids(good.iter().copied()));
    assert_eq!(db.in_state("COMMITTED").await, good.len() as i64);
    assert_eq!(db.in_state("ROLLED_BACK").await, sends - good.len() as i64 + 50);
}

/// Sends pass the pool's only connection on to each other, but not for long.
async fn neighbours_of_a_pool_get_their_turn<DB: TestDatabase>(db: Db<DB>) {
    const SENDS: i64 = 100;
    let broker = MemoryBroker::new();
    let others = db.again(1).await;
    let producer = builder(&db, &broker).pass_on_connections(true).start().await.unwrap();
    let (closure, first) = held();
    let mut sends = JoinSet::new();
    sends.spawn({
        let producer = producer.clone();
        async move { producer.send_with(Order::new(SENDS), closure).await.map(drop) }
    });
    first.began.await.unwrap();
    for id in 0..SENDS {
        let producer = producer.clone();
        sends.spawn(async move { producer.send(Order::new(id)).await.map(drop) });
    }
    let halves = async || broker.open_halves().len() as i64 == 1 + SENDS;
    crate::support::eventually("all wait for the connection", halves).await;
    let mut neighbour = std::pin::pin!(db.pool.acquire());
    assert!(futures_util::poll!(&mut neighbour).is_pending());
    first.release.send(()).unwrap();
    let neighbour = timeout(SOON, neighbour).await.expect("it gets its turn").unwrap();
    let before = others.orders().await.len();
    assert!((1..=8).contains(&before), "{before} came first");
    drop(neighbour);
    while let Some(sent) = sends.join_next().await {
        sent.unwrap().unwrap();
    }
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(others.orders().await.len() as i64, 1 + SENDS);
    others.pool.close().await;
}

/// Together they are larger than MariaDB takes in one packet by default.
async fn large_bodies_at_once<DB: TestDatabase>(db: Db<DB>) {
    const SENDS: usize = 24;
    let broker = MemoryBroker::new();
    let builder = TransactionProducer::builder(db.pool.clone()).broker(broker.connector("orders")).message::<Raw>();
    let producer = builder.start().await.unwrap();
    let mut sends = JoinSet::new();
    for id in 0..SENDS {
        let producer = producer.clone();
        let raw = Raw { msg_id: format!("large-{id}"), ..Raw::body(vec![b'x'; 800 * 1024]) };
        sends.spawn(async move {
            producer.send_with(raw, |_, _| Box::pin(async { Ok::<_, OrderError>(()) })).await.map(drop)
        });
    }
    while let Some(sent) = sends.join_next().await {
        sent.unwrap().unwrap();
    }
    assert_eq!(db.in_state("COMMITTED").await as usize, SENDS);
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(broker.delivered_ids().len(), SENDS);
}

/// Unless connections are passed on, each local transaction gets its connection from the pool and gives it back.
#[tokio::test]
async fn the_hooks_of_a_pool_run_between_local_transactions() {
    const SENDS: i64 = 20;
    crate::support::database::with::<sqlx::Postgres, _>(1, |db| async move {
        let released = Arc::new(AtomicI64::new(0));
        let counted = Arc::clone(&released);
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(4).after_release(move |_, _| {
            counted.fetch_add(1, SeqCst);
            Box::pin(async { Ok(true) })
        });
        let hooked = Db { url: db.url.clone(), pool: options.connect(&db.url).await.unwrap() };
        let broker = MemoryBroker::new();
        let producer = producer(&hooked, &broker).await;
        let before = released.load(SeqCst);
        for id in 0..SENDS {
            producer.send(Order::new(id)).await.unwrap();
        }
        let all = async || released.load(SeqCst) == before + SENDS;
        crate::support::eventually("each was released", all).await;
        producer.shutdown(SOON).await;
        hooked.pool.close().await;
    })
    .await;
}

async fn all_back<DB: TestDatabase>(db: &Db<DB>) {
    let idle = async || db.pool.num_idle() == db.pool.size() as usize;
    crate::support::eventually("no connection is kept from the pool", idle).await;
}

async fn crowd<DB: TestDatabase>(producer: &TransactionProducer<DB>, sends: i64) {
    let mut crowd = JoinSet::new();
    for id in 0..sends {
        let producer = producer.clone();
        let order = if id % 4 == 0 { Order::failing(id) } else { Order::new(id) };
        crowd.spawn(async move { (order.fail, producer.send(order).await) });
    }
    while let Some(sent) = crowd.join_next().await {
        let (fails, sent) = sent.unwrap();
        match sent {
            Ok(_) => assert!(!fails),
            Err(error) => assert!(fails && error.execute_error::<OrderError>().is_some(), "{error:?}"),
        }
    }
}

fn ids(orders: impl IntoIterator<Item = i64>) -> BTreeSet<String> {
    orders.into_iter().map(|id| format!("order-{id}")).collect()
}

/// They hold up nobody, not even who is claimed together with them. SQLite has one writer at a time: there a duplicate
/// waits for the first one and then knows more.
async fn duplicates_in_flight<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producers = [producer(&db, &broker).await, producer(&db, &broker).await];
    let (closure, first) = held();
    let sending = tokio::spawn({
        let producer = producers[0].clone();
        async move { producer.send_with(Order::named(1, "one"), closure).await }
    });
    first.began.await.unwrap();
    for producer in &producers {
        assert_eq!(producer.status("one").await.unwrap(), Status::Preparing);
    }
    if DB::name() != "SQLite" {
        for (producer, id) in producers.iter().zip([10, 11]) {
            let (duplicate, fresh) = tokio::join!(producer.send(Order::named(2, "one")), producer.send(Order::new(id)));
            fresh.unwrap().confirmation().await;
            let error = duplicate.unwrap_err();
            assert!(matches!(&error, SendError::InFlight { msg_id } if msg_id == "one"), "{error:?}");
            assert!(error.is_transient());
        }
    }
    assert!(!db.orders().await.contains(&1), "it is not committed yet");
    first.release.send(()).unwrap();
    sending.await.unwrap().unwrap().0.confirmation().await;
    for producer in &producers {
        assert!(producer.send(Order::named(3, "one")).await.unwrap().already_committed());
        producer.shutdown(SOON).await;
    }
    let others = if DB::name() == "SQLite" { &[][..] } else { &[10, 11] };
    assert_eq!(db.orders().await, [&[1], others].concat());
    let delivered: BTreeSet<_> = broker.delivered_ids().into_iter().collect();
    assert_eq!(delivered, ids(others.iter().copied()).into_iter().chain(["one".to_owned()]).collect());
    assert_eq!(broker.delivered_ids().len(), delivered.len());
    assert!(broker.open_halves().is_empty());
}

/// One of them wins, and a send of another id need not wait until each of them was answered in turn.
async fn many_sends_of_one_id<DB: TestDatabase>(db: Db<DB>) {
    const SENDS: i64 = 300;
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let mut sends = JoinSet::new();
    for id in 0..SENDS {
        let producer = producer.clone();
        sends.spawn(async move { won(producer.send(Order::named(id, "one")).await) });
    }
    let other = producer.send(Order::named(SENDS, "other")).await;
    assert!(won(other));
    let won = sends.join_all().await.into_iter().filter(|won| *won).count();
    assert_eq!(won, 1);
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(db.orders().await.len(), 2);
    assert_eq!(broker.delivered_ids().into_iter().collect::<BTreeSet<_>>(), ["one".into(), "other".into()].into());
}

/// The others that are written together with it are good.
async fn a_claim_that_the_database_refuses<DB: TestDatabase>(db: Db<DB>) {
    const SENDS: i64 = 40;
    db.run("ALTER TABLE tx_log ADD CONSTRAINT refused CHECK (msg_id <> 'order-7')").await;
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let sends = (0..SENDS).map(|id| producer.send(Order::new(id)));
    for (id, sent) in futures_util::future::join_all(sends).await.into_iter().enumerate() {
        let refused = matches!(sent, Err(SendError::NotStarted { .. }));
        assert_eq!(refused, id == 7, "{id}: {sent:?}");
    }
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(db.orders().await.len() as i64, SENDS - 1);
}

/// A crowd does not wait for it once for each batch.
async fn a_database_that_does_not_answer<DB: TestDatabase>(db: Db<DB>) {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let broker = MemoryBroker::new();
    let producer = builder(&db, &broker).database_timeout(TIMEOUT).start().await.unwrap();
    let locker = db.again(1).await;
    let lock = if DB::name() == "PostgreSQL" { "BEGIN; LOCK TABLE tx_log" } else { "LOCK TABLES tx_log WRITE" };
    locker.run(lock).await;
    let begun = std::time::Instant::now();
    let sends = (0..20 * 128).map(|id| producer.send(Order::new(id)));
    for sent in futures_util::future::join_all(sends).await {
        assert!(matches!(sent, Err(SendError::NotStarted { .. })), "{sent:?}");
    }
    // Far from twenty time-outs, on a busy machine too.
    assert!(begun.elapsed() < 10 * TIMEOUT, "{:?}", begun.elapsed());
    locker.run(if DB::name() == "PostgreSQL" { "ROLLBACK" } else { "UNLOCK TABLES" }).await;
    producer.shutdown(SOON).await;
    assert_eq!(db.orders().await, [0_i64; 0]);
    locker.pool.close().await;
}

/// A rolled-back row that somebody has locked is not waited for, by none of the claims that are written together.
async fn a_locked_row_holds_up_nobody<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let ids = ["locked", "free", "fresh", "fresher"];
    log::insert(&db, ids[..2].iter().map(|id| log::Row::new(id, id, "ROLLED_BACK"))).await;
    let producer = producer(&db, &broker).await;
    let locker = db.again(1).await;
    locker.run("BEGIN").await;
    locker.run("SELECT 1 FROM tx_log WHERE msg_id = 'locked' FOR UPDATE").await;
    let send = async |id: usize| producer.send(Order::named(id as i64, ids[id])).await;
    let (locked, free, fresh, fresher) = tokio::join!(send(0), send(1), send(2), send(3));
    assert!(matches!(&locked, Err(SendError::InFlight { msg_id }) if msg_id == "locked"), "{locked:?}");
    assert!([free, fresh, fresher].map(won) == [true; 3]);
    locker.run("ROLLBACK").await;
    assert!(won(send(0).await));
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(db.orders().await, [0, 1, 2, 3]);
    assert_eq!(broker.delivered_ids().into_iter().collect::<BTreeSet<_>>(), ids.map(String::from).into());
    locker.pool.close().await;
}

async fn a_duplicate_after_a_rollback<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producers = [producer(&db, &broker).await, producer(&db, &broker).await];
    let (closure, first) = held();
    let sending = tokio::spawn({
        let producer = producers[0].clone();
        let order = Order { fail: true, ..Order::named(1, "one") };
        async move { producer.send_with(order, closure).await }
    });
    first.began.await.unwrap();
    first.release.send(()).unwrap();
    sending.await.unwrap().unwrap_err();
    // The second instance takes over the id under a token of its own.
    producers[1].send(Order::named(2, "one")).await.unwrap().confirmation().await;
    for producer in &producers {
        producer.shutdown(SOON).await;
    }
    assert_eq!(db.orders().await, [2]);
    assert_eq!(broker.delivered_ids(), ["one"]);
    assert_eq!(DB::numbers(&db.pool, "SELECT attempts FROM tx_log").await, [2]);
    assert!(broker.open_halves().is_empty());
}

mod case_48_every_runtime {
    use super::*;

    async fn works<DB: TestDatabase>(db: Db<DB>) {
        a_crowd_finishes(db, 16).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn multi_thread() {
        crate::support::database::with::<sqlx::Postgres, _>(4, works).await;
        crate::support::database::with::<sqlx::MySql, _>(4, works).await;
        crate::support::database::with::<sqlx::Sqlite, _>(4, works).await;
    }

    #[tokio::test(flavor = "current_thread")]
    async fn current_thread() {
        crate::support::database::with::<sqlx::Postgres, _>(4, works).await;
        crate::support::database::with::<sqlx::MySql, _>(4, works).await;
        crate::support::database::with::<sqlx::Sqlite, _>(4, works).await;
    }

    /// A producer that was started on one runtime serves callers on another one.
    #[test]
    fn two_runtimes() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime().block_on(crate::support::database::with::<sqlx::Postgres, _>(4, |db| async move {
            let broker = MemoryBroker::new();
            let producer = builder(&db, &broker).pass_on_connections(true).start().await.unwrap();
            let sender = producer.clone();
            let sent = std::thread::spawn(move || runtime().block_on(sender.send(Order::new(1))).map(drop));
            crate::support::eventually("the other thread has sent", async || sent.is_finished()).await;
            sent.join().unwrap().unwrap();
            all_back(&db).await;
            crate::support::eventually("it is delivered", async || {
                broker.check_back();
                !broker.delivered_ids().is_empty()
            })
            .await;
            producer.shutdown(SOON).await;
            assert_eq!(db.orders().await, [1]);
        }));
    }
}
