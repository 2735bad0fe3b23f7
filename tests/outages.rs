//! Brokers, name servers and databases that come late, go away and come back.
//!
//! A program of its own: while it stops servers, no other test may need them.

mod stories;
mod support;

#[path = "../examples/quickstart/embedded.rs"]
mod embedded;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use embedded::{EmbeddedRocketMq, Ports, Settings};
use rocketmq_tx::{Confirmation, StartError};
use sqlx::{MySql, Postgres, Sqlite};
use stories::{By, Cluster, Point, Scene, database_crash, scene};
use support::{Db, Order, database, env};

/// Rounds of checks are used up while no producer is known, too.
const SETTINGS: Settings =
    Settings { transaction_timeout: Duration::from_secs(1), check_interval: Duration::from_secs(1), check_max: 60 };

async fn start(dir: &Path, ports: Ports) -> EmbeddedRocketMq {
    let dir: PathBuf = dir.to_owned();
    let started = tokio::task::spawn_blocking(move || EmbeddedRocketMq::start_on(&dir, SETTINGS, ports));
    started.await.unwrap().unwrap()
}

fn cluster(ports: Ports) -> Cluster {
    Cluster {
        namesrv: format!("127.0.0.1:{}", ports.namesrv),
        namespace: None,
        settle: Duration::from_secs(8),
        schedule: Some((SETTINGS.transaction_timeout, SETTINGS.check_interval, SETTINGS.check_max)),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn case_53_a_name_server_that_comes_late() {
    let dir = tempfile::tempdir().unwrap();
    let ports = Ports::free().unwrap();
    database::with(4, async |db: Db<Sqlite>| {
        let scene = Scene::before_the_topic(db, cluster(ports));
        // The first try is seen here, and hung up on.
        let port = tokio::net::TcpListener::bind(("127.0.0.1", ports.namesrv)).await.unwrap();
        let late = async {
            drop(port.accept().await.unwrap());
            drop(port);
            start(dir.path(), ports).await
        };
        let (rocketmq, actors) = tokio::join!(late, scene.producer());
        let mut reader = scene.reader().await;
        actors.producer.send(Order::new(1)).await.expect("sent");
        reader.until(1).await;
        reader.assert_exactly(["order-1"]);
        actors.producer.shutdown(Duration::from_secs(5)).await;
        rocketmq.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn case_53_a_name_server_that_never_comes() {
    let ports = Ports::free().unwrap();
    database::with(4, async |db: Db<Sqlite>| {
        let scene = Scene::before_the_topic(db, cluster(ports));
        let limit = Duration::from_secs(2);
        let begun = Instant::now();
        let cluster = scene.part.cluster.rocketmq(&scene.part.group).start_timeout(limit);
        let builder = scene.part.bare(scene.db.pool.clone(), &<_>::default());
        let error = builder.message::<Order>().rocketmq(cluster).start().await.expect_err("nobody is there");
        assert!(begun.elapsed() < limit + Duration::from_secs(4), "{:?}", begun.elapsed());
        assert!(matches!(error, StartError::Broker(_)), "{error:?}");
        let text = scene::chain(&error);
        assert!(text.contains(&scene.part.cluster.namesrv) && text.contains(&scene.part.group), "{text}");
        assert!(text.contains("check that address"), "{text}");
    })
    .await;
}

/// Case 53: the half message is where the broker was, and is ended where it is now.
#[tokio::test(flavor = "multi_thread")]
async fn case_53_the_address_changes_between_half_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let before = Ports::free().unwrap();
    let rocketmq = start(dir.path(), before).await;
    database::with(4, async |db: Db<Sqlite>| {
        let scene = Scene::open(db, cluster(before)).await;
        let mut reader = scene.reader().await;
        let actors = scene.producer().await;
        for id in ["order-1", "order-2"] {
            actors.stage.stop(id, Point::Decided);
        }
        let mut receipt = actors.producer.send(Order::new(1)).await.unwrap();
        actors.producer.send(Order::failing(2)).await.unwrap_err();
        rocketmq.shutdown().await;
        let elsewhere = Ports { namesrv: before.namesrv, ..Ports::free().unwrap() };
        assert_ne!(before.broker, elsewhere.broker);
        let rocketmq = start(dir.path(), elsewhere).await;
        for id in ["order-1", "order-2"] {
            actors.stage.release(id);
        }
        let confirmation = receipt.confirmation().await;
        println!("the sender's end at the new address: {confirmation:?}");
        // The end itself finds the new address, and does not wait to be asked.
        assert_eq!(confirmation, Confirmation::Confirmed);
        reader.until(1).await;
        actors.stage.log.until("rolled back there, too", 1, |event| event.ends("order-2", false, By::Sender)).await;
        actors.stage.a_round_passes(&scene.part.topic).await;
        reader.until_quiet().await;
        reader.assert_all(["order-1"]);
        assert_eq!(scene.db.orders().await, [1]);
        actors.producer.shutdown(Duration::from_secs(5)).await;
        rocketmq.shutdown().await;
    })
    .await;
}

/// `scripts/services`, for the servers of this run.
fn services(arguments: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services");
    let status = Command::new(script).args(arguments).status().expect("the script runs");
    assert!(status.success(), "{arguments:?}: {status}");
}

/// Starts a broker again in any case, so that later tests have it.
struct Stopped(&'static str);

impl Stopped {
    fn by_sigkill(broker: &'static str) -> Self {
        services(&["kill", broker]);
        Self(broker)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        services(&["start", self.0]);
    }
}

fn java_cluster() -> Cluster {
    Cluster { namesrv: env("ROCKETMQ_NAMESRV_ADDR"), namespace: None, settle: Duration::from_secs(15), schedule: None }
}

/// Kills the server of a database, and returns when it runs again.
async fn crash_and_restart(server: &'static str) {
    let crash = move || {
        services(&["kill", server]);
        services(&["start", server]);
    };
    tokio::task::spawn_blocking(crash).await.unwrap();
}

/// Tests that stop a server take turns: each needs the others' servers.
static SERVERS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test(flavor = "multi_thread")]
async fn postgres_crashes_at_every_point() {
    let _turn = SERVERS.lock().await;
    database::with(8, |db: Db<Postgres>| {
        database_crash::crashes_at_every_point(db, java_cluster(), async || crash_and_restart("postgres").await)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_crashes_at_every_point() {
    let _turn = SERVERS.lock().await;
    database::with(8, |db: Db<MySql>| {
        database_crash::crashes_at_every_point(db, java_cluster(), async || crash_and_restart("mariadb").await)
    })
    .await;
}

/// One of two Java brokers is away when its half messages are to be ended.
#[tokio::test(flavor = "multi_thread")]
async fn cases_5_and_54_one_of_two_java_brokers_dies_between_half_and_end() {
    let _turn = SERVERS.lock().await;
    let cluster = java_cluster();
    database::with(16, async |db: Db<Postgres>| {
        let scene = Scene::open(db, cluster).await;
        let mut reader = scene.reader().await;
        let actors = scene.producer().await;
        let mut receipts = Vec::new();
        for number in 0..16 {
            actors.stage.stop(&format!("order-{number}"), Point::Decided);
            receipts.push(actors.producer.send(Order::new(number)).await.unwrap());
        }
        let held = actors.stage.held_by("broker-a");
        assert!(!held.is_empty() && held.len() < 16, "both brokers hold some: {held:?}");
        let stopped = tokio::task::spawn_blocking(|| Stopped::by_sigkill("broker-a")).await.unwrap();
        for number in 0..16 {
            actors.stage.release(&format!("order-{number}"));
        }
        for receipt in &mut receipts {
            let expected =
                if held.contains(receipt.msg_id()) { Confirmation::Pending } else { Confirmation::Confirmed };
            assert_eq!(receipt.confirmation().await, expected, "{}", receipt.msg_id());
        }
        assert_eq!(actors.producer.counters().unconfirmed, held.len() as u64);
        let begun = Instant::now();
        tokio::task::spawn_blocking(|| drop(stopped)).await.unwrap();
        println!("broker-a is back after {:?}", begun.elapsed());
        let begun = Instant::now();
        for id in &held {
            actors.stage.log.until(&format!("{id} is ended"), 1, |event| event.ends(id, true, By::CheckBack)).await;
        }
        println!("all ended {:?} later", begun.elapsed());
        reader.until(16).await;
        actors.stage.a_round_passes(&scene.part.topic).await;
        reader.until_quiet().await;
        let ids: Vec<String> = (0..16).map(|number| format!("order-{number}")).collect();
        reader.assert_all(ids.iter().map(String::as_str));
        assert_eq!(scene.db.orders().await, (0..16).collect::<Vec<_>>());
        actors.producer.shutdown(Duration::from_secs(5)).await;
    })
    .await;
}
