//! One measurement in one process: `rocketmq-tx-bench SUBJECT --db pg|mysql --topic T --conc C --seconds S [--warmup W]` prints one
//! JSON line. `rocketmq-tx-bench table` turns many such lines on its standard input into tables. `scripts/bench` runs both.

mod bare;
mod broker;
mod database;
mod delivered;
mod measure;
mod options;
mod sdk;
mod stock;
mod table;

use options::{Options, Subject};
use sqlx::{MySql, Postgres};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), AnyError> {
    // What goes wrong is told; nothing else is, as in a service that logs from level warn.
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();

    if std::env::args().nth(1).as_deref() == Some("table") {
        return table::print(&std::io::read_to_string(std::io::stdin())?);
    }
    let options = options::parse(std::env::args().skip(1)).inspect_err(|error| eprintln!("{error}"))?;
    match options.db.as_str() {
        "pg" => run::<Postgres>(&options).await,
        _ => run::<MySql>(&options).await,
    }
}

async fn run<DB: sdk::Listened>(options: &Options) -> Result<(), AnyError> {
    let report = match options.subject {
        Subject::Sdk => sdk::run::<DB>(options).await?,
        Subject::Bare => bare::run::<DB>(options).await?,
        Subject::Broker => broker::run(options).await?,
        Subject::Stock => stock::run::<DB>(options).await?,
    };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}
