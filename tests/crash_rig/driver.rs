//! The driver: it starts everything, has it struck for a time, heals it, and tells the verdict.

use std::{
    panic::AssertUnwindSafe,
    path::Path,
    process::ExitCode,
    sync::{Arc, atomic::AtomicI64},
};

use futures_util::{FutureExt, future::join_all};

use super::{
    chance::Chance,
    database_proxy::DatabaseProxy,
    faults::Faults,
    fleet::{Fleet, Yard},
    notes::{Notes, in_words},
    options::{Database, Options},
    producer::Role,
    rocketmq_proxy::RocketMqProxy,
    servers,
    stories::{Cluster, Scene, scene::Part},
    storm::Storm,
    support::{Db, TestDatabase, database},
    verdict::Verdict,
};

const PROCESSES: usize = 4;
const SENDERS: u32 = 6;
/// Slow local transactions, and those on a database that has one writer at a time.
const SLOW_ONE_IN: u64 = 25;
const SLOW_ONE_IN_OF_ONE_WRITER: u64 = 400;

/// What the parts of the rig draw from the seed.
mod part {
    pub const DATABASE_PROXY: u64 = 1;
    pub const ROCKETMQ_PROXY: u64 = 2;
    pub const BLOWS: u64 = 3;
    pub const OUTAGES: u64 = 4;
    pub const PRODUCERS: u64 = 5;
}

pub async fn run<DB: TestDatabase>(options: Options) -> ExitCode {
    println!("seed {}", options.seed);
    let dir = tempfile::Builder::new().prefix("crash-rig-").tempdir().expect("a directory");
    let mut holds = false;
    let (told, path) = (&mut holds, dir.path());
    let story = database::with(8, |db: Db<DB>| async move { *told = tell(options, db, path).await });
    let panicked = AssertUnwindSafe(story).catch_unwind().await.is_err();
    if holds && !panicked {
        return ExitCode::SUCCESS;
    }
    eprintln!("the processes' logs are in {}", dir.keep().display());
    ExitCode::FAILURE
}

/// Whether nothing went wrong.
async fn tell<DB: TestDatabase>(options: Options, db: Db<DB>, dir: &Path) -> bool {
    if options.database == Database::Sqlite {
        // As services with several processes on one file have it.
        db.run("PRAGMA journal_mode = WAL").await;
    }
    let (brokers, cluster) = servers::brokers(&options, dir).await.expect("the brokers start");
    let scene = Scene::open(db, cluster).await;
    let reader = scene.reader().await;
    let seed = options.seed;
    let faults = |part| Faults::new(Chance::of(seed, part));
    let rocketmq = RocketMqProxy::before(&scene.part.cluster.namesrv, faults(part::ROCKETMQ_PROXY));
    let database = servers::database(&options);
    let sql = match &database {
        Some(_) => Some(DatabaseProxy::before(&scene.part.url, faults(part::DATABASE_PROXY)).await),
        None => None,
    };
    let behind_proxies = Part {
        url: sql.as_ref().map_or(&scene.part.url, |sql| &sql.url).clone(),
        cluster: Cluster { namesrv: rocketmq.address.clone(), ..scene.part.cluster.clone() },
        ..scene.part.clone()
    };
    let notes = Arc::<Notes>::default();
    let role = Role {
        part: behind_proxies,
        seed: Chance::of(seed, part::PRODUCERS).next(),
        number: 0,
        senders: SENDERS,
        slow_one_in: if database.is_some() { SLOW_ONE_IN } else { SLOW_ONE_IN_OF_ONE_WRITER },
    };
    let yard = Yard { role, notes: notes.clone(), numbers: AtomicI64::new(1), logs: dir.to_owned() };
    let fleet = Fleet::start(PROCESSES, yard);
    let proxies: Vec<Arc<Faults>> = sql.iter().map(|sql| sql.faults.clone()).chain([rocketmq.faults.clone()]).collect();
    let storm = Storm {
        time: options.time,
        settle: scene.part.cluster.settle,
        brokers: &brokers,
        database: database.as_ref(),
        proxies: &proxies,
        fleet: &fleet,
        notes: &notes,
    };
    storm.rage(Chance::of(seed, part::BLOWS), Chance::of(seed, part::OUTAGES)).await;

    eprintln!("the faults are over; the processes finish, all servers restart, and what is left settles");
    fleet.finish().await;
    let restarts = brokers.iter().chain(&database).map(|server| async move {
        server.restart().await.unwrap_or_else(|error| panic!("{}: {error}", server.name()));
    });
    join_all(restarts).await;
    let noted = notes.all();
    let verdict = Verdict::reach(&scene, reader, &noted).await;

    println!("kills {}: {}", noted.kills.values().sum::<u64>(), in_words(noted.kills.clone()));
    println!("{}", in_words(noted.others.clone()));
    println!("sends: {}", in_words(noted.outcomes.iter().map(|(outcome, count)| (format!("{outcome:?}"), *count))));
    for proxy in &proxies {
        println!("proxy: {}", in_words(proxy.counts()));
    }
    if !verdict.holds() {
        println!("{}", verdict.details());
        println!("defects: {:#?}", noted.defects);
    }
    println!("{}", verdict.line());
    verdict.holds()
}
