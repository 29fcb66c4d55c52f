//! ZRANGE and similar read-only commands on the groups that a join with `top` ranks.
//!
//! The key is the part before the rank, without its separator. A member is the text after the rank; its score is the
//! row's value. Members are in the order of their ranks: rank 1 has the highest score for `top K`, and the lowest for
//! `top K asc`.
//!
//! A group has at most 10,000 rows, so each command reads all of them in one step.

use std::ops::ControlFlow;

use larder_join::{Engine, Limits, Ranking};
use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};

use super::super::state::State;
use super::range::successor;
use super::{number, syntax};
use crate::error::show;
use crate::tables::{Refusal, Unanswered, complete};

/// A row of a ranking.
struct Ranked {
    member: Vec<u8>,
    value: Vec<u8>,
}

pub(super) fn read(state: &mut State, command: Command<'_>) -> Result<(), Unanswered> {
    let request = command.request;
    let question = Question::parse(command)?;
    let tables = state.tables();
    let ascending = tables.read(|engine, now| rows(engine, request.arg(1), now))?;
    let mark = state.output.mark();
    let answered = answer(state, question, ascending);
    if answered.is_err() {
        state.output.rewind(mark);
    }
    Ok(answered?)
}

/// # Errors
/// A row's value is not a number. The reply may be incomplete.
fn answer(
    state: &mut State,
    question: Question<'_>,
    ascending: Vec<Ranked>,
) -> Result<(), Refusal> {
    let place = |member: &[u8]| ascending.iter().position(|row| row.member == member);
    match question {
        Question::Count => state.encoder().count(ascending.len() as u64),
        Question::CountBetween(bounds) => {
            let mut count = 0;
            for row in &ascending {
                count += u64::from(bounds.admit(score(row)?));
            }
            state.encoder().count(count);
        }
        Question::Scores { members, single } => {
            if !single {
                state.encoder().array(members.len());
            }
            for member in members {
                match place(member) {
                    Some(at) => put_score(state, &ascending[at])?,
                    None => state.encoder().null(),
                }
            }
        }
        Question::Rank {
            member,
            reverse,
            with_score,
        } => match place(member) {
            None if with_score => state.encoder().null_array(),
            None => state.encoder().null(),
            Some(at) => {
                let rank = if reverse {
                    ascending.len() - 1 - at
                } else {
                    at
                };
                if with_score {
                    state.encoder().array(2);
                }
                state.encoder().count(rank as u64);
                if with_score {
                    put_score(state, &ascending[at])?;
                }
            }
        },
        Question::Range(range) => {
            let rows = range.choose(ascending)?;
            let is_flat = range.with_scores && state.proto == Proto::Resp2;
            state
                .encoder()
                .array(rows.len() * if is_flat { 2 } else { 1 });
            for row in rows {
                if range.with_scores && !is_flat {
                    state.encoder().array(2);
                }
                state.encoder().bulk(&row.member);
                if range.with_scores {
                    put_score(state, &row)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the rows of a group by ascending score.
fn rows(engine: &mut Engine, group: &[u8], now: u64) -> Result<Vec<Ranked>, Unanswered> {
    let no_members = |why: &str| {
        let message = format!(
            "{why}; a ranking is what stands in front of <rank>: leaders|chess of a join with the output leaders|<game>|<rank:2>|<user>"
        );
        Unanswered::from((Code::BadRequest, message))
    };
    let Some(ranking) = engine.ranking(group) else {
        return Err(no_members(&format!("no join ranks {}", show(group))));
    };
    let Ranking {
        prefix,
        member_at: Some(member_at),
        descending,
    } = ranking
    else {
        return Err(no_members("the join has no slot behind <rank>"));
    };
    let limits = Limits {
        limit: None,
        reverse: descending,
        keys_only: false,
        in_all: None,
    };
    let mut rows = Vec::new();
    complete(engine.range(
        &prefix,
        &successor(&prefix),
        limits,
        now,
        &mut |key, value| {
            rows.push(Ranked {
                member: key[member_at..].to_vec(),
                value: value.to_vec(),
            });
            ControlFlow::Continue(())
        },
    ))?;
    Ok(rows)
}

fn parse_score(text: &[u8]) -> Option<f64> {
    let score: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!score.is_nan()).then_some(score)
}

/// # Errors
/// The row's value is not a number.
fn score(row: &Ranked) -> Result<f64, Refusal> {
    parse_score(&row.value).ok_or_else(|| {
        let (value, member) = (show(&row.value), show(&row.member));
        let message = format!("the value {value} of {member} is not a number, so it is no score");
        (Code::BadRequest, message)
    })
}

/// Appends a score: the row's text in RESP2, a double in RESP3.
fn put_score(state: &mut State, row: &Ranked) -> Result<(), Refusal> {
    let score = score(row)?;
    match state.proto {
        Proto::Resp2 => state.encoder().bulk(&row.value),
        Proto::Resp3 => state.encoder().double(score),
    }
    Ok(())
}

/// A parsed command.
enum Question<'a> {
    Count,
    CountBetween(Bounds),
    Scores {
        members: Vec<&'a [u8]>,
        /// The reply is a single score instead of an array.
        single: bool,
    },
    Rank {
        member: &'a [u8],
        reverse: bool,
        with_score: bool,
    },
    Range(Range),
}

/// The arguments of ZRANGE and its older variants.
struct Range {
    by: By,
    reverse: bool,
    /// LIMIT: offset and count within a range of scores.
    limit: Option<(i64, i64)>,
    with_scores: bool,
}

#[derive(Clone, Copy)]
enum By {
    /// First and last index, both inclusive; negative indexes count from the end.
    Index(i64, i64),
    Score(Bounds),
}

/// A range of scores.
#[derive(Clone, Copy)]
struct Bounds {
    min: Bound,
    max: Bound,
}

#[derive(Clone, Copy)]
struct Bound {
    score: f64,
    excluded: bool,
}

impl Bound {
    fn parse(text: &[u8]) -> Result<Bound, Refusal> {
        let (text, excluded) = match text.strip_prefix(b"(") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let score = parse_score(text);
        let message = || (Code::BadRequest, "min or max is not a float".to_owned());
        Ok(Bound {
            score: score.ok_or_else(message)?,
            excluded,
        })
    }
}

impl Bounds {
    fn parse(min: &[u8], max: &[u8]) -> Result<Bounds, Refusal> {
        Ok(Bounds {
            min: Bound::parse(min)?,
            max: Bound::parse(max)?,
        })
    }

    fn admit(&self, score: f64) -> bool {
        let above = if self.min.excluded {
            score > self.min.score
        } else {
            score >= self.min.score
        };
        let below = if self.max.excluded {
            score < self.max.score
        } else {
            score <= self.max.score
        };
        above && below
    }
}

impl<'a> Question<'a> {
    fn parse(command: Command<'a>) -> Result<Question<'a>, Refusal> {
        let request = command.request;
        let rank = |reverse| {
            let with_score = match request.get(3) {
                None => false,
                Some(word) if word.eq_ignore_ascii_case(b"WITHSCORE") => true,
                Some(_) => return Err(syntax()),
            };
            Ok(Question::Rank {
                member: request.arg(2),
                reverse,
                with_score,
            })
        };
        Ok(match command.id() {
            Id::ZCard => Question::Count,
            Id::ZCount => Question::CountBetween(Bounds::parse(request.arg(2), request.arg(3))?),
            Id::ZScore | Id::ZMScore => Question::Scores {
                members: request.args().skip(2).collect(),
                single: command.id() == Id::ZScore,
            },
            Id::ZRank => return rank(false),
            Id::ZRevRank => return rank(true),
            id => Question::Range(Range::parse(id, request)?),
        })
    }
}

impl Range {
    fn parse(id: Id, request: Request<'_>) -> Result<Range, Refusal> {
        let is_zrange = id == Id::ZRange;
        let mut by_score = matches!(id, Id::ZRangeByScore | Id::ZRevRangeByScore);
        let mut reverse = matches!(id, Id::ZRevRange | Id::ZRevRangeByScore);
        let (mut limit, mut with_scores) = (None, false);
        let mut at = 4;
        while let Some(option) = request.get(at) {
            at += 1;
            match option.to_ascii_uppercase().as_slice() {
                b"WITHSCORES" => with_scores = true,
                b"REV" if is_zrange => reverse = true,
                b"BYSCORE" if is_zrange => by_score = true,
                b"BYLEX" if is_zrange => {
                    let message = "ZRANGE BYLEX is not supported: members are in the order of their scores; read the rows with RANGE";
                    return Err((Code::BadRequest, message.to_owned()));
                }
                b"LIMIT" if id != Id::ZRevRange => {
                    let argument = |at| request.get(at).ok_or_else(syntax).and_then(number);
                    limit = Some((argument(at)?, argument(at + 1)?));
                    at += 2;
                }
                _ => return Err(syntax()),
            }
        }
        if limit.is_some() && !by_score {
            let message =
                "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err((Code::BadRequest, message.to_owned()));
        }
        let (first, second) = (request.arg(2), request.arg(3));
        let by = match (by_score, reverse) {
            (true, false) => By::Score(Bounds::parse(first, second)?),
            (true, true) => By::Score(Bounds::parse(second, first)?),
            (false, _) => By::Index(number(first)?, number(second)?),
        };
        Ok(Range {
            by,
            reverse,
            limit,
            with_scores,
        })
    }

    fn choose(&self, mut rows: Vec<Ranked>) -> Result<Vec<Ranked>, Refusal> {
        if self.reverse {
            rows.reverse();
        }
        match self.by {
            By::Index(start, stop) => {
                let len = rows.len() as i64;
                let place = |index: i64| {
                    if index < 0 {
                        index.saturating_add(len)
                    } else {
                        index
                    }
                };
                let start = place(start).clamp(0, len);
                let end = place(stop).saturating_add(1).clamp(start, len);
                rows.truncate(end as usize);
                rows.drain(..start as usize);
            }
            By::Score(bounds) => {
                let mut chosen = Vec::new();
                for row in rows {
                    if bounds.admit(score(&row)?) {
                        chosen.push(row);
                    }
                }
                let (offset, count) = self.limit.unwrap_or((0, -1));
                // A negative offset selects no rows, a negative count all of them.
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                chosen.drain(..offset.min(chosen.len()));
                chosen.truncate(usize::try_from(count).unwrap_or(usize::MAX));
                rows = chosen;
            }
        }
        Ok(rows)
    }
}
