//! Claims of one message id, and of many that are written together.

use std::{collections::BTreeSet, time::Duration};

use crate::support::{
    Db, Order, TestDatabase, log,
    order::{builder, held, ids, producer},
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::{Receipt, SendError, Status, broker::memory::MemoryBroker};
use tokio::task::JoinSet;

on_every_database!(8: case_25_one_winner_per_row duplicates_in_flight a_duplicate_after_a_rollback many_sends_of_one_id);
on_every_server!(8: a_locked_row_holds_up_nobody a_claim_that_the_database_refuses a_database_that_does_not_answer);

/// Far beyond what any of these needs, even on a busy machine.
const SOON: Duration = Duration::from_secs(120);

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
