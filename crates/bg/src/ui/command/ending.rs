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
use crate::verdict::measure::Measured;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Met,
    Missed,
    /// The result is unknown.
    Interrupted,
}

/// The status of a failed command. clap uses the same status for an invalid command line.
pub const NOT_DONE: u8 = 2;

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> ExitCode {
        ExitCode::from(match ending {
            Ending::Met => 0,
            Ending::Missed => 1,
            Ending::Interrupted => 130,
        })
    }
}

impl Ending {
    pub fn of(met: bool) -> Ending {
        if met { Ending::Met } else { Ending::Missed }
    }
}

/// The option of commands that validate reads.
#[derive(Args, Clone, Copy, Debug)]
pub struct Allowed {
    /// The percentage of reads that may be unpredictable or have wrong bytes before the exit status is 1
    #[arg(long, default_value_t = 0.0, value_name = "PERCENT", value_parser = percent)]
    pub allow: f64,
}

impl Allowed {
    pub fn of(self, bad: u64, reads: u64) -> bool {
        bad == 0 || 100.0 * bad as f64 / reads.max(bad) as f64 <= self.allow
    }

    /// Returns whether a trial met its agreement ([`Sla::ERRORS`] if there is none), and, if the agreement does not
    /// limit unpredictable reads, had no more wrong or unpredictable reads than allowed.
    pub fn trial(self, measured: &Measured, sla: Option<&Sla>) -> bool {
        let kept = judgements(measured, sla).iter().all(|clause| clause.met);
        let says = sla.is_some_and(|sla| {
            let clauses = sla.clauses.iter();
            clauses
                .clone()
                .any(|clause| matches!(clause, Clause::Unpredictable { .. }))
        });
        let wrong: u64 = measured.actions.iter().map(|one| one.wrong).sum();
        let judged = measured.reads.as_ref();
        let unpredictable = judged.map_or(0, |judged| judged.unpredictable);
        let reads = judged.map_or_else(|| measured.done(), |judged| judged.reads);
        kept && (says || self.of(unpredictable + wrong, reads))
    }
}

/// Evaluates the clauses of the agreement. Without an agreement, evaluates only the limit of failed calls.
pub fn judgements(measured: &Measured, sla: Option<&Sla>) -> Vec<Judgement> {
    let implied = || Sla {
        clauses: vec![Sla::ERRORS],
        duration: Sla::DURATION,
        per_client: false,
    };
    let judge = |sla: &Sla| sla.judge_trial(measured).clauses;
    sla.map_or_else(|| judge(&implied()), judge)
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: Option<f64> = text.trim_end_matches('%').parse().ok();
    percent
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "must be 0 to 100 percent".to_owned())
}
