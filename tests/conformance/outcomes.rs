//! What becomes of one message, on every database: what committed readers see, and what consumers see.

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase,
    order::{OrderError, builder, endless, panicking, producer, swallowing},
};
use rocketmq_tx::{
    BusinessRows, Confirmation, RollbackCause, SendError, Status,
    broker::{End, EndOrigin, memory::MemoryBroker},
};

on_every_database!(4: commits rolls_back_with_the_error_by_type a_panic_rolls_back a_timeout_rolls_back
    sends_again_after_rollback the_same_id_twice_runs_once a_value_comes_back
    case_1_a_swallowed_error case_57_a_raw_commit_is_reported case_57_a_raw_rollback_is_reported
    savepoints_undo_their_part);

async fn commits<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let mut receipt = producer.send(Order::new(1)).await.unwrap();
    assert_eq!(db.orders().await, [1]);
    assert!(!receipt.already_committed());
    assert_eq!(receipt.confirmation().await, Confirmation::Confirmed);
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    assert_eq!(broker.ended(), [("order-1".to_owned(), End::Commit, EndOrigin::Sender)]);
    let report = producer.shutdown(std::time::Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log WHERE confirmed_at IS NOT NULL").await, [1]);
}

async fn rolls_back_with_the_error_by_type<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let error = producer.send(Order::failing(1)).await.unwrap_err();
    assert_eq!(error.business_rows(), BusinessRows::RolledBack);
    assert!(matches!(error.execute_error::<OrderError>(), Some(OrderError::ToldTo)), "{error:?}");
    assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
    producer.shutdown(std::time::Duration::from_secs(5)).await;
    assert_eq!(db.orders().await, [0_i64; 0]);
    assert!(broker.delivered_ids().is_empty() && broker.open_halves().is_empty());
}

async fn a_panic_rolls_back<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let error = producer.send_with(Order::new(1), panicking()).await.unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Panicked, .. }), "{error:?}");
    producer.send(Order::new(1)).await.expect("the id is free again");
    assert_eq!(db.orders().await, [1]);
}

async fn a_timeout_rolls_back<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let limit = std::time::Duration::from_millis(300);
    let producer = builder(&db, &broker).execute_timeout(limit).start().await.unwrap();
    let error = producer.send_with(Order::new(1), endless()).await.unwrap_err();
    assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::TimedOut(_), .. }), "{error:?}");
    producer.send(Order::new(1)).await.expect("the id is free again");
    assert_eq!(db.orders().await, [1]);
}

async fn sends_again_after_rollback<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    for _ in 0..3 {
        producer.send(Order::failing(1)).await.unwrap_err();
    }
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    assert_eq!(DB::numbers(&db.pool, "SELECT attempts FROM tx_log").await, [4]);
}

async fn the_same_id_twice_runs_once<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    let again = producer.send(Order::named(2, "order-1")).await.unwrap();
    assert!(again.already_committed());
    assert_eq!(db.orders().await, [1]);
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    // Many at once: one runs, the others are told so, and nothing is delivered twice.
    let mut sends = tokio::task::JoinSet::new();
    for id in 10..30 {
        let producer = producer.clone();
        sends.spawn(async move { producer.send(Order::named(id, "contended")).await });
    }
    let mut committed = 0;
    while let Some(result) = sends.join_next().await {
        match result.unwrap() {
            Ok(receipt) if !receipt.already_committed() => committed += 1,
            Ok(_) | Err(SendError::InFlight { .. }) => {}
            Err(error) => panic!("{error:?}"),
        }
    }
    assert_eq!(committed, 1);
    producer.shutdown(std::time::Duration::from_secs(5)).await;
    assert_eq!(db.orders().await.len(), 2);
    assert_eq!(broker.delivered_ids(), ["order-1", "contended"]);
}

async fn a_value_comes_back<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let send = || {
        producer.send_with(Order::new(7), |tx, order| {
            Box::pin(async move { DB::insert(tx, order.id).await.map(|rows| rows + 41) })
        })
    };
    assert_eq!(send().await.unwrap().1, Some(42));
    assert_eq!(send().await.unwrap().1, None);
}

/// PostgreSQL aborts the transaction, and its COMMIT would be answered Ok; the others undo only the statement.
async fn case_1_a_swallowed_error<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    db.run("INSERT INTO orders (id) VALUES (1)").await;
    let texts = &["INSERT INTO orders (id) VALUES (2)", "INSERT INTO orders (id) VALUES (1)"];
    let sent = producer.send_with(Order::new(9), swallowing(texts)).await;
    producer.shutdown(std::time::Duration::from_secs(5)).await;
    if DB::name() == "PostgreSQL" {
        let error = sent.unwrap_err();
        assert!(matches!(error, SendError::RolledBack { cause: RollbackCause::Swallowed, .. }), "{error:?}");
        assert_eq!(db.orders().await, [1]);
        assert!(broker.delivered_ids().is_empty());
    } else {
        sent.unwrap();
        assert_eq!(db.orders().await, [1, 2]);
        assert_eq!(broker.delivered_ids(), ["order-9"]);
    }
    assert!(broker.open_halves().is_empty());
}

/// What the raw COMMIT committed cannot be undone: the message goes with it, and the caller is told.
async fn case_57_a_raw_commit_is_reported<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let mut texts: Vec<&'static [&'static str]> = vec![&["INSERT INTO orders (id) VALUES (1)", "COMMIT"]];
    texts.push(&["INSERT INTO orders (id) VALUES (2)", "COMMIT; BEGIN"]);
    if DB::name() == "MySQL" {
        texts.push(&["INSERT INTO orders (id) VALUES (3)", "CREATE TABLE another (id INT)"]);
        texts.push(&["INSERT INTO orders (id) VALUES (4)", "START TRANSACTION"]);
    }
    let count = texts.len() as i64;
    for (id, texts) in texts.into_iter().enumerate() {
        let error = producer.send_with(Order::new(100 + id as i64), swallowing(texts)).await.unwrap_err();
        assert!(matches!(error, SendError::Escaped { .. }), "{texts:?}: {error:?}");
        assert_eq!(error.business_rows(), BusinessRows::Escaped);
    }
    // The pool has no connection left inside a transaction.
    for id in 200..208 {
        producer.send(Order::new(id)).await.unwrap();
    }
    producer.shutdown(std::time::Duration::from_secs(5)).await;
    assert_eq!(db.orders().await, (1..=count).chain(200..208).collect::<Vec<_>>());
    assert_eq!(broker.delivered_ids().len() as i64, count + 8);
}

async fn case_57_a_raw_rollback_is_reported<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    for (id, texts) in [
        &["INSERT INTO orders (id) VALUES (1)", "ROLLBACK"] as &[_],
        &["INSERT INTO orders (id) VALUES (1)", "ROLLBACK; BEGIN"],
    ]
    .into_iter()
    .enumerate()
    {
        let error = producer.send_with(Order::new(id as i64), swallowing(texts)).await.unwrap_err();
        assert_eq!(error.business_rows(), BusinessRows::Abandoned, "{error:?}");
    }
    producer.shutdown(std::time::Duration::from_secs(5)).await;
    assert!(db.orders().await.is_empty());
    assert!(broker.delivered_ids().is_empty() && broker.open_halves().is_empty());
}

async fn savepoints_undo_their_part<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let sent = producer.send_with(Order::new(1), |tx, _| {
        Box::pin(async move {
            DB::insert(tx, 1).await?;
            let mut kept = tx.savepoint().await?;
            DB::insert(&mut kept, 2).await?;
            let mut failed = kept.savepoint().await?;
            DB::insert(&mut failed, 1).await.unwrap_err();
            failed.rollback().await?;
            kept.release().await?;
            let mut dropped = tx.savepoint().await?;
            DB::insert(&mut dropped, 3).await?;
            drop(dropped);
            DB::insert(tx, 4).await
        })
    });
    sent.await.unwrap().0.confirmation().await;
    assert_eq!(db.orders().await, [1, 2, 4]);
    assert_eq!(broker.delivered_ids(), ["order-1"]);
}
