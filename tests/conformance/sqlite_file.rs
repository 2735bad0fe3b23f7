//! SQLite has one writer at a time, and databases that live in one connection.

use std::time::Duration;

use crate::support::{
    Db, Order, database,
    order::{builder, endless, panicking, producer},
};
use futures_util::future::join_all;
use rocketmq_tx::{RollbackCause, SendError, broker::memory::MemoryBroker};
use sqlx::{Sqlite, sqlite::SqlitePoolOptions};

const SOON: Duration = Duration::from_secs(60);

/// Two producers on one file, as two services would be, fifty sends at once each.
async fn fifty_each(db: Db<Sqlite>) {
    let broker = MemoryBroker::new();
    let others = db.again(8).await;
    let producers = [producer(&db, &broker).await, producer(&others, &broker).await];
    let sends = (0..100).map(|id| producers[id % 2].send(Order::new(id as i64)));
    for sent in join_all(sends).await {
        sent.unwrap();
    }
    for producer in &producers {
        assert!(producer.shutdown(SOON).await.is_clean());
        assert_eq!(producer.counters().housekeeping_failed, 0);
    }
    assert_eq!(db.orders().await, (0..100).collect::<Vec<_>>());
    assert_eq!(broker.delivered().len(), 100);
    assert_eq!(db.in_state("COMMITTED").await, 100);
    others.pool.close().await;
}

#[tokio::test]
async fn case_58_two_producers_on_one_file() {
    database::with::<Sqlite, _>(8, fifty_each).await;
}

#[tokio::test]
async fn case_58_two_producers_on_one_file_with_a_write_ahead_log() {
    database::with::<Sqlite, _>(8, |db| async move {
        db.run("PRAGMA journal_mode = WAL").await;
        fifty_each(db).await;
    })
    .await;
}

#[tokio::test]
async fn case_58_one_producer_on_one_file() {
    database::with::<Sqlite, _>(50, |db| async move {
        let broker = MemoryBroker::new();
        let producer = producer(&db, &broker).await;
        for sent in join_all((0..50).map(|id| producer.send(Order::new(id)))).await {
            sent.unwrap();
        }
        assert!(producer.shutdown(SOON).await.is_clean());
        assert_eq!(db.orders().await, (0..50).collect::<Vec<_>>());
        assert_eq!(broker.delivered().len(), 50);
    })
    .await;
}

/// A database in memory, with the only connection that it can have.
async fn in_memory() -> Db<Sqlite> {
    let url = "sqlite::memory:".to_owned();
    let options = SqlitePoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None);
    let db = Db { pool: options.connect(&url).await.unwrap(), url };
    rocketmq_tx::migrate(&db.pool).await.unwrap();
    db.run("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
    db
}

#[tokio::test]
async fn case_58_in_memory() {
    let (db, broker) = (in_memory().await, MemoryBroker::new());
    let producer = producer(&db, &broker).await;
    let orders = (0..50).map(|id| if id % 5 == 0 { Order::failing(id) } else { Order::new(id) });
    for (id, sent) in join_all(orders.map(|order| producer.send(order))).await.into_iter().enumerate() {
        assert_eq!(sent.is_err(), id % 5 == 0, "{sent:?}");
    }
    assert!(producer.shutdown(SOON).await.is_clean());
    assert_eq!(db.orders().await.len(), 40);
    assert_eq!(broker.delivered().len(), 40);
    assert!(broker.open_halves().is_empty());
}

/// To close its connection would empty the database.
#[tokio::test]
async fn in_memory_a_failed_transaction_keeps_the_database() {
    let (db, broker) = (in_memory().await, MemoryBroker::new());
    let producer = builder(&db, &broker).execute_timeout(Duration::from_millis(300)).start().await.unwrap();
    producer.send(Order::new(1)).await.unwrap();
    let error = producer.send_with(Order::new(2), panicking()).await.unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Panicked, .. }), "{error:?}");
    let error = producer.send_with(Order::new(3), endless()).await.unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::TimedOut(_), .. }), "{error:?}");
    producer.send(Order::new(4)).await.unwrap();
    producer.shutdown(SOON).await;
    assert_eq!(db.orders().await, [1, 4]);
    assert_eq!(broker.delivered_ids(), ["order-1", "order-4"]);
    assert!(broker.open_halves().is_empty());
    assert_eq!(db.in_state("ROLLED_BACK").await, 2);
}
