//! Transactions that are gone before `execute` returns: nobody is told something that is not so.

use std::time::Duration;

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase, database,
    order::{builder, producer, swallowing},
    proxy::{Commit, Proxy},
};
use rocketmq_tx::{BusinessRows, RollbackCause, SendError, broker::memory::MemoryBroker};
use sqlx::{Connection, Executor, MySql, MySqlConnection, Postgres, SqlSafeStr, Sqlite};

on_every_database!(2: a_raw_rollback_and_what_follows_it);

const SOON: Duration = Duration::from_secs(30);

/// The database commits what follows, and nothing can take it back: the error says so.
async fn a_raw_rollback_and_what_follows_it<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let texts = &["INSERT INTO orders (id) VALUES (1)", "ROLLBACK", "INSERT INTO orders (id) VALUES (2)"];
    let error = producer.send_with(Order::new(9), swallowing(texts)).await.unwrap_err();
    assert!(matches!(&error, SendError::RolledBack { cause: RollbackCause::EndedByExecute, .. }), "{error:?}");
    assert_eq!(error.business_rows(), BusinessRows::Abandoned);
    producer.shutdown(SOON).await;
    assert!(broker.delivered_ids().is_empty() && broker.open_halves().is_empty());
    assert_eq!(db.orders().await, [2]);
}

/// Refused: what was swallowed, and everything after it.
fn is_swallowed(error: &SendError) {
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Swallowed, .. }), "{error:?}");
    assert_eq!(error.business_rows(), BusinessRows::RolledBack);
}

/// A statement that reads a row which has changed since the snapshot ends the transaction (MariaDB, error 1020).
#[tokio::test]
async fn a_snapshot_that_is_too_old_mariadb() {
    for in_savepoint in [false, true] {
        database::with(2, |db: Db<MySql>| async move {
            db.run("CREATE TABLE stock (id INT PRIMARY KEY, amount INT)").await;
            db.run("INSERT INTO stock VALUES (1, 10)").await;
            let broker = MemoryBroker::new();
            let producer = producer(&db, &broker).await;
            let url = db.url.clone();
            let sent = producer.send_with(Order::new(9), move |tx, _| {
                Box::pin(async move {
                    MySql::sql(tx, "SET SESSION innodb_snapshot_isolation = ON").await?;
                    MySql::insert(tx, 1).await?;
                    MySql::sql(tx, "SELECT * FROM stock").await?;
                    let mut rival = MySqlConnection::connect(&url).await?;
                    sqlx::raw_sql("UPDATE stock SET amount = 0").execute(&mut rival).await?;
                    let clashing = "UPDATE stock SET amount = amount - 1 WHERE id = 1";
                    if in_savepoint {
                        let mut savepoint = tx.savepoint().await?;
                        MySql::sql(&mut savepoint, clashing).await.unwrap_err();
                    } else {
                        MySql::sql(tx, clashing).await.unwrap_err();
                    }
                    for id in 2..5 {
                        MySql::insert(tx, id).await.unwrap_err();
                    }
                    Ok::<(), sqlx::Error>(())
                })
            });
            is_swallowed(&sent.await.unwrap_err());
            producer.shutdown(SOON).await;
            assert_eq!(db.orders().await, [0_i64; 0]);
            assert!(broker.delivered_ids().is_empty() && broker.open_halves().is_empty());
        })
        .await;
    }
}

/// An error of SQLite may have rolled back everything, and does not say so.
#[tokio::test]
async fn a_conflict_that_rolls_back_sqlite() {
    database::with(2, |db: Db<Sqlite>| async move {
        let broker = MemoryBroker::new();
        let producer = producer(&db, &broker).await;
        db.run("INSERT INTO orders (id) VALUES (1)").await;
        for (clause, ends) in [("OR ROLLBACK", true), ("OR ABORT", false)] {
            let sent = producer.send_with(Order::named(9, clause), move |tx, _| {
                Box::pin(async move {
                    Sqlite::insert(tx, 2).await?;
                    let clash = sqlx::AssertSqlSafe(format!("INSERT {clause} INTO orders (id) VALUES (1)"));
                    sqlx::raw_sql(clash).execute(&mut *tx).await.unwrap_err();
                    assert_eq!(Sqlite::insert(tx, 3).await.is_err(), ends);
                    Ok::<(), sqlx::Error>(())
                })
            });
            match sent.await {
                Ok(_) => assert!(!ends),
                Err(error) => is_swallowed(&error),
            }
            assert_eq!(db.orders().await, if ends { vec![1] } else { vec![1, 2, 3] });
        }
        // The last statement fails, and nothing asks afterwards but the SDK.
        let texts = &["INSERT INTO orders (id) VALUES (4)", "INSERT OR ROLLBACK INTO orders (id) VALUES (1)"];
        is_swallowed(&producer.send_with(Order::named(9, "last"), swallowing(texts)).await.unwrap_err());
        producer.shutdown(SOON).await;
        assert_eq!(db.orders().await, [1, 2, 3]);
        assert_eq!(broker.delivered_ids(), ["OR ABORT"]);
    })
    .await;
}

/// A `prepare` that is given up leaves an answer behind, which the COMMIT would take for its own.
#[tokio::test]
async fn a_prepare_that_is_given_up_mariadb() {
    for execute_fails in [false, true] {
        database::with(1, |db: Db<MySql>| async move {
            let broker = MemoryBroker::new();
            let proxy = Proxy::before(&db.url).await;
            let through = proxy.through(&db, 1).await;
            let producer = producer(&through, &broker).await;
            if !execute_fails {
                proxy.cut(Commit::IsLost);
            }
            let sent = producer.send_with(Order::new(1), move |tx, _| {
                Box::pin(async move {
                    MySql::insert(tx, 1).await?;
                    let mut prepare = (&mut *tx).prepare("SELECT id + 12345 FROM orders".into_sql_str());
                    assert!(futures_util::poll!(&mut prepare).is_pending());
                    drop(prepare);
                    if execute_fails { Err(sqlx::Error::RowNotFound) } else { Ok(()) }
                })
            });
            let error = sent.await.unwrap_err();
            assert_eq!(error.business_rows(), BusinessRows::RolledBack, "{error:?}");
            // Nor does the next transaction meet that answer.
            if execute_fails {
                producer.send(Order::new(2)).await.unwrap().confirmation().await;
            }
            producer.shutdown(SOON).await;
            let expected = if execute_fails { vec![2] } else { vec![] };
            assert_eq!(db.orders().await, expected);
            assert_eq!(broker.delivered_ids().len(), expected.len());
            through.pool.close().await;
        })
        .await;
    }
}

/// What COMMIT itself refuses, it will refuse again.
#[tokio::test]
async fn a_deferred_constraint_postgres() {
    database::with(2, |db: Db<Postgres>| async move {
        db.run("CREATE TABLE lines (o BIGINT REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)").await;
        let broker = MemoryBroker::new();
        let producer = producer(&db, &broker).await;
        let texts = &["INSERT INTO lines VALUES (77)"];
        let error = producer.send_with(Order::new(9), swallowing(texts)).await.unwrap_err();
        assert!(matches!(&error, SendError::RolledBack { cause: RollbackCause::Database(_), .. }), "{error:?}");
        assert!(!error.is_transient());
        producer.shutdown(SOON).await;
        assert!(broker.delivered_ids().is_empty());
    })
    .await;
}

/// A role's isolation also holds for the SDK's own statements.
#[tokio::test]
async fn a_late_commit_at_every_isolation_postgres() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        database::with(2, |db: Db<Postgres>| async move {
            let broker = MemoryBroker::new();
            let proxy = Proxy::before(&db.url).await;
            let name = db.url.rsplit_once('/').unwrap().1;
            let role = format!("ALTER ROLE CURRENT_USER IN DATABASE {name} SET default_transaction_isolation");
            db.run(format!("{role} = '{isolation}'")).await;
            let through = proxy.through(&db, 2).await;
            let producer = builder(&through, &broker).start().await.unwrap();
            let (signal, arrives) = tokio::sync::oneshot::channel();
            proxy.cut(Commit::ArrivesLate(arrives));
            let sending = tokio::spawn({
                let producer = producer.clone();
                async move { producer.send(Order::new(1)).await.map(drop) }
            });
            let waits =
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
            let waiting = async || Postgres::numbers(&db.pool, waits).await == [1];
            crate::support::eventually("the settling statement waits for the COMMIT", waiting).await;
            signal.send(true).unwrap();
            sending.await.unwrap().unwrap_or_else(|error| panic!("{isolation}: {error:?}"));
            producer.shutdown(SOON).await;
            assert_eq!(db.orders().await, [1]);
            assert_eq!(broker.delivered_ids(), ["order-1"]);
            through.pool.close().await;
        })
        .await;
    }
}

/// The user's code has not run, and is not blamed for it.
#[tokio::test]
async fn a_connection_that_fell_silent_postgres() {
    database::with(1, |db: Db<Postgres>| async move {
        let broker = MemoryBroker::new();
        let proxy = Proxy::before(&db.url).await;
        let through = proxy.through(&db, 1).await;
        // The SDK's own connections do without the proxy.
        through.pool.set_connect_options(db.url.parse().unwrap());
        let producer = builder(&through, &broker).database_timeout(Duration::from_secs(1)).start().await.unwrap();
        proxy.delay(Duration::from_secs(600));
        let error = producer.send(Order::new(1)).await.unwrap_err();
        assert!(matches!(error, SendError::NotStarted { .. }), "{error:?}");
        // It was closed, and the next one is another.
        producer.send(Order::new(2)).await.unwrap();
        producer.shutdown(SOON).await;
        through.pool.close().await;
        assert_eq!(db.orders().await, [2]);
    })
    .await;
}
