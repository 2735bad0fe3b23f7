//! The crash rig: producers, brokers and a database that die at the worst moments, and a ledger of what became of it.
//!
//! ```text
//! scripts/crash --seconds 300 --database pg --broker java
//! ```
//!
//! One program in three parts. The driver starts the others, kills and stops them, and compares business rows with
//! deliveries at the end. A producer process sends what its seed says, and kills itself at a point of the protocol. The
//! third part is the Rust broker. Proxies of the rig's own stand between the producers and their servers.
//!
//! All that is random comes from the seed. The processes' timing does not, so the same seed makes the same faults, but
//! not at the same moments of each message.

#[path = "../../examples/quickstart/broker_process.rs"]
mod broker_process;
mod chance;
mod database_proxy;
mod driver;
#[path = "../../examples/quickstart/embedded.rs"]
mod embedded;
mod faults;
mod fleet;
mod lifeline;
mod mortal;
mod notes;
mod options;
mod producer;
mod remoting;
mod report;
mod rocketmq_proxy;
mod servers;
mod sql_wire;
#[path = "../stories/mod.rs"]
mod stories;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod verdict;

use std::process::ExitCode;

use options::{Database, Options};
use sqlx::{MySql, Postgres, Sqlite};

fn main() -> ExitCode {
    match broker_process::serve_if_child() {
        Ok(false) => {}
        Ok(true) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("the broker process failed: {error}");
            return ExitCode::FAILURE;
        }
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let code = match &arguments[..] {
        [part, role] if part == producer::ARGUMENT => runtime.block_on(producer::serve(role)),
        arguments => match Options::parse(arguments) {
            Ok(options) => runtime.block_on(drive(options)),
            Err(words) => {
                eprintln!("{words}");
                ExitCode::from(2)
            }
        },
    };
    // A thread may wait for standard input, or for a server, still.
    runtime.shutdown_background();
    code
}

async fn drive(options: Options) -> ExitCode {
    match options.database {
        Database::Postgres => driver::run::<Postgres>(options).await,
        Database::MySql => driver::run::<MySql>(options).await,
        Database::Sqlite => driver::run::<Sqlite>(options).await,
    }
}
