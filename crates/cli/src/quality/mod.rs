//! Gates of `larder build` and `larder push`: the conditions that a version must meet, and the report on them.
//!
//! ```text
//!  larder build ─► a folder next to --out ─► evaluated here ─► renamed to --out
//!  larder push  ─► the program runs here ─► the server, which evaluates the gates before the swap
//! ```
//!
//! `larder build` evaluates the gates before anything exists at `--out`. In a push, the server evaluates them; results
//! of the same gates here are only for the report.

mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use larder_batch::profile::{PreviousVersion, Verdict, evaluate_gates};
use larder_batch::{Manifest, Version};
use larder_protocol::http::{Canary, ColumnLimit, Gates};
use larder_server::gates::{find_canary_fault, to_limits};
use larder_server::program::{Program, description};

use crate::build::parse_location;
use crate::command_line::{parse_count, parse_percent};
use crate::failure::Failure;
use crate::interrupt;

/// The gates of a version; shared by `larder build` and `larder push`.
#[derive(Args)]
pub struct GateArgs {
    /// Reject a version with fewer records
    #[arg(long, value_name = "N", value_parser = parse_count::<u64>, help_heading = "Gates")]
    min_records: Option<u64>,
    /// Reject a version whose number of records is lower than the previous version's by more than this percentage
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, help_heading = "Gates")]
    max_shrink: Option<f64>,
    /// Reject a version whose number of records is higher than the previous version's by more than this percentage
    #[arg(long, value_name = "PERCENT", value_parser = parse_growth, help_heading = "Gates")]
    max_growth: Option<f64>,
    /// Reject a version with a higher percentage of nulls in any column, or in one column
    #[arg(
        long,
        value_name = "[COL:]PERCENT",
        value_delimiter = ',',
        help_heading = "Gates"
    )]
    max_nulls: Vec<ColumnLimit>,
    /// Reject a version with a higher percentage of empty texts in any column, or in one column
    #[arg(
        long,
        value_name = "[COL:]PERCENT",
        value_delimiter = ',',
        help_heading = "Gates"
    )]
    max_empty: Vec<ColumnLimit>,
    /// Reject a version if the distribution of any column, or of one column, has shifted further from the previous version's; the
    /// measure is the population stability index, where 0.1 is a small shift and 0.25 a large one
    #[arg(
        long,
        value_name = "[COL:]INDEX",
        value_delimiter = ',',
        help_heading = "Gates"
    )]
    max_shift: Vec<ColumnLimit>,
    /// Reject a version unless the keys in this file have the values in this file; each line contains KEY, a tab
    /// and VALUE, or only KEY to accept any value
    #[arg(long, value_name = "FILE", help_heading = "Gates")]
    canary: Option<PathBuf>,
    /// Run this program with its space-separated arguments, followed by the version's folder; it receives a JSON description on
    /// standard input, and an exit status other than 0 rejects the version
    #[arg(long, value_name = "PROGRAM", help_heading = "Gates")]
    check: Option<String>,
    /// Timeout of --check in seconds; when it expires, the program is ended and the version is rejected
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 300,
        value_parser = parse_count::<u64>,
        requires = "check",
        help_heading = "Gates"
    )]
    check_seconds: u64,
    /// Write a self-contained HTML page with charts of the version's columns and the results of its gates
    #[arg(long, value_name = "FILE", help_heading = "Gates")]
    report: Option<PathBuf>,
}

/// The requested gates, parsed.
pub struct RequestedGates {
    pub gates: Gates,
    program: Option<Program>,
    report: Option<PathBuf>,
}

/// The version with which a new one is compared.
pub struct ComparedVersion {
    /// Its name in messages.
    pub name: String,
    pub manifest: Manifest,
}

impl ComparedVersion {
    /// Reads the manifest of a version at a path or URL.
    pub fn read(place: &str) -> Result<ComparedVersion, Failure> {
        let location = parse_location(place)?;
        let manifest = location.join(Manifest::FILE);
        let read = manifest.and_then(|it| {
            use std::io::Read;
            let mut bytes = Vec::new();
            let reader = it.reader()?;
            let read = reader.take(Manifest::SIZE_MAX).read_to_end(&mut bytes);
            Ok(read.map(|_| bytes))
        });
        let cannot = |why: &dyn std::fmt::Display| {
            Failure::not_found(format!(
                "there is no version to compare with at {place}: cannot compare with --against: {why}; pass a folder or URL that contains {}",
                Manifest::FILE
            ))
        };
        let bytes = read
            .map_err(|error| cannot(&error))?
            .map_err(|error| cannot(&error))?;
        Ok(ComparedVersion {
            name: format!("the version at {location}"),
            manifest: Manifest::decode(&location.to_string(), &bytes)?,
        })
    }
}

impl GateArgs {
    /// Reads the files that the options name, before minutes of building. `allow_empty` is a build option.
    pub fn read(&self, allow_empty: bool) -> Result<RequestedGates, Failure> {
        let canary = match &self.canary {
            Some(path) => read_canary(path)?,
            None => Vec::new(),
        };
        let words = self.check.iter().flat_map(|text| text.split_whitespace());
        let command: Vec<String> = words.map(str::to_owned).collect();
        if self.check.is_some() && (command.is_empty() || self.check_seconds == 0) {
            return Err(Failure::usage(
                "--check names a program, and --check-seconds gives it at least one second",
            ));
        }
        Ok(RequestedGates {
            gates: Gates {
                min_records: self.min_records,
                max_shrink_percent: self.max_shrink,
                max_growth_percent: self.max_growth,
                allow_empty,
                canary,
                max_nulls: self.max_nulls.clone(),
                max_empty: self.max_empty.clone(),
                max_shift: self.max_shift.clone(),
            },
            program: Program::new(&command, Duration::from_secs(self.check_seconds)),
            report: self.report.clone(),
        })
    }
}

impl RequestedGates {
    /// Returns whether `larder build` has any gates or a report.
    pub fn is_any(&self) -> bool {
        let plain = Gates {
            allow_empty: self.gates.allow_empty,
            ..Gates::default()
        };
        self.gates != plain || self.needs_local_check()
    }

    /// Returns whether evaluation needs more than the manifest.
    pub fn opens_version(&self) -> bool {
        self.program.is_some() || !self.gates.canary.is_empty()
    }

    /// Returns whether a push must examine the version locally.
    pub fn needs_local_check(&self) -> bool {
        self.program.is_some() || self.report.is_some()
    }

    /// Evaluates the gates of a version in a folder, and writes the report in either case.
    ///
    /// # Errors
    /// `REFUSED`: all gates that failed.
    pub fn evaluate(&self, folder: &Path, before: Option<&ComparedVersion>) -> Result<(), Failure> {
        let manifest = crate::build::read_manifest(folder)?;
        let mut verdicts = self.evaluate_manifest(&manifest, before);
        verdicts.extend(self.evaluate_canaries(folder)?);
        verdicts.extend(self.run_program(folder, &manifest, before));
        interrupt::check()?;
        self.report(&manifest, before, &verdicts)?;
        reject_failed(&verdicts, "nothing was left at its place")
    }

    /// Does the local part of a push: runs the program, and writes the report on all gates.
    ///
    /// # Errors
    /// `REFUSED` if the program rejects the version. The server evaluates the other gates.
    pub fn check_before_push(
        &self,
        manifest: &Manifest,
        folder: Option<&Path>,
        before: Option<&ComparedVersion>,
    ) -> Result<(), Failure> {
        let mut verdicts = self.evaluate_manifest(manifest, before);
        let program = match folder {
            Some(folder) => {
                verdicts.extend(self.evaluate_canaries(folder)?);
                self.run_program(folder, manifest, before)
            }
            None if self.program.is_some() => {
                return Err(Failure::usage(
                    "--check looks at a version's files, and this one is at a URL; run the program where the version is built, or name it as the server's stores.gate_program",
                ));
            }
            None => None,
        };
        let judged = program.clone();
        verdicts.extend(program);
        self.report(manifest, before, &verdicts)?;
        reject_failed(judged.as_slice(), "the live version is unchanged")
    }

    fn evaluate_manifest(
        &self,
        manifest: &Manifest,
        before: Option<&ComparedVersion>,
    ) -> Vec<Verdict> {
        let before = before.map(|it| PreviousVersion {
            name: &it.name,
            manifest: &it.manifest,
        });
        evaluate_gates(&to_limits(&self.gates), manifest, before)
    }

    fn evaluate_canaries(&self, folder: &Path) -> Result<Vec<Verdict>, Failure> {
        if self.gates.canary.is_empty() {
            return Ok(Vec::new());
        }
        let version = Version::open(folder)?;
        let judged = find_canary_fault(&self.gates, &version);
        let found = judged.map_err(|error| Failure::new(error.to_string()))?;
        let keys = self.gates.canary.len();
        Ok(vec![Verdict {
            gate: "canary",
            column: None,
            expected: format!("{keys} keys with their values"),
            got: found.clone().unwrap_or_else(|| "all of them".to_owned()),
            is_passed: found.is_none(),
            message: found.unwrap_or_default(),
        }])
    }

    fn run_program(
        &self,
        folder: &Path,
        manifest: &Manifest,
        before: Option<&ComparedVersion>,
    ) -> Option<Verdict> {
        let program = self.program.as_ref()?;
        let description = description(manifest, before.map(|it| &it.manifest));
        let judged = program.judge(folder, &description, &|| !interrupt::is_interrupted());
        let message = judged.err();
        Some(Verdict {
            gate: "check",
            column: None,
            expected: "exit status 0".to_owned(),
            got: message
                .clone()
                .unwrap_or_else(|| "exit status 0".to_owned()),
            is_passed: message.is_none(),
            message: message.unwrap_or_default(),
        })
    }

    fn report(
        &self,
        manifest: &Manifest,
        before: Option<&ComparedVersion>,
        verdicts: &[Verdict],
    ) -> Result<(), Failure> {
        let Some(path) = &self.report else {
            return Ok(());
        };
        std::fs::write(path, report::page(manifest, before, verdicts))
            .map_err(Failure::io(format!("write {}", path.display())))
    }
}

fn reject_failed(verdicts: &[Verdict], left: &str) -> Result<(), Failure> {
    let messages: Vec<&str> = verdicts
        .iter()
        .filter(|verdict| !verdict.is_passed)
        .map(|verdict| verdict.message.as_str())
        .collect();
    if messages.is_empty() {
        Ok(())
    } else {
        Err(Failure::refused(format!(
            "a gate rejects the version: {}; correct the input, or the gate if the version is right; {left}",
            messages.join("; ")
        )))
    }
}

fn read_canary(path: &Path) -> Result<Vec<Canary>, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::io(format!(
        "read the canary file {}",
        path.display()
    )))?;
    let lines = text.lines().filter(|line| !line.is_empty());
    let canary: Vec<Canary> = lines
        .map(|line| match line.split_once('\t') {
            Some((key, value)) => Canary {
                key: key.to_owned(),
                value: Some(value.to_owned()),
            },
            None => Canary {
                key: line.to_owned(),
                value: None,
            },
        })
        .collect();
    if canary.is_empty() {
        return Err(Failure::usage(format!(
            "{} names no keys; write lines of KEY, a tab and VALUE",
            path.display()
        )));
    }
    Ok(canary)
}

/// Parses a growth limit, which may exceed 100%.
fn parse_growth(text: &str) -> Result<f64, String> {
    let number = text.trim().trim_end_matches('%').trim();
    match number.parse::<f64>() {
        Ok(percent) if percent.is_finite() && percent >= 0.0 => Ok(percent),
        _ => Err("write a share from 0% on, such as 20%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growths_are_written_with_or_without_a_percent_sign() {
        assert_eq!(parse_growth("250 %"), Ok(250.0));
        for bad in ["", "-1", "inf", "much"] {
            assert!(parse_growth(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_canary_is_a_key_and_its_value_or_a_key_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("canary.tsv");
        std::fs::write(&path, "1\t{\"a\": 1}\n\n2\n").unwrap();
        let canary = read_canary(&path).unwrap();
        assert_eq!(canary[0].value.as_deref(), Some("{\"a\": 1}"));
        assert_eq!((canary[1].key.as_str(), &canary[1].value), ("2", &None));
        std::fs::write(&path, "\n").unwrap();
        assert_eq!(read_canary(&path).unwrap_err().exit_code, 2);
    }
}
