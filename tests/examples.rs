//! The order service of the examples, as a process on the real servers: what its clients are told, what is stored, and
//! what its consumer prints.
//!
//! `cargo test` builds the examples, but not when it is limited by `--test examples`.

mod support;

use std::{
    env,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use sqlx::{MySql, Postgres};
use support::{Db, TestDatabase, eventually};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    time::timeout,
};

/// The service gives open sends ten seconds, and its consumer some more.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// Stands for the end of what the service printed.
const END: &str = "(end)";

#[tokio::test]
async fn the_order_service_on_postgres() {
    support::database::with_empty::<Postgres, _>(2, orders_are_placed_stored_and_printed).await;
}

#[tokio::test]
async fn the_order_service_on_mysql() {
    support::database::with_empty::<MySql, _>(2, orders_are_placed_stored_and_printed).await;
}

async fn orders_are_placed_stored_and_printed<DB: TestDatabase>(db: Db<DB>) {
    let service = Service::start(&db.url).await;

    assert_eq!(service.post("a", 100).await, 201);
    assert_eq!(service.post("a", 100).await, 200, "the same order again");
    assert_eq!(service.post("b", 0).await, 422);
    db.run("INSERT INTO orders (id, cents) VALUES ('c', 1)").await;
    assert_eq!(service.post("c", 300).await, 409, "another order of this id");
    assert_eq!(service.post("d", 400).await, 201);

    assert_eq!(DB::numbers(&db.pool, "SELECT cents FROM orders ORDER BY id").await, [100, 1, 400]);
    assert_eq!((db.in_state("COMMITTED").await, db.in_state("ROLLED_BACK").await), (2, 2));
    service.until_printed("a:OrderPlaced: order a of 100 cents").await;
    service.until_printed("d:OrderPlaced: order d of 400 cents").await;
    eventually("the confirmation of a", async || service.get("a").await.1.contains("delivered")).await;
    assert_eq!(service.get("b").await.0, 404);
    assert!(service.get("b").await.1.contains("rolled back"));

    let (status, printed) = service.terminate().await;
    assert!(status.success(), "{status}; {printed:?}");
    assert!(printed.iter().any(|line| line.contains("stopped") && line.contains("0 sends, 0 ends")), "{printed:?}");
    for rolled_back in ["b:OrderPlaced", "c:OrderPlaced"] {
        assert!(!printed.iter().any(|line| line.contains(rolled_back)), "{printed:?}");
    }
}

struct Service {
    process: Child,
    address: String,
    printed: Arc<Mutex<Vec<String>>>,
}

impl Service {
    /// Starts the service with a topic and groups of its own, and waits until it listens.
    async fn start(database_url: &str) -> Self {
        let program = example("order_service");
        assert!(
            program.exists(),
            "{} is not there: run all of `cargo test --all-features`, or `cargo build --all-features --examples` first",
            program.display()
        );
        let own = uuid::Uuid::new_v4().simple().to_string();
        let mut process = Command::new(program)
            .env("DATABASE_URL", database_url)
            .env("ROCKETMQ_NAMESRV_ADDR", support::env("ROCKETMQ_NAMESRV_ADDR"))
            .env("LISTEN", "127.0.0.1:0")
            .env("ORDERS_TOPIC", format!("orders-{own}"))
            .env("ORDERS_GROUP", format!("service-{own}"))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let printed = Arc::new(Mutex::new(Vec::new()));
        let lines_printed = Arc::clone(&printed);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                println!("service: {line}");
                lines_printed.lock().unwrap().push(line);
            }
            lines_printed.lock().unwrap().push(END.to_owned());
        });
        let mut service = Self { process, address: String::new(), printed };
        service.until_printed("listening on ").await;
        let listening = service.printed.lock().unwrap()[0].clone();
        service.address = listening.rsplit('/').next().unwrap().to_owned();
        service
    }

    async fn post(&self, id: &str, cents: i64) -> u16 {
        let body = format!(r#"{{"id": "{id}", "cents": {cents}}}"#);
        let (status, answer) = self.request("POST /orders", &body).await;
        println!("POST {body} -> {status} {answer}");
        status
    }

    async fn get(&self, id: &str) -> (u16, String) {
        self.request(&format!("GET /orders/{id}"), "").await
    }

    /// One request on a connection of its own: its status and body.
    async fn request(&self, what: &str, body: &str) -> (u16, String) {
        let exchange = async {
            let mut connection = TcpStream::connect(&self.address).await?;
            let request = format!(
                "{what} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: \
                 {}\r\n\r\n{body}",
                self.address,
                body.len()
            );
            connection.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            connection.read_to_string(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = timeout(Duration::from_secs(30), exchange).await.expect("an answer in time").unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a whole answer");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, body.to_owned())
    }

    async fn until_printed(&self, words: &str) {
        let printed = || {
            let printed = self.printed.lock().unwrap();
            let found = printed.iter().any(|line| line.contains(words));
            assert!(found || printed.last().is_none_or(|line| line != END), "it ended before it printed: {words}");
            found
        };
        // A consumer looks for a new topic every 10 s, and takes its queues only in its next round, every 20 s.
        let limit = Duration::from_secs(90);
        let waited = timeout(limit, async {
            while !printed() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(waited.await.is_ok(), "not printed within {limit:?}: {words}; but: {:?}", self.printed.lock().unwrap());
    }

    /// Asks it to stop, and returns how it ended and all that it printed.
    async fn terminate(mut self) -> (ExitStatus, Vec<String>) {
        let id = self.process.id().expect("it runs").try_into().unwrap();
        // SAFETY: a system call without memory; the process was not waited for, so that the id is still its own.
        assert_eq!(unsafe { libc::kill(id, libc::SIGTERM) }, 0);
        let status = timeout(STOP_LIMIT, self.process.wait()).await.expect("it stops in time").unwrap();
        let printed = self.printed.lock().unwrap().clone();
        (status, printed)
    }
}

/// Where cargo puts an example of the profile that this test was built with.
fn example(name: &str) -> PathBuf {
    let this = env::current_exe().expect("this program has a path");
    let profile = this.ancestors().nth(2).expect("tests are in target/<profile>/deps");
    profile.join("examples").join(name)
}
