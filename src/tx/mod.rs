//! The user's way into the local transaction.

mod executor;
mod watch;

use std::{fmt, sync::Arc};

use sqlx::Transaction;

use crate::store::SupportedDatabase;
pub(crate) use watch::Watch;

/// The local transaction, lent to `execute`.
///
/// It runs sqlx queries as any executor does; a query takes `&mut *tx`, so that `tx` can be used again:
///
/// ```
/// # #[cfg(feature = "postgres")]
/// # async fn example(tx: &mut rocketmq_tx::Tx<'_, sqlx::Postgres>) -> sqlx::Result<()> {
/// sqlx::query("UPDATE orders SET state = 'PAID' WHERE id = $1").bind(42).execute(&mut *tx).await?;
/// # Ok(())
/// # }
/// ```
///
/// It is only lent: nothing in its type can commit it or roll it back. Returning `Ok` from `execute` commits it together
/// with the message, returning `Err` rolls both back. [`savepoint`](Tx::savepoint) nests.
///
/// What does not go through `tx` is not part of the transaction:
///
/// ```no_run
/// # #[cfg(feature = "postgres")]
/// # async fn example(tx: &mut rocketmq_tx::Tx<'_, sqlx::Postgres>, pool: &sqlx::PgPool) -> sqlx::Result<()> {
/// // Wrong: another connection of the pool commits at once, whatever becomes of the message.
/// sqlx::query("INSERT INTO ledger VALUES (1)").execute(pool).await?;
/// // Right: commits if and only if the message is delivered.
/// sqlx::query("INSERT INTO ledger VALUES (1)").execute(&mut *tx).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Statements that end a transaction
///
/// Do not run `COMMIT`, `ROLLBACK`, `BEGIN`, or on MySQL and MariaDB any statement that commits implicitly (DDL,
/// `START TRANSACTION`, `LOCK TABLES`). The SDK notices before its own COMMIT that the transaction is no longer the one
/// that it began and reports it, on all three databases; it cannot undo what the statement committed.
///
/// # Errors that are swallowed
///
/// A statement may fail and `execute` may still return `Ok`. On PostgreSQL any error dooms the transaction. On MySQL
/// and MariaDB a deadlock (1213), a lock wait time-out (1205), a row that changed since the snapshot (1020) or a full lock
/// table (1206) does, on SQLite an error that rolls back (`ON CONFLICT ROLLBACK`, a full disk): further statements through
/// `tx` are refused there, since each of them would commit by itself, and `send` rolls back and says so. Other errors
/// there undo only their statement, and the rest commits. To survive an error on PostgreSQL, run the statement in a
/// [`savepoint`](Tx::savepoint).
pub struct Tx<'t, DB: SupportedDatabase> {
    conn: Conn<'t, DB>,
    watch: Arc<Watch>,
}

enum Conn<'t, DB: SupportedDatabase> {
    Lent(&'t mut DB::Connection),
    Nested(Transaction<'t, DB>),
}

impl<DB: SupportedDatabase> Conn<'_, DB> {
    fn get(&mut self) -> &mut DB::Connection {
        match self {
            Self::Lent(conn) => conn,
            Self::Nested(transaction) => transaction,
        }
    }
}

impl<'t, DB: SupportedDatabase> Tx<'t, DB> {
    pub(crate) fn lend(conn: &'t mut DB::Connection, watch: Arc<Watch>) -> Self {
        Self { conn: Conn::Lent(conn), watch }
    }

    /// Opens a savepoint. What runs through it is undone by [`Savepoint::rollback`], or by dropping it, while the local
    /// transaction goes on.
    ///
    /// # Errors
    ///
    /// What the database answers to `SAVEPOINT`.
    pub async fn savepoint(&mut self) -> sqlx::Result<Savepoint<'_, DB>> {
        self.watch.make_sure::<DB>(self.conn.get()).await?;
        let parent = Arc::clone(&self.watch);
        // Until the savepoint is released nothing is known of what runs in it.
        parent.lose_sight();
        let transaction = sqlx::Connection::begin(self.conn.get()).await?;
        let tx = Tx { conn: Conn::Nested(transaction), watch: Arc::new(parent.nested()) };
        Ok(Savepoint { tx, parent })
    }

    /// The raw connection, for libraries that ask for one.
    ///
    /// On MySQL and MariaDB, lock errors that are swallowed on it go unseen. After a lock wait time-out (1205) only its
    /// statement is undone, and the transaction commits. After a deadlock (1213) `send` reports that the transaction is
    /// gone, but the server has committed by itself each statement that followed: return that error.
    pub fn connection(&mut self) -> &mut DB::Connection {
        self.watch.let_go();
        self.conn.get()
    }
}

impl<DB: SupportedDatabase> fmt::Debug for Tx<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

/// A savepoint in the local transaction; derefs to [`Tx`]. Dropping it rolls back to where it was opened.
pub struct Savepoint<'t, DB: SupportedDatabase> {
    tx: Tx<'t, DB>,
    parent: Arc<Watch>,
}

impl<'t, DB: SupportedDatabase> Savepoint<'t, DB> {
    /// Keeps what ran through the savepoint, as part of the local transaction.
    ///
    /// # Errors
    ///
    /// What the database answers to `RELEASE SAVEPOINT`.
    pub async fn release(self) -> sqlx::Result<()> {
        let Tx { conn, watch } = self.tx;
        if watch.is_doomed() {
            self.parent.doom();
        }
        match conn {
            Conn::Nested(transaction) => transaction.commit().await,
            Conn::Lent(_) => unreachable!("a savepoint owns its nested transaction"),
        }
    }

    /// Undoes what ran through the savepoint.
    ///
    /// # Errors
    ///
    /// What the database answers to `ROLLBACK TO SAVEPOINT`.
    pub async fn rollback(self) -> sqlx::Result<()> {
        match self.tx.conn {
            Conn::Nested(transaction) => transaction.rollback().await,
            Conn::Lent(_) => unreachable!("a savepoint owns its nested transaction"),
        }
    }
}

impl<'t, DB: SupportedDatabase> std::ops::Deref for Savepoint<'t, DB> {
    type Target = Tx<'t, DB>;

    fn deref(&self) -> &Self::Target {
        &self.tx
    }
}

impl<DB: SupportedDatabase> std::ops::DerefMut for Savepoint<'_, DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tx
    }
}

impl<DB: SupportedDatabase> fmt::Debug for Savepoint<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Savepoint").finish_non_exhaustive()
    }
}
