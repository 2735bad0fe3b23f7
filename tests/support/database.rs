//! A fresh database per test, on each of the three.

use std::{future::Future, panic::AssertUnwindSafe};

use futures_util::{FutureExt, future::BoxFuture};
use rocketmq_tx::{SupportedDatabase, Tx};
use sqlx::{Connection, MySql, Pool, Postgres, Row, Sqlite};

use super::env;

/// What a test does with a database, in words that are the same for all.
pub trait TestDatabase: SupportedDatabase {
    /// Creates an empty database and returns its URL.
    fn create(name: String) -> BoxFuture<'static, String>;
    /// Removes it.
    fn remove(name: String) -> BoxFuture<'static, ()>;
    /// Opens a pool of `size` on `url`.
    fn pool(url: &str, size: u32) -> BoxFuture<'_, Pool<Self>>;
    /// Runs text without arguments in the local transaction.
    fn sql<'a>(tx: &'a mut Tx<'_, Self>, sql: &'static str) -> BoxFuture<'a, sqlx::Result<u64>>;
    /// Runs an INSERT with a bound argument in the local transaction.
    fn insert<'a>(tx: &'a mut Tx<'_, Self>, order: i64) -> BoxFuture<'a, sqlx::Result<u64>>;
    /// Runs text on a connection of the pool.
    fn exec(pool: &Pool<Self>, sql: String) -> BoxFuture<'_, sqlx::Result<u64>>;
    /// The first column of every row, as numbers.
    fn numbers<'p>(pool: &'p Pool<Self>, sql: &'p str) -> BoxFuture<'p, Vec<i64>>;
    /// The first column of every row, as text.
    fn texts<'p>(pool: &'p Pool<Self>, sql: &'static str) -> BoxFuture<'p, Vec<String>>;
    /// `PostgreSQL`, `MySQL` or `SQLite`.
    fn name() -> &'static str;
}

/// One test's database.
pub struct Db<DB: TestDatabase> {
    pub url: String,
    pub pool: Pool<DB>,
}

impl<DB: TestDatabase> Db<DB> {
    /// The ids in the business table, in order.
    pub async fn orders(&self) -> Vec<i64> {
        DB::numbers(&self.pool, "SELECT id FROM orders ORDER BY id").await
    }

    /// How many rows of `tx_log` are in `state`.
    pub async fn in_state(&self, state: &str) -> i64 {
        let sql = match state {
            "PREPARING" => "SELECT count(*) FROM tx_log WHERE state = 'PREPARING'",
            "COMMITTED" => "SELECT count(*) FROM tx_log WHERE state = 'COMMITTED'",
            "ROLLED_BACK" => "SELECT count(*) FROM tx_log WHERE state = 'ROLLED_BACK'",
            other => panic!("no such state: {other}"),
        };
        DB::numbers(&self.pool, sql).await[0]
    }

    /// The same database through a pool of its own: what others see of it.
    pub async fn again(&self, size: u32) -> Self {
        Self { url: self.url.clone(), pool: DB::pool(&self.url, size).await }
    }

    /// The URL of this database at another address of its server, or on a copy of that.
    pub fn on_server(&self, url: &str) -> String {
        database_url(url, self.url.rsplit_once('/').expect("a database URL ends with a database").1)
    }

    pub async fn run(&self, sql: impl Into<String>) -> u64 {
        let sql = sql.into();
        DB::exec(&self.pool, sql.clone()).await.unwrap_or_else(|error| panic!("{sql}: {error}"))
    }
}

/// Runs `test` on a database of its own with the SDK's tables and a business table, and removes it in any case.
pub async fn with<DB: TestDatabase, F: Future<Output = ()>>(size: u32, test: impl FnOnce(Db<DB>) -> F) {
    with_empty(size, |db: Db<DB>| async move {
        rocketmq_tx::migrate(&db.pool).await.expect("migrations run");
        db.run("CREATE TABLE orders (id BIGINT PRIMARY KEY)").await;
        test(db).await;
    })
    .await;
}

/// As [`with`], without any table.
pub async fn with_empty<DB: TestDatabase, F: Future<Output = ()>>(size: u32, test: impl FnOnce(Db<DB>) -> F) {
    let name = format!("tx_{}", uuid::Uuid::new_v4().simple());
    let url = DB::create(name.clone()).await;
    let pool = DB::pool(&url, size).await;
    let result = AssertUnwindSafe(test(Db { url, pool: pool.clone() })).catch_unwind().await;
    pool.close().await;
    DB::remove(name).await;
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

macro_rules! statements {
    ($database:ty, $pool_options:ty, $insert:literal) => {
        fn pool(url: &str, size: u32) -> BoxFuture<'_, Pool<Self>> {
            let options = <$pool_options>::new().max_connections(size).test_before_acquire(false);
            Box::pin(async move { options.connect(url).await.expect("the test database is up") })
        }

        fn sql<'a>(tx: &'a mut Tx<'_, Self>, sql: &'static str) -> BoxFuture<'a, sqlx::Result<u64>> {
            Box::pin(async move { Ok(sqlx::raw_sql(sql).execute(&mut *tx).await?.rows_affected()) })
        }

        fn insert<'a>(tx: &'a mut Tx<'_, Self>, order: i64) -> BoxFuture<'a, sqlx::Result<u64>> {
            Box::pin(async move { Ok(sqlx::query($insert).bind(order).execute(&mut *tx).await?.rows_affected()) })
        }

        fn exec(pool: &Pool<Self>, sql: String) -> BoxFuture<'_, sqlx::Result<u64>> {
            Box::pin(async move { Ok(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(pool).await?.rows_affected()) })
        }

        fn numbers<'p>(pool: &'p Pool<Self>, sql: &'p str) -> BoxFuture<'p, Vec<i64>> {
            Box::pin(async move {
                let rows = sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(pool).await;
                let rows = rows.unwrap_or_else(|error| panic!("{sql}: {error}"));
                rows.iter().map(|row| row.get_unchecked(0)).collect()
            })
        }

        fn texts<'p>(pool: &'p Pool<Self>, sql: &'static str) -> BoxFuture<'p, Vec<String>> {
            Box::pin(async move {
                let rows = sqlx::query(sql).fetch_all(pool).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
                let text = |bytes| String::from_utf8(bytes).expect("the column holds text");
                rows.iter().map(|row| text(row.get_unchecked(0))).collect()
            })
        }

        fn name() -> &'static str {
            <$database as sqlx::Database>::NAME
        }
    };
}

fn database_url(server: &str, name: &str) -> String {
    let (server, _) = server.rsplit_once('/').expect("a database URL ends with a database");
    format!("{server}/{name}")
}

impl TestDatabase for Postgres {
    fn create(name: String) -> BoxFuture<'static, String> {
        Box::pin(async move {
            let server = env("POSTGRES_DATABASE_URL");
            let mut conn = sqlx::PgConnection::connect(&server).await.expect("PostgreSQL is up");
            let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
            sqlx::raw_sql(sql).execute(&mut conn).await.expect("may create databases");
            database_url(&server, &name)
        })
    }

    fn remove(name: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut conn = sqlx::PgConnection::connect(&env("POSTGRES_DATABASE_URL")).await.expect("PostgreSQL is up");
            let sql = sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"));
            sqlx::raw_sql(sql).execute(&mut conn).await.expect("may drop its databases");
        })
    }

    statements!(Postgres, sqlx::postgres::PgPoolOptions, "INSERT INTO orders (id) VALUES ($1)");
}

impl TestDatabase for MySql {
    fn create(name: String) -> BoxFuture<'static, String> {
        Box::pin(async move {
            let server = env("MYSQL_DATABASE_URL");
            let mut conn = sqlx::MySqlConnection::connect(&server).await.expect("MariaDB is up");
            let sql = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
            sqlx::raw_sql(sql).execute(&mut conn).await.expect("may create databases");
            database_url(&server, &name)
        })
    }

    fn remove(name: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut conn = sqlx::MySqlConnection::connect(&env("MYSQL_DATABASE_URL")).await.expect("MariaDB is up");
            let sql = sqlx::AssertSqlSafe(format!("DROP DATABASE {name}"));
            sqlx::raw_sql(sql).execute(&mut conn).await.expect("may drop its databases");
        })
    }

    statements!(MySql, sqlx::mysql::MySqlPoolOptions, "INSERT INTO orders (id) VALUES (?)");
}

impl TestDatabase for Sqlite {
    fn create(name: String) -> BoxFuture<'static, String> {
        let file = std::env::temp_dir().join(name).with_extension("sqlite");
        Box::pin(async move { format!("sqlite://{}?mode=rwc", file.display()) })
    }

    fn remove(name: String) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for extension in ["sqlite", "sqlite-wal", "sqlite-shm", "sqlite-journal"] {
                // Which of them exist depends on the journal mode.
                let _ = std::fs::remove_file(std::env::temp_dir().join(&name).with_extension(extension));
            }
        })
    }

    statements!(Sqlite, sqlx::sqlite::SqlitePoolOptions, "INSERT INTO orders (id) VALUES (?)");
}

/// Makes each of these generic tests a test on each of the three databases, with pools of the sizes before the colons.
#[macro_export]
macro_rules! on_every_database {
    ($($tests:tt)*) => {
        $crate::on_one_database!(postgres sqlx::Postgres; $($tests)*);
        $crate::on_one_database!(mysql sqlx::MySql; $($tests)*);
        $crate::on_one_database!(sqlite sqlx::Sqlite; $($tests)*);
    };
}

/// As [`on_every_database`], for tests that need two processes, or locks on rows.
#[macro_export]
macro_rules! on_every_server {
    ($($tests:tt)*) => {
        $crate::on_one_database!(postgres_server sqlx::Postgres; $($tests)*);
        $crate::on_one_database!(mysql_server sqlx::MySql; $($tests)*);
    };
}

#[macro_export]
macro_rules! on_one_database {
    ($module:ident $database:ty; $($pool:literal: $($test:ident)*);+) => {
        mod $module {
            $($(
                #[tokio::test]
                async fn $test() {
                    $crate::support::database::with::<$database, _>($pool, super::$test).await;
                }
            )*)+
        }
    };
}
