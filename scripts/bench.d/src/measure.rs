//! Workers that each make one call at a time, for as long as a measurement takes.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use crate::options::Options;

pub const BODY_BYTES: usize = 256;

/// One "order paid"; to the SDK, the message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub msg_id: String,
    pub id: i64,
    pub amount: i64,
}

/// What a call was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    Failed,
    Unknown,
}

/// One line of results, with the peers' names.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub peer: String,
    pub db: String,
    pub conc: usize,
    pub seconds: f64,
    /// Within the measured seconds.
    pub committed: u64,
    pub rate: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    /// Of the whole run, as all that follows.
    pub errors: u64,
    pub unknown: u64,
    #[serde(default)]
    pub all_committed: u64,
    /// Requests to the broker that were not acknowledged.
    #[serde(default)]
    pub timed_out: u64,
    /// Committed and not in the topic; in the topic and not committed, or there twice. Where that can be known at the end.
    #[serde(default)]
    pub lost: Option<u64>,
    #[serde(default)]
    pub repeated: Option<u64>,
    /// From the last call's end until nothing was under way any more.
    #[serde(default)]
    pub drain_ms: Option<f64>,
}

impl Report {
    /// Holds what became visible in the topic against what was committed.
    pub fn delivered(&mut self, delivered: u64) {
        self.lost = Some(self.all_committed.saturating_sub(delivered));
        self.repeated = Some(delivered.saturating_sub(self.all_committed));
    }
}

#[derive(Default)]
struct Tally {
    in_window: u64,
    committed: u64,
    failed: u64,
    unknown: u64,
    latencies: Vec<Duration>,
}

/// The window in which a call must end to be counted.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

/// Message ids grow in text order too, so that the index is filled at its right edge, as the peers do.
struct Orders {
    run: String,
    sequence: AtomicI64,
}

impl Orders {
    fn next(&self) -> Order {
        let id = self.sequence.fetch_add(1, Relaxed) + 1;
        Order { msg_id: format!("paid-{}-{id:010}", self.run), id, amount: 100 + id % 900 }
    }
}

pub async fn measure<F, T>(options: &Options, peer: &str, call: F) -> Report
where
    F: Fn(Order) -> T + Clone + Send + Sync + 'static,
    T: Future<Output = Outcome> + Send + 'static,
{
    let run = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let orders = Arc::new(Orders { run: format!("{run:x}"), sequence: AtomicI64::new(0) });
    let mut total = Tally::default();
    // One call alone first, as the peers: it creates the topic and fetches its route.
    let never = Instant::now() + Duration::from_secs(86_400);
    one_call(&call, &orders, Window { start: never, end: never }, &mut total).await;

    let start = Instant::now() + options.warmup;
    let window = Window { start, end: start + options.seconds };
    let workers: Vec<_> = (0..options.conc)
        .map(|_| {
            let (call, orders) = (call.clone(), Arc::clone(&orders));
            tokio::spawn(async move {
                let mut tally = Tally::default();
                while Instant::now() < window.end {
                    one_call(&call, &orders, window, &mut tally).await;
                }
                tally
            })
        })
        .collect();
    for worker in workers {
        let tally = worker.await.expect("a worker does not panic");
        total.in_window += tally.in_window;
        total.committed += tally.committed;
        total.failed += tally.failed;
        total.unknown += tally.unknown;
        total.latencies.extend(tally.latencies);
    }
    total.latencies.sort_unstable();

    let seconds = options.seconds.as_secs_f64();
    Report {
        peer: peer.to_owned(),
        db: options.db.clone(),
        conc: options.conc,
        seconds,
        committed: total.in_window,
        rate: total.in_window as f64 / seconds,
        p50_ms: percentile(&total.latencies, 0.50),
        p99_ms: percentile(&total.latencies, 0.99),
        errors: total.failed,
        unknown: total.unknown,
        all_committed: total.committed,
        ..Report::default()
    }
}

async fn one_call<T: Future<Output = Outcome>>(
    call: impl Fn(Order) -> T,
    orders: &Orders,
    window: Window,
    tally: &mut Tally,
) {
    let order = orders.next();
    let began = Instant::now();
    let outcome = call(order).await;
    let ended = Instant::now();
    let in_window = ended >= window.start && ended <= window.end;
    match outcome {
        Outcome::Committed => {
            tally.committed += 1;
            tally.in_window += u64::from(in_window);
        }
        Outcome::Failed => tally.failed += 1,
        Outcome::Unknown => tally.unknown += 1,
    }
    if in_window {
        tally.latencies.push(ended - began);
    }
}

/// In milliseconds, by nearest rank.
fn percentile(sorted: &[Duration], quantile: f64) -> f64 {
    let rank = (sorted.len() as f64 * quantile).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).map_or(0.0, |latency| latency.as_secs_f64() * 1000.0)
}
