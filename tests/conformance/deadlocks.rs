//! MariaDB: `execute` swallows a lock error that rolled back more than its statement, and goes on.

use std::time::Duration;

use crate::support::{Db, Order, TestDatabase, database, eventually, order::producer};
use rocketmq_tx::{RollbackCause, SendError, Status, broker::memory::MemoryBroker};
use sqlx::{Connection, MySql, MySqlConnection};
use tokio::sync::oneshot;

/// Another service's transaction, on a connection of its own.
async fn rival(db: &Db<MySql>) -> MySqlConnection {
    let mut rival = MySqlConnection::connect(&db.url).await.unwrap();
    sqlx::raw_sql("BEGIN; UPDATE stock SET amount = 0 WHERE id = 2").execute(&mut rival).await.unwrap();
    rival
}

async fn with_stock(test: impl AsyncFnOnce(&Db<MySql>)) {
    database::with(2, |db: Db<MySql>| async move {
        db.run("CREATE TABLE stock (id INT PRIMARY KEY, amount INT)").await;
        db.run("INSERT INTO stock VALUES (1, 10), (2, 20)").await;
        db.run("CREATE TABLE weight (id INT PRIMARY KEY)").await;
        test(&db).await;
    })
    .await;
}

async fn nothing_remains(db: &Db<MySql>, broker: &MemoryBroker, error: &SendError) {
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Swallowed, .. }), "{error:?}");
    assert!(db.orders().await.is_empty(), "neither what came before the error nor what came after it");
    assert_eq!(MySql::numbers(&db.pool, "SELECT amount + 0 FROM stock WHERE id = 1").await, [10]);
    assert_eq!(db.in_state("ROLLED_BACK").await, 1);
    eventually("the half is ended", async || broker.open_halves().is_empty()).await;
    assert!(broker.delivered().is_empty());
}

/// The server rolled everything back, and would commit what follows by itself, statement by statement.
#[tokio::test]
async fn case_7_a_swallowed_deadlock() {
    for through_savepoint in [false, true] {
        with_stock(async |db| {
            let broker = MemoryBroker::new();
            let producer = producer(db, &broker).await;
            let mut rival = rival(db).await;
            // Of two in a deadlock the one that changed more rows survives.
            let weight = "INSERT INTO weight SELECT seq FROM seq_1_to_2000";
            sqlx::raw_sql(weight).execute(&mut rival).await.unwrap();
            let (locked, has_locked) = oneshot::channel();
            let sending = tokio::spawn({
                let producer = producer.clone();
                async move {
                    let sent = producer.send_with(Order::new(1), move |tx, _| {
                        Box::pin(async move {
                            MySql::insert(tx, 1).await?;
                            MySql::sql(tx, "UPDATE stock SET amount = 1 WHERE id = 1").await?;
                            let _ = locked.send(());
                            let clash = "UPDATE stock SET amount = 1 WHERE id = 2";
                            if through_savepoint {
                                let mut savepoint = tx.savepoint().await?;
                                assert_number(MySql::sql(&mut savepoint, clash).await, 1213);
                                drop(savepoint);
                            } else {
                                assert_number(MySql::sql(tx, clash).await, 1213);
                            }
                            let _ = MySql::insert(tx, 2).await;
                            Ok::<(), sqlx::Error>(())
                        })
                    });
                    sent.await
                }
            });
            has_locked.await.unwrap();
            // Waits for the closure's row while the closure waits, or will wait, for the rival's.
            let waits = "UPDATE stock SET amount = 0 WHERE id = 1";
            sqlx::raw_sql(waits).execute(&mut rival).await.expect("the closure is the victim");
            let error = sending.await.unwrap().unwrap_err();
            sqlx::raw_sql("ROLLBACK").execute(&mut rival).await.unwrap();
            nothing_remains(db, &broker, &error).await;
            assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
            producer.send(Order::new(9)).await.unwrap().confirmation().await;
            assert_eq!(broker.delivered_ids(), ["order-9"]);
            producer.shutdown(Duration::from_secs(30)).await;
        })
        .await;
    }
}

/// The server undid the statement, or with `innodb_rollback_on_timeout` everything: what is left is not what was meant.
#[tokio::test]
async fn case_7_a_swallowed_lock_wait() {
    with_stock(async |db| {
        let broker = MemoryBroker::new();
        let producer = producer(db, &broker).await;
        let mut rival = rival(db).await;
        let sent = producer.send_with(Order::new(1), |tx, _| {
            Box::pin(async move {
                MySql::sql(tx, "SET innodb_lock_wait_timeout = 1").await?;
                MySql::insert(tx, 1).await?;
                assert_number(MySql::sql(tx, "UPDATE stock SET amount = 1 WHERE id = 2").await, 1205);
                MySql::insert(tx, 2).await.expect_err("what is lost takes no more statements");
                Ok::<(), sqlx::Error>(())
            })
        });
        let error = sent.await.unwrap_err();
        nothing_remains(db, &broker, &error).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut rival).await.unwrap();
        producer.send(Order::new(9)).await.unwrap().confirmation().await;
        assert_eq!((db.orders().await, broker.delivered_ids()), (vec![9], vec!["order-9".to_owned()]));
        producer.shutdown(Duration::from_secs(30)).await;
    })
    .await;
}

/// An error that is returned rolls back under its own name.
#[tokio::test]
async fn case_7_a_lock_wait_that_is_returned() {
    with_stock(async |db| {
        let broker = MemoryBroker::new();
        let producer = producer(db, &broker).await;
        let mut rival = rival(db).await;
        let sent = producer.send_with(Order::new(1), |tx, _| {
            Box::pin(async move {
                MySql::sql(tx, "SET innodb_lock_wait_timeout = 1").await?;
                MySql::insert(tx, 1).await?;
                MySql::sql(tx, "UPDATE stock SET amount = 1 WHERE id = 2").await
            })
        });
        let error = sent.await.unwrap_err();
        assert_number(Err(error.execute_error::<sqlx::Error>().expect("it comes back by type")), 1205);
        assert!(db.orders().await.is_empty());
        sqlx::raw_sql("ROLLBACK").execute(&mut rival).await.unwrap();
        producer.shutdown(Duration::from_secs(30)).await;
        assert!(broker.open_halves().is_empty() && broker.delivered().is_empty());
    })
    .await;
}

fn assert_number(result: Result<u64, impl std::borrow::Borrow<sqlx::Error>>, number: u16) {
    let error = result.expect_err("the lock is held");
    let error = error.borrow().as_database_error().expect("the server says so");
    assert_eq!(error.downcast_ref::<sqlx::mysql::MySqlDatabaseError>().number(), number);
}
