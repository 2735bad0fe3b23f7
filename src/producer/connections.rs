//! Connections of the user's pool, kept from one local transaction to the next.
//!
//! A pool tests each connection that comes back to it, which costs a round trip to the database. Local transactions that
//! follow each other closely pass their connections on instead, as long as nobody else goes without one for it, and as
//! long as what ran on them left nothing in the session that a hook of the pool may be there to clean.

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sqlx::{Pool, pool::PoolConnection};
use tokio::{
    runtime::Handle,
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, sleep, timeout_at},
};

use super::deadline;
use crate::store::SupportedDatabase;

/// How many transactions one connection runs before the pool gets it back, for whose other users it may be the next.
const TRANSACTIONS_MAX: u32 = 8;
/// How long a connection is kept when no local transaction waits for one.
const KEPT: Duration = Duration::from_millis(5);

pub(super) struct Connections<DB: SupportedDatabase> {
    pool: Pool<DB>,
    /// Whether any is kept.
    pass_on: bool,
    /// As many as the pool has connections; a permit comes before a connection.
    permits: Semaphore,
    state: Arc<Mutex<State<DB>>>,
    /// The producer's own: a caller's runtime may end at any moment.
    runtime: Handle,
}

struct State<DB: SupportedDatabase> {
    /// Who waits for a permit.
    waiting: usize,
    /// The last is the one that was used last.
    kept: Vec<Used<DB>>,
    /// Whether a task looks for those that were kept long enough.
    swept: bool,
}

struct Used<DB: SupportedDatabase> {
    conn: PoolConnection<DB>,
    transactions: u32,
    last: Instant,
}

/// A connection for one local transaction. Dropped, it goes back to the pool.
pub(super) struct Lent<'a, DB: SupportedDatabase> {
    used: Used<DB>,
    connections: &'a Connections<DB>,
    _permit: SemaphorePermit<'a>,
}

impl<DB: SupportedDatabase> Connections<DB> {
    /// Keeps connections of `pool` with the help of the current runtime.
    pub fn of(pool: Pool<DB>, pass_on: bool) -> Self {
        let permits = Semaphore::new(pool.options().get_max_connections() as usize);
        let state = State { waiting: 0, kept: Vec::new(), swept: false };
        Self { pool, pass_on, permits, state: Arc::new(Mutex::new(state)), runtime: Handle::current() }
    }

    /// The next connection, within the pool's own time-out.
    pub async fn acquire(&self) -> sqlx::Result<Lent<'_, DB>> {
        let deadline = deadline::after(self.pool.options().get_acquire_timeout());
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Waiting::at(&self.state);
                let permit = timeout_at(deadline, self.permits.acquire()).await;
                permit.map_err(|_| sqlx::Error::PoolTimedOut)?.map_err(|_| sqlx::Error::PoolClosed)?
            }
        };
        let kept = lock(&self.state).kept.pop();
        let used = match kept {
            Some(used) => used,
            None => {
                let conn = timeout_at(deadline, self.pool.acquire()).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
                Used { conn, transactions: 0, last: Instant::now() }
            }
        };
        Ok(Lent { used, connections: self, _permit: permit })
    }

    /// Whether everybody who wants a connection of the pool can have one at once.
    fn has_spare_ones(&self) -> bool {
        self.pool.num_idle() > 0 || self.pool.size() < self.pool.options().get_max_connections()
    }

    fn keep(&self, used: Used<DB>) {
        let mut state = lock(&self.state);
        if state.kept.len() < state.waiting || self.has_spare_ones() {
            state.kept.push(used);
            if !std::mem::replace(&mut state.swept, true) {
                self.runtime.spawn(sweep(Arc::clone(&self.state)));
            }
        }
    }
}

fn lock<DB: SupportedDatabase>(state: &Mutex<State<DB>>) -> MutexGuard<'_, State<DB>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives back what was kept long enough, until nothing is kept.
async fn sweep<DB: SupportedDatabase>(state: Arc<Mutex<State<DB>>>) {
    loop {
        sleep(KEPT).await;
        let mut state = lock(&state);
        let spare = state.kept.len().saturating_sub(state.waiting);
        let rested = state.kept[..spare].iter().take_while(|used| used.last.elapsed() >= KEPT).count();
        state.kept.drain(..rested);
        if state.kept.is_empty() {
            state.swept = false;
            return;
        }
    }
}

/// One who waits for a permit.
struct Waiting<'a, DB: SupportedDatabase>(&'a Mutex<State<DB>>);

impl<'a, DB: SupportedDatabase> Waiting<'a, DB> {
    fn at(state: &'a Mutex<State<DB>>) -> Self {
        lock(state).waiting += 1;
        Self(state)
    }
}

impl<DB: SupportedDatabase> Drop for Waiting<'_, DB> {
    fn drop(&mut self) {
        lock(self.0).waiting -= 1;
    }
}

impl<DB: SupportedDatabase> Lent<'_, DB> {
    /// Passes the connection on. No transaction may be open on it, and its session is as it was.
    pub fn pass_on(mut self) {
        self.used.transactions += 1;
        self.used.last = Instant::now();
        if self.connections.pass_on && self.used.transactions < TRANSACTIONS_MAX {
            self.connections.keep(self.used);
        }
    }

    /// Closes the connection, since nobody knows what state it is in; the server then rolls back.
    pub fn close(self) {
        drop(self.used.conn.detach());
    }
}

impl<DB: SupportedDatabase> Deref for Lent<'_, DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.used.conn
    }
}

impl<DB: SupportedDatabase> DerefMut for Lent<'_, DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.used.conn
    }
}
