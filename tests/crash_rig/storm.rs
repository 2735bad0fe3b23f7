//! What strikes processes, connections and servers, at random moments.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    chance::Chance,
    faults::Faults,
    fleet::{Blow, Fleet},
    notes::Notes,
    servers::Server,
};

/// Between two blows at processes or connections.
const PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_millis(3_500));
/// From the end of one server's outage to the next one. Until messages can be rescued, all outages that a half can meet
/// together must be shorter than the brokers' check budget.
const OUTAGE_PAUSE: (Duration, Duration) = (Duration::from_secs(8), Duration::from_secs(20));

pub struct Storm<'a> {
    pub time: Duration,
    /// Processes are stopped for longer than this, so that others settle what they had begun.
    pub settle: Duration,
    pub brokers: &'a [Server],
    pub database: Option<&'a Server>,
    pub proxies: &'a [Arc<Faults>],
    pub fleet: &'a Fleet,
    pub notes: &'a Notes,
}

impl Storm<'_> {
    /// For its time, and until the last outage is over.
    pub async fn rage(&self, blows: Chance, outages: Chance) {
        let end = Instant::now() + self.time;
        self.set_proxies(true);
        tokio::join!(self.strike_until(end, blows), self.take_down_until(end, outages));
        self.set_proxies(false);
    }

    fn set_proxies(&self, active: bool) {
        for proxy in self.proxies {
            proxy.set_active(active);
        }
    }

    async fn strike_until(&self, end: Instant, mut chance: Chance) {
        loop {
            let next = Instant::now() + chance.between(PAUSE.0, PAUSE.1);
            if next >= end {
                return sleep_until(end).await;
            }
            sleep_until(next).await;
            let slot = chance.below(self.fleet.size() as u64) as usize;
            match chance.below(8) {
                0..4 => self.fleet.strike(slot, Blow::Kill),
                4..7 => self.fleet.strike(slot, Blow::Stop(chance.between(self.settle, self.settle * 2))),
                _ => {
                    let proxy = chance.below(self.proxies.len() as u64) as usize;
                    self.proxies[proxy].cut_all();
                    self.notes.other("all connections cut");
                }
            }
        }
    }

    async fn take_down_until(&self, end: Instant, mut chance: Chance) {
        loop {
            let next = Instant::now() + chance.between(OUTAGE_PAUSE.0, OUTAGE_PAUSE.1);
            if next >= end {
                return;
            }
            sleep_until(next).await;
            let broker = &self.brokers[chance.below(self.brokers.len() as u64) as usize];
            let server = self.database.filter(|_| chance.one_in(2)).unwrap_or(broker);
            let begun = Instant::now();
            let back = if server.can_crash() && chance.one_in(2) {
                self.notes.kill(format!("crash of {}", server.name()));
                server.crash().await
            } else {
                self.notes.other(format!("restart of {}", server.name()));
                server.restart().await
            };
            back.unwrap_or_else(|error| panic!("{}: {error}", server.name()));
            eprintln!("{} was away for {:?}", server.name(), begun.elapsed());
        }
    }
}
