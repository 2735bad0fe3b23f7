//! What can happen next, and what it does.

use rocketmq_tx::protocol::{ClaimAnswer, Resolution, State, Unresolved, answer_claim, resolve};

use super::{
    Mutation, Rules,
    world::{ATTEMPTS, Claim, End, Half, INSTANCES, Sent, Step, Token, World, name},
};

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A sender begins; with its half beside the claim, or after it.
    Start(Token, bool),
    ClaimArrives(Token),
    ClaimLost(Token),
    SendHalf(Token),
    HalfArrives(Token),
    HalfLost(Token),
    HalfAnswerLost(Token),
    /// The claim or the half failed.
    GiveUp(Token),
    /// BEGIN and the fence.
    Begin(Token),
    /// `execute` fails.
    ExecuteFails(Token),
    SendCommit(Token),
    CommitArrives,
    CommitAnswerLost,
    /// The connection breaks and the database aborts the transaction.
    CommitLost,
    /// The sender's connection breaks while its COMMIT is still on its way.
    SenderCutOff(Token),
    /// The compare-and-swap of a sender in doubt.
    Settle(Token),
    EndArrives(Token, End),
    EndLost(Token, End),
    EndArrivesTwice(Token, End),
    /// A check-back that ends its half.
    Check(Token),
    /// A check-back at a moment at which none is needed.
    IdleCheck(Token),
    Discard(Token),
    Settler,
    Bury(Token),
    Rescue,
    ProcessCrash(u8),
    DatabaseCrash,
}

const ENDS: [End; 2] = [End::Commit, End::Rollback];

/// Everything that can happen in `world`.
pub fn possible(world: &World, rules: Rules, actions: &mut Vec<Action>) {
    progress(world, rules, actions);
    faults(world, rules, actions);
}

/// What happens sooner or later when nothing goes wrong any more.
pub fn progress(world: &World, rules: Rules, actions: &mut Vec<Action>) {
    for token in 0..ATTEMPTS as Token {
        sender(world, token, actions);
        broker(world, rules, token, actions);
    }
    database(world, rules, actions);
}

/// What may go wrong.
fn faults(world: &World, rules: Rules, actions: &mut Vec<Action>) {
    let may_lose = world.faults.losses > 0;
    for token in 0..ATTEMPTS as Token {
        let index = token as usize;
        let attempt = world.attempts[index];
        if attempt.claim == Claim::Out && may_lose {
            actions.push(Action::ClaimLost(token));
        }
        if attempt.sent == Sent::Out && may_lose {
            actions.extend([Action::HalfLost(token), Action::HalfAnswerLost(token)]);
        }
        if attempt.step == Step::Committing && may_lose {
            actions.push(Action::SenderCutOff(token));
        }
        for end in ENDS.into_iter().filter(|end| world.ends[index][*end as usize] > 0) {
            if may_lose {
                actions.push(Action::EndLost(token, end));
            }
            if world.faults.duplicates > 0 {
                actions.push(Action::EndArrivesTwice(token, end));
            }
        }
        if world.halves[index] == Half::Open {
            if world.faults.discards > 0 {
                actions.push(Action::Discard(token));
            }
            if world.faults.idle_checks > 0 && answer(world, rules, token).is_some() {
                actions.push(Action::IdleCheck(token));
            }
        }
    }
    if world.commit_out && may_lose {
        actions.extend([Action::CommitAnswerLost, Action::CommitLost]);
    }
    if world.faults.process_crashes > 0 {
        actions.extend((0..INSTANCES as u8).filter(|at| running(world, *at).count() > 0).map(Action::ProcessCrash));
    }
    if world.faults.database_crashes > 0 && (world.row != world.durable || world.lock.is_some()) {
        actions.push(Action::DatabaseCrash);
    }
}

/// The attempts that a crash of this instance would end.
fn running(world: &World, instance: u8) -> impl Iterator<Item = Token> + '_ {
    let tokens = (0..ATTEMPTS as Token).filter(move |token| token % INSTANCES as u8 == instance);
    tokens.filter(|token| !matches!(world.attempts[*token as usize].step, Step::Idle | Step::Over | Step::Dead))
}

fn sender(world: &World, token: Token, actions: &mut Vec<Action>) {
    let attempt = world.attempts[token as usize];
    if attempt.claim == Claim::Out {
        actions.push(Action::ClaimArrives(token));
    }
    if attempt.sent == Sent::Out {
        actions.push(Action::HalfArrives(token));
    }
    match attempt.step {
        Step::Idle => {
            let earlier = (token as usize).checked_sub(INSTANCES).map(|earlier| world.attempts[earlier].step);
            if earlier.is_none_or(|step| matches!(step, Step::Over | Step::Dead)) {
                actions.extend([Action::Start(token, false), Action::Start(token, true)]);
            }
        }
        Step::Preparing => match (attempt.claim, attempt.sent) {
            (Claim::Won, Sent::No) => actions.push(Action::SendHalf(token)),
            (Claim::Won, Sent::Stored) if world.lock.is_none() => actions.push(Action::Begin(token)),
            (Claim::Lost, Sent::No | Sent::Stored | Sent::Unknown) | (Claim::Won, Sent::Unknown) => {
                actions.push(Action::GiveUp(token));
            }
            _ => {}
        },
        Step::Open => {
            actions.push(Action::ExecuteFails(token));
            if world.lock == Some(token) {
                actions.push(Action::SendCommit(token));
            }
        }
        Step::InDoubt => actions.push(Action::Settle(token)),
        Step::Committing | Step::Over | Step::Dead => {}
    }
}

fn broker(world: &World, rules: Rules, token: Token, actions: &mut Vec<Action>) {
    let index = token as usize;
    for end in ENDS.into_iter().filter(|end| world.ends[index][*end as usize] > 0) {
        actions.push(Action::EndArrives(token, end));
    }
    if world.halves[index] != Half::Open {
        return;
    }
    // The broker goes on asking for as long as it takes.
    if world.ends[index] == [0, 0] && answer(world, rules, token).is_some() {
        actions.push(Action::Check(token));
    }
    if world.row.is_none() {
        actions.push(Action::Bury(token));
    }
}

fn database(world: &World, rules: Rules, actions: &mut Vec<Action>) {
    if world.commit_out {
        actions.push(Action::CommitArrives);
    }
    let unlocked = world.lock.is_none() || rules.lack(Mutation::SettlerIgnoresLock);
    if matches!(world.row, Some((_, State::Preparing))) && unlocked {
        actions.push(Action::Settler);
    }
    if let Some((token, State::Committed)) = world.row
        && world.halves[token as usize] == Half::Discarded
        && !world.outbox
        && !rules.lack(Mutation::NoRescue)
    {
        actions.push(Action::Rescue);
    }
}

/// The answer to a check-back about an attempt: the crate's own decision.
fn answer(world: &World, rules: Rules, token: Token) -> Option<End> {
    let asked = match world.row {
        Some((of_row, _)) if rules.lack(Mutation::NoToken) => of_row,
        _ => token,
    };
    match resolve(&name(asked), world.log_row().as_ref()) {
        Resolution::Commit => Some(End::Commit),
        Resolution::Rollback => Some(End::Rollback),
        Resolution::Unknown(Unresolved::NoRow) if rules.lack(Mutation::NoRowRollback) => Some(End::Rollback),
        Resolution::Unknown(Unresolved::OtherAttemptPreparing) if rules.lack(Mutation::OtherPreparingRollback) => {
            Some(End::Rollback)
        }
        Resolution::Unknown(_) => None,
    }
}

/// Lets one thing happen.
pub fn happen(world: &mut World, rules: Rules, action: Action) {
    match action {
        Action::Start(token, beside) => {
            let sent = if beside { Sent::Out } else { Sent::No };
            *world.attempt(token) = super::world::Attempt { step: Step::Preparing, claim: Claim::Out, sent, beside };
        }
        Action::ClaimArrives(token) => claim(world, rules, token),
        Action::ClaimLost(token) => {
            world.faults.losses -= 1;
            world.attempt(token).claim = Claim::Lost;
        }
        Action::SendHalf(token) => world.attempt(token).sent = Sent::Out,
        Action::HalfArrives(token) => {
            world.halves[token as usize] = Half::Open;
            world.attempt(token).sent = Sent::Stored;
        }
        Action::HalfLost(token) | Action::HalfAnswerLost(token) => {
            world.faults.losses -= 1;
            world.attempt(token).sent = Sent::Unknown;
            if action == Action::HalfAnswerLost(token) {
                world.halves[token as usize] = Half::Open;
            }
        }
        Action::GiveUp(token) => {
            let attempt = *world.attempt(token);
            world.attempt(token).step = Step::Over;
            if attempt.claim == Claim::Won {
                world.roll_back(token);
            }
            if attempt.sent == Sent::Stored {
                world.end(token, End::Rollback);
            }
        }
        Action::Begin(token) => begin(world, rules, token),
        Action::ExecuteFails(token) => {
            release(world, token);
            world.roll_back(token);
            world.end(token, End::Rollback);
            world.attempt(token).step = Step::Over;
        }
        Action::SendCommit(token) => {
            world.commit_out = true;
            world.attempt(token).step = Step::Committing;
        }
        Action::CommitArrives | Action::CommitAnswerLost | Action::CommitLost => commit(world, rules, action),
        Action::SenderCutOff(token) => {
            world.faults.losses -= 1;
            world.attempt(token).step = Step::InDoubt;
        }
        Action::Settle(token) => settle(world, rules, token),
        Action::EndArrives(token, end) => end_arrives(world, token, end, true),
        Action::EndLost(token, end) => {
            world.faults.losses -= 1;
            world.ends[token as usize][end as usize] -= 1;
        }
        Action::EndArrivesTwice(token, end) => {
            world.faults.duplicates -= 1;
            end_arrives(world, token, end, false);
        }
        Action::Check(token) | Action::IdleCheck(token) => {
            if action != Action::Check(token) {
                world.faults.idle_checks -= 1;
            }
            if let Some(end) = answer(world, rules, token) {
                world.end(token, end);
            }
        }
        Action::Discard(token) => {
            world.faults.discards -= 1;
            world.halves[token as usize] = Half::Discarded;
        }
        Action::Settler => {
            let (token, _) = world.row.expect("the settler found a row");
            world.roll_back(token);
        }
        Action::Bury(token) => world.write(token, State::RolledBack),
        Action::Rescue => world.outbox = true,
        Action::ProcessCrash(instance) => {
            world.faults.process_crashes -= 1;
            let tokens: Vec<Token> = running(world, instance).collect();
            for token in tokens {
                world.attempt(token).step = Step::Dead;
                // The database rolls back what was not to be committed.
                if !world.commit_out {
                    release(world, token);
                }
            }
        }
        Action::DatabaseCrash => database_crash(world),
    }
}

fn claim(world: &mut World, rules: Rules, token: Token) {
    let insert_only = world.attempt(token).beside && !rules.lack(Mutation::BesideMayReplace);
    let won = match world.log_row().map(answer_claim) {
        None => true,
        Some(ClaimAnswer::MayReplace { .. }) => !insert_only,
        Some(_) => false,
    };
    if won {
        // Not synchronised: a crash of the database may lose it.
        world.row = Some((token, State::Preparing));
    }
    world.attempt(token).claim = if won { Claim::Won } else { Claim::Lost };
}

fn begin(world: &mut World, rules: Rules, token: Token) {
    let fence = match world.row {
        None => false,
        Some(_) if rules.lack(Mutation::NoCompareAndSwap) => true,
        Some((_, State::Preparing)) if rules.lack(Mutation::NoToken) => true,
        row => row == Some((token, State::Preparing)),
    };
    if fence {
        world.lock = Some(token);
        world.attempt(token).step = Step::Open;
    } else {
        world.end(token, End::Rollback);
        world.attempt(token).step = Step::Over;
    }
}

fn release(world: &mut World, token: Token) {
    if world.lock == Some(token) {
        world.lock = None;
        world.commit_out = false;
    }
}

fn commit(world: &mut World, rules: Rules, action: Action) {
    let token = world.lock.expect("a COMMIT on its way holds the lock");
    release(world, token);
    if action != Action::CommitArrives {
        world.faults.losses -= 1;
    }
    if action != Action::CommitLost {
        let of_row = match world.row {
            Some((of_row, _)) if rules.lack(Mutation::NoToken) => of_row,
            _ => token,
        };
        world.write(of_row, State::Committed);
        world.committed[token as usize] = true;
    }
    // A sender that was cut off, or died, hears nothing.
    if world.attempt(token).step == Step::Committing {
        if action == Action::CommitArrives {
            world.end(token, End::Commit);
            world.attempt(token).step = Step::Over;
        } else {
            world.attempt(token).step = Step::InDoubt;
        }
    }
}

fn settle(world: &mut World, rules: Rules, token: Token) {
    world.attempt(token).step = Step::Over;
    if rules.lack(Mutation::InDoubtRollback) {
        world.end(token, End::Rollback);
        return;
    }
    if world.lock == Some(token) {
        // The compare-and-swap waited for the lock longer than the budget: in doubt, and left to a check-back.
        return;
    }
    world.roll_back(token);
    match world.row {
        Some((of_row, State::Committed)) if of_row == token => world.end(token, End::Commit),
        Some((of_row, State::RolledBack)) if of_row == token => world.end(token, End::Rollback),
        _ => {}
    }
}

/// The worst broker: a COMMIT delivers, whatever came before.
fn end_arrives(world: &mut World, token: Token, end: End, taken: bool) {
    if taken {
        world.ends[token as usize][end as usize] -= 1;
    }
    if end == End::Commit {
        world.delivered[token as usize] = true;
    }
    world.halves[token as usize] = Half::Ended;
}

fn database_crash(world: &mut World) {
    world.faults.database_crashes -= 1;
    world.row = world.durable;
    world.lock = None;
    world.commit_out = false;
    for attempt in &mut world.attempts {
        // A claim that is still out may have waited in its sender's queue: it arrives after the restart.
        if attempt.step == Step::Committing {
            attempt.step = Step::InDoubt;
        }
    }
}
