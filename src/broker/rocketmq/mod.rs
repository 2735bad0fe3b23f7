//! The adapter to a real RocketMQ cluster.
/// x
pub struct RocketMq;
#[async_trait::async_trait]
impl super::Connector for RocketMq {
    fn group(&self) -> &str {
        ""
    }
    fn validate(&self) -> Result<(), super::BrokerError> {
        Ok(())
    }
    async fn connect(
        self: Box<Self>,
        _: super::Registration,
    ) -> Result<std::sync::Arc<dyn super::Broker>, super::BrokerError> {
        Err(super::BrokerError::message("x"))
    }
}
