//! Check-backs while the database cannot answer: Unknown each time, and resolved once it can.

use std::time::Duration;

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase, causes, database, eventually,
    log::{self, check_is_unknown, check_until_ended},
    order::{builder, producer},
    proxy::Proxy,
    start_server,
};
use rocketmq_tx::{
    Confirmation, OpenError, SendError, StartError, TransactionProducer,
    broker::memory::{Fault, MemoryBroker},
    protocol::Unresolved,
};
use sqlx::{MySql, Postgres};

on_every_database!(2: case_12_the_table_is_gone case_12_a_state_that_does_not_exist);

const DEADLINE: Duration = Duration::from_secs(30);

/// A producer, and one committed order whose end was lost.
async fn with_an_open_half<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> TransactionProducer<DB> {
    let producer = producer(db, broker).await;
    broker.fail_ends([Some(Fault::Lost)]);
    let mut receipt = producer.send(Order::new(1)).await.unwrap();
    assert_eq!(receipt.confirmation().await, Confirmation::Pending);
    producer
}

async fn resolves<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker, producer: &TransactionProducer<DB>) {
    assert!(broker.delivered().is_empty() && broker.ended().is_empty());
    check_until_ended(broker).await;
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    assert_eq!(db.orders().await, [1]);
    producer.shutdown(DEADLINE).await;
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log WHERE confirmed_at IS NOT NULL").await, [1]);
}

async fn case_12_the_table_is_gone<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = with_an_open_half(&db, &broker).await;
    db.run("ALTER TABLE tx_log RENAME TO elsewhere").await;
    for _ in 0..2 {
        check_is_unknown(&broker, &producer, Unresolved::DatabaseError).await;
    }
    producer.status("order-1").await.unwrap_err();
    db.run("ALTER TABLE elsewhere RENAME TO tx_log").await;
    resolves(&db, &broker, &producer).await;
}

async fn case_12_a_state_that_does_not_exist<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = with_an_open_half(&db, &broker).await;
    let park = "UPDATE tx_log SET state = 'PARKED'";
    match DB::name() {
        "PostgreSQL" => {
            db.run(format!("ALTER TABLE tx_log DROP CONSTRAINT tx_log_state_check; {park}")).await;
        }
        "MySQL" => {
            db.run(format!("ALTER TABLE tx_log MODIFY state VARCHAR(16) NOT NULL; {park}")).await;
        }
        _ => {
            let (off, on) = ("PRAGMA ignore_check_constraints = 1", "PRAGMA ignore_check_constraints = 0");
            db.run(format!("{off}; {park}; {on}")).await;
        }
    }
    for _ in 0..2 {
        check_is_unknown(&broker, &producer, Unresolved::UnknownState).await;
    }
    let error = producer.status("order-1").await.unwrap_err();
    assert!(causes(&error).contains("PARKED"), "{error:?}");
    // A send of that id neither guesses nor runs.
    let error = producer.send(Order::named(2, "order-1")).await.unwrap_err();
    assert!(matches!(error, SendError::NotStarted { .. }), "{error:?}");
    db.run("UPDATE tx_log SET state = 'COMMITTED'").await;
    resolves(&db, &broker, &producer).await;
}

#[tokio::test]
async fn case_12_select_is_revoked_postgres() {
    database::with(2, |db: Db<Postgres>| async move {
        let broker = MemoryBroker::new();
        let producer = with_an_open_half(&db, &broker).await;
        db.run("REVOKE SELECT ON tx_log FROM CURRENT_USER").await;
        for _ in 0..2 {
            check_is_unknown(&broker, &producer, Unresolved::DatabaseError).await;
        }
        db.run("GRANT SELECT ON tx_log TO CURRENT_USER").await;
        resolves(&db, &broker, &producer).await;
    })
    .await;
}

#[tokio::test]
async fn case_12_select_is_revoked_mariadb() {
    database::with(2, |db: Db<MySql>| async move {
        let broker = MemoryBroker::new();
        let user = format!("tx_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
        db.run(format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'secret'")).await;
        for table in ["tx_log", "tx_scope", "orders"] {
            db.run(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO '{user}'@'%'")).await;
        }
        let (_, place) = db.url.split_once('@').unwrap();
        let url = format!("mysql://{user}:secret@{place}");
        let limited = Db { pool: MySql::pool(&url, 2).await, url };
        let producer = with_an_open_half(&limited, &broker).await;
        db.run(format!("REVOKE SELECT ON tx_log FROM '{user}'@'%'")).await;
        for _ in 0..2 {
            check_is_unknown(&broker, &producer, Unresolved::DatabaseError).await;
        }
        db.run(format!("GRANT SELECT ON tx_log TO '{user}'@'%'")).await;
        resolves(&limited, &broker, &producer).await;
        limited.pool.close().await;
        db.run(format!("DROP USER '{user}'@'%'")).await;
    })
    .await;
}

async fn is_refused<DB: TestDatabase>(replica: &Db<DB>) {
    let broker = MemoryBroker::new();
    let error = builder(replica, &broker).start().await.unwrap_err();
    assert!(matches!(error, StartError::Database(OpenError::Replica)), "{error:?}");
    let words = causes(&error);
    assert!(words.contains("replica") && words.contains("connect to the primary"), "{words}");
    replica.pool.close().await;
}

#[tokio::test]
async fn case_62_a_read_only_mariadb_is_refused() {
    let url = start_server("mariadb-replica", "MYSQL_REPLICA_URL");
    is_refused::<MySql>(&Db { pool: MySql::pool(&url, 2).await, url }).await;
}

#[tokio::test]
async fn case_62_a_standby_is_refused_and_answers_unknown() {
    let replica = start_server("postgres-replica", "POSTGRES_REPLICA_URL");
    database::with(4, |db: Db<Postgres>| async move {
        let (proxy, broker) = (Proxy::before(&db.url).await, MemoryBroker::new());
        let proxied = proxy.through(&db, 2).await;
        let producer = with_an_open_half(&proxied, &broker).await;

        let url = db.on_server(&replica);
        eventually("the standby has the database", async || match sqlx::PgPool::connect(&url).await {
            Ok(pool) => {
                let caught_up = sqlx::query("SELECT 1 FROM tx_log WHERE state = 'COMMITTED'").fetch_one(&pool);
                caught_up.await.is_ok()
            }
            Err(_) => false,
        })
        .await;
        is_refused::<Postgres>(&Db { pool: Postgres::pool(&url, 2).await, url: url.clone() }).await;

        // A fail-over to a standby that has the committed row: the check sees it, and does not trust it.
        proxy.switch_to(&url);
        eventually("a check reaches the standby", async || {
            broker.check_back();
            log::unknown(&producer, Unresolved::NotPrimary) > 0
        })
        .await;
        check_is_unknown(&broker, &producer, Unresolved::NotPrimary).await;
        // It may be behind: what it shows is no status, and neither is what it does not show.
        for id in ["order-1", "order-2"] {
            let error = producer.status(id).await.unwrap_err();
            assert!(causes(&error).contains("replica"), "{id}: {}", causes(&error));
        }
        proxy.switch_to(&db.url);
        eventually("a check reaches the primary", async || {
            broker.check_back();
            !broker.delivered().is_empty()
        })
        .await;
        assert_eq!(broker.delivered_ids(), ["order-1"]);
        assert_eq!(db.orders().await, [1]);
        assert!(broker.open_halves().is_empty());
        producer.shutdown(DEADLINE).await;
        proxied.pool.close().await;
    })
    .await;
}
