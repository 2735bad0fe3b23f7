//! Whole processes against the Rust broker inside this process, on SQLite and PostgreSQL.

mod stories;
mod support;

#[path = "../examples/quickstart/embedded.rs"]
mod embedded;

use std::{future::Future, time::Duration};

use embedded::{EmbeddedRocketMq, Settings};
use sqlx::{Postgres, Sqlite};
use stories::{Cluster, crashes, messages};
use support::{Db, TestDatabase, database};

/// Not a test by itself: what the children of the others run.
#[test]
fn child() {
    stories::child::serve_if_child();
}

/// It asks about halves of 1 s, every second.
const SETTINGS: Settings =
    Settings { transaction_timeout: Duration::from_secs(1), check_interval: Duration::from_secs(1), check_max: 60 };

/// A story on a fresh database and a broker of its own.
async fn tell<DB: TestDatabase, F: Future<Output = ()>>(story: fn(Db<DB>, Cluster) -> F) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let rocketmq = tokio::task::spawn_blocking(move || EmbeddedRocketMq::start(&path, SETTINGS));
    let rocketmq = rocketmq.await.unwrap().unwrap();
    let cluster = Cluster {
        namesrv: rocketmq.namesrv_addr(),
        namespace: None,
        settle: Duration::from_secs(8),
        schedule: Some((SETTINGS.transaction_timeout, SETTINGS.check_interval, SETTINGS.check_max)),
    };
    database::with(8, |db| story(db, cluster)).await;
    rocketmq.shutdown().await;
}

macro_rules! on_sqlite_and_postgres {
    ($($test:ident: $story:path)*) => {
        on_sqlite_and_postgres!(@ sqlite Sqlite: $($test: $story)*);
        on_sqlite_and_postgres!(@ postgres Postgres: $($test: $story)*);
    };
    (@ $module:ident $database:ty: $($test:ident: $story:path)*) => {
        mod $module {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    tell::<$database, _>($story).await;
                }
            )*
        }
    };
}

on_sqlite_and_postgres! {
    commits_and_rolls_back: messages::commits_and_rolls_back
    the_same_id_twice: messages::the_same_id_twice
    an_end_is_lost: crashes::an_end_is_lost
    killed_at_every_point: crashes::killed_at_every_point
}
