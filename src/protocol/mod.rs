//! The rules, as pure functions: no I/O, no clock, no database, no broker.
//!
//! The code, the tests and the model of the protocol all call these, so that what is proven is what runs.

mod decide;
mod limits;
#[cfg(test)]
mod properties;
pub mod property;
mod settings;
mod state;
mod timing;

pub use decide::{Resolution, Unresolved, resolve};
pub use limits::{Limits, Names, check_headers, check_kind, check_msg_id, check_ordering_key, check_tag, check_topic};
pub use settings::BrokerSettings;
pub use state::{ClaimAnswer, LogRow, State, UnknownState, answer_claim};
pub use timing::{Timing, TimingError};
