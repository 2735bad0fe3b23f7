//! The names of the properties that the SDK puts on every half message.
//!
//! They stay on the message that consumers see; an inbox reads [`MSG_ID`].

/// The message id; also set as the message's `KEYS`, so that `queryMsgByKey` finds it.
pub const MSG_ID: &str = "TX_MSG_ID";
/// The token of the attempt.
pub const TOKEN: &str = "TX_TOKEN";
/// The kind of the message.
pub const KIND: &str = "TX_KIND";
/// The scope: which database holds the `tx_log` row.
pub const SCOPE: &str = "TX_SCOPE";

/// All of the above: names that a user's headers may not take.
pub const ALL: [&str; 4] = [MSG_ID, TOKEN, KIND, SCOPE];
