//! Instruction counts of hot paths, compared with the recorded ones in `bench/counts.toml`.
//!
//! The bench `counts` of larder-bench counts instructions under valgrind, which do not depend on the machine's load.
//! The file changes in the same commit as the code, so that each accepted increase has a reason beside it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Stdio;

use crate::{ci, tree};

const FILE: &str = "bench/counts.toml";

const BENCH: &str = "cargo bench --workspace --profile dev --bench counts --locked --quiet";

/// Counts may rise by this percentage without a reason.
const RISE_PERCENT_MAX: u64 = 3;

const HEAD: &str = "\
# Instructions of hot paths, as `cargo xtask counts` measures them. `cargo xtask counts --record \"why\"` writes this file.
# A count is that of the last recorded change; `reason` explains that change.
";

/// The counts of all paths by name, and the machine on which they were measured.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    machine: String,
    paths: BTreeMap<String, PathCount>,
}

#[derive(Debug, Clone, PartialEq)]
struct PathCount {
    instructions: u64,
    /// Empty in a measurement.
    reason: String,
}

/// Measures, and fails if a count exceeds the recorded one.
pub fn check() -> Result<(), String> {
    let Some(measured) = measure()? else {
        return Ok(());
    };
    let recorded = read()?;
    let findings = compare(&recorded, &measured);
    findings.iter().for_each(|it| println!("ci: counts: {it}"));
    if findings.is_empty() {
        println!(
            "ci: counts: {} paths, none exceeds its count",
            measured.paths.len()
        );
        return Ok(());
    }
    if recorded.machine != measured.machine {
        println!(
            "ci: counts: not a failure, because {FILE} was recorded on another machine ({}; this one: {})",
            recorded.machine, measured.machine
        );
        return Ok(());
    }
    Err(format!(
        "{} instruction counts differ from {FILE}; reduce the work, or accept the counts with \
         `cargo xtask counts --record \"why\"` and commit the file with the change",
        findings.len()
    ))
}

/// Measures, and writes the counts that differ with this reason.
pub fn record(reason: &str) -> Result<(), String> {
    let measured = measure()?.ok_or("nothing was measured")?;
    let recorded = if tree::root().join(FILE).exists() {
        read()?
    } else {
        Counts::default()
    };
    let merged = merge(&recorded, measured, reason);
    fs::write(tree::root().join(FILE), render(&merged))
        .map_err(|error| format!("cannot write {FILE}: {error}"))
}

/// Runs the bench. Returns `None` if valgrind is not installed.
fn measure() -> Result<Option<Counts>, String> {
    if !ci::installed("valgrind") {
        println!("ci: counts: skipped, there is no valgrind; scripts/setup test installs it");
        return Ok(None);
    }
    let mut printed = String::new();
    let mut bench = ci::command(BENCH);
    bench.stdout(Stdio::piped());
    ci::timed("counts", &mut bench, |mut output| {
        std::io::Read::read_to_string(&mut output, &mut printed)
            .map(drop)
            .map_err(|error| format!("cannot read the output: {error}"))
    })?;
    parse_measurement(&printed).map(Some)
}

/// Parses the output of the bench: lines with a name, a tab and a count. The first line is the machine.
fn parse_measurement(printed: &str) -> Result<Counts, String> {
    let mut counts = Counts::default();
    for line in printed.lines() {
        let (name, value) = line
            .split_once('\t')
            .ok_or_else(|| format!("the bench printed {line:?}"))?;
        if name == "machine" {
            counts.machine = value.to_owned();
            continue;
        }
        let instructions = value
            .parse()
            .map_err(|_| format!("the bench printed {line:?}"))?;
        let count = PathCount {
            instructions,
            reason: String::new(),
        };
        counts.paths.insert(name.to_owned(), count);
    }
    Ok(counts)
}

fn read() -> Result<Counts, String> {
    let text = tree::text(FILE)?.unwrap_or_default();
    parse(&text).map_err(|error| format!("{FILE}: {error}"))
}

fn parse(text: &str) -> Result<Counts, String> {
    let table: toml::Table = toml::from_str(text).map_err(|error| error.to_string())?;
    let mut counts = Counts::default();
    for (name, value) in &table {
        if let Some(machine) = value.as_str() {
            counts.machine = machine.to_owned();
            continue;
        }
        let instructions = value.get("instructions").and_then(toml::Value::as_integer);
        let reason = value.get("reason").and_then(toml::Value::as_str);
        let (Some(instructions), Some(reason)) = (instructions, reason) else {
            return Err(format!("{name:?} needs `instructions` and `reason`"));
        };
        let count = PathCount {
            instructions: instructions.unsigned_abs(),
            reason: reason.to_owned(),
        };
        counts.paths.insert(name.clone(), count);
    }
    Ok(counts)
}

fn render(counts: &Counts) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let mut text = format!("{HEAD}machine = {}\n", quoted(&counts.machine));
    for (name, count) in &counts.paths {
        let (instructions, reason) = (count.instructions, quoted(&count.reason));
        let _ = write!(
            text,
            "\n[{}]\ninstructions = {instructions}\nreason = {reason}\n",
            quoted(name)
        );
    }
    text
}

/// Returns whether `count` is greater than `other` by more than the limit.
fn exceeds(count: u64, other: u64) -> bool {
    count * 100 > other * (100 + RISE_PERCENT_MAX)
}

/// Returns a line for each path whose count exceeds the recorded one by more than the limit, and for each path that
/// only one of the two has.
fn compare(recorded: &Counts, measured: &Counts) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, now) in &measured.paths {
        let Some(before) = recorded.paths.get(name) else {
            findings.push(format!(
                "{name}: {} instructions, not recorded",
                now.instructions
            ));
            continue;
        };
        if exceeds(now.instructions, before.instructions) {
            let rise = (now.instructions as f64 / before.instructions as f64 - 1.0) * 100.0;
            findings.push(format!(
                "{name}: {} instructions, {rise:.1} % more than the recorded {} ({}); the limit is {RISE_PERCENT_MAX} %",
                now.instructions, before.instructions, before.reason
            ));
        }
    }
    let missing = recorded
        .paths
        .keys()
        .filter(|name| !measured.paths.contains_key(*name));
    findings
        .extend(missing.map(|name| format!("{name}: recorded, but the bench has no such path")));
    findings
}

/// Returns the measured counts with their reasons. A count that is within the limit of the recorded one stays as it is
/// recorded: otherwise, several small increases would never exceed the limit.
fn merge(recorded: &Counts, measured: Counts, reason: &str) -> Counts {
    let is_same_machine = recorded.machine == measured.machine;
    let merged = measured.paths.into_iter().map(|(name, now)| {
        let before = recorded.paths.get(&name).filter(|before| {
            let (now, before) = (now.instructions, before.instructions);
            is_same_machine && !exceeds(now, before) && !exceeds(before, now)
        });
        let new = PathCount {
            reason: reason.to_owned(),
            ..now
        };
        (name, before.cloned().unwrap_or(new))
    });
    Counts {
        machine: measured.machine,
        paths: merged.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(paths: &[(&str, u64, &str)]) -> Counts {
        let path = |(name, instructions, reason): &(&str, u64, &str)| {
            let (instructions, reason) = (*instructions, (*reason).to_owned());
            (
                (*name).to_owned(),
                PathCount {
                    instructions,
                    reason,
                },
            )
        };
        Counts {
            machine: "x86_64".to_owned(),
            paths: paths.iter().map(path).collect(),
        }
    }

    #[test]
    fn a_rise_above_the_limit_is_reported_with_both_counts() {
        let recorded = counts(&[
            ("get", 1000, "first"),
            ("set", 1000, "first"),
            ("gone", 1, "first"),
        ]);
        let measured = counts(&[("get", 1031, ""), ("set", 1030, ""), ("new", 5, "")]);
        assert_eq!(
            compare(&recorded, &measured),
            [
                "get: 1031 instructions, 3.1 % more than the recorded 1000 (first); the limit is 3 %",
                "new: 5 instructions, not recorded",
                "gone: recorded, but the bench has no such path",
            ]
        );
    }

    #[test]
    fn small_increases_do_not_add_up_unnoticed() {
        let mut recorded = counts(&[("get", 1000, "first")]);
        for instructions in [1020, 1029] {
            let measured = counts(&[("get", instructions, "")]);
            recorded = merge(&recorded, measured, "another path");
            assert_eq!(recorded, counts(&[("get", 1000, "first")]));
        }
        let measured = counts(&[("get", 1040, "")]);
        assert_eq!(compare(&recorded, &measured).len(), 1);
        assert_eq!(
            merge(&recorded, measured, "why"),
            counts(&[("get", 1040, "why")])
        );
    }

    #[test]
    fn the_file_is_read_as_it_was_written() {
        let counts = counts(&[
            ("store get, hit", 321, "a \"quoted\" reason"),
            ("set", 5, ""),
        ]);
        assert_eq!(parse(&render(&counts)), Ok(counts));
    }
}
