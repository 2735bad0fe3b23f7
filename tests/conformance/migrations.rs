//! The SDK's tables: made by many at once, by hand, or twice, and a user's own migrations left alone.

use crate::support::{Db, Order, TestDatabase, database, order::producer};
use futures_util::future::join_all;
use rocketmq_tx::{broker::memory::MemoryBroker, ddl, migrate};

/// Runs each on an empty database of each kind.
macro_rules! on_empty {
    ($($test:ident)*) => {
        on_empty!(@ postgres sqlx::Postgres: $($test)*);
        on_empty!(@ mysql sqlx::MySql: $($test)*);
        on_empty!(@ sqlite sqlx::Sqlite: $($test)*);
    };
    (@ $module:ident $database:ty: $($test:ident)*) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $test() {
                    super::database::with_empty::<$database, _>(2, super::$test).await;
                }
            )*
        }
    };
}

on_empty!(twenty_instances_at_once twice_in_a_row by_hand beside_the_users_own);

async fn applied<DB: TestDatabase>(db: &Db<DB>) -> Vec<i64> {
    DB::numbers(&db.pool, "SELECT version FROM rocketmq_tx_migrations ORDER BY version").await
}

async fn scopes<DB: TestDatabase>(db: &Db<DB>) -> Vec<String> {
    DB::texts(&db.pool, "SELECT scope FROM tx_scope").await
}

async fn a_message_goes_through<DB: TestDatabase>(db: &Db<DB>) {
    let broker = MemoryBroker::new();
    db.run("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
    let producer = producer(db, &broker).await;
    producer.send(Order::new(1)).await.unwrap().confirmation().await;
    assert_eq!((db.orders().await, broker.delivered_ids()), (vec![1], vec!["order-1".to_owned()]));
    producer.shutdown(std::time::Duration::from_secs(30)).await;
}

async fn twenty_instances_at_once<DB: TestDatabase>(db: Db<DB>) {
    let instances = join_all((0..20).map(|_| db.again(1))).await;
    for migrated in join_all(instances.iter().map(|instance| migrate(&instance.pool))).await {
        migrated.unwrap();
    }
    assert_eq!(applied(&db).await, (1..=ddl::<DB>().len() as i64).collect::<Vec<_>>());
    for instance in &instances {
        assert_eq!(scopes(instance).await, scopes(&db).await);
        instance.pool.close().await;
    }
    assert_eq!(scopes(&db).await.len(), 1);
    a_message_goes_through(&db).await;
}

async fn twice_in_a_row<DB: TestDatabase>(db: Db<DB>) {
    migrate(&db.pool).await.unwrap();
    a_message_goes_through(&db).await;
    let before = (applied(&db).await, scopes(&db).await);
    migrate(&db.pool).await.unwrap();
    assert_eq!((applied(&db).await, scopes(&db).await), before, "the scope is that of the database for ever");
    assert_eq!(db.in_state("COMMITTED").await, 1);
}

/// For those who run their own migrations; a later `migrate` takes over.
async fn by_hand<DB: TestDatabase>(db: Db<DB>) {
    for script in ddl::<DB>() {
        db.run(script).await;
    }
    a_message_goes_through(&db).await;
    let before = scopes(&db).await;
    migrate(&db.pool).await.unwrap();
    assert_eq!(scopes(&db).await, before);
    assert_eq!(applied(&db).await.len(), ddl::<DB>().len());
    assert_eq!(db.in_state("COMMITTED").await, 1);
}

/// The versions of both are the same numbers.
async fn beside_the_users_own<DB: TestDatabase>(db: Db<DB>) {
    db.run("CREATE TABLE _sqlx_migrations (version BIGINT PRIMARY KEY, description TEXT)").await;
    db.run("INSERT INTO _sqlx_migrations VALUES (1, 'the user''s own')").await;
    migrate(&db.pool).await.unwrap();
    assert_eq!(DB::texts(&db.pool, "SELECT description FROM _sqlx_migrations").await, ["the user's own"]);
    assert_eq!(applied(&db).await.len(), ddl::<DB>().len());
    a_message_goes_through(&db).await;
}
