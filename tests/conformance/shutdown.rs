//! The end of a producer: what may finish, what is left, and who resolves that.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::check_until_ended,
    order::{Held, builder, held, producer},
};
use futures_util::{
    FutureExt,
    future::{select_all, try_join_all},
};
use rocketmq_tx::{SendError, Status, TransactionProducer, broker::memory::MemoryBroker};
use tokio::{sync::oneshot, task::JoinHandle};

on_every_database!(20: case_47_closures_in_flight_at_the_deadline what_finishes_in_time_is_clean
    dropped_without_shutdown);

const DEADLINE: Duration = Duration::from_secs(30);

type Sending = JoinHandle<Result<(), SendError>>;

/// Starts to send an order; a shutdown from now on waits for it.
fn start<DB: TestDatabase>(producer: &TransactionProducer<DB>, order: Order) -> (Sending, Held) {
    let (closure, transaction) = held();
    let producer = producer.clone();
    let mut sending = Box::pin(async move { producer.send_with(order, closure).await.map(drop) });
    assert!((&mut sending).now_or_never().is_none(), "it is held");
    (tokio::spawn(sending), transaction)
}

/// Returns once their transactions run; on SQLite one at a time can. They go on when the result is dropped.
async fn all_run<DB: TestDatabase>(transactions: Vec<Held>) -> Vec<oneshot::Sender<()>> {
    let (began, releases): (Vec<_>, Vec<_>) = transactions.into_iter().map(|held| (held.began, held.release)).unzip();
    if DB::name() == "SQLite" {
        let (first, ..) = select_all(began).await;
        first.unwrap();
    } else {
        try_join_all(began).await.unwrap();
    }
    releases
}

/// Every second one will fail. SQLite runs one at a time; the others wait their turn.
async fn case_47_closures_in_flight_at_the_deadline<DB: TestDatabase>(db: Db<DB>) {
    const IN_FLIGHT: i64 = 20;
    let broker = MemoryBroker::new();
    let others = db.again(1).await;
    let patient = builder(&db, &broker).execute_timeout(3 * DEADLINE).settle_deadline(4 * DEADLINE);
    let leaving = patient.start().await.unwrap();
    let orders = (0..IN_FLIGHT).map(|id| if id % 2 == 0 { Order::new(id) } else { Order::failing(id) });
    let (sends, transactions): (Vec<_>, Vec<_>) = orders.map(|order| start(&leaving, order)).unzip();
    let releases = all_run::<DB>(transactions).await;

    let asked = Instant::now();
    let limit = Duration::from_millis(300);
    let (first, second) = tokio::join!(leaving.shutdown(limit), leaving.shutdown(limit));
    let took = asked.elapsed();
    assert_eq!(first, second, "concurrent calls are one");
    assert_eq!(first.unfinished as i64, IN_FLIGHT);
    assert!(!first.is_clean());
    assert!(took >= limit && took < Duration::from_secs(10), "{took:?}");
    assert_eq!(leaving.shutdown(DEADLINE).await, first, "a later call too");

    let refused = leaving.send(Order::new(100)).await.unwrap_err();
    assert!(matches!(refused, SendError::ShuttingDown), "{refused:?}");
    let count = DB::numbers(&others.pool, "SELECT count(*) FROM tx_log WHERE msg_id = 'order-100'").await;
    assert_eq!(count, [0], "nothing was written");

    // They go on while the runtime lives, and their halves are left to whoever answers next.
    drop(releases);
    let (mut good, mut ran) = (vec![], 0);
    for (id, sending) in (0..).zip(sends) {
        match sending.await.unwrap() {
            Ok(()) => {
                ran += 1;
                good.push(id);
            }
            Err(SendError::RolledBack { .. }) => ran += 1,
            // It was still waiting for its turn, and then had no broker to send its half to.
            Err(SendError::NotStarted { .. }) if DB::name() == "SQLite" => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(ran > 0);
    if DB::name() != "SQLite" {
        assert_eq!(ran, IN_FLIGHT);
        assert_eq!(good, (0..IN_FLIGHT).filter(|id| id % 2 == 0).collect::<Vec<_>>());
    }
    assert_eq!(db.orders().await, good);
    assert_eq!(broker.open_halves().len() as i64, ran, "who has left ends nothing");
    drop(leaving);
    let restarted = producer(&db, &broker).await;
    check_until_ended(&broker).await;
    let delivered: BTreeSet<_> = broker.delivered_ids().into_iter().collect();
    assert_eq!(delivered, good.iter().map(|id| format!("order-{id}")).collect());
    assert_eq!(broker.delivered().len(), good.len());
    assert_eq!(db.in_state("COMMITTED").await, good.len() as i64);
    assert_eq!(db.in_state("ROLLED_BACK").await, IN_FLIGHT - good.len() as i64);
    assert!(restarted.shutdown(DEADLINE).await.is_clean());
    others.pool.close().await;
}

async fn what_finishes_in_time_is_clean<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let (sending, transaction) = start(&producer, Order::new(1));
    transaction.began.await.unwrap();
    let mut stopping = Box::pin(producer.shutdown(DEADLINE));
    assert!((&mut stopping).now_or_never().is_none(), "it waits for the open one");
    let refused = producer.send(Order::new(2)).await.unwrap_err();
    assert!(matches!(refused, SendError::ShuttingDown), "{refused:?}");
    transaction.release.send(()).unwrap();
    sending.await.unwrap().unwrap();
    let report = stopping.await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    assert!(broker.open_halves().is_empty());
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log WHERE confirmed_at IS NOT NULL").await, [1]);
    // The pool is the user's, and stays open.
    assert!(!db.pool.is_closed());
    assert_eq!(db.orders().await, [1]);
}

/// Nobody waits: the futures are dropped, then the producer.
async fn dropped_without_shutdown<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let leaving = producer(&db, &broker).await;
    let mut running = vec![];
    for id in 0..5 {
        let (closure, transaction) = held();
        assert!(leaving.send_with(Order::new(id), closure).now_or_never().is_none(), "it is held");
        running.push(transaction);
    }
    let running = all_run::<DB>(running).await;
    let before = Instant::now();
    drop(leaving);
    assert!(before.elapsed() < Duration::from_millis(500), "Drop does not block");
    drop(running);
    eventually("what was under way goes on", async || db.orders().await == [0, 1, 2, 3, 4]).await;
    eventually("it is delivered by its sender", async || broker.delivered().len() == 5).await;
    assert!(broker.open_halves().is_empty());
    let next = producer(&db, &broker).await;
    for id in 0..5 {
        let status = next.status(&format!("order-{id}")).await.unwrap();
        assert!(matches!(status, Status::Committed(_)), "{status:?}");
    }
    next.shutdown(DEADLINE).await;
}
