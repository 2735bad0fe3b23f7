//! What must hold on every database, against the broker in memory, and on the one database that differs.

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod bad_settings;
mod check_backs;
mod check_failures;
mod claims;
mod commit_answers;
mod contention;
mod deadlocks;
mod failures;
mod housekeeping;
mod identity;
mod lost_transactions;
mod migrations;
mod outcomes;
mod own_connections;
mod shutdown;
mod sqlite_file;
mod storms;
