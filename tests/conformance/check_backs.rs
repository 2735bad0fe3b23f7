//! What the broker is answered about the halves that were left open.

use std::time::Duration;

use crate::on_every_database;
use crate::support::{
    Db, Order, TestDatabase, eventually,
    log::{self, Row, check_is_unknown, check_until_ended, unknown},
    order::{builder, held, producer},
    raw::Raw,
};
use rocketmq_tx::{
    Confirmation, Status,
    broker::{End, EndOrigin, memory::Fault, memory::MemoryBroker},
    protocol::Unresolved,
};

on_every_database!(4: the_whole_table case_10_a_foreign_scope case_11_a_running_transaction lost_ends
    a_lost_rollback a_half_without_a_row a_claim_that_comes_before_its_tombstone
    case_24_an_answer_never_flips);

/// Each kind of row, under the token of its half and under another one; nothing but the row matters.
async fn the_whole_table<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    // One row each: its id, whether its token is that of its half, its state.
    let rows = [
        ("committed", true, "COMMITTED"),
        ("rolled-back", true, "ROLLED_BACK"),
        ("preparing", true, "PREPARING"),
        ("other-committed", false, "COMMITTED"),
        ("other-rolled-back", false, "ROLLED_BACK"),
        ("other-preparing", false, "PREPARING"),
        ("strange-committed", true, "COMMITTED"),
        ("strange-rolled-back", true, "ROLLED_BACK"),
    ];
    log::insert(&db, rows.map(|(msg_id, same, state)| Row::new(msg_id, if same { msg_id } else { "other" }, state)))
        .await;
    for (msg_id, ..) in rows {
        let mut half = log::half(&db, msg_id, msg_id).await;
        if msg_id.starts_with("strange") {
            half.kind = "a kind of another service".into();
        }
        broker.plant(half);
    }
    broker.plant(log::half(&db, "no-row", "no-row").await);
    // Another program's half, and another database's, about ids that would be committed here.
    broker.plant(log::half(&db, "committed", "").await);
    let mut foreign = log::half(&db, "committed", "foreign").await;
    foreign.scope = "another database".into();
    broker.plant(foreign);

    let producer = producer(&db, &broker).await;
    assert_eq!(broker.check_back(), 11);
    eventually("all are answered", async || {
        let counters = producer.counters();
        let unknown: u64 = counters.checks_unknown.iter().map(|(_, count)| count).sum();
        counters.checks_committed + counters.checks_rolled_back + unknown == 11 && broker.ended().len() == 6
    })
    .await;
    let counters = producer.counters();
    assert_eq!((counters.checks_committed, counters.checks_rolled_back), (2, 4));
    let mut reasons: Vec<_> = counters.checks_unknown.into_iter().filter(|(_, count)| *count > 0).collect();
    reasons.sort_by_key(|(reason, _)| format!("{reason:?}"));
    let once = |reason| (reason, 1);
    use Unresolved::{ForeignScope, NoIdentity, NoRow, OtherAttemptPreparing, Preparing};
    assert_eq!(reasons, [ForeignScope, NoIdentity, NoRow, OtherAttemptPreparing, Preparing].map(once));

    let mut ended = broker.ended();
    ended.sort_by(|a, b| a.0.cmp(&b.0));
    let by_check = |msg_id: &str, end| (msg_id.to_owned(), end, EndOrigin::CheckBack);
    assert_eq!(
        ended,
        [
            by_check("committed", End::Commit),
            by_check("other-committed", End::Rollback),
            by_check("other-rolled-back", End::Rollback),
            by_check("rolled-back", End::Rollback),
            by_check("strange-committed", End::Commit),
            by_check("strange-rolled-back", End::Rollback),
        ]
    );
    let mut delivered = broker.delivered_ids();
    delivered.sort_unstable();
    assert_eq!(delivered, ["committed", "strange-committed"]);
    assert_eq!(broker.open_halves().len(), 5);
    // The acknowledged ends of committed rows are noted, and nothing else is written.
    producer.shutdown(Duration::from_secs(30)).await;
    let confirmed = "SELECT msg_id FROM tx_log WHERE confirmed_at IS NOT NULL ORDER BY msg_id";
    assert_eq!(DB::texts(&db.pool, confirmed).await, ["committed", "strange-committed"]);
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_log").await, [rows.len() as i64]);
    assert_eq!(db.in_state("PREPARING").await, 2);
    assert!(db.orders().await.is_empty(), "no listener ever runs for a check-back");
}

/// Two services share a group by mistake. The wrong one has a row of the same id and token, which says the opposite.
async fn case_10_a_foreign_scope<DB: TestDatabase>(db: Db<DB>) {
    crate::support::database::with(2, |other: Db<DB>| async move {
        let broker = MemoryBroker::new();
        broker.fail_ends([Some(Fault::Lost)]);
        let owner = producer(&db, &broker).await;
        let mut receipt = owner.send(Order::new(1)).await.unwrap();
        assert_eq!(receipt.confirmation().await, Confirmation::Pending);
        owner.shutdown(Duration::from_secs(30)).await;

        let token = &broker.open_halves()[0].token.clone();
        log::insert(&other, [Row::new("order-1", token, "ROLLED_BACK")]).await;
        let stranger = producer(&other, &broker).await;
        check_is_unknown(&broker, &stranger, Unresolved::ForeignScope).await;
        // Nothing is even read: without the table the answer is the same.
        other.run("ALTER TABLE tx_log RENAME TO elsewhere").await;
        check_is_unknown(&broker, &stranger, Unresolved::ForeignScope).await;
        assert_eq!(unknown(&stranger, Unresolved::DatabaseError), 0);
        assert!(broker.ended().is_empty());
        stranger.shutdown(Duration::from_secs(30)).await;

        let owner = producer(&db, &broker).await;
        check_until_ended(&broker).await;
        assert_eq!(broker.delivered_ids(), ["order-1"]);
        assert_eq!((db.orders().await, other.orders().await), (vec![1], vec![]));
        owner.shutdown(Duration::from_secs(30)).await;
    })
    .await;
}

/// The transaction holds the lock of its row all the time: an answer proves that the check did not wait for it.
async fn case_11_a_running_transaction<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = producer(&db, &broker).await;
    let (closure, transaction) = held();
    let sending = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send_with(Order::new(1), closure).await }
    });
    transaction.began.await.unwrap();
    // One of three must be quick; the machine may be busy during the others.
    let mut quick = false;
    for round in 1..=3 {
        assert_eq!(broker.check_back(), 1);
        let asked = std::time::Instant::now();
        eventually("the check is answered", async || unknown(&producer, Unresolved::Preparing) == round).await;
        quick |= asked.elapsed() < Duration::from_secs(1);
    }
    assert!(quick, "no check was answered within 1 s");
    assert!(broker.ended().is_empty());
    transaction.release.send(()).unwrap();
    // The broker has renewed the half: its end comes too late, and the next check delivers.
    sending.await.unwrap().unwrap();
    check_until_ended(&broker).await;
    assert_eq!(db.orders().await, [1]);
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    producer.shutdown(Duration::from_secs(30)).await;
}

/// The sender is gone; an instance that never heard of the kind answers.
async fn lost_ends<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let sender = producer(&db, &broker).await;
    broker.fail_ends([Some(Fault::Lost), Some(Fault::AnswerLost)]);
    for id in [1, 2] {
        let mut receipt = sender.send(Order::new(id)).await.unwrap();
        assert_eq!(receipt.confirmation().await, Confirmation::Pending);
        assert_eq!(sender.status(receipt.msg_id()).await.unwrap(), Status::Committed(Confirmation::Pending));
    }
    let counters = sender.counters();
    assert_eq!((counters.ends_failed, counters.unconfirmed), (2, 2));
    let report = sender.shutdown(Duration::from_secs(30)).await;
    assert_eq!((report.unfinished, report.unconfirmed, report.is_clean()), (0, 2, false));
    assert_eq!(broker.delivered_ids(), ["order-2"], "the end of the first never arrived");

    let other = builder_of_another_kind(&db, &broker).start().await.unwrap();
    assert_eq!(broker.check_back(), 1);
    eventually("the half is ended", async || broker.open_halves().is_empty()).await;
    assert_eq!(broker.delivered_ids(), ["order-2", "order-1"]);
    assert_eq!(broker.ended().last(), Some(&("order-1".to_owned(), End::Commit, EndOrigin::CheckBack)));
    let confirmed = Status::Committed(Confirmation::Confirmed);
    eventually("it is noted", async || other.status("order-1").await.unwrap() == confirmed).await;
    // Nobody knows that the broker has the end of the other one, and nobody claims to.
    assert_eq!(other.status("order-2").await.unwrap(), Status::Committed(Confirmation::Pending));
    assert_eq!(db.orders().await, [1, 2]);
    other.shutdown(Duration::from_secs(30)).await;
}

async fn a_lost_rollback<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let sender = producer(&db, &broker).await;
    broker.fail_ends([Some(Fault::Lost), Some(Fault::AnswerLost)]);
    sender.send(Order::failing(1)).await.unwrap_err();
    sender.send(Order::failing(2)).await.unwrap_err();
    sender.shutdown(Duration::from_secs(30)).await;
    assert_eq!(broker.open_halves().len(), 1);
    let other = builder_of_another_kind(&db, &broker).start().await.unwrap();
    check_until_ended(&broker).await;
    assert_eq!(broker.ended().last(), Some(&("order-1".to_owned(), End::Rollback, EndOrigin::CheckBack)));
    assert!(broker.delivered().is_empty() && db.orders().await.is_empty());
    assert_eq!(db.in_state("ROLLED_BACK").await, 2);
    other.shutdown(Duration::from_secs(30)).await;
}

/// A producer that never heard of orders.
fn builder_of_another_kind<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> rocketmq_tx::Builder<DB> {
    rocketmq_tx::TransactionProducer::builder(db.pool.clone()).broker(broker.connector("orders")).message::<Raw>()
}

/// A producer whose tombstones come soon.
fn impatient<DB: TestDatabase>(db: &Db<DB>, broker: &MemoryBroker) -> rocketmq_tx::Builder<DB> {
    builder(db, broker).execute_timeout(Duration::from_millis(500)).settle_deadline(Duration::from_secs(6))
}

/// A broker that lost its notes asks again and again, about attempts of old, while their ids are sent anew.
async fn case_24_an_answer_never_flips<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producers = [producer(&db, &broker).await, producer(&db, &broker).await];
    producers[0].send(Order::named(1, "kept")).await.unwrap().confirmation().await;
    producers[0].send(Order { fail: true, ..Order::named(2, "dropped") }).await.unwrap_err();
    let sent = async || broker.ended().len() == 2;
    eventually("both are ended", sent).await;
    let token = |msg_id: &'static str| {
        let db = &db;
        async move {
            let rows = DB::texts(&db.pool, "SELECT CONCAT(msg_id, ' ', token) FROM tx_log").await;
            rows.iter().find_map(|row| row.strip_prefix(&format!("{msg_id} ")).map(str::to_owned)).unwrap()
        }
    };
    let (kept, dropped) = (token("kept").await, token("dropped").await);
    for round in 0..3 {
        broker.plant(log::half(&db, "kept", &kept).await);
        broker.plant(log::half(&db, "dropped", &dropped).await);
        check_until_ended(&broker).await;
        let again = producers[1].send(Order::named(10, "kept")).await.unwrap();
        assert!(again.already_committed(), "round {round}");
        // From the first round on this id has another attempt, which commits in the second.
        let again = Order { fail: round == 0, ..Order::named(20, "dropped") };
        let _ = producers[1].send(again).await;
    }
    let ends = |of: &str, origin| {
        let ended = broker.ended().into_iter();
        ended.filter(|(msg_id, _, by)| msg_id == of && *by == origin).map(|(_, end, _)| end).collect::<Vec<_>>()
    };
    assert_eq!(ends("kept", EndOrigin::CheckBack), [End::Commit; 3]);
    assert_eq!(ends("dropped", EndOrigin::CheckBack), [End::Rollback; 3]);
    for producer in &producers {
        assert!(producer.shutdown(Duration::from_secs(30)).await.is_clean());
    }
    assert_eq!(ends("kept", EndOrigin::Sender), [End::Commit]);
    assert_eq!(ends("dropped", EndOrigin::Sender), [End::Rollback, End::Rollback, End::Commit]);
    assert_eq!(db.orders().await, [1, 20]);
}

async fn a_half_without_a_row<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = impatient(&db, &broker).start().await.unwrap();
    broker.plant(log::half(&db, "order-1", "lost").await);
    check_is_unknown(&broker, &producer, Unresolved::NoRow).await;
    // Counted after the database has answered: others see the row a moment earlier.
    eventually("its tombstone is written", async || producer.counters().buried == 1).await;
    assert_eq!(producer.status("order-1").await.unwrap(), Status::RolledBack);
    assert_eq!(DB::texts(&db.pool, "SELECT token FROM tx_log").await, ["lost"]);
    assert_eq!(broker.open_halves().len(), 1, "the settler ends nothing; the next check does");
    check_until_ended(&broker).await;
    assert_eq!(broker.ended(), [("order-1".to_owned(), End::Rollback, EndOrigin::CheckBack)]);
    // The id is free again.
    let patient = builder(&db, &broker).start().await.unwrap();
    patient.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!(db.orders().await, [1]);
    assert_eq!(broker.delivered_ids(), ["order-1"]);
    patient.shutdown(Duration::from_secs(30)).await;
    producer.shutdown(Duration::from_secs(30)).await;
}

/// The row came after the first question: the tombstone finds it and does nothing.
async fn a_claim_that_comes_before_its_tombstone<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let producer = impatient(&db, &broker).start().await.unwrap();
    for (msg_id, token) in [("late", "1"), ("never", "2")] {
        broker.plant(log::half(&db, msg_id, token).await);
    }
    check_is_unknown(&broker, &producer, Unresolved::NoRow).await;
    log::insert(&db, [Row::new("late", "1", "COMMITTED")]).await;
    eventually("both were looked at", async || producer.counters().buried == 2).await;
    check_until_ended(&broker).await;
    assert_eq!(broker.delivered_ids(), ["late"]);
    assert_eq!(db.in_state("COMMITTED").await, 1);
    assert_eq!(db.in_state("ROLLED_BACK").await, 1);
    producer.shutdown(Duration::from_secs(30)).await;
}
