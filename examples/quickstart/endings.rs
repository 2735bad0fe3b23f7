//! The five endings. Each is told as it happens, and fails when something is not as told.

use std::time::Instant;

use rocketmq_tx::{
    BusinessRows, Confirmation, Status, TransactionMessage,
    broker::{End, EndOrigin},
};

use crate::{
    Error, doomed,
    order::{OrderPlaced, PlaceOrderError},
    seconds,
    shop::{Deliveries, PATIENCE, Shop},
};

macro_rules! make_sure {
    ($condition:expr, $($words:tt)*) => {
        if !$condition {
            return Err(format!($($words)*).into());
        }
    };
}

fn order(id: &str, cents: i64) -> OrderPlaced {
    OrderPlaced { order_id: id.into(), cents }
}

fn times(count: u32) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

/// The promise is at least once: a broker may deliver one half message again.
fn received(deliveries: &Deliveries) -> String {
    match deliveries.count {
        0 => "Got nothing, and has read on to a later message in the same queue".into(),
        1 => "Got it once".into(),
        more if deliveries.halves == 1 => format!("Got it {more} times, all from one half message"),
        more => format!("Got it {more} times, from {} half messages", deliveries.halves),
    }
}

pub async fn committed_and_delivered(shop: &mut Shop) -> Result<(), Error> {
    println!("\n(a) An order is committed, so its message is delivered.");
    let order = order("order-a", 100);
    let begun = Instant::now();
    let mut receipt = shop.producer.send(order.clone()).await?;
    println!("    producer  Ok after {}: the order is committed.", seconds(begun.elapsed()));
    make_sure!(!receipt.already_committed(), "{receipt:?}");

    let rows = shop.rows(&order).await?;
    println!("    database  {rows}.");
    make_sure!(rows.are(1, "COMMITTED"), "{rows}");

    shop.until_seen(&order).await?;
    let seen = begun.elapsed();
    make_sure!(receipt.confirmation().await == Confirmation::Confirmed, "the broker did not confirm: {receipt:?}");
    let deliveries = shop.all_deliveries(&order).await?;
    println!("    consumer  {}, {} after the send began.", received(&deliveries), seconds(seen));
    make_sure!(deliveries.halves == 1, "the consumer: {}", received(&deliveries));
    Ok(())
}

pub async fn rolled_back_and_never_seen(shop: &mut Shop) -> Result<(), Error> {
    println!("\n(b) An order is refused by the shop's own rule after its row was written: no row, no message.");
    let order = order("order-b", 1_000_000);
    let Err(error) = shop.producer.send(order.clone()).await else { return Err("the order was committed".into()) };
    let Some(reason) = error.execute_error::<PlaceOrderError>() else { return Err(error.into()) };
    println!("    producer  Rolled back, with the shop's own error: {reason}.");
    make_sure!(error.business_rows() == BusinessRows::RolledBack, "{error:?}");

    let rows = shop.rows(&order).await?;
    println!("    database  {rows}.");
    make_sure!(rows.are(0, "ROLLED_BACK"), "{rows}");

    let end = shop.wire.end_of(order.msg_id().as_str(), PATIENCE).await?;
    make_sure!(end.0 == End::Rollback, "the half was ended with {end:?}");
    let deliveries = shop.all_deliveries(&order).await?;
    println!("    consumer  {}.", received(&deliveries));
    make_sure!(deliveries.count == 0, "the consumer: {}", received(&deliveries));
    Ok(())
}

pub async fn lost_end_committed_by_check_back(shop: &mut Shop) -> Result<(), Error> {
    println!(
        "\n(c) An order is committed, and the news of it to the broker is lost (on purpose): the broker asks back."
    );
    let order = order("order-c", 300);
    shop.wire.lose_end_of(order.msg_id().as_str());
    let begun = Instant::now();
    let mut receipt = shop.producer.send(order.clone()).await?;
    let confirmation = receipt.confirmation().await;
    println!("    producer  Ok: the order is committed. The broker's confirmation: {confirmation:?}.");
    make_sure!(confirmation == Confirmation::Pending, "the end was not lost: {receipt:?}");

    let rows = shop.rows(&order).await?;
    println!("    database  {rows}.");
    make_sure!(rows.are(1, "COMMITTED"), "{rows}");

    shop.until_seen(&order).await?;
    let seen = begun.elapsed();
    let end = shop.wire.end_of(order.msg_id().as_str(), PATIENCE).await?;
    make_sure!(end == (End::Commit, EndOrigin::CheckBack), "the half was ended with {end:?}");
    let questions = shop.wire.questions(order.msg_id().as_str());
    println!("    broker    Asked {}, and was answered from the row: Commit.", times(questions));
    let deliveries = shop.all_deliveries(&order).await?;
    println!("    consumer  {}, {} after the send began.", received(&deliveries), seconds(seen));
    make_sure!(deliveries.halves == 1, "the consumer: {}", received(&deliveries));
    shop.until_status(&order, Status::Committed(Confirmation::Confirmed)).await
}

pub async fn killed_in_execute_and_rolled_back(shop: &mut Shop) -> Result<(), Error> {
    println!("\n(d) A second instance of the shop is killed while its local transaction is open.");
    let order = doomed::order();
    doomed::die_in_execute(&shop.file, &shop.name_server).await?;
    let died = Instant::now();
    let rows = shop.rows(&order).await?;
    println!("    producer  Killed with SIGKILL, inside execute.");
    println!("    database  {rows}: nobody has decided yet.");
    make_sure!(rows.are(0, "PREPARING"), "{rows}");

    shop.until_status(&order, Status::RolledBack).await?;
    shop.until_settled().await?;
    let rows = shop.rows(&order).await?;
    println!("    settler   {} after the death the first instance has decided: {rows}.", seconds(died.elapsed()));
    make_sure!(rows.are(0, "ROLLED_BACK"), "{rows}");
    make_sure!(shop.producer.counters().settled == 1, "{:?}", shop.producer.counters());

    let end = shop.wire.end_of(order.msg_id().as_str(), PATIENCE).await?;
    make_sure!(end == (End::Rollback, EndOrigin::CheckBack), "the half was ended with {end:?}");
    let questions = shop.wire.questions(order.msg_id().as_str());
    println!(
        "    broker    Asked {}; at last, {} after the death, the answer was: Rollback.",
        times(questions),
        seconds(died.elapsed())
    );
    let deliveries = shop.all_deliveries(&order).await?;
    println!("    consumer  {}.", received(&deliveries));
    make_sure!(deliveries.count == 0, "the consumer: {}", received(&deliveries));
    Ok(())
}

pub async fn sent_twice_delivered_once(shop: &mut Shop) -> Result<(), Error> {
    println!("\n(e) The same message id is sent twice, as after a retry: the second send does nothing.");
    let order = order("order-e", 500);
    shop.producer.send(order.clone()).await?.confirmation().await;
    let again = shop.producer.send(order.clone()).await?;
    println!("    producer  Ok, and Ok again: already committed.");
    make_sure!(again.already_committed(), "the second send ran");

    let rows = shop.rows(&order).await?;
    println!("    database  {rows}.");
    make_sure!(rows.are(1, "COMMITTED"), "{rows}");

    let end = shop.wire.end_of(order.msg_id().as_str(), PATIENCE).await?;
    make_sure!(end.0 == End::Commit, "the half was ended with {end:?}");
    let deliveries = shop.all_deliveries(&order).await?;
    println!("    consumer  {}.", received(&deliveries));
    make_sure!(deliveries.halves == 1, "the consumer: {}", received(&deliveries));
    Ok(())
}
