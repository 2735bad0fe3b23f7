//! A proxy before the database, which strikes by statement.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    faults::{Fault, Faults, Kind},
    sql_wire::{COMMIT, SqlWire},
};

pub struct DatabaseProxy {
    pub faults: Arc<Faults>,
    /// The database's URL for clients.
    pub url: String,
}

impl DatabaseProxy {
    pub async fn before(url: &str, faults: Faults) -> Self {
        let faults = Arc::new(faults);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let door = listener.local_addr().expect("it listens").to_string();
        let (_, server) = url.split_once('@').expect("a database URL has a user");
        let (server, _) = server.split_once('/').expect("a database URL ends with a database");
        tokio::spawn(accept(listener, url.to_owned(), server.to_owned(), faults.clone()));
        Self { faults, url: url.replace(server, &door) }
    }
}

async fn accept(listener: TcpListener, url: String, server: String, faults: Arc<Faults>) {
    while let Ok((client, _)) = listener.accept().await {
        let (faults, wire, server) = (faults.clone(), SqlWire::of(&url), server.clone());
        tokio::spawn(async move {
            // A server that is away hangs up on its clients.
            let Ok(server) = TcpStream::connect(server).await else { return };
            let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
            relay(client, server, wire, faults).await;
        });
    }
}

/// What both directions of a connection know.
struct Line {
    wire: Mutex<SqlWire>,
    /// The next answer of the server's is lost.
    unanswered: CancellationToken,
}

async fn relay(client: TcpStream, server: TcpStream, wire: SqlWire, faults: Arc<Faults>) {
    let cut = faults.connection();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let line = Line { wire: Mutex::new(wire), unanswered: CancellationToken::new() };
    let late = tokio::select! {
        () = cut.cancelled() => None,
        () = answers(from_server, to_client, &line) => None,
        late = questions(from_client, to_server, &line, &faults) => late,
    };
    // By now the client has lost its connection.
    if let Some(mut late) = late {
        tokio::time::sleep(late.delay).await;
        // Whether it can still be said is a matter of luck.
        let _ = late.to.write_all(&late.bytes).await;
        let _ = late.to.shutdown().await;
    }
}

/// A message that is said after its sender's connection was cut.
struct Late {
    delay: std::time::Duration,
    bytes: Vec<u8>,
    to: OwnedWriteHalf,
}

async fn questions(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, line: &Line, faults: &Faults) -> Option<Late> {
    loop {
        let bytes = read(&mut from, line).await?;
        let message = lock(&line.wire).message(bytes);
        let fault = message.statement.and_then(|statement| {
            let kinds: &[Kind] = if statement == COMMIT { &COMMIT_FAULTS } else { &FAULTS };
            faults.strike(statement, kinds)
        });
        match fault {
            None | Some(Fault::Duplicate) => {}
            Some(Fault::Delay(delay)) => tokio::time::sleep(delay).await,
            Some(Fault::Drop) => return until_it_leaves(from).await,
            Some(Fault::Cut) => return None,
            Some(Fault::LoseAnswer) => line.unanswered.cancel(),
            Some(Fault::Late(delay)) => return Some(Late { delay, bytes: message.bytes, to }),
        }
        to.write_all(&message.bytes).await.ok()?;
    }
}

/// The bytes of the next message; none when the connection ends.
async fn read(from: &mut OwnedReadHalf, line: &Line) -> Option<Vec<u8>> {
    let mut bytes = vec![0; lock(&line.wire).head()];
    from.read_exact(&mut bytes).await.ok()?;
    let (head, length) = (bytes.len(), lock(&line.wire).length(&bytes)?);
    bytes.resize(head + length, 0);
    from.read_exact(&mut bytes[head..]).await.ok()?;
    Some(bytes)
}

/// The client waits for an answer that never comes. Its server hears of it when it gives up.
async fn until_it_leaves(mut from: OwnedReadHalf) -> Option<Late> {
    let _ = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    None
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, line: &Line) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(size @ 1..) = from.read(&mut bytes).await {
        if line.unanswered.is_cancelled() {
            return;
        }
        lock(&line.wire).answered(&bytes[..size]);
        if to.write_all(&bytes[..size]).await.is_err() {
            return;
        }
    }
}

const FAULTS: [Kind; 4] = [Kind::Delayed, Kind::Dropped, Kind::Cut, Kind::Unanswered];
/// As the support's own proxy does: its text is one message, so that it can come late.
const COMMIT_FAULTS: [Kind; 4] = [Kind::Delayed, Kind::Cut, Kind::Unanswered, Kind::Late];

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
