//! Frames of RocketMQ's remoting protocol, as far as a proxy reads them.
//!
//! Four bytes of length, four of the header's length with the header's format in the first of them, the header, the body.

use tokio::io::{AsyncRead, AsyncReadExt};

pub const SEND: i32 = 10;
pub const SEND_V2: i32 = 310;
pub const HEARTBEAT: i32 = 34;
pub const END: i32 = 37;
pub const CHECK: i32 = 39;
pub const ROUTE: i32 = 105;
pub const BROKERS: i32 = 106;

/// More is no frame.
const LENGTH_MAX: usize = 64 << 20;
/// The format of headers as JSON.
const JSON: u8 = 0;
/// The bit of the flag that tells an answer from a request.
const ANSWER: i64 = 1;

pub struct Frame {
    /// All of it, with its length.
    pub bytes: Vec<u8>,
    /// Of a request what it asks for, of an answer its result.
    pub code: i32,
    /// Which request an answer belongs to.
    pub opaque: i32,
    pub is_answer: bool,
    /// Where the body begins.
    body: usize,
}

impl Frame {
    /// The next one; none when the connection ends, or carries something else.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length).await.ok()?;
        let size = u32::from_be_bytes(length) as usize;
        if !(4..=LENGTH_MAX).contains(&size) {
            return None;
        }
        let mut bytes = vec![0; 4 + size];
        bytes[..4].copy_from_slice(&length);
        from.read_exact(&mut bytes[4..]).await.ok()?;
        Self::parse(bytes)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let header_length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        let header = bytes.get(8..8 + header_length)?;
        let (code, opaque, flag) = if bytes[4] == JSON {
            let fields: serde_json::Value = serde_json::from_slice(header).ok()?;
            let number = |name: &str| fields.get(name).and_then(serde_json::Value::as_i64);
            (i32::try_from(number("code")?).ok()?, i32::try_from(number("opaque")?).ok()?, number("flag")?)
        } else {
            // Code, one byte of language, two of version, opaque, flag.
            let four = |at: usize| Some(i32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
            let code = i16::from_be_bytes(header.get(..2)?.try_into().ok()?);
            (code.into(), four(5)?, four(9)?.into())
        };
        Some(Self { code, opaque, is_answer: flag & ANSWER != 0, body: 8 + header_length, bytes })
    }

    /// Replaces each address `"host:port"` in the body by what `replace` makes of it.
    pub fn replace_addresses(&mut self, mut replace: impl FnMut(&str) -> Option<String>) {
        let body = String::from_utf8_lossy(&self.bytes[self.body..]).into_owned();
        let mut replaced = String::with_capacity(body.len());
        for (position, part) in body.split('"').enumerate() {
            if position > 0 {
                replaced.push('"');
            }
            let is_address = part.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            match is_address.then(|| replace(part)).flatten() {
                Some(other) => replaced.push_str(&other),
                None => replaced.push_str(part),
            }
        }
        self.bytes.truncate(self.body);
        self.bytes.extend_from_slice(replaced.as_bytes());
        let length = u32::try_from(self.bytes.len() - 4).expect("a frame is short");
        self.bytes[..4].copy_from_slice(&length.to_be_bytes());
    }
}

/// The name of a code of requests that may be struck.
pub fn name(code: i32) -> Option<&'static str> {
    Some(match code {
        SEND | SEND_V2 => "half",
        END => "end",
        HEARTBEAT => "heartbeat",
        CHECK => "check",
        ROUTE | BROKERS => "route",
        _ => return None,
    })
}
