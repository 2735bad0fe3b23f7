//! Connections of the user's pool, passed on from one local transaction to the next that waits for one.
//!
//! A pool tests each connection that comes back to it, which costs a round trip to the database. Under load, when local
//! transactions wait for connections anyway, they pass them on instead.

use std::{
    ops::{Deref, DerefMut},
    sync::{Mutex, MutexGuard, PoisonError},
};

use sqlx::{Pool, pool::PoolConnection};
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::{Instant, timeout_at},
};

use crate::store::SupportedDatabase;

/// How many transactions one connection runs before the pool gets it back, for whose other users it may be the next.
const TRANSACTIONS_MAX: u32 = 8;

pub(super) struct Connections<DB: SupportedDatabase> {
    pool: Pool<DB>,
    /// As many as the pool has connections; a permit comes before a connection.
    permits: Semaphore,
    state: Mutex<State<DB>>,
}

struct State<DB: SupportedDatabase> {
    /// Who waits for a permit.
    waiting: usize,
    /// Passed on to them: never more than they are.
    passed_on: Vec<Used<DB>>,
}

struct Used<DB: SupportedDatabase> {
    conn: PoolConnection<DB>,
    transactions: u32,
}

/// A connection for one local transaction. Dropped, it goes back to the pool.
pub(super) struct Lent<'a, DB: SupportedDatabase> {
    used: Used<DB>,
    connections: &'a Connections<DB>,
    _permit: SemaphorePermit<'a>,
}

impl<DB: SupportedDatabase> Connections<DB> {
    pub fn of(pool: Pool<DB>) -> Self {
        let permits = Semaphore::new(pool.options().get_max_connections() as usize);
        Self { pool, permits, state: Mutex::new(State { waiting: 0, passed_on: Vec::new() }) }
    }

    /// The next connection, within the pool's own time-out.
    pub async fn acquire(&self) -> sqlx::Result<Lent<'_, DB>> {
        let deadline = Instant::now() + self.pool.options().get_acquire_timeout();
        let (permit, passed_on) = match self.permits.try_acquire() {
            Ok(permit) => (permit, None),
            Err(_) => {
                let waiting = Waiting::at(self);
                let permit =
                    timeout_at(deadline, self.permits.acquire()).await.map_err(|_| sqlx::Error::PoolTimedOut)?;
                (permit.map_err(|_| sqlx::Error::PoolClosed)?, waiting.over())
            }
        };
        let used = match passed_on {
            Some(used) => used,
            None => {
                let conn = timeout_at(deadline, self.pool.acquire()).await.map_err(|_| sqlx::Error::PoolTimedOut)??;
                Used { conn, transactions: 0 }
            }
        };
        Ok(Lent { used, connections: self, _permit: permit })
    }

    fn state(&self) -> MutexGuard<'_, State<DB>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits for a permit.
struct Waiting<'a, DB: SupportedDatabase>(&'a Connections<DB>);

impl<'a, DB: SupportedDatabase> Waiting<'a, DB> {
    fn at(connections: &'a Connections<DB>) -> Self {
        connections.state().waiting += 1;
        Self(connections)
    }

    /// Takes what was passed on.
    fn over(self) -> Option<Used<DB>> {
        let passed_on = self.leave();
        std::mem::forget(self);
        passed_on
    }

    fn leave(&self) -> Option<Used<DB>> {
        let mut state = self.0.state();
        state.waiting -= 1;
        state.passed_on.pop()
    }
}

impl<DB: SupportedDatabase> Drop for Waiting<'_, DB> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl<DB: SupportedDatabase> Lent<'_, DB> {
    /// Passes the connection on. No transaction may be open on it.
    pub fn done(mut self) {
        self.used.transactions += 1;
        if self.used.transactions < TRANSACTIONS_MAX {
            let mut state = self.connections.state();
            if state.passed_on.len() < state.waiting {
                state.passed_on.push(self.used);
            }
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
