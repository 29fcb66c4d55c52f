//! Service level agreements (SLAs): the requirements on a data store, and the evaluation of trials against them.
//!
//! `"95% < 100ms, view-profile: 99% < 10ms, 0.1% unpredictable, 60s"` consists of four clauses: three conditions, and
//! the duration of the trial that confirms a rating. `grammar` parses agreements and `early` detects before the end of
//! a trial that it misses one. This module evaluates them.
//!
//! A clause is evaluated on a [`Tally`]: the number of calls (or reads), and how many of them count for the clause.
//! Tallies of several trials at one load add up, so that a clause too close to its limit can be evaluated again on more
//! calls.
//!
//! Invariants:
//!
//! 1. A call that was rejected, or whose outcome is unknown, is not within any time limit.
//! 2. An answer with wrong bytes is unpredictable, like an answer that no order of the writes explains.
//! 3. A clause without measurements is not met: no call at all, or no validated reads although the agreement limits
//!    unpredictable reads. The clause of an action that was never drawn is ignored.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::action::Action;
use crate::model::duration::Time;
use crate::verdict::measure::{Level, Measurements};

mod early;
mod grammar;

pub use grammar::SyntaxError;

/// A service level agreement.
#[derive(Clone, Debug, PartialEq)]
pub struct Sla {
    /// At least one. One of them limits the errors of all calls.
    pub clauses: Vec<Clause>,
    /// Duration of the trial that confirms a rating.
    pub duration: Duration,
    /// True if each client of a coordinator must meet the agreement, not only all of them together.
    pub per_client: bool,
}

impl Sla {
    /// Default duration of the confirming trial.
    pub const DURATION: Duration = Duration::from_secs(60);

    /// The limit of failed calls if an agreement has none, or if there is no agreement. Without it, a data store that
    /// rejects every write would pass with a mix of few writes.
    pub const ERRORS: Clause = Clause::Errors {
        action: None,
        percent: 0.01,
    };
}

/// A condition. Percentages range from 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clause {
    /// At least this percentage of the calls, of one action or of all, are answered within the time.
    Within {
        action: Option<Action>,
        percent: f64,
        limit: Duration,
    },
    /// At most this percentage of the calls, of one action or of all, are rejected or not answered.
    Errors {
        action: Option<Action>,
        percent: f64,
    },
    /// At most this percentage of the reads do not satisfy the level.
    Unpredictable { percent: f64, level: Level },
    /// The delivered mix differs from the drawn mix by at most this percentage.
    Drift { percent: f64 },
}

/// The counts that decide a clause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Calls within the time, errors, or unpredictable reads, depending on the clause.
    pub counted: u64,
    pub of: u64,
    /// True if the reads that the clause limits were not validated.
    pub not_validated: bool,
}

/// A clause with the numbers that decide it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    #[serde(
        serialize_with = "serialize_clause",
        deserialize_with = "deserialize_clause"
    )]
    pub clause: Clause,
    /// The value that the clause limits, in percent. None if there were no calls or reads.
    pub percent: Option<f64>,
    pub counted: u64,
    pub of: u64,
    pub met: bool,
    /// True if the result is statistically significant: the limit is outside the 99 % confidence interval of the
    /// measured proportion.
    pub sure: bool,
}

/// The evaluated clauses of an agreement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub met: bool,
    pub clauses: Vec<Judgement>,
}

impl Sla {
    /// Returns one tally per clause. If each client must meet the agreement, it is the tally of the client with the
    /// worst result for the clause.
    pub fn tally(&self, measured: &Measurements) -> Vec<Tally> {
        let tally = |clause: &Clause| {
            let of_clients = measured.clients.iter().map(|client| clause.tally(client));
            let worst = of_clients.max_by(|a, b| clause.badness(*a).total_cmp(&clause.badness(*b)));
            worst
                .filter(|_| self.per_client)
                .unwrap_or_else(|| clause.tally(measured))
        };
        self.clauses.iter().map(tally).collect()
    }

    /// Evaluates tallies, one per clause.
    pub fn judge(&self, tallies: &[Tally]) -> Verdict {
        let clauses: Vec<_> = self
            .clauses
            .iter()
            .zip(tallies)
            .map(|(clause, tally)| clause.judge(*tally))
            .collect();
        Verdict {
            met: clauses.iter().all(|judgement| judgement.met),
            clauses,
        }
    }

    pub fn judge_trial(&self, measured: &Measurements) -> Verdict {
        self.judge(&self.tally(measured))
    }

    /// Returns whether a clause limits unpredictable reads, which requires validation.
    pub fn needs_validation(&self) -> bool {
        self.clauses
            .iter()
            .any(|clause| matches!(clause, Clause::Unpredictable { .. }))
    }
}

impl Verdict {
    /// Returns the clauses that are not met as text. Empty if all are met.
    pub fn reason(&self) -> String {
        let missed = self.clauses.iter().filter(|judgement| !judgement.met);
        missed
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Returns whether more calls would not change the result: one clause is surely missed, or all clauses are sure.
    pub fn is_sure(&self) -> bool {
        self.clauses
            .iter()
            .any(|judgement| !judgement.met && judgement.sure)
            || self.clauses.iter().all(|judgement| judgement.sure)
    }
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.counted += other.counted;
        self.of += other.of;
        self.not_validated |= other.not_validated;
    }
}

impl Clause {
    fn tally(&self, measured: &Measurements) -> Tally {
        let actions = |only: Option<Action>| {
            let all = Action::ALL.into_iter().zip(&measured.actions);
            all.filter(move |(action, _)| only.is_none_or(|only| only == *action))
                .map(|(_, measured)| measured)
        };
        match *self {
            Clause::Within { action, limit, .. } => {
                let limit_ns = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                Tally {
                    counted: actions(action).map(|one| one.within(limit_ns)).sum(),
                    of: actions(action).map(|one| one.calls()).sum(),
                    not_validated: false,
                }
            }
            Clause::Errors { action, .. } => Tally {
                counted: actions(action).map(|one| one.failed.len()).sum(),
                of: actions(action).map(|one| one.calls()).sum(),
                not_validated: false,
            },
            Clause::Drift { .. } => {
                let delivered = measured.delivered();
                let of = delivered.delivered();
                Tally {
                    counted: (delivered.drift() * of as f64).round() as u64,
                    of,
                    not_validated: false,
                }
            }
            Clause::Unpredictable { level, .. } => {
                let wrong: u64 = measured.actions.iter().map(|one| one.wrong).sum();
                let judged = measured.reads.as_ref();
                let reads = judged.map_or(0, |judged| judged.reads);
                let unpredictable = judged.and_then(|judged| judged.at(level));
                Tally {
                    counted: unpredictable.unwrap_or(0) + wrong,
                    of: reads.max(wrong),
                    not_validated: unpredictable.is_none(),
                }
            }
        }
    }

    /// Returns the proportion of a tally that violates the clause, from 0 to 1. Returns more than 1 if the reads were
    /// not validated, and less than 0 if there were no calls.
    fn badness(&self, tally: Tally) -> f64 {
        let share = tally.counted as f64 / tally.of.max(1) as f64;
        match *self {
            _ if tally.not_validated => 2.0,
            _ if tally.of == 0 => -1.0,
            Clause::Within { .. } => 1.0 - share,
            _ => share,
        }
    }

    fn judge(&self, tally: Tally) -> Judgement {
        let percent = (tally.of > 0).then(|| 100.0 * tally.counted as f64 / tally.of as f64);
        let limit = self.percent();
        let met = match (percent, *self) {
            _ if tally.not_validated => false,
            (Some(percent), Clause::Within { .. }) => percent >= limit,
            (Some(percent), _) => percent <= limit,
            (None, Clause::Within { action, .. } | Clause::Errors { action, .. }) => {
                action.is_some()
            }
            // Validated without any read, or nothing delivered.
            (None, Clause::Unpredictable { .. } | Clause::Drift { .. }) => true,
        };
        // Without any failed call, further trials of the load cannot improve the result.
        let none =
            tally.counted == 0 && matches!(*self, Clause::Errors { .. } | Clause::Drift { .. });
        let sure = tally.not_validated
            || none
            || percent.is_none()
            || limit == 0.0
            || (limit == 100.0 && !met)
            || (met && tally.of < Judgement::ENOUGH)
            || !is_plausible(limit / 100.0, tally);
        Judgement {
            clause: *self,
            percent,
            counted: tally.counted,
            of: tally.of,
            met,
            sure,
        }
    }

    fn percent(&self) -> f64 {
        match *self {
            Clause::Within { percent, .. }
            | Clause::Errors { percent, .. }
            | Clause::Unpredictable { percent, .. }
            | Clause::Drift { percent } => percent,
        }
    }
}

impl Judgement {
    /// With fewer calls than this, a clause that is met counts as sure: with so few calls, nearly every result could be
    /// due to chance.
    const ENOUGH: u64 = 1000;
}

/// Returns whether the tally is plausible if the true proportion is `share`: Wilson's interval at 99 %.
fn is_plausible(share: f64, tally: Tally) -> bool {
    let (n, z) = (tally.of as f64, 2.576_f64);
    let seen = tally.counted as f64 / n;
    let middle = (seen + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let half_width =
        z / (1.0 + z * z / n) * (seen * (1.0 - seen) / n + z * z / (4.0 * n * n)).sqrt();
    (share - middle).abs() <= half_width
}

impl FromStr for Sla {
    type Err = SyntaxError;

    fn from_str(text: &str) -> Result<Sla, SyntaxError> {
        grammar::parse(text)
    }
}

/// Formats the agreement in its grammar.
impl fmt::Display for Sla {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for clause in &self.clauses {
            write!(out, "{clause}, ")?;
        }
        if self.per_client {
            write!(out, "per-client, ")?;
        }
        write!(out, "{}", Time(self.duration))
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Clause::Within { action, .. } | Clause::Errors { action, .. } = self
            && let Some(action) = action
        {
            write!(out, "{}: ", action.name())?;
        }
        match *self {
            Clause::Within { percent, limit, .. } => write!(out, "{percent}% < {}", Time(limit)),
            Clause::Errors { percent, .. } => write!(out, "{percent}% errors"),
            Clause::Drift { percent } => write!(out, "{percent}% drift"),
            Clause::Unpredictable { percent, level } => {
                write!(out, "{percent}% unpredictable")?;
                if level != Level::Snapshot {
                    write!(out, " at {}", level.name())?;
                }
                Ok(())
            }
        }
    }
}

/// Formats the clause with its numbers: `95% < 100ms: 93.21% of 12034 calls`.
impl fmt::Display for Judgement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.clause)?;
        let things = match self.clause {
            Clause::Unpredictable { .. } => "reads",
            _ => "calls",
        };
        match self.percent {
            None if self.met => write!(out, "no {things}"),
            None => write!(out, "no validated {things}"),
            // If rounding would hide a miss, print the counts instead of the percentage.
            Some(percent) if self.met || (percent - self.clause.percent()).abs() > 0.01 => {
                write!(out, "{percent:.2}% of {} {things}", self.of)
            }
            Some(_) => write!(out, "{} of {} {things}", self.counted, self.of),
        }
    }
}

fn serialize_clause<S: Serializer>(clause: &Clause, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(clause)
}

fn deserialize_clause<'de, D: Deserializer<'de>>(from: D) -> Result<Clause, D::Error> {
    let text = String::deserialize(from)?;
    match grammar::parse_clauses(&text)
        .map_err(D::Error::custom)?
        .clauses[..]
    {
        [clause] => Ok(clause),
        _ => Err(D::Error::custom("expected a single clause")),
    }
}

impl<'de> Deserialize<'de> for Sla {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Sla, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Sla {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}
