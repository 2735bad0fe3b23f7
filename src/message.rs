//! What a message type is.

use std::fmt;

use serde::{Serialize, de::DeserializeOwned};

/// The business key of a message, made by the user: one message, one id, on both sides.
///
/// Build it from the business, not at random (`order-42:OrderPaid`), so that a retry of the same business operation is
/// the same message. Ids are compared byte for byte on every database: `A`, `a` and `a ` are three messages. 1 to 255
/// bytes of UTF-8 without control characters; checked when the message is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(String);

impl MessageId {
    /// Wraps a business key.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: Into<String>> From<T> for MessageId {
    fn from(id: T) -> Self {
        Self(id.into())
    }
}

/// Any error, boxed.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A type of message: where it goes and how it is told from others.
///
/// ```
/// use rocketmq_tx::{MessageId, TransactionMessage};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct OrderPaid { order_id: String, cents: i64 }
///
/// impl TransactionMessage for OrderPaid {
///     const KIND: &'static str = "order.paid";
///     const TOPIC: &'static str = "orders";
///
///     fn msg_id(&self) -> MessageId {
///         format!("{}:OrderPaid", self.order_id).into()
///     }
/// }
/// ```
pub trait TransactionMessage: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The stable name of the type, part of the contract with what is stored: a check-back may come after a redeploy.
    /// 1 to 128 bytes without control characters.
    const KIND: &'static str;

    /// The topic, unless the listener is registered with another one. At most 127 letters, digits and `_ - % |`.
    const TOPIC: &'static str;

    /// The id of this message.
    fn msg_id(&self) -> MessageId;

    /// The tag that consumers can filter on: 1 to 128 bytes without control characters or `|`.
    fn tag(&self) -> Option<&str> {
        None
    }

    /// Messages of one ordering key are stored in one queue of the topic. 1 to 255 bytes without control characters.
    ///
    /// This says where they are stored, not when: two transactions that overlap may be delivered in either order.
    fn ordering_key(&self) -> Option<&str> {
        None
    }

    /// Properties of the message: names and values without control characters, none that RocketMQ or the SDK uses.
    fn headers(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// The body: JSON, unless overridden together with [`decode`](Self::decode).
    ///
    /// # Errors
    ///
    /// What the codec says; nothing was written then.
    fn encode(&self) -> Result<Vec<u8>, BoxError> {
        Ok(serde_json::to_vec(self)?)
    }

    /// The message of a body that [`encode`](Self::encode) made.
    ///
    /// # Errors
    ///
    /// What the codec says.
    fn decode(body: &[u8]) -> Result<Self, BoxError> {
        Ok(serde_json::from_slice(body)?)
    }
}
