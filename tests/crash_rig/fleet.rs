//! The producer processes, each started anew when it dies.

use std::{
    fs::File,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    lifeline::signal,
    notes::Notes,
    producer::{self, Role},
    report::Report,
};

/// Before a process that died is started again.
const PAUSE: Duration = Duration::from_millis(100);
/// For the sends that are under way when a process is told to finish, and its shutdown. Longer than a send may take.
const FINISH_LIMIT: Duration = Duration::from_secs(150);

/// What happens to one process.
pub enum Blow {
    Kill,
    /// SIGSTOP, and SIGCONT so much later.
    Stop(Duration),
    /// It sends what it has begun, and leaves.
    Finish,
}

pub struct Fleet(Vec<(mpsc::Sender<Blow>, JoinHandle<()>)>);

/// What all processes have in common.
pub struct Yard {
    /// The number is each process's own.
    pub role: Role,
    pub notes: Arc<Notes>,
    pub numbers: AtomicI64,
    /// Where each process writes what it does.
    pub logs: PathBuf,
}

impl Fleet {
    pub fn start(size: usize, yard: Yard) -> Self {
        let yard = Arc::new(yard);
        let slot = |_| {
            let (blows, struck) = mpsc::channel(16);
            (blows, tokio::spawn(keep(yard.clone(), struck)))
        };
        Self((0..size).map(slot).collect())
    }

    pub fn size(&self) -> usize {
        self.0.len()
    }

    /// A slot that has too many blows before it misses this one.
    pub fn strike(&self, slot: usize, blow: Blow) {
        let _ = self.0[slot].0.try_send(blow);
    }

    /// Has all of them finish, and waits until they have left.
    pub async fn finish(self) {
        let left = self.0.into_iter().map(|(blows, kept)| async move {
            let _ = blows.send(Blow::Finish).await;
            kept.await.expect("its keeper does not panic");
        });
        join_all(left).await;
    }
}

/// Keeps one process running until it is told to finish.
async fn keep(yard: Arc<Yard>, mut blows: mpsc::Receiver<Blow>) {
    loop {
        let number = yard.numbers.fetch_add(1, Ordering::SeqCst);
        let mut child = spawn(&yard, number);
        let told = tokio::spawn(listen(child.stdout.take().expect("piped"), number, yard.notes.clone()));
        let finished = attend(&yard, number, &mut child, &mut blows).await;
        // What it said before it died.
        let _ = told.await;
        if finished {
            return;
        }
        sleep(PAUSE).await;
    }
}

fn spawn(yard: &Yard, number: i64) -> Child {
    let role = Role { number, ..yard.role.clone() };
    let log = File::create(yard.logs.join(format!("producer-{number}.log"))).expect("a log");
    Command::new(std::env::current_exe().expect("this program"))
        .args([producer::ARGUMENT, &serde_json::to_string(&role).expect("a role")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .expect("this program runs")
}

/// Until the process is gone; whether it was told to.
async fn attend(yard: &Yard, number: i64, child: &mut Child, blows: &mut mpsc::Receiver<Blow>) -> bool {
    // Waiting for a child closes its input, unless somebody else has it.
    let input = child.stdin.take().expect("piped");
    let mut goes_on = None;
    loop {
        tokio::select! {
            _ = child.wait() => return false,
            () = sleep_until(goes_on.unwrap_or_else(Instant::now)), if goes_on.is_some() => {
                signal(child, libc::SIGCONT);
                goes_on = None;
            }
            blow = blows.recv() => match blow {
                Some(Blow::Kill) => {
                    signal(child, libc::SIGKILL);
                    yard.notes.kill("SIGKILL at random");
                    let _ = child.wait().await;
                    return false;
                }
                Some(Blow::Stop(pause)) => {
                    signal(child, libc::SIGSTOP);
                    yard.notes.other("SIGSTOP and SIGCONT");
                    goes_on = Some(Instant::now() + pause);
                }
                Some(Blow::Finish) | None => {
                    signal(child, libc::SIGCONT);
                    finish(yard, number, child, input).await;
                    return true;
                }
            },
        }
    }
}

async fn finish(yard: &Yard, number: i64, child: &mut Child, mut input: ChildStdin) {
    // It may have died by itself meanwhile.
    let _ = input.write_all(format!("{}\n", producer::FINISH).as_bytes()).await;
    if timeout(FINISH_LIMIT, child.wait()).await.is_err() {
        yard.notes.defect(format!("process {number} did not finish within {FINISH_LIMIT:?}"));
        let _ = child.kill().await;
    }
}

async fn listen(output: tokio::process::ChildStdout, number: i64, notes: Arc<Notes>) {
    let mut lines = BufReader::new(output).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match serde_json::from_str::<Report>(&line) {
            Ok(report) => notes.take(number, report),
            Err(_) => notes.defect(format!("process {number} says {line:?}")),
        }
    }
}
