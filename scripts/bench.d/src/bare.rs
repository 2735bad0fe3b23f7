//! The database transaction alone: what no transactional message can be faster than.

use crate::{
    AnyError,
    database::Database,
    measure::{Outcome, Report, measure},
    options::Options,
};

pub async fn run<DB: Database>(options: &Options) -> Result<Report, AnyError> {
    let pool = DB::fresh(options).await?;
    let report = measure(options, "bare", move |order| {
        let pool = pool.clone();
        async move {
            match DB::pay(&pool, &order).await {
                Ok(()) => Outcome::Committed,
                Err(error) => {
                    tracing::warn!(%error, "transaction");
                    Outcome::Failed
                }
            }
        }
    });
    Ok(report.await)
}
