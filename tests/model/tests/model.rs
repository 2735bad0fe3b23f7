//! Explores the protocol to the end, and shows that each of its rules is needed.

use rocketmq_tx_model::{Action, Faults, Mutation, Protocol, Rules, World};
use stateright::{Checker, CheckerBuilder, DiscoveryClassification, HasDiscoveries, Model, Path};

const NONE: Faults =
    Faults { losses: 0, duplicates: 0, process_crashes: 0, database_crashes: 0, discards: 0, idle_checks: 0 };
const IDLE: Faults = Faults { idle_checks: 1, ..NONE };

fn checker(rules: Rules, faults: Faults) -> CheckerBuilder<Protocol> {
    Protocol { rules, faults }.checker()
}

/// All at once in a release build, which takes minutes; those of the network and the broker otherwise.
fn faults() -> Faults {
    if cfg!(debug_assertions) {
        return Faults { losses: 1, discards: 1, ..IDLE };
    }
    Faults { losses: 1, duplicates: 1, process_crashes: 1, database_crashes: 1, discards: 1, idle_checks: 2 }
}

#[test]
fn the_protocol_holds_in_every_state() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let explored = checker(Rules(None), faults()).threads(threads).spawn_bfs().join();
    println!("{} states, none violates the protocol, with {:?}", explored.unique_state_count(), faults());
    explored.assert_properties();
}

/// Each with the faults that its refutation needs: with more of them it is found later. One thread finds the shortest.
#[test]
fn each_rule_is_needed() {
    for (mutation, faults) in [
        (Mutation::NoToken, IDLE),
        (Mutation::NoCompareAndSwap, IDLE),
        (Mutation::NoRowRollback, NONE),
        (Mutation::OtherPreparingRollback, Faults { database_crashes: 1, ..IDLE }),
        (Mutation::SettlerIgnoresLock, IDLE),
        (Mutation::InDoubtRollback, Faults { losses: 1, ..NONE }),
        (Mutation::BesideMayReplace, IDLE),
        (Mutation::NoRescue, Faults { losses: 1, discards: 1, ..NONE }),
    ] {
        // The same faults do no harm to the whole protocol.
        let whole = checker(Rules(None), faults).spawn_bfs().join();
        assert!(violations(&whole).is_empty(), "{faults:?}");
        let explored =
            checker(Rules(Some(mutation)), faults).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
        let (violated, path) = violations(&explored).pop().unwrap_or_else(|| panic!("{mutation:?} is not refuted"));
        let steps = path.into_actions();
        println!("{mutation:?} is refuted in {} steps: not {violated:?} after {steps:?}", steps.len());
    }
}

/// Discoveries that are counter-examples, and not the examples of what must be possible.
fn violations(checker: &impl Checker<Protocol>) -> Vec<(&'static str, Path<World, Action>)> {
    let against =
        |name: &str| matches!(checker.discovery_classification(name), DiscoveryClassification::Counterexample);
    checker.discoveries().into_iter().filter(|(name, _)| against(name)).collect()
}
