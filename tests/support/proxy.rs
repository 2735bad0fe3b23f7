//! A TCP proxy before a database, which can lose a COMMIT or its answer, or the whole database, or be slow.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
};
use tokio_util::sync::CancellationToken;

use super::{Db, TestDatabase};

/// What becomes of the next COMMIT of a transaction that inserted an order. Its connection is cut in any case.
pub enum Commit {
    /// The server runs it; its answer is lost.
    Arrives,
    /// It never arrives.
    IsLost,
    /// The client loses its connection at once; the server's stays open until the signal, which says whether the COMMIT
    /// arrives then.
    ArrivesLate(oneshot::Receiver<bool>),
}

struct Cut {
    commit: Commit,
    take_down: bool,
}

pub struct Proxy {
    state: Arc<Mutex<State>>,
    address: SocketAddr,
    accepting: tokio::task::JoinHandle<()>,
}

struct State {
    upstream: String,
    down: bool,
    cut: Option<Cut>,
    /// How long each statement takes to the server.
    delay: Duration,
    /// Ends every connection.
    connections: CancellationToken,
}

impl Proxy {
    /// A proxy before the server of `url`.
    pub async fn before(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let state = State {
            upstream: server_of(url).to_owned(),
            down: false,
            cut: None,
            delay: Duration::ZERO,
            connections: CancellationToken::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let address = listener.local_addr().expect("it listens");
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { state, address, accepting }
    }

    /// The same database as `db`, reached through this proxy.
    pub async fn through<DB: TestDatabase>(&self, db: &Db<DB>, size: u32) -> Db<DB> {
        let url = db.url.replace(server_of(&db.url), &self.address.to_string());
        Db { pool: DB::pool(&url, size).await, url }
    }

    /// Arms the cut of one COMMIT.
    pub fn cut(&self, commit: Commit) {
        self.state.lock().unwrap().cut = Some(Cut { commit, take_down: false });
    }

    /// Arms the cut of one COMMIT, from which on the database cannot be reached, until [`bring_up`](Self::bring_up).
    pub fn cut_and_take_down(&self, commit: Commit) {
        self.state.lock().unwrap().cut = Some(Cut { commit, take_down: true });
    }

    /// From now on each statement takes so much longer.
    pub fn delay(&self, delay: Duration) {
        self.state.lock().unwrap().delay = delay;
    }

    /// The database can be reached again.
    pub fn bring_up(&self) {
        self.state.lock().unwrap().down = false;
    }

    /// Cuts every connection; new ones go to the server of `url`, as after a fail-over.
    pub fn switch_to(&self, url: &str) {
        let mut state = self.state.lock().unwrap();
        state.upstream = server_of(url).to_owned();
        state.cut_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl State {
    fn cut_all(&mut self) {
        std::mem::take(&mut self.connections).cancel();
    }
}

/// `host:port` of a URL with a user.
fn server_of(url: &str) -> &str {
    let (_, server) = url.split_once('@').expect("a database URL has a user");
    server.split_once('/').expect("a database URL ends with a database").0
}

async fn accept(listener: TcpListener, state: Arc<Mutex<State>>) {
    while let Ok((client, _)) = listener.accept().await {
        let (connections, upstream) = {
            let state = state.lock().unwrap();
            if state.down {
                continue;
            }
            (state.connections.clone(), state.upstream.clone())
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let server = TcpStream::connect(upstream).await.expect("the database is up");
            let commit = tokio::select! {
                () = connections.cancelled() => None,
                commit = relay(client, server, &state) => commit,
            };
            if let Some(cut) = commit {
                cut.end().await;
            }
        });
    }
}

/// A connection that stopped at its COMMIT.
struct AtCommit {
    commit: Commit,
    text: Vec<u8>,
    client: TcpStream,
    server: TcpStream,
}

impl AtCommit {
    async fn end(mut self) {
        match self.commit {
            Commit::Arrives => {}
            Commit::IsLost => return,
            Commit::ArrivesLate(signal) => {
                drop(self.client);
                if !signal.await.unwrap_or(false) {
                    return;
                }
            }
        }
        self.server.write_all(&self.text).await.expect("the database is up");
        // Its answer proves that it ran; nobody gets it.
        let _ = self.server.read(&mut [0; 64]).await;
    }
}

/// Passes bytes on until one side leaves, or a COMMIT is to be cut.
async fn relay(mut client: TcpStream, mut server: TcpStream, state: &Mutex<State>) -> Option<AtCommit> {
    let (mut question, mut answer) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut inserts_orders = false;
    loop {
        tokio::select! {
            read = client.read(&mut question) => match read {
                Ok(size @ 1..) => {
                    let text = &question[..size];
                    inserts_orders |= text.windows(18).any(|window| window == b"INSERT INTO orders");
                    // PostgreSQL ends the text of a query with a zero. The SDK's own COMMITTED does not end so.
                    // MySQL's begins with the number of its command, and what follows may have come with it.
                    let is_commit =
                        text.ends_with(b"COMMIT\0") || text.windows(7).any(|window| window == b"\x03COMMIT");
                    if inserts_orders && is_commit && let Some(commit) = take_cut(state) {
                        return Some(AtCommit { commit, text: text.to_vec(), client, server });
                    }
                    let delay = state.lock().unwrap().delay;
                    if !delay.is_zero() {
                        tokio::time::sleep(delay).await;
                    }
                    server.write_all(text).await.ok()?;
                }
                _ => return None,
            },
            read = server.read(&mut answer) => match read {
                Ok(size @ 1..) => client.write_all(&answer[..size]).await.ok()?,
                _ => return None,
            },
        }
    }
}

fn take_cut(state: &Mutex<State>) -> Option<Commit> {
    let mut state = state.lock().unwrap();
    let cut = state.cut.take()?;
    if cut.take_down {
        state.down = true;
        state.cut_all();
    }
    Some(cut.commit)
}
