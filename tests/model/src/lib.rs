//! The protocol as a model: two instances, three sends of one message id, the broker, the database and their faults.
//!
//! The decisions are the crate's own functions (`resolve`, `answer_claim`). What must always hold is checked in every
//! state; what must hold in the end, in every state after which nothing can happen any more.

mod steps;
mod world;

use stateright::{Model, Property};

pub use steps::Action;
use world::{End, Half};
pub use world::{Faults, World};

/// A rule that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// Nobody compares tokens: rows and questions are taken for the same attempt's.
    NoToken,
    /// The local transaction commits whatever its row says.
    NoCompareAndSwap,
    /// A check-back that finds no row answers Rollback.
    NoRowRollback,
    /// A check-back that finds another attempt's PREPARING answers Rollback.
    OtherPreparingRollback,
    /// The settler rolls back rows that a local transaction has locked.
    SettlerIgnoresLock,
    /// A COMMIT whose outcome is in doubt is ended with ROLLBACK.
    InDoubtRollback,
    /// A claim whose half is sent beside it may replace a rolled-back row.
    BesideMayReplace,
    /// What the broker gave up is left there.
    NoRescue,
}

/// The protocol's rules, all of them or all but one.
#[derive(Clone, Copy, Debug)]
pub struct Rules(pub Option<Mutation>);

impl Rules {
    /// Whether this rule is left out.
    fn lack(self, mutation: Mutation) -> bool {
        self.0 == Some(mutation)
    }
}

/// What is explored.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub rules: Rules,
    pub faults: Faults,
}

impl Protocol {
    fn is_over(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        steps::progress(world, self.rules, &mut actions);
        actions.is_empty()
    }
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.faults)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        steps::possible(world, self.rules, actions);
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        steps::happen(&mut world, self.rules, action);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no message without its rows", |_, world: &World| {
                world.delivered.iter().zip(world.committed).all(|(delivered, committed)| committed || !delivered)
            }),
            Property::always("one attempt commits at most", |_, world: &World| {
                world.committed.iter().filter(|committed| **committed).count() <= 1
            }),
            Property::always("an answer never flips", |_, world: &World| {
                world.answered.iter().all(|said| !(said[End::Commit as usize] && said[End::Rollback as usize]))
            }),
            Property::always("no rows without their message in the end", |model: &Protocol, world: &World| {
                let missing = |(committed, delivered): (bool, &bool)| committed && !delivered;
                let any = world.committed.into_iter().zip(&world.delivered).any(missing);
                !any || world.outbox || !model.is_over(world)
            }),
            Property::always("every half ends", |model: &Protocol, world: &World| {
                !world.halves.contains(&Half::Open) || !model.is_over(world)
            }),
            Property::sometimes("a message is delivered", |_, world: &World| world.delivered.contains(&true)),
            Property::sometimes("the third attempt commits", |_, world: &World| world.committed[2]),
            Property::sometimes("a message is rescued", |_, world: &World| world.outbox),
        ]
    }
}
