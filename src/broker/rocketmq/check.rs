//! Check-backs: the broker's questions about halves that were not ended in time.

use std::sync::Arc;

use bytes::Bytes;
use rocketmq_error::SharedError;
use rocketmq_model::common::message::{MessageConst, MessageTrait, message_ext::MessageExt};
use rocketmq_protocol::{
    code::{request_code::RequestCode, response_code::ResponseCode},
    common::message::message_decoder,
    protocol::{
        header::check_transaction_state_request_header::CheckTransactionStateRequestHeader,
        remoting_command::RemotingCommand,
    },
};
use rocketmq_transport::api::{
    ProtocolNoResponseReason, RemotingRequest, RemotingResponse, RequestProcessor, ResponseAction, SessionView,
};

use super::names::Names;
use crate::broker::{CheckBack, CheckSink, HalfCoordinates, HalfIdentity, property};

/// Takes the requests that brokers send: hands check-backs to the sink, and answers nothing itself. The answer is an
/// end of its own, sent by whoever reads the sink; no answer means Unknown, and the broker asks again.
#[derive(Clone)]
pub(super) struct CheckReceiver {
    sink: CheckSink,
    names: Arc<Names>,
}

impl CheckReceiver {
    pub(super) fn new(sink: CheckSink, names: Names) -> Self {
        Self { sink, names: Arc::new(names) }
    }

    fn receive(&self, command: &RemotingCommand, asker: Option<String>) {
        match read(command, asker, &self.names) {
            Ok(check) => {
                let unique_key = check.half.unique_key.clone();
                if !self.sink.offer(check) {
                    tracing::warn!(unique_key, "a check-back had no room; the broker asks again in its next round");
                }
            }
            Err(reason) => tracing::warn!(reason, "a check-back could not be read; the broker asks again"),
        }
    }
}

impl RequestProcessor for CheckReceiver {
    async fn process(&mut self, request: &mut RemotingRequest) -> Result<ResponseAction, SharedError> {
        let asker = match request.session() {
            SessionView::Network { remote_addr, .. } => Some(remote_addr.to_string()),
            _ => None,
        };
        let code = RequestCode::from(request.command().code());
        if code == RequestCode::CheckTransactionState {
            self.receive(request.command(), asker);
            if !request.original_identity().is_one_way()
                && let Ok(nothing) = request.protocol_no_response(ProtocolNoResponseReason::CallbackHandled)
            {
                return Ok(ResponseAction::NoReply(nothing));
            }
        }
        // Brokers send check-backs one-way, and the transport drops the reply to a one-way request.
        let reply = RemotingCommand::create_response_command_with_code(ResponseCode::RequestCodeNotSupported.to_i32())
            .set_opaque(request.command().opaque());
        match RemotingResponse::command(reply) {
            Ok(reply) => Ok(ResponseAction::Reply(reply)),
            Err(violation) => {
                Err(Arc::new(rocketmq_error::Error::new(&rocketmq_error::CORE_ARGUMENT_INVALID).with_source(violation)))
            }
        }
    }
}

fn read(command: &RemotingCommand, asker: Option<String>, names: &Names) -> Result<CheckBack, String> {
    let header: CheckTransactionStateRequestHeader =
        command.decode_command_custom_header().map_err(|error| format!("its header is not readable: {error}"))?;
    let mut frame: Bytes = command.body().cloned().ok_or("it carries no message")?;
    let message =
        message_decoder::decode(&mut frame, false, false, false, false, false).ok_or("its message is not readable")?;

    let unique_key = text(&message, MessageConst::PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX)
        .or_else(|| header.msg_id.as_ref().map(ToString::to_string))
        .unwrap_or_else(|| message.msg_id.to_string());
    let topic = text(&message, MessageConst::PROPERTY_REAL_TOPIC).unwrap_or_else(|| message.topic().to_string());
    let half = HalfCoordinates {
        topic: names.for_users(&topic),
        broker_name: header.rpc_request_header.and_then(|rpc| rpc.broker_name).unwrap_or_default().to_string(),
        // Offsets mean something only to the broker that asks, wherever the half was first stored.
        store_host: Some(asker.unwrap_or_else(|| message.store_host.to_string())),
        commit_log_offset: offset(header.commit_log_offset)?,
        queue_offset: offset(header.tran_state_table_offset)?,
        transaction_id: header.transaction_id.map_or_else(|| unique_key.clone(), |id| id.to_string()),
        unique_key,
    };
    let identity = (|| {
        Some(HalfIdentity {
            msg_id: text(&message, property::MSG_ID)?,
            token: text(&message, property::TOKEN)?,
            kind: text(&message, property::KIND)?,
            scope: text(&message, property::SCOPE)?,
        })
    })();
    Ok(CheckBack { half, identity })
}

fn offset(value: i64) -> Result<u64, String> {
    u64::try_from(value).map_err(|_| format!("its offset {value} is negative"))
}

fn text(message: &MessageExt, property: &'static str) -> Option<String> {
    message.property(&property.into()).map(|value| value.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rocketmq_model::common::message::message_single::Message;
    use rocketmq_protocol::protocol::RemotingCommand as _Command;

    use super::*;

    fn question(properties: &[(&str, &str)]) -> RemotingCommand {
        let mut message = Message::builder().topic("shop%orders").body_slice(b"body").build_unchecked();
        for (name, value) in properties {
            message.put_property((*name).into(), (*value).into());
        }
        let mut stored = MessageExt::default();
        stored.set_message_inner(message);
        let body = message_decoder::encode(&stored, false).expect("encodes");
        let header = CheckTransactionStateRequestHeader {
            tran_state_table_offset: 7,
            commit_log_offset: 4711,
            msg_id: Some("UNIQUE".into()),
            transaction_id: Some("TX".into()),
            rpc_request_header: Some(rocketmq_protocol::RpcRequestHeader {
                broker_name: Some("broker-a".into()),
                ..Default::default()
            }),
            ..Default::default()
        };
        let mut command = _Command::create_request_command(RequestCode::CheckTransactionState, header).set_body(body);
        command.make_custom_header_to_net();
        command
    }

    const IDENTITY: [(&str, &str); 4] =
        [(property::MSG_ID, "order-42"), (property::TOKEN, "t"), (property::KIND, "k"), (property::SCOPE, "s")];

    #[test]
    fn a_question_is_read_with_its_coordinates_and_identity() {
        let names = Names::new(Some("shop".to_owned()));
        let check = read(&question(&IDENTITY), Some("10.0.0.1:10911".to_owned()), &names).expect("readable");
        let half = check.half;
        assert_eq!((half.topic.as_str(), half.broker_name.as_str()), ("orders", "broker-a"));
        assert_eq!((half.commit_log_offset, half.queue_offset), (4711, 7));
        assert_eq!((half.unique_key.as_str(), half.transaction_id.as_str()), ("UNIQUE", "TX"));
        assert_eq!(half.store_host.as_deref(), Some("10.0.0.1:10911"));
        assert_eq!(check.identity.expect("ours").msg_id, "order-42");
    }

    #[test]
    fn a_half_of_another_program_has_no_identity() {
        for missing in 0..IDENTITY.len() {
            let some: Vec<_> = IDENTITY.iter().enumerate().filter(|(i, _)| *i != missing).map(|(_, p)| *p).collect();
            let check = read(&question(&some), None, &Names::new(None)).expect("readable");
            assert_eq!(check.identity, None);
        }
    }

    proptest! {
        /// What comes from the network may be anything: parts of it missing, or other bytes in their place.
        #[test]
        fn any_bytes_are_read_or_refused(
            cut in any::<proptest::sample::Index>(),
            other in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..8),
            alone in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200)),
        ) {
            let mut command = question(&IDENTITY);
            let mut body = command.body().expect("it has one").to_vec();
            for (place, byte) in &other {
                let place = place.index(body.len());
                body[place] = *byte;
            }
            body.truncate(cut.index(body.len() + 1));
            command.set_body_mut_ref(alone.unwrap_or(body));
            let _ = read(&command, None, &Names::new(None));
        }
    }

    #[test]
    fn an_unreadable_question_is_an_error_and_no_panic() {
        let mut command = question(&IDENTITY);
        command.set_body_mut_ref(vec![1, 2, 3]);
        assert!(read(&command, None, &Names::new(None)).is_err());
    }
}
