//! The command line, which is that of the Java and Go peers with the subject before it.

use std::time::Duration;

#[derive(Clone, Copy, Debug)]
pub enum Subject {
    Sdk,
    Bare,
    Broker,
    Stock,
}

#[derive(Clone, Debug)]
pub struct Options {
    pub subject: Subject,
    pub db: String,
    pub topic: String,
    pub conc: usize,
    pub seconds: Duration,
    pub warmup: Duration,
}

impl Options {
    /// What every subject's pool may hold.
    pub fn pool_size(&self) -> u32 {
        self.conc.min(32) as u32
    }
}

pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
    let subject = match arguments.next().as_deref() {
        Some("sdk") => Subject::Sdk,
        Some("bare") => Subject::Bare,
        Some("broker") => Subject::Broker,
        Some("stock") => Subject::Stock,
        other => {
            return Err(format!("the first argument is sdk, bare, broker, stock or table, not {other:?}"));
        }
    };
    let mut options = Options {
        subject,
        db: String::new(),
        topic: String::new(),
        conc: 0,
        seconds: Duration::ZERO,
        warmup: Duration::from_secs(2),
    };
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let seconds = || value.parse().map(Duration::from_secs_f64).map_err(|_| format!("{name} is in seconds"));
        match name.as_str() {
            "--db" => options.db = value,
            "--topic" => options.topic = value,
            "--conc" => options.conc = value.parse().map_err(|_| format!("{name} is a number"))?,
            "--seconds" => options.seconds = seconds()?,
            "--warmup" => options.warmup = seconds()?,
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    if !["pg", "mysql"].contains(&options.db.as_str()) {
        return Err("--db is pg or mysql".into());
    }
    if options.topic.is_empty() || options.conc == 0 || options.seconds.is_zero() {
        return Err("--topic, --conc and --seconds are needed".into());
    }
    Ok(options)
}

/// An address from the environment that `scripts/services` makes.
pub fn address(variable: &str) -> Result<String, String> {
    std::env::var(variable).map_err(|_| format!("{variable} is not set; run this through scripts/bench"))
}
