//! A proxy before name server and brokers, which strikes requests and answers by their code.
//!
//! Clients find the brokers through the name server's answers, so the proxy puts its own addresses into these.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::AsyncWriteExt,
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::mpsc,
};
use tokio_util::sync::CancellationToken;

use super::{
    faults::{Fault, Faults, Kind},
    remoting::{self, Frame},
};

pub struct RocketMqProxy {
    pub faults: Arc<Faults>,
    /// For clients, in the name server's place.
    pub address: String,
}

impl RocketMqProxy {
    pub fn before(namesrv: &str, faults: Faults) -> Self {
        let faults = Arc::new(faults);
        let shared = Arc::new(Shared { faults: faults.clone(), doors: Mutex::default() });
        Self { faults, address: shared.door(namesrv) }
    }
}

struct Shared {
    faults: Arc<Faults>,
    /// The proxy's own address for each server's.
    doors: Mutex<HashMap<String, String>>,
}

impl Shared {
    /// The address that leads to `server`.
    fn door(self: &Arc<Self>, server: &str) -> String {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(door) = doors.get(server) {
            return door.clone();
        }
        let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let door = listener.local_addr().expect("it listens").to_string();
        let listener = TcpListener::from_std(listener).expect("a socket");
        tokio::spawn(accept(listener, self.clone(), server.to_owned()));
        doors.insert(server.to_owned(), door.clone());
        door
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, server: String) {
    while let Ok((client, _)) = listener.accept().await {
        let (shared, server) = (shared.clone(), server.clone());
        tokio::spawn(async move {
            // A server that is away hangs up on its clients.
            let Ok(server) = TcpStream::connect(&server).await else { return };
            let (_, _) = (client.set_nodelay(true), server.set_nodelay(true));
            relay(client, server, shared).await;
        });
    }
}

/// One direction of a connection.
struct Pump {
    from: OwnedReadHalf,
    to: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Shared>,
    /// The requests of the other direction: what this one's answers are about.
    asked: Arc<Mutex<HashMap<i32, i32>>>,
    /// The requests of this direction.
    asks: Arc<Mutex<HashMap<i32, i32>>>,
    cut: CancellationToken,
}

async fn relay(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let cut = shared.faults.connection();
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (client_asks, server_asks) = (Arc::<Mutex<HashMap<i32, i32>>>::default(), Arc::default());
    let (to_client, client_written) = writer(to_client);
    let (to_server, server_written) = writer(to_server);
    let forth = Pump {
        from: from_client,
        to: to_server,
        shared: shared.clone(),
        asked: Arc::clone(&server_asks),
        asks: client_asks.clone(),
        cut: cut.clone(),
    };
    let back =
        Pump { from: from_server, to: to_client, shared, asked: client_asks, asks: server_asks, cut: cut.clone() };
    tokio::select! {
        () = cut.cancelled() => {}
        // What was delayed still arrives after its sender has gone.
        () = async { forth.run().await; server_written.await } => {}
        () = async { back.run().await; client_written.await } => {}
    }
    cut.cancel();
}

/// Writes what comes, in order; the future ends when nothing more can come, or be written.
fn writer(mut to: OwnedWriteHalf) -> (mpsc::UnboundedSender<Vec<u8>>, impl Future<Output = ()>) {
    let (sender, mut bytes) = mpsc::unbounded_channel::<Vec<u8>>();
    let written = tokio::spawn(async move {
        while let Some(bytes) = bytes.recv().await {
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    let abort = AbortOnDrop(written.abort_handle());
    (sender, async move {
        let _abort = abort;
        let _ = written.await;
    })
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

const REQUEST_FAULTS: [Kind; 4] = [Kind::Delayed, Kind::Dropped, Kind::Cut, Kind::Duplicated];
const ANSWER_FAULTS: [Kind; 3] = [Kind::Delayed, Kind::Dropped, Kind::Cut];

impl Pump {
    async fn run(mut self) {
        while let Some(frame) = Frame::read(&mut self.from).await {
            if !self.pass(frame) {
                self.cut.cancel();
                return;
            }
        }
    }

    /// Whether the connection stays.
    fn pass(&self, mut frame: Frame) -> bool {
        let fault = if frame.is_answer {
            let code = lock(&self.asked).get(&frame.opaque).copied().unwrap_or_default();
            if matches!(code, remoting::ROUTE | remoting::BROKERS) {
                frame.replace_addresses(|address| Some(self.shared.door(address)));
            }
            remoting::name(code)
                .and_then(|name| self.shared.faults.strike(&format!("answer to {name}"), &ANSWER_FAULTS))
        } else {
            lock(&self.asks).insert(frame.opaque, frame.code);
            remoting::name(frame.code).and_then(|name| self.shared.faults.strike(name, &REQUEST_FAULTS))
        };
        match fault {
            // A closed channel means that the connection ends.
            None => drop(self.to.send(frame.bytes)),
            Some(Fault::Duplicate) => {
                let _ = self.to.send(frame.bytes.clone());
                let _ = self.to.send(frame.bytes);
            }
            Some(Fault::Delay(delay) | Fault::Late(delay)) => {
                let to = self.to.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(delay).await;
                    let _ = to.send(frame.bytes);
                });
            }
            Some(Fault::Drop) => {}
            Some(Fault::Cut | Fault::LoseAnswer) => return false,
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
