//! The exit statuses of commands.
//!
//! | status | meaning |
//! |---|---|
//! | 0 | success; the agreement was met, and every value read was right |
//! | 1 | the command completed, but something was missed: the agreement, the limit of unpredictable reads, the comparison |
//! | 2 | the command failed: invalid command line, data store unreachable or not as loaded, disk full |
//! | 130 | interrupted before there was a result |

use std::process::ExitCode;

use clap::Args;

use crate::verdict::agreement::{Clause, Judgement, Sla};
use crate::verdict::measure::Measurements;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    Met,
    Missed,
    /// The result is unknown.
    Interrupted,
}

/// The status of a failed command. clap uses the same status for an invalid command line.
pub const FAILED: u8 = 2;

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> ExitCode {
        ExitCode::from(match outcome {
            CommandOutcome::Met => 0,
            CommandOutcome::Missed => 1,
            CommandOutcome::Interrupted => 130,
        })
    }
}

impl CommandOutcome {
    pub fn from_met(met: bool) -> CommandOutcome {
        if met {
            CommandOutcome::Met
        } else {
            CommandOutcome::Missed
        }
    }
}

/// The option of commands that validate reads.
#[derive(Args, Clone, Copy, Debug)]
pub struct AllowedUnpredictable {
    /// The percentage of reads that may be unpredictable or have wrong bytes before the exit status is 1
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = parse_percent)]
    pub allow: f64,
}

impl AllowedUnpredictable {
    pub fn accepts(self, bad: u64, reads: u64) -> bool {
        bad == 0 || 100.0 * bad as f64 / reads.max(bad) as f64 <= self.allow
    }

    /// Returns whether a trial met its agreement ([`Sla::ERRORS`] if there is none), and, if the agreement does not
    /// limit unpredictable reads, had no more wrong or unpredictable reads than allowed.
    pub fn accepts_trial(self, measured: &Measurements, sla: Option<&Sla>) -> bool {
        let agreement_met = judgements(measured, sla).iter().all(|clause| clause.met);
        let limits_reads = sla.is_some_and(|sla| {
            let clauses = sla.clauses.iter();
            clauses
                .clone()
                .any(|clause| matches!(clause, Clause::Unpredictable { .. }))
        });
        let wrong: u64 = measured.actions.iter().map(|one| one.wrong).sum();
        let judged = measured.reads.as_ref();
        let unpredictable = judged.map_or(0, |judged| judged.unpredictable);
        let reads = judged.map_or_else(|| measured.done(), |judged| judged.reads);
        agreement_met && (limits_reads || self.accepts(unpredictable + wrong, reads))
    }
}

/// Evaluates the clauses of the agreement. Without an agreement, evaluates only the limit of failed calls.
pub fn judgements(measured: &Measurements, sla: Option<&Sla>) -> Vec<Judgement> {
    let implied = || Sla {
        clauses: vec![Sla::ERRORS],
        duration: Sla::DURATION,
        per_client: false,
    };
    let judge = |sla: &Sla| sla.judge_trial(measured).clauses;
    sla.map_or_else(|| judge(&implied()), judge)
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.trim_end_matches('%').parse().ok();
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "must be 0 to 100 percent".to_owned())
}
