//! One running producer of a group per process.
//!
//! A broker picks any producer of a group to ask about a half. Two in one process would share each other's check-backs
//! without sharing a start, a shutdown or a database; a second one is nearly always a mistake in wiring.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::broker::BrokerError;

type Key = (Vec<String>, String);

static TAKEN: Mutex<Option<HashSet<Key>>> = Mutex::new(None);

fn taken() -> MutexGuard<'static, Option<HashSet<Key>>> {
    TAKEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to run a group on a cluster; given back when dropped.
#[derive(Debug)]
pub(super) struct Slot(Key);

impl Slot {
    /// `group` with its namespace, as brokers know it.
    pub(super) fn take(name_servers: &[String], group: &str) -> Result<Self, BrokerError> {
        let mut servers = name_servers.to_vec();
        servers.sort_unstable();
        let key = (servers, group.to_owned());
        if taken().get_or_insert_default().insert(key.clone()) {
            Ok(Self(key))
        } else {
            Err(BrokerError::message(format!(
                "a producer of group {group} on name server {} already runs in this process: share that one, shut it \
                 down first, or give this one another group",
                name_servers.join(";")
            )))
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(keys) = taken().as_mut() {
            keys.remove(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_runs_once_until_its_slot_is_dropped() {
        let servers = ["slot-test-b:9876".to_owned(), "slot-test-a:9876".to_owned()];
        let reversed = [servers[1].clone(), servers[0].clone()];
        let first = Slot::take(&servers, "g").expect("free");
        let refusal = Slot::take(&reversed, "g").expect_err("taken").to_string();
        assert!(refusal.contains("group g") && refusal.contains("shut it down"), "{refusal}");
        let other = Slot::take(&servers, "g2").expect("another group is free");
        drop(first);
        Slot::take(&reversed, "g").expect("free again");
        drop(other);
    }
}
