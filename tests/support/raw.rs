//! A message whose every part a test can choose.

use rocketmq_tx::{BoxError, MessageId, TransactionMessage};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Raw {
    pub msg_id: String,
    pub tag: Option<String>,
    pub ordering_key: Option<String>,
    pub headers: Vec<(String, String)>,
    /// `None` fails to encode.
    pub body: Option<Vec<u8>>,
}

impl Raw {
    pub fn new(msg_id: &str) -> Self {
        let body = Some(b"body".to_vec());
        Self { msg_id: msg_id.into(), tag: None, ordering_key: None, headers: Vec::new(), body }
    }

    pub fn header(name: &str, value: &str) -> Self {
        Self { headers: vec![(name.into(), value.into())], ..Self::new("raw") }
    }

    pub fn body(body: Vec<u8>) -> Self {
        Self { body: Some(body), ..Self::new("raw") }
    }
}

impl TransactionMessage for Raw {
    const KIND: &'static str = "raw";
    const TOPIC: &'static str = "raws";

    fn msg_id(&self) -> MessageId {
        self.msg_id.as_str().into()
    }

    fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    fn headers(&self) -> Vec<(String, String)> {
        self.headers.clone()
    }

    fn encode(&self) -> Result<Vec<u8>, BoxError> {
        self.body.clone().ok_or_else(|| "told to fail".into())
    }

    fn decode(body: &[u8]) -> Result<Self, BoxError> {
        Ok(Self::body(body.to_vec()))
    }
}
