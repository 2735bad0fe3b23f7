//! The command line.

use std::time::Duration;

use super::chance::Chance;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    Postgres,
    MySql,
    Sqlite,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    Java,
    Rust,
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long faults go on; the start, and the settling at the end, come on top.
    pub time: Duration,
    pub seed: u64,
    pub database: Database,
    pub cluster: Cluster,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            time: Duration::from_secs(60),
            seed: fresh_seed(),
            database: Database::Postgres,
            cluster: Cluster::Java,
        };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{name} {value}: not a whole number"));
            match (name.as_str(), value.as_str()) {
                ("--seconds", _) => options.time = Duration::from_secs(number()?),
                ("--seed", _) => options.seed = number()?,
                ("--database", "pg") => options.database = Database::Postgres,
                ("--database", "mysql") => options.database = Database::MySql,
                ("--database", "sqlite") => options.database = Database::Sqlite,
                ("--broker", "java") => options.cluster = Cluster::Java,
                ("--broker", "rust") => options.cluster = Cluster::Rust,
                _ => return Err(format!("{name} {value}: not understood")),
            }
        }
        Ok(options)
    }
}

/// Short enough to be typed again.
fn fresh_seed() -> u64 {
    let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
    Chance::of(seed, 0).below(1_000_000_000)
}
