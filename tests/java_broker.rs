//! Whole processes against the Java broker, on PostgreSQL and MariaDB.

mod stories;
mod support;

use std::{future::Future, panic::AssertUnwindSafe, time::Duration};

use futures_util::{
    FutureExt,
    future::{LocalBoxFuture, join_all},
};
use stories::{Cluster, clock, crashes, load, messages, slow, stopped, termination};
use support::{Db, TestDatabase, database, env};

/// Not a test by itself: what the children of the others run.
#[test]
fn child() {
    stories::child::serve_if_child();
}

/// It asks about halves of 3 s, every 3 s, up to 15 times.
fn cluster() -> Cluster {
    Cluster { namesrv: env("ROCKETMQ_NAMESRV_ADDR"), namespace: None, settle: Duration::from_secs(15), schedule: None }
}

/// For stories with many transactions at once, which on a busy machine take their time.
fn patient() -> Cluster {
    Cluster { settle: Duration::from_secs(20), ..cluster() }
}

fn with_namespace() -> Cluster {
    Cluster { namespace: Some("shop".into()), ..cluster() }
}

/// Tells all of them at once, each to its end.
async fn together(stories: Vec<(&str, LocalBoxFuture<'_, ()>)>) {
    let told = stories.into_iter().map(|(name, story)| async move {
        let panicked = AssertUnwindSafe(story).catch_unwind().await.is_err();
        panicked.then_some(name)
    });
    let failed: Vec<&str> = join_all(told).await.into_iter().flatten().collect();
    assert!(failed.is_empty(), "these failed, for the reasons above: {failed:?}");
}

/// A story on a fresh database.
async fn tell<DB: TestDatabase, F: Future<Output = ()>>(story: fn(Db<DB>, Cluster) -> F, cluster: Cluster) {
    database::with(32, |db| story(db, cluster)).await;
}

macro_rules! on_postgres_and_mariadb {
    ($($test:ident: $($story:path, $cluster:expr);+)*) => {
        on_postgres_and_mariadb!(@ postgres sqlx::Postgres: $($test: $($story, $cluster);+)*);
        on_postgres_and_mariadb!(@ mariadb sqlx::MySql: $($test: $($story, $cluster);+)*);
    };
    (@ $module:ident $database:ty: $($test:ident: $($story:path, $cluster:expr);+)*) => {
        mod $module {
            use super::*;

            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    together(vec![$((stringify!($story), tell::<$database, _>($story, $cluster).boxed_local())),+]).await;
                }
            )*
        }
    };
}

// Stories that share a test mostly wait for the broker's next question.
on_postgres_and_mariadb! {
    cases_3_9_47_and_61_processes_that_die_or_take_long:
        crashes::killed_at_every_point, cluster();
        termination::terminated_with_closures_in_flight, patient();
        slow::asked_while_it_runs, cluster();
        stopped::stopped_past_its_deadline, cluster();
        clock::ten_minutes_off, patient()
    cases_21_41_and_45_messages:
        crashes::an_end_is_lost, cluster();
        messages::commits_and_rolls_back, with_namespace();
        messages::sizes_at_their_limits, cluster();
        messages::the_same_id_twice, cluster();
        messages::the_same_group_twice_in_a_process, cluster()
    a_thousand_sends: load::a_thousand_sends, patient()
    more_callers_than_connections: load::more_callers_than_connections, patient()
}
