//! The user's code, by type and by kind.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    future::Future,
    marker::PhantomData,
    sync::Arc,
};

use futures_util::future::BoxFuture;

use crate::{
    message::{BoxError, TransactionMessage},
    protocol::{check_kind, check_topic},
    store::SupportedDatabase,
    tx::Tx,
};

/// The local transaction of one message type.
///
/// ```
/// # #[cfg(feature = "postgres")] mod example {
/// use rocketmq_tx::{MessageId, TransactionListener, TransactionMessage, Tx};
/// use sqlx::Postgres;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPaid { order_id: String }
/// # impl TransactionMessage for OrderPaid {
/// #     const KIND: &'static str = "order.paid";
/// #     const TOPIC: &'static str = "orders";
/// #     fn msg_id(&self) -> MessageId { self.order_id.clone().into() }
/// # }
///
/// struct PayOrder;
///
/// impl TransactionListener<Postgres> for PayOrder {
///     type Message = OrderPaid;
///     type Error = sqlx::Error;
///
///     async fn execute(&self, tx: &mut Tx<'_, Postgres>, paid: &OrderPaid) -> Result<(), sqlx::Error> {
///         sqlx::query("UPDATE orders SET state = 'PAID' WHERE id = $1").bind(&paid.order_id).execute(&mut *tx).await?;
///         Ok(())
///     }
/// }
/// # }
/// ```
pub trait TransactionListener<DB: SupportedDatabase>: Send + Sync + 'static {
    /// The message type.
    type Message: TransactionMessage;
    /// What `execute` fails with; [`SendError::execute_error`](crate::SendError::execute_error) gives it back by type.
    type Error: Into<BoxError> + Send;

    /// Changes the business rows through `tx`.
    ///
    /// `Ok` commits them together with the message; `Err`, a panic or the execute time-out rolls back both. It runs at
    /// most once per call of `send`, and never for a check-back. What it does outside of `tx` is not undone.
    fn execute(
        &self,
        tx: &mut Tx<'_, DB>,
        message: &Self::Message,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// What runs in one local transaction: a registered listener, or the closure of one call.
pub(super) trait Work<DB: SupportedDatabase, M>: Send + 'static {
    type Value: Send + 'static;

    fn run(self, tx: &mut Tx<'_, DB>, message: &M) -> impl Future<Output = Result<Self::Value, BoxError>> + Send;
}

/// A closure, and the error type that it returns.
pub(super) struct Closure<F, T, E>(F, PhantomData<fn() -> (T, E)>);

impl<F, T, E> Closure<F, T, E> {
    pub fn new(closure: F) -> Self {
        Self(closure, PhantomData)
    }
}

impl<DB, M, F, T, E> Work<DB, M> for Closure<F, T, E>
where
    DB: SupportedDatabase,
    M: TransactionMessage,
    F: for<'a> FnOnce(&'a mut Tx<'_, DB>, &'a M) -> BoxFuture<'a, Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Into<BoxError> + Send + 'static,
{
    type Value = T;

    async fn run(self, tx: &mut Tx<'_, DB>, message: &M) -> Result<T, BoxError> {
        (self.0)(tx, message).await.map_err(Into::into)
    }
}

impl<DB, M, F, E> TransactionListener<DB> for Registered<F, M, E>
where
    DB: SupportedDatabase,
    M: TransactionMessage,
    F: for<'a> Fn(&'a mut Tx<'_, DB>, &'a M) -> BoxFuture<'a, Result<(), E>> + Send + Sync + 'static,
    E: Into<BoxError> + Send + 'static,
{
    type Message = M;
    type Error = E;

    async fn execute(&self, tx: &mut Tx<'_, DB>, message: &M) -> Result<(), E> {
        (self.0)(tx, message).await
    }
}

/// A closure in a listener's place.
pub(super) struct Registered<F, M, E>(F, PhantomData<fn(M) -> E>);

impl<F, M, E> Registered<F, M, E> {
    pub fn new(closure: F) -> Self {
        Self(closure, PhantomData)
    }
}

/// A listener without its message type.
trait ErasedListener<DB: SupportedDatabase>: Send + Sync {
    fn execute<'a>(
        &'a self,
        tx: &'a mut Tx<'_, DB>,
        message: &'a (dyn Any + Send + Sync),
    ) -> BoxFuture<'a, Result<(), BoxError>>;
}

impl<DB: SupportedDatabase, L: TransactionListener<DB>> ErasedListener<DB> for L {
    fn execute<'a>(
        &'a self,
        tx: &'a mut Tx<'_, DB>,
        message: &'a (dyn Any + Send + Sync),
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        let message = message.downcast_ref::<L::Message>().expect("listeners are found by their message type");
        Box::pin(async move { TransactionListener::execute(self, tx, message).await.map_err(Into::into) })
    }
}

/// A registered listener, ready for one message.
pub(super) struct ByType<DB>(Arc<dyn ErasedListener<DB>>);

impl<DB: SupportedDatabase, M: TransactionMessage> Work<DB, M> for ByType<DB> {
    type Value = ();

    async fn run(self, tx: &mut Tx<'_, DB>, message: &M) -> Result<(), BoxError> {
        self.0.execute(tx, message).await
    }
}

/// One registered kind.
struct Entry<DB> {
    message_type: TypeId,
    topic: String,
    listener: Option<Arc<dyn ErasedListener<DB>>>,
}

/// Every kind that a producer may send, with the topic and the listener of each.
pub(super) struct Kinds<DB> {
    entries: HashMap<&'static str, Entry<DB>>,
    error: Option<String>,
}

impl<DB: SupportedDatabase> Kinds<DB> {
    pub fn new() -> Self {
        Self { entries: HashMap::new(), error: None }
    }

    pub fn listener<L: TransactionListener<DB>>(&mut self, topic: Option<String>, listener: L) {
        self.insert::<L::Message>(topic, Some(Arc::new(listener)));
    }

    pub fn message<M: TransactionMessage>(&mut self, topic: Option<String>) {
        self.insert::<M>(topic, None);
    }

    fn insert<M: TransactionMessage>(&mut self, topic: Option<String>, listener: Option<Arc<dyn ErasedListener<DB>>>) {
        let topic = topic.unwrap_or_else(|| M::TOPIC.to_owned());
        if let Err(error) = check_kind(M::KIND).and_then(|()| check_topic(&topic)) {
            self.error.get_or_insert(error);
        }
        let entry = Entry { message_type: TypeId::of::<M>(), topic, listener };
        if self.entries.insert(M::KIND, entry).is_some() {
            self.error.get_or_insert(format!(
                "kind {:?} is registered twice; give each message type a kind of its own and each kind one listener",
                M::KIND
            ));
        }
    }

    /// The first thing that is wrong with what was registered.
    pub fn check(&mut self) -> Result<(), String> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if self.entries.is_empty() {
            return Err(
                "no message type is registered; add `.listener(..)`, `.closure(..)` or `.message::<M>()`".into()
            );
        }
        Ok(())
    }

    pub fn topics(&self) -> Vec<String> {
        let mut topics: Vec<String> = self.entries.values().map(|entry| entry.topic.clone()).collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }

    pub fn topic_of<M: TransactionMessage>(&self) -> Result<&str, String> {
        self.entry::<M>().map(|entry| entry.topic.as_str())
    }

    pub fn listener_of<M: TransactionMessage>(&self) -> Result<ByType<DB>, String> {
        let listener = self.entry::<M>()?.listener.clone();
        listener.map(ByType).ok_or_else(|| {
            format!("kind {:?} has no listener; register one with `.listener(..)`, or call `send_with`", M::KIND)
        })
    }

    fn entry<M: TransactionMessage>(&self) -> Result<&Entry<DB>, String> {
        let entry = self.entries.get(M::KIND).ok_or_else(|| {
            format!("kind {:?} is not registered; add its listener, or `.message::<M>()`, to the builder", M::KIND)
        })?;
        if entry.message_type != TypeId::of::<M>() {
            return Err(format!("kind {:?} is registered for another message type; kinds must be unique", M::KIND));
        }
        Ok(entry)
    }
}
