//! Many measurements as tables: medians over the rounds.

use std::collections::BTreeMap;

use crate::{AnyError, measure::Report};

const PEERS: [&str; 2] = ["java", "go"];

/// The lines of standard input are in the order in which the rounds ran.
pub fn print(lines: &str) -> Result<(), AnyError> {
    let mut groups: BTreeMap<(String, usize), Vec<Report>> = BTreeMap::new();
    for line in lines.lines() {
        let report: Report = serde_json::from_str(line)?;
        groups.entry((report.db.clone(), report.conc)).or_default().push(report);
    }
    for ((db, conc), reports) in &groups {
        let name = if db == "pg" { "PostgreSQL" } else { "MariaDB" };
        println!("\n### {name}, {conc} at once\n");
        println!("| subject | rounds | per second | p50 ms | p99 ms | errors | unknown | timed out | lost | twice |");
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
        for subject in subjects(reports) {
            print_line(&subject, reports.iter().filter(|report| report.peer == subject));
        }
        if let Some(ratio) = ratio(reports) {
            println!("\nsdk / better of the Java and Go peers, median of the rounds: {ratio}");
        }
    }
    Ok(())
}

/// In the order of their first turn.
fn subjects(reports: &[Report]) -> Vec<String> {
    let mut subjects: Vec<String> = Vec::new();
    for report in reports {
        if !subjects.contains(&report.peer) {
            subjects.push(report.peer.clone());
        }
    }
    subjects
}

fn print_line<'a>(subject: &str, reports: impl Iterator<Item = &'a Report> + Clone) {
    let middle = |value: fn(&Report) -> f64| median(reports.clone().map(value).collect());
    let sum = |value: fn(&Report) -> u64| reports.clone().map(value).sum::<u64>();
    // What a subject does not tell stays empty.
    let known = |value: fn(&Report) -> Option<u64>| {
        let values: Vec<u64> = reports.clone().filter_map(value).collect();
        if values.is_empty() { String::new() } else { values.iter().sum::<u64>().to_string() }
    };
    println!(
        "| {subject} | {} | {:.0} | {:.1} | {:.1} | {} | {} | {} | {} | {} |",
        reports.clone().count(),
        middle(|report| report.rate),
        middle(|report| report.p50_ms),
        middle(|report| report.p99_ms),
        sum(|report| report.errors),
        sum(|report| report.unknown),
        known(|report| report.lost.map(|_| report.timed_out)),
        known(|report| report.lost),
        known(|report| report.repeated),
    );
}

/// Of each round, so that what slows the machine for a while slows both sides.
fn ratio(reports: &[Report]) -> Option<String> {
    let rates = |subject: &str| -> Vec<f64> {
        reports.iter().filter(|report| report.peer == subject).map(|report| report.rate).collect()
    };
    let peers = PEERS.map(rates);
    let ratios: Vec<f64> = rates("sdk")
        .iter()
        .enumerate()
        .filter_map(|(round, sdk)| {
            let better = peers.iter().filter_map(|rates| rates.get(round)).copied().reduce(f64::max)?;
            Some(sdk / better)
        })
        .collect();
    if ratios.is_empty() {
        return None;
    }
    let all: Vec<String> = ratios.iter().map(|ratio| format!("{ratio:.2}")).collect();
    Some(format!("{:.2} ({})", median(ratios), all.join(", ")))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let upper = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[upper],
        _ => f64::midpoint(values[upper - 1], values[upper]),
    }
}
