//! Five ways in which a message can end, on a real broker:
//!
//! ```text
//! cargo run --example quickstart --features sqlite
//! ```
//!
//! Nothing has to be installed. A RocketMQ name server and broker run in a child process, the database is a SQLite file
//! in a temporary directory, and a consumer reads the topic. Each ending is looked at from both sides, the database's and
//! the consumer's; the program fails when one is not as told. `RUST_LOG=debug` shows what the SDK does meanwhile.
//!
//! Start with [`order`], which is what a user of the crate writes, then read [`endings`].

mod broker_process;
mod consumer;
mod doomed;
mod embedded;
mod endings;
mod order;
mod shop;
mod wire;

use std::{
    env, io,
    process::ExitCode,
    time::{Duration, Instant},
};

use tracing_subscriber::EnvFilter;

use broker_process::{BrokerProcess, serve_if_child, this_program};
use embedded::{Error, Settings};
use shop::Shop;

/// A broker that asks about open halves after one second, and then every second. A real one waits 6 s and 30 s.
pub const BROKER: Settings =
    Settings { transaction_timeout: Duration::from_secs(1), check_interval: Duration::from_secs(1), check_max: 30 };

fn main() -> ExitCode {
    if env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env()).with_writer(io::stderr).init();
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nNot as told: {}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

/// This program in one of its three parts: the broker, the process that is killed, or the story.
fn run() -> Result<(), Error> {
    if serve_if_child()? {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => runtime.block_on(tell()),
        [doomed::ARGUMENT, database, name_server] => runtime.block_on(doomed::hang_in_execute(database, name_server)),
        _ => Err("quickstart takes no arguments".into()),
    }
}

async fn tell() -> Result<(), Error> {
    let begun = Instant::now();
    let dir = tempfile::tempdir()?;
    println!("Starting a RocketMQ name server and broker, a SQLite database and a consumer ...");
    let dir_of_broker = dir.path().to_owned();
    let broker =
        tokio::task::spawn_blocking(move || BrokerProcess::spawn(this_program(&[]), &dir_of_broker, BROKER)).await??;
    let mut shop = Shop::open(&dir.path().join("shop.db"), &broker.namesrv_addr()).await?;
    println!("... ready after {}. Times are shorter here than in a real service.", seconds(begun.elapsed()));

    endings::committed_and_delivered(&mut shop).await?;
    endings::rolled_back_and_never_seen(&mut shop).await?;
    endings::lost_end_committed_by_check_back(&mut shop).await?;
    endings::killed_in_execute_and_rolled_back(&mut shop).await?;
    endings::sent_twice_delivered_once(&mut shop).await?;

    shop.close().await?;
    println!("\nAll five endings are as told, after {}.", seconds(begun.elapsed()));
    Ok(())
}

/// For people: `0.013 s`.
pub fn seconds(duration: Duration) -> String {
    format!("{:.3} s", duration.as_secs_f64())
}

fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
