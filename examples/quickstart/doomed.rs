//! A process that dies in the middle of its local transaction.

use std::{env, future::pending, path::Path, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

use crate::{
    Error,
    order::{self, OrderPlaced},
};

/// Makes this program play the part of that process.
pub const ARGUMENT: &str = "hang-in-execute";
/// What it says once it is in the middle.
const INSIDE: &str = "inside execute";
/// For its start, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// The order that it does not survive.
pub fn order() -> OrderPlaced {
    OrderPlaced { order_id: "order-d".into(), cents: 400 }
}

/// That process: another instance of the shop. It writes the order and never comes to an end.
pub async fn hang_in_execute(database: &str, name_server: &str) -> Result<(), Error> {
    let pool = order::open_database(Path::new(database)).await?;
    let producer = order::producer(pool).rocketmq(order::cluster(name_server)).start().await?;
    let hang = producer.send_with(order(), |tx, order| {
        Box::pin(async move {
            order::insert(tx, order).await?;
            println!("{INSIDE}");
            pending::<sqlx::Result<()>>().await
        })
    });
    hang.await?;
    Ok(())
}

/// Starts that process, waits until it has written the order, and kills it.
pub async fn die_in_execute(database: &Path, name_server: &str) -> Result<(), Error> {
    let mut process = Command::new(env::current_exe()?)
        .args([ARGUMENT.as_ref(), database.as_os_str(), name_server.as_ref()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let said = process.stdout.take().ok_or("the process has no output")?;
    let line = timeout(START_LIMIT, BufReader::new(said).lines().next_line()).await??;
    if line.as_deref() != Some(INSIDE) {
        return Err("the process that should hang inside execute ended before".into());
    }
    // SIGKILL: nothing of it runs any more, no rollback, no goodbye.
    process.kill().await?;
    Ok(())
}
