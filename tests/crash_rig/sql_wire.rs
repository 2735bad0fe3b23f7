//! The statements in what a client says to PostgreSQL or MariaDB, as far as a proxy reads them.

use std::collections::HashMap;

/// More is no message.
const LENGTH_MAX: usize = 64 << 20;
/// PostgreSQL's question whether it speaks TLS, after which the client begins again.
const TLS_REQUEST: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// MariaDB's commands.
const QUERY: u8 = 3;
const PREPARE: u8 = 22;
const EXECUTE: u8 = 23;

/// What the statements of one connection are called there.
pub enum SqlWire {
    Postgres { greeted: bool, prepared: HashMap<Vec<u8>, Option<&'static str>> },
    MySql { prepared: HashMap<u32, Option<&'static str>>, preparing: Option<Option<&'static str>> },
}

/// One message of a client's, and the statement that it has the server run.
pub struct Message {
    pub bytes: Vec<u8>,
    pub statement: Option<&'static str>,
}

impl SqlWire {
    pub fn of(url: &str) -> Self {
        if url.starts_with("postgres") {
            Self::Postgres { greeted: false, prepared: HashMap::new() }
        } else {
            Self::MySql { prepared: HashMap::new(), preparing: None }
        }
    }

    /// How many bytes of the next message tell its length.
    pub fn head(&self) -> usize {
        match self {
            Self::Postgres { greeted: true, .. } => 5,
            Self::Postgres { greeted: false, .. } | Self::MySql { .. } => 4,
        }
    }

    /// How many bytes follow this head; none when it is not one.
    pub fn length(&self, head: &[u8]) -> Option<usize> {
        let big = |bytes: &[u8]| bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let length = match self {
            // PostgreSQL's length counts itself.
            Self::Postgres { greeted: true, .. } => big(&head[1..]).checked_sub(4)?,
            Self::Postgres { greeted: false, .. } => big(head).checked_sub(4)?,
            Self::MySql { .. } => big(&[head[2], head[1], head[0]]),
        };
        (length <= LENGTH_MAX).then_some(length)
    }

    pub fn message(&mut self, bytes: Vec<u8>) -> Message {
        let statement = match self {
            Self::Postgres { greeted, .. } if !*greeted => {
                *greeted = bytes[4..] != TLS_REQUEST;
                None
            }
            Self::Postgres { prepared, .. } => postgres_statement(prepared, &bytes),
            Self::MySql { prepared, preparing } => mysql_statement(prepared, preparing, &bytes),
        };
        Message { bytes, statement }
    }

    /// Takes note of what a server answers: MariaDB numbers the statements that it prepares.
    pub fn answered(&mut self, bytes: &[u8]) {
        if let Self::MySql { prepared, preparing } = self
            && let Some(statement) = preparing.take()
            && bytes.get(4) == Some(&0)
            && let Some(number) = bytes.get(5..9)
        {
            prepared.insert(u32::from_le_bytes(number.try_into().expect("four bytes")), statement);
        }
    }
}

fn postgres_statement(prepared: &mut HashMap<Vec<u8>, Option<&'static str>>, bytes: &[u8]) -> Option<&'static str> {
    let mut words = bytes[5..].split(|byte| *byte == 0);
    match bytes[0] {
        b'Q' => name(words.next()?),
        b'P' => {
            let called = words.next()?.to_vec();
            prepared.insert(called, name(words.next()?));
            None
        }
        b'B' => {
            let _portal = words.next()?;
            prepared.get(words.next()?).copied().flatten()
        }
        _ => None,
    }
}

fn mysql_statement(
    prepared: &HashMap<u32, Option<&'static str>>,
    preparing: &mut Option<Option<&'static str>>,
    bytes: &[u8],
) -> Option<&'static str> {
    // What does not begin at zero goes on with something else: the login.
    if bytes[3] != 0 {
        return None;
    }
    match *bytes.get(4)? {
        QUERY => name(&bytes[5..]),
        PREPARE => {
            *preparing = Some(name(&bytes[5..]));
            None
        }
        EXECUTE => {
            let number = u32::from_le_bytes(bytes.get(5..9)?.try_into().ok()?);
            prepared.get(&number).copied().flatten()
        }
        _ => None,
    }
}

/// The statements that may be struck, by how they begin. A COMMIT is the whole text.
const NAMES: [(&str, &str); 9] = [
    ("INSERT INTO tx_log", "claim or tombstone"),
    ("SET STATEMENT innodb_lock_wait_timeout = 0 FOR INSERT INTO tx_log", "claim or tombstone"),
    ("UPDATE tx_log SET token", "second claim"),
    ("UPDATE tx_log SET state = 'COMMITTED'", "fence"),
    ("UPDATE tx_log SET state = 'ROLLED_BACK'", "rollback or settling"),
    ("UPDATE tx_log SET confirmed_at", "confirmation"),
    ("SELECT msg_id, token, state", "check"),
    ("INSERT INTO orders", "execute"),
    ("COMMIT", COMMIT),
];
pub const COMMIT: &str = "COMMIT";

fn name(text: &[u8]) -> Option<&'static str> {
    let begins = |(start, _): &&(&str, &str)| text.starts_with(start.as_bytes());
    NAMES.iter().find(begins).map(|(_, name)| *name)
}
