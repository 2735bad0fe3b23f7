//! The SDK's own connections beside the user's pool: the same tables, the same log-in, no pooler that mixes them up.

use std::time::Duration;

use crate::support::{
    Db, Order, TestDatabase, causes, eventually,
    order::{builder, producer},
    start_server,
};
use rocketmq_tx::{StartError, Status, broker::memory::MemoryBroker};
use sqlx::{MySql, PgPool, Postgres, mysql::MySqlPoolOptions, postgres::PgPoolOptions};

const SOON: Duration = Duration::from_secs(30);

async fn is_refused<DB: TestDatabase>(db: &Db<DB>, words: &str) {
    let error = builder(db, &MemoryBroker::new()).start().await.unwrap_err();
    assert!(matches!(error, StartError::Database(_)), "{error:?}");
    let text = causes(&error);
    assert!(text.contains(words), "{text}");
}

/// A pool whose hook leads its connections to the tables of another schema.
async fn led_to_shop(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(2).after_connect(|conn, _| {
        Box::pin(async move { sqlx::raw_sql("SET search_path = shop").execute(conn).await.map(drop) })
    });
    options.connect(url).await.unwrap()
}

#[tokio::test]
async fn tables_that_only_the_users_pool_sees() {
    crate::support::database::with_empty::<Postgres, _>(2, |db| async move {
        db.run("CREATE SCHEMA shop").await;
        let led = Db { pool: led_to_shop(&db.url).await, url: db.url.clone() };
        rocketmq_tx::migrate(&led.pool).await.unwrap();
        is_refused(&led, "after_connect").await;
        // The same tables elsewhere as well, of another scope.
        rocketmq_tx::migrate(&db.pool).await.unwrap();
        is_refused(&led, "after_connect").await;
        // The remedy that the error names: on the server.
        let name = db.url.rsplit_once('/').unwrap().1;
        db.run(format!("ALTER ROLE CURRENT_USER IN DATABASE {name} SET search_path = shop")).await;
        let good = builder(&led, &MemoryBroker::new()).start().await.unwrap();
        good.shutdown(SOON).await;
        led.pool.close().await;
    })
    .await;
}

#[tokio::test]
async fn tables_in_a_database_that_only_the_users_pool_uses() {
    crate::support::database::with::<MySql, _>(2, |db| async move {
        let (server, name) = db.url.rsplit_once('/').unwrap();
        let name = name.to_owned();
        let options = MySqlPoolOptions::new().max_connections(2).after_connect(move |conn, _| {
            let to_database = sqlx::AssertSqlSafe(format!("USE {name}"));
            Box::pin(async move { sqlx::raw_sql(to_database).execute(conn).await.map(drop) })
        });
        let url = format!("{server}/information_schema");
        let led = Db { pool: options.connect(&url).await.unwrap(), url };
        is_refused(&led, "after_connect").await;
        led.pool.close().await;
    })
    .await;
}

/// Passwords and roles are changed while a service runs.
#[tokio::test]
async fn a_new_log_in_of_the_users_pool() {
    crate::support::database::with::<Postgres, _>(2, |db| async move {
        let roles = ["a", "b"].map(|role| format!("tx_{}_{role}", &uuid::Uuid::new_v4().simple().to_string()[..20]));
        for role in &roles {
            db.run(format!("CREATE ROLE {role} LOGIN PASSWORD 'secret'")).await;
            db.run(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON tx_log, tx_scope, orders TO {role}")).await;
        }
        let log_in = |role: &str| format!("postgres://{role}:secret@{}", db.url.split_once('@').unwrap().1);
        let url = log_in(&roles[0]);
        let user = Db { pool: Postgres::pool(&url, 2).await, url };
        let broker = MemoryBroker::new();
        let producer = producer(&user, &broker).await;
        producer.send(Order::new(1)).await.unwrap();

        user.pool.set_connect_options(log_in(&roles[1]).parse().unwrap());
        db.run(format!("GRANT {} TO CURRENT_USER", roles[0])).await;
        db.run(format!("ALTER ROLE {} NOLOGIN", roles[0])).await;
        db.run(format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'", roles[0])).await;
        // Each connection that was open may fail once.
        let sent = async || producer.send(Order::new(2)).await.is_ok();
        eventually("claims and local transactions log in anew", sent).await;
        let read = async || matches!(producer.status("order-2").await, Ok(Status::Committed { .. }));
        eventually("reads log in anew", read).await;
        producer.shutdown(SOON).await;
        assert_eq!(db.orders().await, [1, 2]);
        user.pool.close().await;
        for role in &roles {
            db.run(format!("REVOKE ALL ON tx_log, tx_scope, orders FROM {role}")).await;
            db.run(format!("DROP ROLE {role}")).await;
        }
    })
    .await;
}

/// The check of the user's pool is not worth a start that fails.
#[tokio::test]
async fn a_pool_whose_connections_are_all_in_use() {
    crate::support::database::with::<Postgres, _>(1, |db| async move {
        let held = db.pool.acquire().await.unwrap();
        let broker = MemoryBroker::new();
        let producer = builder(&db, &broker).database_timeout(Duration::from_secs(1)).start().await.unwrap();
        drop(held);
        producer.send(Order::new(1)).await.unwrap();
        producer.shutdown(SOON).await;
    })
    .await;
}

/// What it cannot write would be refused again and again.
#[tokio::test]
async fn a_database_that_cannot_hold_every_id() {
    let name = format!("tx_{}", uuid::Uuid::new_v4().simple());
    let server = crate::support::env("POSTGRES_DATABASE_URL");
    let admin = PgPool::connect(&server).await.unwrap();
    let run = async |sql: String| Postgres::exec(&admin, sql).await.unwrap();
    run(format!("CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")).await;
    let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
    let db = Db { pool: Postgres::pool(&url, 1).await, url };
    is_refused(&db, "encoding is LATIN1").await;
    db.pool.close().await;
    run(format!("DROP DATABASE {name} WITH (FORCE)")).await;
    admin.close().await;
}

/// PgBouncer 1.18 pools transactions, and knows nothing of prepared statements.
#[tokio::test]
async fn a_pooler_that_mixes_up_sessions() {
    crate::support::database::with::<Postgres, _>(2, |db| async move {
        let pooler = start_server("pgbouncer", "POSTGRES_POOLER_URL");
        let url = db.on_server(&pooler);
        // What many set for such a pooler.
        let options = url.parse::<sqlx::postgres::PgConnectOptions>().unwrap().statement_cache_capacity(0);
        let pooled = Db { pool: PgPoolOptions::new().max_connections(2).connect_lazy_with(options), url };
        is_refused(&pooled, "max_prepared_statements").await;
        pooled.pool.close().await;
    })
    .await;
}
