//! From settings to a running producer, with every check on the way.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::Pool;
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Background, TransactionListener, TransactionProducer,
    claim::Claimer,
    connections::Connections,
    core::Core,
    listener::{Kinds, Registered},
};
use crate::{
    broker::{Broker, BrokerSettings, CheckSink, Connector, Registration, rocketmq::RocketMq},
    check_back,
    confirm::Confirmer,
    counters::Counting,
    error::StartError,
    housekeeping::{self, Housekeeping},
    message::{BoxError, TransactionMessage},
    protocol::{Limits, Timing},
    store::{Store, SupportedDatabase},
    tx::Tx,
};

/// Describes a [`TransactionProducer`]; [`start`](Self::start) checks everything and runs it.
#[must_use]
pub struct Builder<DB: SupportedDatabase> {
    pool: Pool<DB>,
    connector: Option<Box<dyn Connector>>,
    kinds: Kinds<DB>,
    timing: Timing,
    housekeeping: Housekeeping,
    pass_on: bool,
}

/// Questions that wait for the database. Beyond it they are dropped and come back with the broker's next round.
const CHECK_QUEUE: usize = 65_536;

impl<DB: SupportedDatabase> Builder<DB> {
    pub(super) fn new(pool: Pool<DB>) -> Self {
        Self {
            pool,
            connector: None,
            kinds: Kinds::new(),
            timing: Timing::default(),
            housekeeping: Housekeeping::default(),
            pass_on: true,
        }
    }

    /// The RocketMQ cluster.
    pub fn rocketmq(self, cluster: RocketMq) -> Self {
        self.broker(cluster)
    }

    /// Any broker that has an adapter.
    pub fn broker(mut self, connector: impl Connector) -> Self {
        self.connector = Some(Box::new(connector));
        self
    }

    /// Registers the listener of one message type.
    pub fn listener<L: TransactionListener<DB>>(mut self, listener: L) -> Self {
        self.kinds.listener(None, listener);
        self
    }

    /// Registers the listener of one message type, whose messages go to `topic` instead of the type's own.
    pub fn listener_on<L: TransactionListener<DB>>(mut self, topic: impl Into<String>, listener: L) -> Self {
        self.kinds.listener(Some(topic.into()), listener);
        self
    }

    /// Registers a closure as the listener of one message type.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # fn example<M: rocketmq_tx::TransactionMessage>(builder: rocketmq_tx::Builder<sqlx::Postgres>) {
    /// use rocketmq_tx::Tx;
    ///
    /// builder.closure(|tx: &mut Tx<'_, sqlx::Postgres>, paid: &M| Box::pin(async move {
    ///     sqlx::query("UPDATE orders SET state = 'PAID'").execute(&mut *tx).await.map(drop)
    /// }));
    /// # }
    /// ```
    pub fn closure<M, F, E>(mut self, execute: F) -> Self
    where
        M: TransactionMessage,
        F: for<'a> Fn(&'a mut Tx<'_, DB>, &'a M) -> BoxFuture<'a, Result<(), E>> + Send + Sync + 'static,
        E: Into<BoxError> + Send + 'static,
    {
        self.kinds.listener(None, Registered::new(execute));
        self
    }

    /// Registers a message type without a listener, for
    /// [`send_with`](TransactionProducer::send_with).
    pub fn message<M: TransactionMessage>(mut self) -> Self {
        self.kinds.message::<M>(None);
        self
    }

    /// As [`message`](Self::message), with a topic of its own.
    pub fn message_on<M: TransactionMessage>(mut self, topic: impl Into<String>) -> Self {
        self.kinds.message::<M>(Some(topic.into()));
        self
    }

    /// How long `execute` may run. Default 30 s. Must leave `database_timeout` before the settle deadline.
    pub fn execute_timeout(mut self, timeout: Duration) -> Self {
        self.timing.execute_timeout = timeout;
        self
    }

    /// How old an attempt may become before it is rolled back when nobody works on it, by the database's clock.
    /// Default 60 s. The broker must still ask afterwards.
    pub fn settle_deadline(mut self, deadline: Duration) -> Self {
        self.timing.settle_deadline = deadline;
        self
    }

    /// How long the SDK waits for its own short statements, and for the outcome of a COMMIT whose answer was lost.
    /// Default 5 s.
    pub fn database_timeout(mut self, timeout: Duration) -> Self {
        self.timing.database_timeout = timeout;
        self
    }

    /// How long the rows of finished messages are kept. Default 7 days; must outlive the broker's files.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.timing.retention = retention;
        self
    }

    /// Whether a local transaction may pass its connection on to one that waits or comes within 5 ms, instead of giving it
    /// back to the pool, which would test it with a round trip to the database. Default `true`.
    ///
    /// The pool's `before_acquire` and `after_release` do not run in between. So that no `execute` finds what another one
    /// left, only those pass it on that ran nothing but prepared SELECT, INSERT, UPDATE and DELETE, none of which names
    /// `set_config`, a lock function, a temporary table or a `@variable`; and the pool gets it back after eight
    /// transactions, so that its other users keep their turn. Switch it off when such a statement changes the session in
    /// another way, by a function of your own say, and a hook cleans that; or when the hooks must see every transaction.
    pub fn pass_on_connections(mut self, pass_on: bool) -> Self {
        self.pass_on = pass_on;
        self
    }

    /// How often the settler and the purger look. Default 1 s.
    pub fn housekeeping_interval(mut self, interval: Duration) -> Self {
        self.housekeeping.interval = interval;
        self
    }

    /// Checks the settings, the database and the broker, and starts. The producer is known to the brokers of every
    /// topic, and answers check-backs, when this returns.
    ///
    /// # Errors
    ///
    /// [`StartError`], in words that name the remedy. Nothing was written.
    pub async fn start(mut self) -> Result<TransactionProducer<DB>, StartError> {
        self.kinds.check().map_err(StartError::Invalid)?;
        self.timing.check()?;
        self.housekeeping.check().map_err(StartError::Invalid)?;
        let connector = self.connector.take().ok_or_else(|| {
            StartError::Invalid("no broker is given; add `.rocketmq(RocketMq::at(..).group(..))`".into())
        })?;
        connector.validate()?;
        let group = connector.group().to_owned();

        let store = Arc::new(Store::open(&self.pool, self.timing.database_timeout).await?);
        let (checks, questions) = CheckSink::bounded(CHECK_QUEUE);
        let broker = connector.connect(Registration { topics: self.kinds.topics(), checks }).await?;
        let limits = match check_brokers(&*broker, &self.timing).await {
            Ok(limits) => Limits { statement: store.max_statement(), ..limits },
            Err(error) => {
                broker.shutdown().await;
                return Err(error);
            }
        };

        let counting = Arc::new(Counting::default());
        let confirmer = Confirmer::spawn(Arc::clone(&store), Arc::clone(&counting));
        let stop = CancellationToken::new();
        let missing = housekeeping::Missing::new(self.timing.settle_deadline);
        check_back::spawn(
            check_back::Answerer {
                store: Arc::clone(&store),
                broker: Arc::clone(&broker),
                confirmer: confirmer.clone(),
                counting: Arc::clone(&counting),
                missing: missing.clone(),
                group: group.clone(),
            },
            questions,
            stop.clone(),
        );
        housekeeping::spawn(
            self.housekeeping.worker(Arc::clone(&store), Arc::clone(&counting), missing, self.timing.retention),
            stop.clone(),
        );
        let core = Core {
            claimer: Claimer::spawn(Arc::clone(&store), self.timing.database_timeout),
            store,
            connections: Connections::of(self.pool, self.pass_on),
            broker,
            confirmer,
            kinds: self.kinds,
            group,
            timing: self.timing,
            limits,
            counting,
            tasks: TaskTracker::new(),
            closing: AtomicBool::new(false),
        };
        let background = Background { _stop_on_drop: stop.clone().drop_guard(), stop, report: OnceCell::new() };
        Ok(TransactionProducer { core: Arc::new(core), background: Arc::new(background) })
    }
}

/// Reads every broker's settings and holds the SDK's against them.
async fn check_brokers(broker: &dyn Broker, timing: &Timing) -> Result<Limits, StartError> {
    let mut limits = Limits::default();
    let brokers = broker.settings().await?;
    for settings in &brokers {
        timing.check_against(settings)?;
        warn_of_double_checks(settings);
    }
    // What the strictest broker takes, every broker takes.
    if let Some(body) = brokers.iter().filter_map(|settings| settings.max_message_size).min() {
        limits.body = body;
    }
    Ok(limits)
}

fn warn_of_double_checks(settings: &BrokerSettings) {
    if settings.op_batch_interval.is_some_and(|batch| settings.check_interval < batch) {
        tracing::warn!(
            broker = settings.broker_name,
            "transactionCheckInterval is shorter than transactionOpBatchInterval: messages that were ended may be checked \
             and delivered again; lower transactionOpBatchInterval"
        );
    }
}
