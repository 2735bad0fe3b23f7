//! What must hold of the pure functions for any input. `PROPTEST_CASES=1000000 cargo test protocol` looks longer.

use std::time::Duration;

use proptest::prelude::*;

use super::{
    BrokerSettings, ClaimAnswer, Limits, LogRow, Names, Resolution, State, Timing, UnknownState, Unresolved,
    answer_claim, check_headers, check_kind, check_msg_id, check_ordering_key, check_tag, check_topic, resolve,
};

fn state() -> impl Strategy<Value = Result<State, UnknownState>> {
    prop_oneof![
        Just(Ok(State::Preparing)),
        Just(Ok(State::Committed)),
        Just(Ok(State::RolledBack)),
        "[A-Z_]{0,12}".prop_map(|text| text.parse()),
    ]
}

fn row() -> impl Strategy<Value = LogRow> {
    ("[ab]{0,2}", state()).prop_map(|(token, state)| LogRow { token, state })
}

fn time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..1_000_000u64).prop_map(Duration::from_millis),
        any::<u64>().prop_map(Duration::from_secs),
        Just(Duration::MAX),
        Just(Duration::ZERO),
    ]
}

prop_compose! {
    fn timing()(
        execute_timeout in time(), settle_deadline in time(), database_timeout in time(), retention in time(),
    ) -> Timing {
        Timing { execute_timeout, settle_deadline, database_timeout, retention }
    }
}

prop_compose! {
    fn broker()(
        transaction_timeout in time(), check_interval in time(), check_max in any::<u32>(),
        file_reserved in proptest::option::of(time()),
    ) -> BrokerSettings {
        BrokerSettings {
            broker_name: "broker-a".into(),
            transaction_timeout,
            check_interval,
            check_max,
            op_batch_interval: None,
            file_reserved,
            max_message_size: None,
        }
    }
}

/// What RocketMQ writes between properties.
const SEPARATORS: [char; 2] = ['\u{1}', '\u{2}'];

proptest! {
    #[test]
    fn only_its_own_committed_row_commits_an_attempt(asked in "[ab]{0,2}", row in proptest::option::of(row())) {
        let committed = row.as_ref().is_some_and(|row| row.token == asked && row.state == Ok(State::Committed));
        prop_assert_eq!(resolve(&asked, row.as_ref()) == Resolution::Commit, committed);
    }

    #[test]
    fn only_a_final_row_rolls_an_attempt_back(asked in "[ab]{0,2}", row in proptest::option::of(row())) {
        if resolve(&asked, row.as_ref()) == Resolution::Rollback {
            let row = row.expect("no row proves nothing");
            prop_assert!(matches!(row.state, Ok(State::Committed | State::RolledBack)));
            prop_assert!(row.token != asked || row.state == Ok(State::RolledBack));
        }
    }

    /// A row that is final, or of which nothing is known, is never replaced but by the one legal move.
    #[test]
    fn a_claim_replaces_rolled_back_rows_only(row in row()) {
        let answer = answer_claim(row.clone());
        prop_assert_eq!(matches!(answer, ClaimAnswer::MayReplace { .. }), row.state == Ok(State::RolledBack));
        prop_assert_eq!(answer == ClaimAnswer::AlreadyCommitted, row.state == Ok(State::Committed));
        if let ClaimAnswer::MayReplace { rolled_back_token } = answer {
            prop_assert_eq!(rolled_back_token, row.token);
        }
    }

    /// Whoever may replace a row: no attempt that it belonged to can be answered Commit before or after.
    #[test]
    fn what_may_be_replaced_is_rolled_back_for_everybody(asked in "[ab]{0,2}", row in row()) {
        if matches!(answer_claim(row.clone()), ClaimAnswer::MayReplace { .. }) {
            prop_assert_eq!(resolve(&asked, Some(&row)), Resolution::Rollback);
        }
    }

    #[test]
    fn a_state_reads_as_it_is_written(text in "\\PC{0,16}") {
        match text.parse::<State>() {
            Ok(state) => prop_assert_eq!(state.as_str(), text),
            Err(unknown) => {
                let row = LogRow { token: "t".into(), state: Err(unknown) };
                prop_assert_eq!(resolve("t", Some(&row)), Resolution::Unknown(Unresolved::UnknownState));
            }
        }
    }

    #[test]
    fn texts_are_taken_by_their_length_and_characters(text in any::<String>(), more in 0..40usize) {
        let text = text.repeat(more);
        let fits = |most| !text.is_empty() && text.len() <= most && !text.chars().any(char::is_control);
        prop_assert_eq!(check_msg_id(&text).is_ok(), fits(255));
        prop_assert_eq!(check_ordering_key(&text).is_ok(), fits(255));
        prop_assert_eq!(check_kind(&text).is_ok(), fits(128));
        prop_assert_eq!(check_tag(&text).is_ok(), fits(128) && !text.contains('|'));
        prop_assert!(check_topic(&text).is_err() || fits(127));
    }

    #[test]
    fn no_accepted_header_can_forge_another_property(
        name in "[A-Za-z_]{1,20}|\\PC{0,20}|.{0,20}", value in "\\PC{0,20}|.{0,20}",
    ) {
        let headers = [(name.clone(), value.clone())];
        if check_headers(&headers).is_ok() {
            prop_assert!(!name.contains(SEPARATORS) && !value.contains(SEPARATORS));
            prop_assert!(!name.starts_with("TX_") || !super::property::ALL.contains(&&*name));
            let names = Names { msg_id: "id", tag: None, ordering_key: None, headers: &headers };
            prop_assert!(names.check().is_ok());
        }
    }

    #[test]
    fn properties_beyond_the_limit_are_refused(lengths in proptest::collection::vec(0..9000usize, 0..8)) {
        let values: Vec<String> = lengths.iter().map(|length| "v".repeat(*length)).collect();
        let size: usize = lengths.iter().map(|length| length + 3).sum();
        let limits = Limits::default();
        let checked = limits.check_properties(values.iter().map(|value| ("n", value.as_str())));
        prop_assert_eq!(checked.is_ok(), size <= limits.properties);
    }

    /// However large, they are compared and never overflow.
    #[test]
    fn accepted_times_leave_room_for_every_step(timing in timing(), broker in broker()) {
        if timing.check().is_ok() {
            prop_assert!(timing.settle_deadline > timing.execute_timeout && timing.settle_deadline > timing.database_timeout);
        }
        if timing.check_against(&broker).is_ok() {
            prop_assert!(timing.settle_deadline < broker.check_budget());
            prop_assert!(timing.retention > broker.check_budget());
            prop_assert!(broker.file_reserved.is_none_or(|kept| timing.retention > kept));
        }
    }
}
