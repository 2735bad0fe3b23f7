//! Producers that cannot start: each error names the remedy, and nothing was written.

use std::time::Duration;

use crate::support::{
    Db, TestDatabase, causes,
    order::{Orders, builder},
    raw::Raw,
};
use crate::{on_every_database, on_every_server};
use rocketmq_tx::{
    Builder, MessageId, RocketMq, StartError, TransactionMessage, TransactionProducer, broker::memory::MemoryBroker,
};
use serde::{Deserialize, Serialize};
use sqlx::Pool;

on_every_database!(2: kinds_and_topics groups no_broker case_23_times missing_tables_and_columns
    an_empty_scope a_database_that_is_not_there);
on_every_server!(2: missing_rights);

/// A message type whose kind is this text.
macro_rules! kind {
    ($name:ident, $kind:expr, $topic:expr) => {
        #[derive(Serialize, Deserialize)]
        struct $name;

        impl TransactionMessage for $name {
            const KIND: &'static str = $kind;
            const TOPIC: &'static str = $topic;

            fn msg_id(&self) -> MessageId {
                "never sent".into()
            }
        }
    };
}

kind!(NoKind, "", "orders");
kind!(ControlKind, "a\u{1}b", "orders");
kind!(
    LongKind,
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\
                 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef+",
    "orders"
);
kind!(BadTopic, "bad.topic", "orders/eu");
kind!(SameKind, Raw::KIND, "orders");

/// The error of a start, and its causes, in one line.
async fn refusal<DB: TestDatabase>(builder: Builder<DB>) -> (StartError, String) {
    let error = builder.start().await.unwrap_err();
    let text = causes(&error);
    (error, text)
}

fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

fn bare<DB: TestDatabase>(db: &Db<DB>) -> Builder<DB> {
    TransactionProducer::builder(db.pool.clone()).broker(MemoryBroker::new().connector("orders"))
}

async fn is_invalid<DB: TestDatabase>(builder: Builder<DB>, words: &[&str]) {
    let (error, text) = refusal(builder).await;
    assert!(matches!(error, StartError::Invalid(_)), "{error:?}");
    says(&text, words);
}

async fn kinds_and_topics<DB: TestDatabase>(db: Db<DB>) {
    is_invalid(bare(&db), &["no message type", "listener"]).await;
    is_invalid(bare(&db).message::<NoKind>(), &["kind", "empty"]).await;
    is_invalid(bare(&db).message::<ControlKind>(), &["kind", "control character"]).await;
    is_invalid(bare(&db).message::<LongKind>(), &["kind", "129 bytes"]).await;
    is_invalid(bare(&db).message::<Raw>().message::<SameKind>(), &["\"raw\"", "registered twice"]).await;
    is_invalid(bare(&db).listener(Orders).listener(Orders), &["\"order.placed\"", "twice", "one listener"]).await;
    is_invalid(bare(&db).listener(Orders).listener_on("other", Orders), &["\"order.placed\"", "twice"]).await;
    is_invalid(bare(&db).message::<BadTopic>(), &["topic", "orders/eu"]).await;
    let long = "t".repeat(128);
    for (topic, word) in [("", "empty"), ("a b", "letters, digits"), ("größe", "letters"), (&*long, "128 bytes")] {
        is_invalid(bare(&db).listener_on(topic, Orders), &["topic", word]).await;
        is_invalid(bare(&db).message_on::<Raw>(topic), &["topic", word]).await;
    }
    // The longest names that RocketMQ takes are taken.
    let good = bare(&db).listener_on("t".repeat(127), Orders).start().await.unwrap();
    good.shutdown(Duration::from_secs(30)).await;
}

/// The adapter knows them; nothing is connected to.
async fn groups<DB: TestDatabase>(db: Db<DB>) {
    let long = "g".repeat(121);
    for group in ["", "a b", "a\nb", "größe", &long] {
        let cluster = RocketMq::at("127.0.0.1:1").group(group);
        let builder = TransactionProducer::builder(db.pool.clone()).rocketmq(cluster).listener(Orders);
        let (error, text) = refusal(builder).await;
        assert!(matches!(error, StartError::Broker(_)), "{group:?}: {error:?}");
        says(&text, &["group"]);
    }
}

async fn no_broker<DB: TestDatabase>(db: Db<DB>) {
    is_invalid(TransactionProducer::builder(db.pool.clone()).listener(Orders), &["no broker", "RocketMq::at"]).await;
}

/// Of a broker with RocketMQ's defaults: 486 s of checks, 72 h of files.
async fn case_23_times<DB: TestDatabase>(db: Db<DB>) {
    let broker = MemoryBroker::new();
    let new = || builder(&db, &broker);
    let (second, zero) = (Duration::from_secs(1), Duration::ZERO);
    let cases: [(Builder<DB>, &[&str]); 8] = [
        (new().execute_timeout(zero), &["execute_timeout is zero"]),
        (new().settle_deadline(zero), &["settle_deadline is zero"]),
        (new().database_timeout(zero), &["database_timeout is zero"]),
        (new().retention(zero), &["retention is zero"]),
        (new().settle_deadline(35 * second), &["settle_deadline (35s)", "execute_timeout (30s)", "raise"]),
        (new().settle_deadline(456 * second), &["settle_deadline (456s)", "486s", "transactionCheckMax"]),
        (new().retention(400 * second), &["retention (400s)", "check budget", "486s", "raise retention"]),
        (new().retention(72 * 3600 * second), &["retention", "fileReservedTime", "raise retention"]),
    ];
    for (builder, words) in cases {
        let (error, text) = refusal(builder).await;
        assert!(matches!(error, StartError::Timing(_)), "{error:?}");
        says(&text, words);
    }
    is_invalid(new().housekeeping_interval(zero), &["housekeeping_interval is zero"]).await;
    let good = new().settle_deadline(455 * second).start().await.unwrap();
    good.shutdown(Duration::from_secs(30)).await;
}

async fn is_refused_by_database<DB: TestDatabase>(db: &Db<DB>, words: &[&str]) {
    let (error, text) = refusal(builder(db, &MemoryBroker::new())).await;
    assert!(matches!(error, StartError::Database(_)), "{error:?}");
    says(&text, words);
}

async fn missing_tables_and_columns<DB: TestDatabase>(db: Db<DB>) {
    db.run("ALTER TABLE tx_log DROP COLUMN headers").await;
    is_refused_by_database(&db, &["column tx_log.headers", "rocketmq_tx::migrate"]).await;
    db.run("DROP TABLE tx_log").await;
    is_refused_by_database(&db, &["table tx_log", "rocketmq_tx::migrate"]).await;
    db.run("DROP TABLE tx_scope").await;
    is_refused_by_database(&db, &["table tx_log, table tx_scope", "rocketmq_tx::migrate"]).await;
}

async fn an_empty_scope<DB: TestDatabase>(db: Db<DB>) {
    db.run("DELETE FROM tx_scope").await;
    is_refused_by_database(&db, &["tx_scope is empty", "INSERT"]).await;
    assert_eq!(DB::numbers(&db.pool, "SELECT count(*) FROM tx_scope").await, [0]);
}

/// A wrong host, database or password shows at start, since pools may connect lazily.
async fn a_database_that_is_not_there<DB: TestDatabase>(db: Db<DB>) {
    let (server, name) = db.url.rsplit_once('/').unwrap();
    let mut wrong = vec![format!("{server}/not-there/{name}")];
    if DB::name() != "SQLite" {
        let (user, host) = server.split_once('@').unwrap();
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        wrong = vec![format!("{user}-wrong@{host}/{name}"), format!("{user}@{closed}/{name}")];
        wrong.push(format!("{server}/not_there"));
    }
    for url in wrong {
        let lazy = Db { pool: Pool::<DB>::connect_lazy(&url).unwrap(), url };
        let (error, text) =
            refusal(builder(&lazy, &MemoryBroker::new()).database_timeout(Duration::from_secs(2))).await;
        assert!(matches!(error, StartError::Database(_)), "{error:?}");
        says(&text, &["connect", "check its URL"]);
        assert!(!text.contains("rocketmq_tx:rocketmq_tx"), "no password in an error: {text}");
    }
}

/// Each is revoked in turn from a user of its own.
async fn missing_rights<DB: TestDatabase>(db: Db<DB>) {
    let user = format!("tx_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    let postgres = DB::name() == "PostgreSQL";
    let name = if postgres { user.clone() } else { format!("'{user}'@'%'") };
    let create =
        if postgres { "CREATE ROLE {} LOGIN PASSWORD 'secret'" } else { "CREATE USER {} IDENTIFIED BY 'secret'" };
    db.run(create.replace("{}", &name)).await;
    for table in ["tx_log", "tx_scope", "orders"] {
        db.run(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {name}")).await;
    }
    let (scheme, place) = (db.url.split_once("://").unwrap().0, db.url.split_once('@').unwrap().1);
    let url = format!("{scheme}://{user}:secret@{place}");
    let limited = Db { pool: DB::pool(&url, 2).await, url };
    for table in ["tx_log", "tx_scope"] {
        db.run(format!("REVOKE SELECT ON {table} FROM {name}")).await;
        is_refused_by_database(&limited, &["SELECT"]).await;
        db.run(format!("GRANT SELECT ON {table} TO {name}")).await;
    }
    for right in ["INSERT", "UPDATE", "DELETE"] {
        db.run(format!("REVOKE {right} ON tx_log FROM {name}")).await;
        is_refused_by_database(&limited, &[right]).await;
        db.run(format!("GRANT {right} ON tx_log TO {name}")).await;
    }
    let good = builder(&limited, &MemoryBroker::new()).start().await.expect("its rights suffice");
    good.shutdown(Duration::from_secs(30)).await;
    limited.pool.close().await;
    for table in ["tx_log", "tx_scope", "orders"] {
        db.run(format!("REVOKE ALL ON {table} FROM {name}")).await;
    }
    db.run(format!("DROP {} {name}", if postgres { "ROLE" } else { "USER" })).await;
}
