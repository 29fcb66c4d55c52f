//! The grammar of agreements.
//!
//! ```text
//!   agreement  clause {"," clause}
//!   clause     "per-client"                          each client of a coordinator must meet all clauses
//!              time                                  duration of the confirming trial; default 60s
//!              percent "unpredictable" ["at" level]  at most this proportion of the reads
//!              percent "drift"                       at most this distance between delivered and drawn mix
//!              [action ":"] condition
//!   condition  percent "<" time                      at least this proportion of the calls, of the action or of all
//!              "p" number "<" time                   the same
//!              percent "errors"                      at most this proportion of the calls
//!   percent    number "%"                            0 to 100
//! ```
//!
//! A time has the format of durations in options (`crate::model::duration`). Spaces are allowed between all parts, and
//! `<=` means `<`.

use std::fmt;
use std::time::Duration;

use super::{Clause, Sla};
use crate::model::action::Action;
use crate::model::duration;
use crate::verdict::measure::Level;

/// A syntax error in an agreement and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    text: String,
    /// Number of characters before the error.
    column: usize,
    why: String,
}

/// Formats the error as three lines. The last line points to the error in the line above.
impl fmt::Display for SyntaxError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "column {}: {}", self.column + 1, self.why)?;
        writeln!(out, "  {}", self.text)?;
        write!(out, "  {:column$}^", "", column = self.column)
    }
}

impl std::error::Error for SyntaxError {}

/// Parses an agreement. Adds [`Sla::ERRORS`] if no clause limits the errors of all calls.
pub(super) fn parse(text: &str) -> Result<Sla, SyntaxError> {
    let ParsedClauses {
        mut clauses,
        duration,
        per_client,
    } = parse_clauses(text)?;
    let limits_errors = |clause: &Clause| matches!(clause, Clause::Errors { action: None, .. });
    if !clauses.iter().any(limits_errors) {
        clauses.push(Sla::ERRORS);
    }
    Ok(Sla {
        clauses,
        duration: duration.unwrap_or(Sla::DURATION),
        per_client,
    })
}

/// The clauses of an agreement as written, without defaults.
pub(super) struct ParsedClauses {
    /// At least one.
    pub clauses: Vec<Clause>,
    pub duration: Option<Duration>,
    pub per_client: bool,
}

pub(super) fn parse_clauses(text: &str) -> Result<ParsedClauses, SyntaxError> {
    let mut reader = Reader { text, at: 0 };
    let mut clauses = Vec::new();
    let mut duration = None;
    let mut per_client = false;
    loop {
        let start = reader.skip_spaces();
        match reader.clause()? {
            Part::Clause(clause) if clauses.contains(&clause) => {
                return Err(reader.syntax_error(start, "duplicate clause"));
            }
            Part::Clause(clause) => clauses.push(clause),
            Part::Duration(_) if duration.is_some() => {
                let why = "duplicate duration of the confirming trial";
                return Err(reader.syntax_error(start, why));
            }
            Part::Duration(time) => duration = Some(time),
            Part::PerClient => per_client = true,
        }
        reader.skip_spaces();
        if reader.rest().is_empty() {
            break;
        }
        reader.expect(",", "a comma or the end")?;
    }
    if clauses.is_empty() {
        let why = "the agreement has no condition: expected a clause such as `95% < 100ms`";
        return Err(reader.syntax_error(text.len(), why));
    }
    Ok(ParsedClauses {
        clauses,
        duration,
        per_client,
    })
}

enum Part {
    PerClient,
    Clause(Clause),
    Duration(Duration),
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn clause(&mut self) -> Result<Part, SyntaxError> {
        let action = match self.word() {
            "" => None,
            "per-client" => return Ok(Part::PerClient),
            "p" => return self.percentile(None).map(Part::Clause),
            name => Some(self.action(name)?),
        };
        if action.is_some() {
            self.skip_spaces();
            self.expect(":", "a colon after the action")?;
            self.skip_spaces();
            if self.word() == "p" {
                return self.percentile(action).map(Part::Clause);
            }
        }
        let start = self.skip_spaces();
        let number =
            self.number("a clause such as `95% < 100ms`, `0.1% unpredictable` or `60s`")?;
        self.skip_spaces();
        if !self.rest().starts_with('%') {
            let time = self.unit(start, number).map_err(|error| SyntaxError {
                why: format!("expected % after a number, or a duration: {}", error.why),
                ..error
            })?;
            return match action {
                None => Ok(Part::Duration(time)),
                Some(_) => Err(self.syntax_error(
                    start,
                    "a duration applies to the complete agreement, not to one action",
                )),
            };
        }
        self.at += 1;
        if number > 100.0 {
            return Err(self.syntax_error(start, "a percentage is at most 100"));
        }
        self.skip_spaces();
        if self.rest().starts_with('<') {
            return self.within(action, number).map(Part::Clause);
        }
        let start = self.at;
        let clause = match self.word() {
            "errors" | "error" => Clause::Errors {
                action,
                percent: number,
            },
            "unpredictable" if action.is_some() => {
                let why = "unpredictable reads cannot be limited per action, only for all reads";
                return Err(self.syntax_error(start, why));
            }
            "unpredictable" => Clause::Unpredictable {
                percent: number,
                level: self.level()?,
            },
            "drift" if action.is_some() => {
                let why = "drift cannot be limited per action, only for the complete mix";
                return Err(self.syntax_error(start, why));
            }
            "drift" => Clause::Drift { percent: number },
            _ => {
                let why = "expected `<`, `errors`, `unpredictable` or `drift`";
                return Err(self.syntax_error(start, why));
            }
        };
        Ok(Part::Clause(clause))
    }

    /// Parses the rest of a percentile condition, after the `p`.
    fn percentile(&mut self, action: Option<Action>) -> Result<Clause, SyntaxError> {
        let start = self.at;
        let number = self.number("a percentile such as p99")?;
        if number > 100.0 {
            return Err(self.syntax_error(start, "a percentile is at most 100"));
        }
        self.skip_spaces();
        self.within(action, number)
    }

    /// Parses the rest of a latency condition, from the `<`.
    fn within(&mut self, action: Option<Action>, percent: f64) -> Result<Clause, SyntaxError> {
        self.expect("<", "`<` and a time")?;
        if self.rest().starts_with('=') {
            self.at += 1;
        }
        let start = self.skip_spaces();
        if percent == 0.0 {
            let why = "at least 0% within a time is always met";
            return Err(self.syntax_error(start, why));
        }
        let number = self.number("a time such as 100ms")?;
        self.skip_spaces();
        let limit = self.unit(start, number)?;
        Ok(Clause::Within {
            action,
            percent,
            limit,
        })
    }

    fn level(&mut self) -> Result<Level, SyntaxError> {
        self.skip_spaces();
        let start = self.at;
        match self.word() {
            "" => return Ok(Level::Snapshot),
            "at" => {}
            _ => return Err(self.syntax_error(start, "expected `at` and a level, or a comma")),
        }
        self.skip_spaces();
        let start = self.at;
        let name = self.word();
        let level = Level::ALL.into_iter().find(|level| level.name() == name);
        level.ok_or_else(|| {
            let names = Level::ALL.map(Level::name).join(", ");
            self.syntax_error(start, &format!("expected a level: {names}"))
        })
    }

    fn action(&self, name: &str) -> Result<Action, SyntaxError> {
        let action = Action::ALL.into_iter().find(|action| action.name() == name);
        action.ok_or_else(|| {
            let names = Action::ALL.map(Action::name).join(", ");
            let why = format!("unknown action `{name}`; the actions are {names}");
            self.syntax_error(self.at - name.len(), &why)
        })
    }

    fn number(&mut self, expected: &str) -> Result<f64, SyntaxError> {
        let is_part = |c: char| c.is_ascii_digit() || c == '.';
        let rest = self.rest();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let digits = &rest[..end];
        if digits.is_empty() {
            return Err(self.syntax_error(self.at, &format!("expected {expected}")));
        }
        let number = digits.parse();
        let number = number
            .map_err(|_| self.syntax_error(self.at, &format!("`{digits}` is not a number")))?;
        self.at += end;
        Ok(number)
    }

    /// Parses the unit after a number, which begins at `start`.
    fn unit(&mut self, start: usize, number: f64) -> Result<Duration, SyntaxError> {
        let unit_at = self.at;
        let Some(unit) = duration::unit(self.word()) else {
            return Err(self.syntax_error(
                unit_at,
                &format!("expected a unit: {}", duration::DURATION_SYNTAX),
            ));
        };
        match duration::times(number, unit) {
            Some(time) if !time.is_zero() => Ok(time),
            _ => Err(self.syntax_error(start, "the time is out of range")),
        }
    }

    /// Consumes letters and hyphens. The `p` before a percentile is also a word.
    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let is_part = |c: char| c.is_alphabetic() || c == '-';
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    fn expect(&mut self, token: &str, expected: &str) -> Result<(), SyntaxError> {
        if !self.rest().starts_with(token) {
            return Err(self.syntax_error(self.at, &format!("expected {expected}")));
        }
        self.at += token.len();
        Ok(())
    }

    fn skip_spaces(&mut self) -> usize {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        self.at
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn syntax_error(&self, at: usize, why: &str) -> SyntaxError {
        SyntaxError {
            text: self.text.to_owned(),
            column: self.text[..at].chars().count(),
            why: why.to_owned(),
        }
    }
}
