//! The start, and the adapter that runs after it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use tokio::{sync::Mutex, time};

use super::{
    check::CheckReceiver,
    config::{CheckSchedule, RocketMq},
    directory::Directory,
    end::HalfEnder,
    engine::Engine,
    half::HalfSender,
    link::Link,
    presence::{Presence, cause},
    settings,
    slot::Slot,
};
use crate::broker::{
    Broker, BrokerError, BrokerSettings, Connector, End, EndOrigin, HalfCoordinates, HalfError, HalfMessage,
    Registration,
};

/// The first pause between two attempts to start; each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts to start.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

#[async_trait]
impl Connector for RocketMq {
    fn group(&self) -> &str {
        &self.group
    }

    fn validate(&self) -> Result<(), BrokerError> {
        self.check()
    }

    async fn connect(self: Box<Self>, registration: Registration) -> Result<Arc<dyn Broker>, BrokerError> {
        self.check()?;
        let names = self.names();
        let group = names.on_the_wire(&self.group);
        let servers = self.name_server_list();
        let slot = Slot::take(&servers, &group)?;

        let mut engine = Engine::start(&self, CheckReceiver::new(registration.checks, names.clone()))?;
        let link = Arc::new(Link::new(engine.client(), servers, self.request_timeout));
        let topics = registration.topics.iter().map(|topic| names.on_the_wire(topic)).collect();
        let directory = Arc::new(Directory::new(link.clone(), topics));
        let presence = Arc::new(Presence::new(link.clone(), directory.clone(), group.clone()));
        until_known(&self, &group, &directory, &presence).await?;

        let leaving = presence.clone();
        engine.run(presence.keep(), async move { leaving.leave().await })?;
        Ok(Arc::new(Connected {
            halves: HalfSender::new(link.clone(), directory.clone(), names.clone(), group.clone()),
            ends: HalfEnder::new(link.clone(), directory.clone(), names, group),
            unreported: self.unreported,
            link,
            directory,
            running: Mutex::new(Some((engine, slot))),
        }))
    }
}

/// Returns once every broker that may ask about halves has acknowledged this producer.
async fn until_known(
    settings: &RocketMq,
    group: &str,
    directory: &Directory,
    presence: &Presence,
) -> Result<(), BrokerError> {
    // A year is for ever, and clocks do not reach as far as `Duration::MAX`.
    let deadline = Instant::now() + settings.start_timeout.min(Duration::from_secs(365 * 24 * 3600));
    let mut pause = FIRST_PAUSE;
    loop {
        let (known_to, error) = match attempt(directory, presence).await {
            Attempt::Known => return Ok(()),
            Attempt::Refused(error) => return Err(error),
            Attempt::NotYet { known_to, error } => (known_to, error),
        };
        if Instant::now() + pause >= deadline {
            if known_to > 0 {
                // A broker that does not answer does not ask either; the heartbeats go on trying.
                tracing::warn!(%error, cause = cause(&error), "started without a broker of the cluster");
                return Ok(());
            }
            return Err(BrokerError::new(
                format!(
                    "the producer of group {group} could not start on name server {} within {:?}: check that address, \
                     and that the name server and the brokers run (`mqadmin clusterList -n <address>`)",
                    settings.name_servers, settings.start_timeout
                ),
                error,
            ));
        }
        tracing::info!(%error, cause = cause(&error), ?pause, "not started yet; trying again");
        time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

enum Attempt {
    Known,
    Refused(BrokerError),
    NotYet { known_to: usize, error: BrokerError },
}

async fn attempt(directory: &Directory, presence: &Presence) -> Attempt {
    if let Err(error) = directory.refresh().await {
        return Attempt::NotYet { known_to: 0, error };
    }
    let mut round = presence.announce().await;
    if let Some(error) = round.refused {
        return Attempt::Refused(error);
    }
    match round.failed.pop() {
        None => Attempt::Known,
        Some(error) => Attempt::NotYet { known_to: round.acknowledged, error },
    }
}

/// The running adapter.
struct Connected {
    halves: HalfSender,
    ends: HalfEnder,
    unreported: Option<CheckSchedule>,
    link: Arc<Link>,
    directory: Arc<Directory>,
    /// Until the shutdown; the slot is free again when the threads have stopped.
    running: Mutex<Option<(Engine, Slot)>>,
}

#[async_trait]
impl Broker for Connected {
    async fn settings(&self) -> Result<Vec<BrokerSettings>, BrokerError> {
        settings::read_all(&self.link, &self.directory, self.unreported).await
    }

    async fn send_half(&self, message: HalfMessage) -> Result<HalfCoordinates, HalfError> {
        self.halves.send(message).await
    }

    async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        self.ends.end(half, end, origin).await
    }

    async fn shutdown(&self) {
        // Held while stopping, so that a second caller returns only when everything has stopped.
        let mut running = self.running.lock().await;
        if let Some((engine, slot)) = running.take() {
            self.link.close();
            engine.stop().await;
            drop(slot);
        }
    }
}
