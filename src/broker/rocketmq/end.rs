//! The second phase: commit or rollback, as a request that the broker answers.

use std::sync::Arc;

use rocketmq_model::common::sys_flag::message_sys_flag::MessageSysFlag;
use rocketmq_protocol::{
    RpcRequestHeader,
    code::{request_code::RequestCode, response_code::ResponseCode},
    protocol::{
        header::end_transaction_request_header::EndTransactionRequestHeader, remoting_command::RemotingCommand,
    },
};

use super::{
    directory::Directory,
    link::{Link, Reached, Refusal, RequestFailure, is_success},
    names::Names,
};
use crate::broker::{BrokerError, End, EndOrigin, HalfCoordinates};

/// Ends halves.
pub(super) struct HalfEnder {
    link: Arc<Link>,
    directory: Arc<Directory>,
    names: Names,
    group: String,
}

impl HalfEnder {
    pub(super) fn new(link: Arc<Link>, directory: Arc<Directory>, names: Names, group: String) -> Self {
        Self { link, directory, names, group }
    }

    pub(super) async fn end(&self, half: &HalfCoordinates, end: End, origin: EndOrigin) -> Result<(), BrokerError> {
        let mut address = self.address(half).await?;
        let mut outcome = self.ask(&address, half, end, origin).await;
        // The broker may have moved since the route was read. Only an end that this address cannot have acted on is
        // sent to the next one.
        if is_worth_another_address(&outcome) && !self.link.is_closed() {
            // The old route is the only one there is while the name server does not answer.
            let _ = self.directory.refresh().await;
            let newer = self.address(half).await?;
            if newer != address || matches!(&outcome, Ok(answer) if is_go_away(answer)) {
                address = newer;
                outcome = self.ask(&address, half, end, origin).await;
            }
        }
        let doing = || {
            format!(
                "ending a half message of topic {} with {end:?} at broker {} ({address}), group {}, unique key {}",
                half.topic, half.broker_name, self.group, half.unique_key
            )
        };
        match outcome {
            Ok(answer) if is_success(&answer) => Ok(()),
            Ok(answer) => Err(BrokerError::new(doing(), Refusal::from(&answer))),
            Err(failure) => Err(BrokerError::new(doing(), failure)),
        }
    }

    async fn address(&self, half: &HalfCoordinates) -> Result<Arc<str>, BrokerError> {
        if let Some(address) = self.directory.address_of(&half.broker_name) {
            return Ok(address);
        }
        // A broker that came after the last look; when it cannot be looked up, its store host is what is left.
        let looked = self.directory.refresh().await;
        if let Some(address) = self.directory.address_of(&half.broker_name) {
            return Ok(address);
        }
        half.store_host.as_deref().map(Arc::from).ok_or_else(|| {
            let what = format!("no address is known for broker {:?}, which holds a half message", half.broker_name);
            match looked {
                Ok(()) => BrokerError::message(what),
                Err(error) => BrokerError::new(what, error),
            }
        })
    }

    async fn ask(
        &self,
        address: &str,
        half: &HalfCoordinates,
        end: End,
        origin: EndOrigin,
    ) -> Result<RemotingCommand, RequestFailure> {
        let header = header(half, end, origin, self.names.on_the_wire(&half.topic), &self.group);
        self.link.request(address, self.link.command(RequestCode::EndTransaction, header)).await
    }
}

fn header(
    half: &HalfCoordinates,
    end: End,
    origin: EndOrigin,
    topic: String,
    group: &str,
) -> EndTransactionRequestHeader {
    // Both were read from a broker as i64, so they fit; a broker refuses an offset that it does not hold.
    let offset = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    EndTransactionRequestHeader {
        topic: topic.into(),
        // Must be the half's own PGROUP, or the broker refuses the end.
        producer_group: group.into(),
        tran_state_table_offset: offset(half.queue_offset),
        commit_log_offset: offset(half.commit_log_offset),
        commit_or_rollback: match end {
            End::Commit => MessageSysFlag::TRANSACTION_COMMIT_TYPE,
            End::Rollback => MessageSysFlag::TRANSACTION_ROLLBACK_TYPE,
        },
        from_transaction_check: origin == EndOrigin::CheckBack,
        msg_id: half.unique_key.as_str().into(),
        transaction_id: Some(half.transaction_id.as_str().into()),
        rpc_request_header: RpcRequestHeader {
            broker_name: Some(half.broker_name.as_str().into()).filter(|_| !half.broker_name.is_empty()),
            ..Default::default()
        },
    }
}

fn is_worth_another_address(outcome: &Result<RemotingCommand, RequestFailure>) -> bool {
    match outcome {
        Ok(answer) => is_go_away(answer) || answer.code() == ResponseCode::SlaveNotAvailable.to_i32(),
        Err(failure) => failure.reached == Reached::Nothing,
    }
}

/// A broker that is stopping asks for a new connection instead of acting on the request.
fn is_go_away(answer: &RemotingCommand) -> bool {
    answer.code() == ResponseCode::GoAway.to_i32()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half() -> HalfCoordinates {
        HalfCoordinates {
            topic: "orders".to_owned(),
            broker_name: "broker-a".to_owned(),
            store_host: None,
            commit_log_offset: 4711,
            queue_offset: 7,
            unique_key: "UNIQUE".to_owned(),
            transaction_id: "TX".to_owned(),
        }
    }

    #[test]
    fn case_45_topic_and_group_of_an_end_carry_the_namespace() {
        let header = header(&half(), End::Commit, EndOrigin::Sender, "shop%orders".to_owned(), "shop%order-service");
        assert_eq!((header.topic.as_str(), header.producer_group.as_str()), ("shop%orders", "shop%order-service"));
        assert_eq!((header.commit_log_offset, header.tran_state_table_offset), (4711, 7));
        assert_eq!(header.commit_or_rollback, 8);
        assert!(!header.from_transaction_check);
    }

    #[test]
    fn an_answer_to_a_check_says_so() {
        let header = header(&half(), End::Rollback, EndOrigin::CheckBack, "orders".to_owned(), "g");
        assert_eq!(header.commit_or_rollback, 12);
        assert!(header.from_transaction_check);
    }
}
