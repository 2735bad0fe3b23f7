//! What names, ids, bodies and properties may look like. Checked before anything is written.

use super::property;

/// The sizes that one message may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest body in bytes: the smallest `maxMessageSize` of the brokers.
    pub body: u64,
    /// The largest statement in bytes that the database takes with its arguments: MySQL's `max_allowed_packet`.
    pub statement: Option<u64>,
    /// The largest encoded properties in bytes. RocketMQ's own limit is 32,767 (`Short.MAX_VALUE`); the client and
    /// the broker add some of theirs to a half message and to each renewal of it.
    pub properties: usize,
}

/// RocketMQ stores the length of a message's properties in a signed 16-bit number.
const ROCKETMQ_PROPERTIES: usize = i16::MAX as usize;
/// Room for UNIQ_KEY, PGROUP, TRAN_MSG, REAL_TOPIC, REAL_QID, CLUSTER, TRANSACTION_CHECK_TIMES and the like: a topic
/// of 127 and a group of 120 characters with their names fit several times.
const RESERVED_PROPERTIES: usize = 1024;

/// Room for the other columns of a claim: the properties once more, as JSON, whose escapes can double them, and names.
const RESERVED_STATEMENT: u64 = 128 * 1024;

impl Default for Limits {
    fn default() -> Self {
        Self {
            // RocketMQ's default maxMessageSize.
            body: 4 * 1024 * 1024,
            statement: None,
            properties: ROCKETMQ_PROPERTIES - RESERVED_PROPERTIES,
        }
    }
}

impl Limits {
    /// Checks an encoded body.
    pub fn check_body(&self, body: &[u8]) -> Result<(), String> {
        if body.is_empty() {
            return Err("the body is empty, which RocketMQ refuses; encode at least one byte".into());
        }
        if body.len() as u64 > self.body {
            return Err(format!(
                "the body has {} bytes, more than the broker's maxMessageSize of {}; send a reference to the data",
                body.len(),
                self.body
            ));
        }
        if let Some(statement) = self.statement
            && body.len() as u64 + RESERVED_STATEMENT > statement
        {
            return Err(format!(
                "the body has {} bytes, too many for the database's max_allowed_packet of {statement}; \
                 raise that, or send a reference to the data",
                body.len()
            ));
        }
        Ok(())
    }

    /// Checks the size of all properties of a half message together, as RocketMQ encodes them: each name and value
    /// with one separator behind it.
    pub fn check_properties<'a>(&self, properties: impl Iterator<Item = (&'a str, &'a str)>) -> Result<(), String> {
        let size: usize = properties.map(|(name, value)| name.len() + value.len() + 2).sum();
        if size > self.properties {
            return Err(format!(
                "the properties have {size} bytes, more than the {} that a half message can carry; \
                 shorten headers, tag or ordering key, or move data into the body",
                self.properties
            ));
        }
        Ok(())
    }
}

const MSG_ID_BYTES: usize = 255;
const KIND_BYTES: usize = 128;
const TAG_BYTES: usize = 128;
const ORDERING_KEY_BYTES: usize = 255;
/// `Validators.TOPIC_MAX_LENGTH` of RocketMQ's clients.
const TOPIC_CHARS: usize = 127;

/// The names of one message, for [`Names::check`].
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The message id.
    pub msg_id: &'a str,
    /// The tag.
    pub tag: Option<&'a str>,
    /// The ordering key.
    pub ordering_key: Option<&'a str>,
    /// The user's own properties.
    pub headers: &'a [(String, String)],
}

impl Names<'_> {
    /// Checks all of them.
    pub fn check(&self) -> Result<(), String> {
        check_msg_id(self.msg_id)?;
        self.tag.map_or(Ok(()), check_tag)?;
        self.ordering_key.map_or(Ok(()), check_ordering_key)?;
        check_headers(self.headers)
    }
}

/// Checks a message id: 1 to 255 bytes of UTF-8 without control characters. It is compared byte for byte.
pub fn check_msg_id(id: &str) -> Result<(), String> {
    check_text("message id", id, MSG_ID_BYTES)
}

/// Checks a kind: 1 to 128 bytes without control characters.
pub fn check_kind(kind: &str) -> Result<(), String> {
    check_text("kind", kind, KIND_BYTES)
}

/// Checks a tag: 1 to 128 bytes without control characters, and no `|`, which consumers use to join tags.
pub fn check_tag(tag: &str) -> Result<(), String> {
    check_text("tag", tag, TAG_BYTES)?;
    if tag.contains('|') {
        return Err(format!("tag {tag:?} contains '|', which RocketMQ uses to join tags; use another character"));
    }
    Ok(())
}

/// Checks an ordering key: 1 to 255 bytes without control characters.
pub fn check_ordering_key(key: &str) -> Result<(), String> {
    check_text("ordering key", key, ORDERING_KEY_BYTES)
}

/// Checks a topic: 1 to 127 of the characters that RocketMQ allows.
pub fn check_topic(topic: &str) -> Result<(), String> {
    check_text("topic", topic, TOPIC_CHARS)?;
    if !topic.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '%' | '|')) {
        return Err(format!("the topic {topic:?} may only have letters, digits and _ - % |; rename it"));
    }
    Ok(())
}

/// Checks the user's own properties: their names must not be RocketMQ's or the SDK's, and neither names nor values
/// may hold the control characters that RocketMQ separates them with.
pub fn check_headers(headers: &[(String, String)]) -> Result<(), String> {
    for (position, (name, value)) in headers.iter().enumerate() {
        check_text("header name", name, TAG_BYTES)?;
        if value.is_empty() || value.chars().any(char::is_control) {
            return Err(format!("the value of header {name:?} is empty or has a control character; encode it first"));
        }
        if DELAYS.contains(&name.as_str()) {
            return Err(format!(
                "header {name:?} delays the message, which a half message cannot be: brokers clear or refuse it; \
                 send it without delay"
            ));
        }
        if name == "CHECK_IMMUNITY_TIME_IN_SECONDS" {
            return Err(format!(
                "header {name:?} would make the broker refuse ends and put off check-backs; \
                 use execute_timeout and settle_deadline"
            ));
        }
        if RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || RESERVED.contains(&name.as_str())
            || property::ALL.contains(&name.as_str())
        {
            return Err(format!("header {name:?} is reserved by RocketMQ or this SDK; choose another name"));
        }
        if headers[..position].iter().any(|(earlier, _)| earlier == name) {
            return Err(format!("header {name:?} is given twice; a property has one value"));
        }
    }
    Ok(())
}

/// The ways to delay a message (`MessageConst` of RocketMQ 5.x, and the cloud service's).
const DELAYS: [&str; 5] = ["DELAY", "__STARTDELIVERTIME", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"];

/// Properties with a meaning of their own to clients and brokers (`MessageConst.STRING_HASH_SET` of RocketMQ 5.x).
const RESERVED: [&str; 50] = [
    "KEYS",
    "TAGS",
    "WAIT",
    "RETRY_TOPIC",
    "REAL_TOPIC",
    "REAL_QID",
    "TRAN_MSG",
    "PGROUP",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "BUYER_ID",
    "ORIGIN_MESSAGE_ID",
    "TRANSFER_FLAG",
    "CORRECTION_FLAG",
    "MQ2_FLAG",
    "RECONSUME_TIME",
    "MSG_REGION",
    "TRACE_ON",
    "UNIQ_KEY",
    "EXTEND_UNIQ_INFO",
    "MAX_RECONSUME_TIMES",
    "CONSUME_START_TIME",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TRANSACTION_CHECK_TIMES",
    "INSTANCE_ID",
    "CORRELATION_ID",
    "REPLY_TO_CLIENT",
    "TTL",
    "ARRIVE_TIME",
    "PUSH_REPLY_TIME",
    "CLUSTER",
    "MSG_TYPE",
    "POP_CK",
    "POP_CK_OFFSET",
    "1ST_POP_TIME",
    "FORWARD_QUEUE_ID",
    "REDIRECT",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "TRACE_CONTEXT",
    "INNER_NUM",
    "INNER_BASE",
    "DUP_INFO",
    "BORN_TIMESTAMP",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "ORIGIN_GROUP",
    "TRANS_OFFSET",
    "_SYS_MSG_PRIORITY_",
    "E_T",
];

/// Families of such properties.
const RESERVED_PREFIXES: [&str; 2] = ["TIMER_", "__"];

fn check_text(what: &str, text: &str, max_bytes: usize) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("the {what} is empty; give it 1 to {max_bytes} bytes"));
    }
    if text.len() > max_bytes {
        return Err(format!("the {what} has {} bytes; shorten it to {max_bytes}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("the {what} {text:?} has a control character; remove it"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_68_topics() {
        assert_eq!(check_topic(&"t".repeat(127)), Ok(()));
        for bad in [&"t".repeat(128), "", "a b", "orders/eu", "a\u{1}", "größe"] {
            assert!(check_topic(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ids_may_have_spaces_and_any_script_but_no_control_characters() {
        for good in ["A", "a", "a ", " ", "order-42:OrderPaid", "é", "e\u{301}", &"x".repeat(255)] {
            assert_eq!(check_msg_id(good), Ok(()), "{good:?}");
        }
        for bad in ["", "a\0", "a\nb", "\u{7f}", "\u{85}", &"x".repeat(256), &"é".repeat(128)] {
            assert!(check_msg_id(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn case_39_each_delay_property_is_refused() {
        for delay in DELAYS {
            let error = check_headers(&[(delay.into(), "1".into())]).unwrap_err();
            assert!(error.contains("delay"), "{error}");
        }
    }

    #[test]
    fn headers_that_would_change_the_protocol_are_refused() {
        for name in ["TRAN_MSG", "PGROUP", "KEYS", "TX_TOKEN", "CHECK_IMMUNITY_TIME_IN_SECONDS", "a\u{1}b", ""] {
            assert!(check_headers(&[(name.into(), "1".into())]).is_err(), "{name:?}");
        }
        assert!(check_headers(&[("a".into(), "1".into()), ("a".into(), "2".into())]).is_err());
        assert!(check_headers(&[("a".into(), "x\u{2}y".into())]).is_err());
        assert_eq!(check_headers(&[("tenant".into(), "eu 1".into())]), Ok(()));
    }

    #[test]
    fn bodies_and_properties_at_their_limits() {
        let limits = Limits { body: 10, statement: None, properties: 10 };
        for (length, fits) in [(0, false), (1, true), (9, true), (10, true), (11, false)] {
            assert_eq!(limits.check_body(&vec![1; length]).is_ok(), fits, "{length}");
        }
        let of_database = Limits { body: u64::MAX, statement: Some(1 << 20), ..limits };
        for (length, fits) in [(1 << 19, true), (1 << 20, false)] {
            let checked = of_database.check_body(&vec![1; length]);
            assert_eq!(checked.is_ok(), fits, "{length}");
            assert!(fits || checked.unwrap_err().contains("raise"));
        }
        for (value, fits) in [("1234567", true), ("12345678", false)] {
            assert_eq!(limits.check_properties([("a", value)].into_iter()).is_ok(), fits, "{value}");
        }
    }
}
