//! Time limits that users may set as long as they like.

use std::time::Duration;

use tokio::time::Instant;

/// As good as for ever; clocks do not reach as far as [`Duration::MAX`].
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// The moment after `limit`.
pub(super) fn after(limit: Duration) -> Instant {
    Instant::now() + limit.min(FOREVER)
}
