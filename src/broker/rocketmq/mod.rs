//! The adapter to a real RocketMQ cluster.
