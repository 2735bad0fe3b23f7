//! Sends that fail on the way: what was undone, what the caller is told, and that the next send works.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::{check_until_ended, unknown},
    order::{builder, producer},
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::{
    BusinessRows, RollbackCause, SendError, Status,
    broker::{
        End, EndOrigin,
        memory::{Fault, MemoryBroker},
    },
    protocol::Unresolved,
};

on_every_database!(4: case_15_a_half_that_is_not_safe a_half_that_is_lost a_claim_that_fails;
    1: a_pool_that_is_closed settled_before_its_transaction_began);
on_every_server!(1: a_broken_connection_is_replaced a_query_cut_off_by_the_timeout);

const DEADLINE: Duration = Duration::from_secs(30);

/// Sends order 1 with a closure that counts its runs, and expects that it was not started.
async fn is_not_started<DB: TestDatabase>(producer: &rocketmq_tx::TransactionProducer<DB>, what: &str) -> SendError {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let sent = producer.send_with(Order::new(1), move |tx, order| {
        counted.fetch_add(1, SeqCst);
        Box::pin(async move { DB::insert(tx, order.id).await })
    });
    let error = sent.await.unwrap_err();
    assert!(matches!(&error, SendError::NotStarted { msg_id, .. } if msg_id == "order-1"), "{error:?}");
    assert!(error.is_transient() && error.business_rows() == BusinessRows::Untouched, "{error:?}");
    assert!(error.to_string().contains(what), "{error}");
    assert_eq!(runs.load(SeqCst), 0, "the closure must not run");
    error
}

async fn case_15_a_half_that_is_not_safe<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    broker.fail_halves([Some(Fault::NotSafe)]);
    let error = is_not_started(&producer, "half message").await;
    let cause = std::error::Error::source(&error).unwrap();
    assert!(cause.to_string().contains("FLUSH_DISK_TIMEOUT"), "{cause}");
    assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
    eventually("the half is ended", async || broker.open_halves().is_empty()).await;
    assert_eq!(broker.ended(), [("order-1".to_owned(), End::Rollback, EndOrigin::Sender)]);
    assert!(db.orders().await.is_empty());
    producer.send(Order::new(1)).await.expect("it may be sent again").confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    producer.shutdown(DEADLINE).await;
}

/// Whether it was stored is not known: the same token is never used again, and the orphan is rolled back.
async fn a_half_that_is_lost<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    broker.fail_halves([Some(Fault::Lost), Some(Fault::AnswerLost)]);
    is_not_started(&producer, "half message").await;
    assert!(broker.open_halves().is_empty());
    is_not_started(&producer, "half message").await;
    assert_eq!(broker.open_halves().len(), 1, "nobody knows where it is");
    // The next attempt is delivered, the orphan is not.
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    check_until_ended(&broker).await;
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    assert_eq!(db.orders().await, [1]);
    assert_eq!(broker.ended().last(), Some(&("order-1".to_owned(), End::Rollback, EndOrigin::CheckBack)));
    assert_eq!(DB::numbers(&db.pool, "SELECT attempts FROM tx_log").await, [3]);
    producer.shutdown(DEADLINE).await;
}

async fn a_claim_that_fails<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    db.run("ALTER TABLE tx_log RENAME TO elsewhere").await;
    is_not_started(&producer, "claim").await;
    db.run("ALTER TABLE elsewhere RENAME TO tx_log").await;
    assert!(broker.open_halves().is_empty() && broker.ended().is_empty(), "no half was sent");
    assert_eq!(producer.status("order-1").await.unwrap(), Status::NotFound);
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    producer.shutdown(DEADLINE).await;
}

async fn a_pool_that_is_closed<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let closed = db.again(1).await;
    let producer = producer(&closed, &broker).await;
    closed.pool.close().await;
    is_not_started(&producer, "local transaction could not begin").await;
    eventually("the half is ended", async || broker.open_halves().is_empty()).await;
    assert_eq!(broker.ended(), [("order-1".to_owned(), End::Rollback, EndOrigin::Sender)]);
    assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
    producer.shutdown(DEADLINE).await;
    assert!(db.orders().await.is_empty() && broker.delivered().is_empty());
}

/// The pool does not test its connections; a server that was restarted in between has closed them.
async fn a_broken_connection_is_replaced<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let others = db.again(1).await;
    let producer = producer(&db, &broker).await;
    let broken = connection::<DB>(&db).await;
    let (kill, is_there) = match DB::name() {
        "MySQL" => (
            format!("KILL {broken}"),
            format!("SELECT count(*) FROM information_schema.processlist WHERE id = {broken}"),
        ),
        _ => (
            format!("SELECT pg_terminate_backend({broken})"),
            format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {broken}"),
        ),
    };
    // On its way back the pool would look at it.
    eventually("it is idle", async || db.pool.num_idle() == 1).await;
    others.run(kill).await;
    eventually("it is gone", async || DB::numbers(&others.pool, &is_there).await == [0]).await;
    is_not_started(&producer, "local transaction could not begin").await;
    assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_ne!(connection(&db).await, broken);
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    producer.shutdown(DEADLINE).await;
    assert!(broker.open_halves().is_empty());
    others.pool.close().await;
}

/// Which connection to the server the pool of one has.
async fn connection<DB: TestDatabase>(db: &Db<DB>) -> i64 {
    let text = match DB::name() {
        "MySQL" => "SELECT CAST(CONNECTION_ID() AS SIGNED)",
        _ => "SELECT pg_backend_pid()::bigint",
    };
    DB::numbers(&db.pool, text).await[0]
}

/// Nobody reads the rest of its answer: the connection is closed, and not given to the next transaction.
async fn a_query_cut_off_by_the_timeout<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let limit = Duration::from_millis(500);
    let producer = builder(&db, &broker).execute_timeout(limit).start().await.unwrap();
    let cut_off = connection(&db).await;
    let error = producer
        .send_with(Order::new(1), |tx, order| {
            Box::pin(async move {
                DB::insert(tx, order.id).await?;
                let sleep = if DB::name() == "MySQL" { "SELECT SLEEP(3)" } else { "SELECT pg_sleep(3)" };
                DB::sql(tx, sleep).await
            })
        })
        .await
        .unwrap_err();
    assert!(
        matches!(error, SendError::RolledBack { cause: RollbackCause::TimedOut(timeout), .. } if timeout == limit),
        "{error:?}"
    );
    assert!(error.is_transient());
    assert_ne!(connection(&db).await, cut_off);
    assert!(db.orders().await.is_empty());
    // The server may hold the row's lock until the query ends.
    eventually("it is rolled back", async || producer.status("order-1").await.unwrap() == Status::RolledBack).await;
    check_until_ended(&broker).await;
    assert!(broker.delivered().is_empty());
    let patient = builder(&db, &broker).start().await.unwrap();
    patient.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    patient.shutdown(DEADLINE).await;
    producer.shutdown(DEADLINE).await;
}

/// It waits for a connection past its deadline, and another instance's settler finds it: the fence holds it up.
async fn settled_before_its_transaction_began<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let others = db.again(2).await;
    let producer = producer(&db, &broker).await;
    let busy = db.pool.acquire().await.unwrap();
    let sending = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(Order::new(1)).await }
    });
    eventually("it is claimed", async || others.in_state("PREPARING").await == 1).await;
    eventually("its half is sent", async || broker.open_halves().len() == 1).await;
    others.run("UPDATE tx_log SET deadline_at = 0").await;
    let other_instance = crate::support::order::producer(&others, &broker).await;
    let settled = || other_instance.counters().settled + producer.counters().settled;
    eventually("it is settled", async || settled() == 1).await;
    assert_eq!(others.in_state("ROLLED_BACK").await, 1);
    assert_eq!(unknown(&producer, Unresolved::Preparing), 0, "nobody asked");
    drop(busy);
    let error = sending.await.unwrap().unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Settled, .. }), "{error:?}");
    assert!(error.is_transient());
    eventually("the half is ended", async || broker.open_halves().is_empty()).await;
    assert_eq!(broker.ended(), [("order-1".to_owned(), End::Rollback, EndOrigin::Sender)]);
    assert!(others.orders().await.is_empty() && broker.delivered().is_empty());
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!((others.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    other_instance.shutdown(DEADLINE).await;
    producer.shutdown(DEADLINE).await;
    others.pool.close().await;
}
