//! The agreement: what a data store promises, and whether a trial kept it.
//!
//! `"95% < 100ms, view-profile: 99% < 10ms, 0.1% unpredictable, 60s"` are four clauses: three to be met, and how long the trial lasts that
//! confirms a rating. `grammar` reads them, `early` says when a trial is hopeless before its end; here they are judged.
//!
//! A clause is judged by a [`Tally`]: of so many calls (or reads), so many were good. Tallies of several trials at one load add up, so
//! a clause that chance could have decided either way can be asked again with more.
//!
//! Invariants:
//!
//! 1. A call that was refused, or whose outcome nobody knows, is not within any time.
//! 2. An answer with wrong bytes is unpredictable, like one that no order of the writes explains.
//! 3. What was not measured is not met: no call at all, or no judged reads where the agreement speaks of them. An action that never
//!    was drawn has no say.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::model::action::Action;
use crate::model::duration::Time;
use crate::verdict::measure::{Level, Measured};

mod early;
mod grammar;

pub use grammar::Misread;

/// What a data store promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Sla {
    /// At least one; one of them limits the errors of all calls.
    pub clauses: Vec<Clause>,
    /// Of the trial that confirms a rating.
    pub duration: Duration,
    /// Whether each client of a coordinator must keep the agreement, and not only all of them together.
    pub per_client: bool,
}

impl Sla {
    /// Where an agreement does not say.
    pub const DURATION: Duration = Duration::from_secs(60);

    /// The limit of failed calls where an agreement has none, or where there is no agreement: without it a data store that refuses every write of a mix
    /// of few writes would pass.
    pub const ERRORS: Clause = Clause::Errors {
        action: None,
        percent: 0.01,
    };
}

/// A condition; percents are of 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clause {
    /// At least so many percent of the calls, of one action or of all, are answered within the time.
    Within {
        action: Option<Action>,
        percent: f64,
        limit: Duration,
    },
    /// At most so many percent of the calls, of one action or of all, are refused or not answered.
    Errors {
        action: Option<Action>,
        percent: f64,
    },
    /// At most so many percent of the reads are not as the level wants them.
    Unpredictable { percent: f64, level: Level },
    /// The delivered mix is at most so many percent away from the drawn one.
    Drift { percent: f64 },
}

/// What counts for a clause: of so many, so many as the clause counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tally {
    /// Calls within the time; errors; unpredictable reads.
    pub counted: u64,
    pub of: u64,
    /// Nobody judged what the clause speaks of.
    pub unjudged: bool,
}

/// A clause with the figures that decide it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    #[serde(serialize_with = "in_words", deserialize_with = "from_words")]
    pub clause: Clause,
    /// What the clause limits, in percent; None where there was nothing.
    pub percent: Option<f64>,
    pub counted: u64,
    pub of: u64,
    pub met: bool,
    /// Whether chance could have decided it: the 99 % interval of the share holds the limit.
    pub sure: bool,
}

/// All clauses of an agreement, judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub met: bool,
    pub clauses: Vec<Judgement>,
}

impl Sla {
    /// One for each clause; of the client that does worst by it, where each client must keep the agreement.
    pub fn tally(&self, measured: &Measured) -> Vec<Tally> {
        let tally = |clause: &Clause| {
            let of_clients = measured.clients.iter().map(|client| clause.tally(client));
            let worst = of_clients.max_by(|a, b| clause.badness(*a).total_cmp(&clause.badness(*b)));
            worst
                .filter(|_| self.per_client)
                .unwrap_or_else(|| clause.tally(measured))
        };
        self.clauses.iter().map(tally).collect()
    }

    /// Of tallies, one for each clause.
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

    pub fn judge_trial(&self, measured: &Measured) -> Verdict {
        self.judge(&self.tally(measured))
    }

    /// Whether it speaks of reads that someone must judge.
    pub fn wants_reads(&self) -> bool {
        self.clauses
            .iter()
            .any(|clause| matches!(clause, Clause::Unpredictable { .. }))
    }
}

impl Verdict {
    /// The clauses not met, in words; empty where all are.
    pub fn why(&self) -> String {
        let missed = self.clauses.iter().filter(|judgement| !judgement.met);
        missed
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// Whether no clause that matters could be otherwise with more calls: one that is surely missed settles it.
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
        self.unjudged |= other.unjudged;
    }
}

impl Clause {
    fn tally(&self, measured: &Measured) -> Tally {
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
                    unjudged: false,
                }
            }
            Clause::Errors { action, .. } => Tally {
                counted: actions(action).map(|one| one.failed.len()).sum(),
                of: actions(action).map(|one| one.calls()).sum(),
                unjudged: false,
            },
            Clause::Drift { .. } => {
                let delivered = measured.delivered();
                let of = delivered.delivered();
                Tally {
                    counted: (delivered.drift() * of as f64).round() as u64,
                    of,
                    unjudged: false,
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
                    unjudged: unpredictable.is_none(),
                }
            }
        }
    }

    /// The part of a tally, 0 to 1, that is not as the clause wants it; more than 1 where nobody judged it, less than 0 where there was nothing.
    fn badness(&self, tally: Tally) -> f64 {
        let share = tally.counted as f64 / tally.of.max(1) as f64;
        match *self {
            _ if tally.unjudged => 2.0,
            _ if tally.of == 0 => -1.0,
            Clause::Within { .. } => 1.0 - share,
            _ => share,
        }
    }

    fn judge(&self, tally: Tally) -> Judgement {
        let percent = (tally.of > 0).then(|| 100.0 * tally.counted as f64 / tally.of as f64);
        let limit = self.percent();
        let met = match (percent, *self) {
            _ if tally.unjudged => false,
            (Some(percent), Clause::Within { .. }) => percent >= limit,
            (Some(percent), _) => percent <= limit,
            (None, Clause::Within { action, .. } | Clause::Errors { action, .. }) => {
                action.is_some()
            }
            // Judged, and nothing was read; or nothing was delivered.
            (None, Clause::Unpredictable { .. } | Clause::Drift { .. }) => true,
        };
        // No failed call at all is as good as it gets: more trials of the load would be wasted.
        let none =
            tally.counted == 0 && matches!(*self, Clause::Errors { .. } | Clause::Drift { .. });
        let sure = tally.unjudged
            || none
            || percent.is_none()
            || limit == 0.0
            || (limit == 100.0 && !met)
            || (met && tally.of < Judgement::ENOUGH)
            || !may_be(limit / 100.0, tally);
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
    /// With fewer calls than these a clause that is met counts as met: chance could have decided nearly any.
    const ENOUGH: u64 = 1000;
}

/// Whether a share like that of the tally is to be expected where the true one is `share`: Wilson's interval at 99 %.
fn may_be(share: f64, tally: Tally) -> bool {
    let (n, z) = (tally.of as f64, 2.576_f64);
    let seen = tally.counted as f64 / n;
    let middle = (seen + z * z / (2.0 * n)) / (1.0 + z * z / n);
    let reach = z / (1.0 + z * z / n) * (seen * (1.0 - seen) / n + z * z / (4.0 * n * n)).sqrt();
    (share - middle).abs() <= reach
}

impl FromStr for Sla {
    type Err = Misread;

    fn from_str(text: &str) -> Result<Sla, Misread> {
        grammar::parse(text)
    }
}

/// As it is written.
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

/// The figures beside the clause: `95% < 100ms: 93.21% of 12034 calls`.
impl fmt::Display for Judgement {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: ", self.clause)?;
        let things = match self.clause {
            Clause::Unpredictable { .. } => "reads",
            _ => "calls",
        };
        match self.percent {
            None if self.met => write!(out, "no {things}"),
            None => write!(out, "no {things} to judge"),
            // Rounded so that a share that misses its limit does not look as if it were on it.
            Some(percent) if self.met || (percent - self.clause.percent()).abs() > 0.01 => {
                write!(out, "{percent:.2}% of {} {things}", self.of)
            }
            Some(_) => write!(out, "{} of {} {things}", self.counted, self.of),
        }
    }
}

fn in_words<S: Serializer>(clause: &Clause, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(clause)
}

fn from_words<'de, D: Deserializer<'de>>(from: D) -> Result<Clause, D::Error> {
    let text = String::deserialize(from)?;
    match grammar::parts(&text).map_err(D::Error::custom)?.clauses[..] {
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
