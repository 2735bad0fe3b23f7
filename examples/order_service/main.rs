//! An HTTP service that takes orders and tells other services of them, as one would run it in production:
//!
//! ```text
//! DATABASE_URL=postgres://shop:secret@localhost/shop \
//! ROCKETMQ_NAMESRV_ADDR=localhost:9876 \
//! cargo run --example order_service --features postgres,mysql
//!
//! curl -i localhost:8080/orders --json '{"id": "order-1", "cents": 100}'
//! curl -i localhost:8080/orders/order-1
//! ```
//!
//! `DATABASE_URL` begins with `postgres:` or `mysql:` (MariaDB too). `LISTEN`, `ORDERS_TOPIC` and `ORDERS_GROUP` have
//! defaults. [`orders`] is the business, [`http`] is what callers see, [`printer`] is some other service that consumes
//! the messages, run in this process to be seen at once.

mod http;
mod orders;
mod printer;

use std::{env, error::Error as StdError, io, process::ExitCode, time::Duration};

use rocketmq_tx::{RocketMq, TransactionProducer};
use sqlx::{MySql, Postgres};
use tokio::{net::TcpListener, signal::unix};
use tracing_subscriber::EnvFilter;

use orders::{OrdersDatabase, PlaceOrder};
use printer::Printer;

type Error = Box<dyn StdError + Send + Sync>;

/// Unless `RUST_LOG` says otherwise. The stock consumer warns of every topic that does not exist yet.
const LOGS: &str = "warn,rocketmq_tx=info,rocketmq_client_rust=error";
/// For the sends that are under way at the end.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

struct Settings {
    database_url: String,
    name_server: String,
    listen: String,
    topic: String,
    group: String,
}

impl Settings {
    fn from_env() -> Result<Self, Error> {
        let [database_url, name_server] = ["DATABASE_URL", "ROCKETMQ_NAMESRV_ADDR"].map(|name| env::var(name).ok());
        let (Some(database_url), Some(name_server)) = (database_url, name_server) else {
            return Err("set DATABASE_URL and ROCKETMQ_NAMESRV_ADDR; examples/order_service/main.rs says how".into());
        };
        let optional = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
        Ok(Self {
            database_url,
            name_server,
            listen: optional("LISTEN", "127.0.0.1:8080"),
            topic: optional("ORDERS_TOPIC", "orders"),
            group: optional("ORDERS_GROUP", "order-service"),
        })
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run().await else { return ExitCode::SUCCESS };
    // The causes say what to do about it.
    let causes = std::iter::successors(Some(&*error as &dyn StdError), |&error| error.source());
    eprintln!("{}", causes.map(ToString::to_string).collect::<Vec<_>>().join(": "));
    ExitCode::FAILURE
}

async fn run() -> Result<(), Error> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGS));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
    let settings = Settings::from_env()?;
    match settings.database_url.split(':').next() {
        Some("postgres" | "postgresql") => serve::<Postgres>(settings).await,
        Some("mysql" | "mariadb") => serve::<MySql>(settings).await,
        _ => Err("DATABASE_URL must begin with postgres: or mysql:".into()),
    }
}

async fn serve<DB: OrdersDatabase>(settings: Settings) -> Result<(), Error> {
    let pool = DB::open(&settings.database_url).await?;
    // Safe from any number of instances at once, at every start.
    rocketmq_tx::migrate(&pool).await?;
    DB::create_orders(&pool).await?;

    let producer = TransactionProducer::builder(pool.clone())
        .rocketmq(RocketMq::at(&settings.name_server).group(&settings.group))
        .listener_on(&settings.topic, PlaceOrder)
        // An order is one INSERT. When this process dies in the middle, its id is free again after 20 s.
        .execute_timeout(Duration::from_secs(10))
        .settle_deadline(Duration::from_secs(20))
        .start()
        .await?;
    let printer_group = format!("{}-printer", settings.group);
    let printer = Printer::start(&settings.name_server, &printer_group, &settings.topic).await?;

    let terminated = termination()?;
    let listener = TcpListener::bind(&settings.listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    // Takes no new requests once the signal came, and returns when the open ones are answered.
    axum::serve(listener, http::routes(producer.clone(), pool.clone())).with_graceful_shutdown(terminated).await?;

    let report = producer.shutdown(SHUTDOWN_LIMIT).await;
    println!("stopped; left to check-backs: {} sends, {} ends", report.unfinished, report.unconfirmed);
    printer.shutdown().await;
    pool.close().await;
    Ok(())
}

/// Ready when the process is asked to stop. The handlers are in place when this returns.
fn termination() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
    let mut terminate = unix::signal(unix::SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
