//! The servers behind the producers, to be restarted and crashed.

use std::{
    path::Path,
    process::Command,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    broker_process::{BrokerProcess, this_program},
    embedded::Settings,
    options::{Cluster as Kind, Database, Options},
    stories::Cluster,
    support::env,
};

/// It asks about halves of 1 s, every second. Rounds are used up while nobody answers, too.
const RUST_BROKER: Settings =
    Settings { transaction_timeout: Duration::from_secs(1), check_interval: Duration::from_secs(1), check_max: 60 };
/// After so long a PREPARING row may be settled.
const SETTLE: Duration = Duration::from_secs(6);

#[derive(Clone)]
pub enum Server {
    /// One of `scripts/services`, by its name there.
    Service(&'static str),
    /// Name server and broker in a child process.
    RustBroker(Arc<Mutex<BrokerProcess>>),
}

impl Server {
    pub fn name(&self) -> &'static str {
        match self {
            Self::Service(name) => name,
            Self::RustBroker(_) => "rust broker",
        }
    }

    /// Orderly; returns when it is there again.
    pub async fn restart(&self) -> Result<(), String> {
        self.blocking(|server| match server {
            Self::Service(name) => services("restart", name),
            Self::RustBroker(process) => {
                let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
                process.stop().and_then(|()| process.restart()).map_err(|error| error.to_string())
            }
        })
        .await
    }

    /// With SIGKILL, or what is the same for PostgreSQL; returns when it is there again. The Rust broker keeps no promise
    /// about a crash of its own, and restarts orderly.
    pub async fn crash(&self) -> Result<(), String> {
        self.blocking(|server| match server {
            Self::Service(name) => services("kill", name).and_then(|()| services("start", name)),
            Self::RustBroker(_) => Err("the Rust broker is not crashed".into()),
        })
        .await
    }

    pub fn can_crash(&self) -> bool {
        matches!(self, Self::Service(_))
    }

    async fn blocking(&self, act: impl FnOnce(&Self) -> Result<(), String> + Send + 'static) -> Result<(), String> {
        let server = self.clone();
        tokio::task::spawn_blocking(move || act(&server)).await.map_err(|error| error.to_string())?
    }
}

/// `scripts/services`, for the servers of this run.
fn services(verb: &str, name: &str) -> Result<(), String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/services");
    let status = Command::new(script).args([verb, name]).status().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("scripts/services {verb} {name}: {status}")) }
}

/// Brokers of the kind that `options` names, and how to reach them. Those of `scripts/services` run already.
pub async fn brokers(options: &Options, dir: &Path) -> Result<(Vec<Server>, Cluster), String> {
    match options.cluster {
        Kind::Java => {
            let namesrv = env("ROCKETMQ_NAMESRV_ADDR");
            let one = std::env::var_os("ROCKETMQ_TX_ONE_BROKER").is_some();
            let names: &[&str] = if one { &["broker-a"] } else { &["broker-a", "broker-b"] };
            let cluster = Cluster { namesrv, namespace: None, settle: SETTLE, schedule: None };
            Ok((names.iter().copied().map(Server::Service).collect(), cluster))
        }
        Kind::Rust => {
            let dir = dir.to_owned();
            let spawn = move || BrokerProcess::spawn(this_program(&[]), &dir, RUST_BROKER);
            let process = tokio::task::spawn_blocking(spawn).await.map_err(|error| error.to_string())?;
            let process = process.map_err(|error| error.to_string())?;
            let cluster = Cluster {
                namesrv: process.namesrv_addr(),
                namespace: None,
                settle: SETTLE,
                schedule: Some((RUST_BROKER.transaction_timeout, RUST_BROKER.check_interval, RUST_BROKER.check_max)),
            };
            Ok((vec![Server::RustBroker(Arc::new(Mutex::new(process)))], cluster))
        }
    }
}

/// The database's server, where it has one.
pub fn database(options: &Options) -> Option<Server> {
    match options.database {
        Database::Postgres => Some(Server::Service("postgres")),
        Database::MySql => Some(Server::Service("mariadb")),
        Database::Sqlite => None,
    }
}
