//! Many at once: dropped futures, small pools.

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
    order::{OrderError, builder, held, ids, producer},
    raw::Raw,
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::{TransactionProducer, broker::memory::MemoryBroker};
use tokio::{task::JoinSet, time::timeout};

on_every_database!(1: case_2_dropped_sends_strand_nothing case_30_a_pool_of_one; 8: case_30_a_pool_of_eight);
// With one writer at a time there is no crowd that waits for a connection.
on_every_server!(1: neighbours_of_a_pool_get_their_turn; 8: large_bodies_at_once);

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

async fn case_30_a_pool_of_one<DB: TestDatabase>(db: Db<DB>) {
    a_crowd_finishes(db, 64).await;
}

async fn case_30_a_pool_of_eight<DB: TestDatabase>(db: Db<DB>) {
    a_crowd_finishes(db, 64).await;
}

/// Sends at once, every fourth of which fails, while checks go round and housekeeping has work.
async fn a_crowd_finishes<DB: TestDatabase>(db: Db<DB>, sends: i64) {
    let broker = MemoryBroker::new();
    let producer = builder(&db, &broker).start().await.unwrap();
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
    let producer = builder(&db, &broker).start().await.unwrap();
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

/// A pool whose hook cleans sessions, and the counter of its calls.
async fn cleaned(db: &Db<sqlx::Postgres>, size: u32) -> (Db<sqlx::Postgres>, Arc<AtomicI64>) {
    let released = Arc::new(AtomicI64::new(0));
    let counted = Arc::clone(&released);
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(size).after_release(move |conn, _| {
        counted.fetch_add(1, SeqCst);
        Box::pin(async move { sqlx::query("RESET ALL").execute(conn).await.map(|_| true) })
    });
    (Db { url: db.url.clone(), pool: options.connect(&db.url).await.unwrap() }, released)
}

#[tokio::test]
async fn the_hooks_of_a_pool_run_after_each_local_transaction() {
    const SENDS: i64 = 20;
    crate::support::database::with::<sqlx::Postgres, _>(1, |db| async move {
        let (hooked, released) = cleaned(&db, 4).await;
        let broker = MemoryBroker::new();
        let producer = builder(&hooked, &broker).pass_on_connections(false).start().await.unwrap();
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

/// Connections are passed on, but not those whose sessions may have been changed.
#[tokio::test]
async fn no_local_transaction_finds_what_another_left_in_the_session() {
    const SENDS: i64 = 120;
    crate::support::database::with::<sqlx::Postgres, _>(1, |db| async move {
        let (hooked, released) = cleaned(&db, 2).await;
        let broker = MemoryBroker::new();
        let producer = producer(&hooked, &broker).await;
        let before = released.load(SeqCst);
        let mut sends = JoinSet::new();
        for id in 0..SENDS {
            let producer = producer.clone();
            sends.spawn(async move {
                let sent = producer.send_with(Order::new(id), move |tx, _| {
                    Box::pin(async move {
                        match id {
                            _ if id % 12 == 0 => {
                                sqlx::query("SET app.tenant = 'a'").execute(&mut *tx).await.map(|_| None)
                            }
                            _ if id % 12 == 6 => {
                                let set = sqlx::query("SELECT set_config('app.tenant', $1, false)");
                                set.bind("b").execute(&mut *tx).await.map(|_| None)
                            }
                            _ => {
                                let found = sqlx::query_scalar::<_, Option<String>>("SELECT current_setting($1, true)")
                                    .bind("app.tenant");
                                found.fetch_one(&mut *tx).await
                            }
                        }
                    })
                });
                sent.await.map(|(_, tenant)| tenant)
            });
        }
        for tenant in sends.join_all().await {
            assert_eq!(tenant.unwrap().flatten().unwrap_or_default(), "");
        }
        producer.shutdown(SOON).await;
        all_back(&hooked).await;
        let released = released.load(SeqCst) - before;
        assert!((SENDS / 6..SENDS).contains(&released), "{released} of {SENDS} went back to the pool");
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
            let producer = builder(&db, &broker).start().await.unwrap();
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
