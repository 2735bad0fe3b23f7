//! The embedded name server and broker as a child process, so that they can be killed while their clients live on.
//!
//! The child is the same program, started again: its `main` (or the test that the command names) calls
//! [`serve_if_child`] first. The child inherits the settings through its environment, says that it is ready through a
//! file, and leaves when its standard input closes, so it never outlives its parent.
#![allow(dead_code, reason = "each program that includes this file uses a part of it")]

use std::{
    env, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use super::embedded::{EmbeddedRocketMq, Error, Ports, Settings};

/// Set for the child only: where to keep files, and every number that it needs.
const DIR_VARIABLE: &str = "ROCKETMQ_TX_EMBEDDED_DIR";
const NUMBERS_VARIABLE: &str = "ROCKETMQ_TX_EMBEDDED_NUMBERS";
/// Written by the child in its directory once a producer could send.
const READY_FILE: &str = "ready";
const START_LIMIT: Duration = Duration::from_secs(30);
const STOP_LIMIT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// A name server and broker in a child process. Dropping it kills the child.
pub struct BrokerProcess {
    command: Box<dyn Fn() -> Command + Send + Sync>,
    dir: PathBuf,
    settings: Settings,
    ports: Ports,
    child: Option<Child>,
}

impl BrokerProcess {
    /// Starts a child with its files under `dir`, which must exist, and returns once a producer can send. `command`
    /// is how to run a program that calls [`serve_if_child`]; see [`this_program`]. Blocks the calling thread.
    pub fn spawn(
        command: impl Fn() -> Command + Send + Sync + 'static,
        dir: &Path,
        settings: Settings,
    ) -> Result<Self, Error> {
        let command = Box::new(command);
        let mut process = Self { command, dir: dir.to_owned(), settings, ports: Ports::free()?, child: None };
        // Another process may take a port between the look and the bind.
        if process.restart().is_err() {
            process.ports = Ports::free()?;
            process.restart()?;
        }
        Ok(process)
    }

    /// The name server's address; it stays the same over a restart.
    pub fn namesrv_addr(&self) -> String {
        format!("127.0.0.1:{}", self.ports.namesrv)
    }

    /// Ends both servers at once, as a power failure would; does nothing when they do not run.
    pub fn kill(&mut self) -> io::Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        child.wait().map(drop)
    }

    /// Asks both to stop in order, and waits until they did.
    pub fn stop(&mut self) -> Result<(), Error> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        drop(child.stdin.take());
        let deadline = Instant::now() + STOP_LIMIT;
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                return Err(format!("the broker process did not stop within {STOP_LIMIT:?}").into());
            }
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Starts it again, killing it first if it runs, on the same ports and with the same files.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.kill()?;
        let ready = self.dir.join(READY_FILE);
        // A file that an earlier child left must not be taken for this one's.
        if let Err(error) = fs::remove_file(&ready)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error.into());
        }
        let mut child = (self.command)()
            .env(DIR_VARIABLE, &self.dir)
            .env(NUMBERS_VARIABLE, encode(self.settings, self.ports))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let deadline = Instant::now() + START_LIMIT;
        let failure: Error = loop {
            if ready.exists() {
                self.child = Some(child);
                return Ok(());
            }
            if let Some(status) = child.try_wait()? {
                break format!("the broker process ended at its start: {status}").into();
            }
            if Instant::now() > deadline {
                break format!("the broker process was not ready within {START_LIMIT:?}").into();
            }
            thread::sleep(POLL);
        };
        // Harmless when it has ended already.
        let _ = child.kill();
        let _ = child.wait();
        Err(failure)
    }
}

impl Drop for BrokerProcess {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

/// This very program, for [`BrokerProcess::spawn`], with the arguments that lead it to [`serve_if_child`]: none for a
/// `main` that begins with it; `[name, "--exact"]` for a `#[test] fn name` that consists of it.
pub fn this_program(arguments: &'static [&'static str]) -> impl Fn() -> Command + Send + Sync + 'static {
    move || {
        // Fails only where the system hides its processes' files; spawning then fails with this name in its error.
        let mut command = Command::new(env::current_exe().unwrap_or_else(|_| "current-exe".into()));
        command.args(arguments);
        command
    }
}

/// In a child of [`BrokerProcess`]: serves until the parent closes standard input or dies, then returns `true`.
/// Everywhere else it returns `false` at once.
pub fn serve_if_child() -> Result<bool, Error> {
    let (Some(dir), Ok(numbers)) = (env::var_os(DIR_VARIABLE), env::var(NUMBERS_VARIABLE)) else { return Ok(false) };
    let dir = PathBuf::from(dir);
    let (settings, ports) = decode(&numbers).ok_or("the settings of the broker process do not parse")?;
    let embedded = EmbeddedRocketMq::start_on(&dir, settings, ports)?;
    fs::write(dir.join(READY_FILE), embedded.namesrv_addr())?;
    io::stdin().lock().read_to_end(&mut Vec::new())?;
    drop(embedded);
    Ok(true)
}

fn encode(settings: Settings, ports: Ports) -> String {
    let millis = |duration: Duration| duration.as_millis();
    format!(
        "{} {} {} {} {} {}",
        millis(settings.transaction_timeout),
        millis(settings.check_interval),
        settings.check_max,
        ports.namesrv,
        ports.broker,
        ports.ha,
    )
}

fn decode(numbers: &str) -> Option<(Settings, Ports)> {
    fn next<T: FromStr>(words: &mut std::str::SplitWhitespace<'_>) -> Option<T> {
        words.next()?.parse().ok()
    }
    let words = &mut numbers.split_whitespace();
    let settings = Settings {
        transaction_timeout: Duration::from_millis(next(words)?),
        check_interval: Duration::from_millis(next(words)?),
        check_max: next(words)?,
    };
    Some((settings, Ports { namesrv: next(words)?, broker: next(words)?, ha: next(words)? }))
}
