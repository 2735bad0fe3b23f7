//! Whether anybody listens at an address, found out before the transport connects to it.
//!
//! The transport counts failed connection attempts per address, and after five of them refuses to connect for half a
//! minute. A producer that waits for a broker to come back must not run into that: the broker's check-backs and the
//! ends would wait with it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::{net::TcpStream, time};

/// How long one answer stands for all requests that find no connection: the transport connects meanwhile.
const ANSWERED_JUST_NOW: Duration = Duration::from_millis(500);

/// Held while somebody knocks; when the last knock was answered.
type Door = Arc<tokio::sync::Mutex<Option<Instant>>>;

#[derive(Default)]
pub(super) struct Knocks {
    doors: Mutex<HashMap<String, Door>>,
}

impl Knocks {
    /// Opens and closes a plain connection. The error says why there was none.
    pub(super) async fn at(&self, address: &str, within: Duration) -> Result<(), String> {
        let door = self.door(address);
        let mut answered = door.lock().await;
        if answered.is_some_and(|at| at.elapsed() < ANSWERED_JUST_NOW) {
            return Ok(());
        }
        match time::timeout(within, TcpStream::connect(address)).await {
            Ok(Ok(_connection)) => {
                *answered = Some(Instant::now());
                Ok(())
            }
            Ok(Err(error)) => Err(error.to_string()),
            Err(_elapsed) => Err(format!("no connection within {within:?}")),
        }
    }

    fn door(&self, address: &str) -> Door {
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        match doors.get(address) {
            Some(door) => door.clone(),
            None => doors.entry(address.to_owned()).or_default().clone(),
        }
    }
}
