//! The world of the model: one message id, its row, the halves, the network, and what may still go wrong.

use rocketmq_tx::protocol::{LogRow, State};

/// Sends of the one message id. The third is by the sender of the first, once that one is over.
pub const ATTEMPTS: usize = 3;
/// The instances that send: attempt 0 and 2 at the first, attempt 1 at the second.
pub const INSTANCES: usize = 2;

/// An attempt; its number is its token.
pub type Token = u8;

/// The row in the database.
pub type Row = Option<(Token, State)>;

/// How far an attempt's claim got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Claim {
    NotSent,
    /// On its way to the database, also after its sender died.
    Out,
    Won,
    /// It met a row, or the database crashed before it arrived.
    Lost,
}

/// How far an attempt's half got, as its sender knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    No,
    Out,
    Stored,
    /// The request or its answer was lost.
    Unknown,
}

/// What the sender of an attempt does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Idle,
    /// Claim and half.
    Preparing,
    /// Inside the local transaction.
    Open,
    /// COMMIT was sent.
    Committing,
    /// COMMIT's outcome is in doubt.
    InDoubt,
    /// The caller has its answer.
    Over,
    /// The process died.
    Dead,
}

/// A half, as the broker knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Half {
    None,
    Open,
    Ended,
    /// The broker gave it up after its last check.
    Discarded,
}

/// What an end says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    Commit = 0,
    Rollback = 1,
}

/// One attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    pub step: Step,
    pub claim: Claim,
    pub sent: Sent,
    /// The half was sent beside the claim, which then may only insert.
    pub beside: bool,
}

/// What may still go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Faults {
    pub losses: u8,
    pub duplicates: u8,
    pub process_crashes: u8,
    pub database_crashes: u8,
    pub discards: u8,
    /// Checks at a moment that does not help.
    pub idle_checks: u8,
}

/// Everything.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub row: Row,
    /// What a crash of the database leaves: claims are not synchronised until something that is follows them.
    pub durable: Row,
    /// Whose local transaction holds the row's lock.
    pub lock: Option<Token>,
    /// The COMMIT of the lock's holder is on its way to the database.
    pub commit_out: bool,
    pub attempts: [Attempt; ATTEMPTS],
    pub halves: [Half; ATTEMPTS],
    /// Ends on their way, by token and what they say.
    pub ends: [[u8; 2]; ATTEMPTS],
    pub delivered: [bool; ATTEMPTS],
    /// Whose business rows are committed: the truth.
    pub committed: [bool; ATTEMPTS],
    /// What was answered about each attempt, ever.
    pub answered: [[bool; 2]; ATTEMPTS],
    pub outbox: bool,
    pub faults: Faults,
}

impl World {
    pub fn new(faults: Faults) -> Self {
        let idle = Attempt { step: Step::Idle, claim: Claim::NotSent, sent: Sent::No, beside: false };
        Self {
            row: None,
            durable: None,
            lock: None,
            commit_out: false,
            attempts: [idle; ATTEMPTS],
            halves: [Half::None; ATTEMPTS],
            ends: [[0; 2]; ATTEMPTS],
            delivered: [false; ATTEMPTS],
            committed: [false; ATTEMPTS],
            answered: [[false; 2]; ATTEMPTS],
            outbox: false,
            faults,
        }
    }

    pub fn attempt(&mut self, token: Token) -> &mut Attempt {
        &mut self.attempts[token as usize]
    }

    /// Writes the row, and waits for the disk.
    pub fn write(&mut self, token: Token, state: State) {
        self.row = Some((token, state));
        self.durable = self.row;
    }

    /// The compare-and-swap of step 6 and of the settler.
    pub fn roll_back(&mut self, token: Token) {
        if self.row == Some((token, State::Preparing)) {
            self.write(token, State::RolledBack);
        }
    }

    /// Sends an end, and notes what it says.
    pub fn end(&mut self, token: Token, end: End) {
        self.ends[token as usize][end as usize] += 1;
        self.answered[token as usize][end as usize] = true;
    }

    /// The row as the crate's functions read it.
    pub fn log_row(&self) -> Option<LogRow> {
        self.row.map(|(token, state)| LogRow { token: name(token), state: Ok(state) })
    }
}

pub fn name(token: Token) -> String {
    token.to_string()
}
