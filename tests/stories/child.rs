//! A producer of orders in a child process, to be killed.
//!
//! The child is the same test program, started again with the name of the test that consists of [`serve_if_child`].
//! It takes commands on standard input, tells its events on standard output, and leaves when its input closes, so that
//! it never outlives its parent.

use std::{
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use sqlx::{MySql, Postgres, Sqlite};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines, Stdin},
    process::ChildStdin,
    signal::unix::{SignalKind, signal},
};

use super::{
    log::{Event, Log, Point, in_time},
    scene::{Part, log_in},
    stage::{Stage, id_of},
};
use crate::support::{Order, TestDatabase};

const VARIABLE: &str = "ROCKETMQ_TX_STORY";
/// The test that children run.
const TEST: &str = "child";
/// Before a line of JSON, since the test harness writes to standard output, too.
const MARK: &str = "@@";

#[derive(Debug, Serialize, Deserialize)]
enum Command {
    Send { order: Order, stop_at: Option<Point> },
    Release { id: String },
}

/// What a child is given.
#[derive(Serialize, Deserialize)]
struct Role {
    part: Part,
    /// How many sends it may be given at once.
    connections: u32,
    /// How long its shutdown may take once it is told to terminate.
    deadline: Duration,
}

/// The parent's side. Dropping it kills the child.
pub struct Child {
    process: tokio::process::Child,
    commands: ChildStdin,
    pub log: Log,
}

impl Child {
    pub async fn start(part: &Part, connections: u32, deadline: Duration) -> Self {
        Self::run(part, connections, deadline, &mut this_program()).await
    }

    /// As [`start`](Self::start), with a clock that is wrong by so many seconds.
    pub async fn start_with_clock(part: &Part, connections: u32, deadline: Duration, clock: &str) -> Self {
        let mut program = this_program();
        // Time-outs are not the subject, and a runtime's timers would be confused.
        program.env("LD_PRELOAD", faketime()).env("FAKETIME", clock).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        Self::run(part, connections, deadline, &mut program).await
    }

    async fn run(part: &Part, connections: u32, deadline: Duration, program: &mut tokio::process::Command) -> Self {
        let role = Role { part: part.clone(), connections, deadline };
        let mut process = program
            .env(VARIABLE, serde_json::to_string(&role).expect("a role"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program runs");
        let (commands, output) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let log = Log::default();
        let told = log.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, event)) = line.split_once(MARK) {
                    told.add(serde_json::from_str(event).expect("an event"));
                }
            }
        });
        log.until("the child's producer starts", 1, |event| *event == Event::Ready).await;
        Self { process, commands, log }
    }

    /// Sends `order`, which waits at `stop_at`.
    pub async fn send(&mut self, order: Order, stop_at: impl Into<Option<Point>>) {
        self.tell(Command::Send { order, stop_at: stop_at.into() }).await;
    }

    /// Sends `order`, and returns when it waits at `point`.
    pub async fn send_up_to(&mut self, point: Point, order: Order) {
        let id = id_of(&order);
        self.send(order, point).await;
        self.log.until_it_waits(&id, point).await;
    }

    pub async fn release(&mut self, id: String) {
        self.tell(Command::Release { id }).await;
    }

    async fn tell(&mut self, command: Command) {
        let line = format!("{}\n", serde_json::to_string(&command).expect("a command"));
        self.commands.write_all(line.as_bytes()).await.expect("the child listens");
        self.commands.flush().await.expect("the child listens");
    }

    /// As a power failure would; returns when it is gone.
    pub async fn kill(mut self) {
        self.process.kill().await.expect("it ran");
    }

    /// SIGTERM, as a supervisor sends it.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    /// It stands still until it is resumed.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        let id = self.process.id().expect("it runs").cast_signed();
        // SAFETY: a signal to a child that was not waited for yet, so the id is its own.
        #[allow(unsafe_code, reason = "the standard library sends no other signal than SIGKILL")]
        let sent = unsafe { libc::kill(id, signal) };
        assert_eq!(sent, 0);
    }

    pub async fn exit(&mut self) -> ExitStatus {
        in_time("the child leaves", self.process.wait(), || format!("{:#?}", self.log.all())).await.expect("it ran")
    }
}

fn this_program() -> tokio::process::Command {
    let mut program = tokio::process::Command::new(std::env::current_exe().expect("this program"));
    program.args([TEST, "--exact", "--nocapture"]);
    program
}

/// The library that makes a process see another time.
fn faketime() -> PathBuf {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let library =
        places.iter().map(|place| Path::new(place).join("faketime/libfaketime.so.1")).find(|path| path.exists());
    library.expect("libfaketime is installed; scripts/test does that")
}

/// In a child it plays until it is told to stop, and ends the process; elsewhere it does nothing.
pub fn serve_if_child() {
    let Ok(role) = std::env::var(VARIABLE) else { return };
    let role: Role = serde_json::from_str(&role).expect("a role");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        match role.part.url.split(':').next() {
            Some("postgres") => serve::<Postgres>(role).await,
            Some("mysql") => serve::<MySql>(role).await,
            Some("sqlite") => serve::<Sqlite>(role).await,
            other => panic!("no such database: {other:?}"),
        }
    });
    // A thread may wait for standard input still.
    std::process::exit(0);
}

async fn serve<DB: TestDatabase>(role: Role) {
    let mut told_to_stop = signal(SignalKind::terminate()).expect("a handler");
    let stage = Arc::new(Stage::default());
    let told = tokio::spawn(tell_events(stage.log.clone()));
    let pool = DB::pool(&role.part.url, role.connections).await;
    log_in(&pool, role.connections).await;
    let producer = role.part.builder(pool, &stage).start().await.expect("the child's producer starts");
    stage.log.add(Event::Ready);
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let mut stopping = None;
    loop {
        let command = tokio::select! {
            command = next(&mut commands) => command,
            _ = told_to_stop.recv(), if stopping.is_none() => {
                let (producer, deadline) = (producer.clone(), role.deadline);
                stopping = Some(tokio::spawn(async move {
                    // Twice, since signals come twice.
                    let (first, second) = tokio::join!(producer.shutdown(deadline), producer.shutdown(deadline));
                    assert_eq!(first, second);
                    first
                }));
                continue;
            }
            report = async { stopping.as_mut().expect("guarded").await }, if stopping.is_some() => {
                let report = report.expect("the shutdown does not panic");
                stage.log.add(Event::Stopped { unfinished: report.unfinished, unconfirmed: report.unconfirmed });
                break;
            }
        };
        match command {
            Some(Command::Send { order, stop_at }) => {
                let id = id_of(&order);
                if let Some(point) = stop_at {
                    stage.stop(&id, point);
                }
                let (producer, log) = (producer.clone(), stage.log.clone());
                tokio::spawn(async move {
                    let error = producer.send(order).await.err().map(|error| error.to_string());
                    log.add(Event::Sent { id, error });
                });
            }
            Some(Command::Release { id }) => stage.release(&id),
            // The parent is gone.
            None => std::process::exit(1),
        }
    }
    told.await.expect("the events are told");
}

async fn next(commands: &mut Lines<BufReader<Stdin>>) -> Option<Command> {
    let line = commands.next_line().await.ok().flatten()?;
    Some(serde_json::from_str(&line).expect("a command"))
}

/// Writes each event as it comes, up to the last one.
async fn tell_events(log: Log) {
    let mut events = log.follow();
    let mut written = 0;
    loop {
        let new: Vec<Event> = events.borrow_and_update()[written..].to_vec();
        for event in new {
            let line = format!("{MARK}{}\n", serde_json::to_string(&event).expect("an event"));
            // Not `print!`, which the test harness may capture.
            std::io::Write::write_all(&mut std::io::stdout(), line.as_bytes()).expect("the parent listens");
            written += 1;
            if matches!(event, Event::Stopped { .. }) {
                return;
            }
        }
        if events.changed().await.is_err() {
            return;
        }
    }
}
