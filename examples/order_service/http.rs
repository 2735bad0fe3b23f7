//! What a caller sees: each outcome of a send as a status, in words.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use rocketmq_tx::{Confirmation, SendError, Status, TransactionProducer};
use serde_json::{Value, json};
use sqlx::Pool;

use crate::orders::{Order, OrdersDatabase, PlaceOrderError, message_id};

type Answer = (StatusCode, Json<Value>);

struct Service<DB: OrdersDatabase> {
    producer: TransactionProducer<DB>,
    pool: Pool<DB>,
}

impl<DB: OrdersDatabase> Clone for Service<DB> {
    fn clone(&self) -> Self {
        Self { producer: self.producer.clone(), pool: self.pool.clone() }
    }
}

pub fn routes<DB: OrdersDatabase>(producer: TransactionProducer<DB>, pool: Pool<DB>) -> Router {
    Router::new()
        .route("/orders", post(place_order::<DB>))
        .route("/orders/{id}", get(find_order::<DB>))
        .with_state(Service { producer, pool })
}

async fn place_order<DB: OrdersDatabase>(State(service): State<Service<DB>>, Json(order): Json<Order>) -> Answer {
    let id = order.id.clone();
    match service.producer.send(order).await {
        // The row is committed, and the message will be delivered. When nobody waits for it, nor do we.
        Ok(receipt) if receipt.already_committed() => {
            (StatusCode::OK, Json(json!({ "id": id, "placed": "by an earlier request" })))
        }
        Ok(_) => (StatusCode::CREATED, Json(json!({ "id": id, "placed": "now" }))),
        Err(error) => {
            let (status, advice) = explain(&error);
            if status.is_server_error() {
                tracing::warn!(error = &error as &dyn std::error::Error, "order {id} was not placed");
            }
            let reason = match error.execute_error::<PlaceOrderError>() {
                Some(own) => own.to_string(),
                None => error.to_string(),
            };
            (status, Json(json!({ "id": id, "reason": reason, "advice": advice })))
        }
    }
}

/// What became of the order, and what its client should do.
fn explain(error: &SendError) -> (StatusCode, &'static str) {
    match error.execute_error() {
        Some(PlaceOrderError::NotPositive) => return (StatusCode::UNPROCESSABLE_ENTITY, "correct the order"),
        Some(PlaceOrderError::Exists) => return (StatusCode::CONFLICT, "choose another id"),
        Some(PlaceOrderError::Database(_)) => return (StatusCode::SERVICE_UNAVAILABLE, "try again"),
        None => {}
    }
    match error {
        SendError::Invalid(_) => (StatusCode::BAD_REQUEST, "correct the order"),
        SendError::InFlight { .. } => {
            (StatusCode::CONFLICT, "another request of this id is under way; look at it later")
        }
        SendError::InDoubt { .. } => (StatusCode::SERVICE_UNAVAILABLE, "look at the order later, or try again"),
        SendError::ShuttingDown => (StatusCode::SERVICE_UNAVAILABLE, "try again, at another instance"),
        // The same id is the same message, so that trying again is safe.
        transient if transient.is_transient() => (StatusCode::SERVICE_UNAVAILABLE, "try again"),
        // A defect of `execute`: it panicked, swallowed an error or ended its own transaction.
        _ => (StatusCode::INTERNAL_SERVER_ERROR, "report this"),
    }
}

async fn find_order<DB: OrdersDatabase>(State(service): State<Service<DB>>, Path(id): Path<String>) -> Answer {
    let unavailable = |error: &dyn std::error::Error| {
        tracing::warn!(%error, "order {id} was not read");
        (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "id": id, "advice": "try again" })))
    };
    let status = match service.producer.status(&message_id(&id)).await {
        Ok(status) => status,
        Err(error) => return unavailable(&error),
    };
    let order = match DB::find(&service.pool, &id).await {
        Ok(order) => order,
        Err(error) => return unavailable(&error),
    };
    let message = match status {
        Status::Committed(Confirmation::Confirmed) => "delivered",
        Status::Committed(Confirmation::Pending) => "will be delivered",
        Status::Preparing => "undecided",
        Status::RolledBack => "rolled back",
        _ => "unknown",
    };
    let code = if order.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND };
    (code, Json(json!({ "id": id, "cents": order.map(|order| order.cents), "message": message })))
}
