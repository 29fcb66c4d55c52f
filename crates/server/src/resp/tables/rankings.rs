//! ZRANGE and similar read-only commands on the groups that a join with `top` ranks.
//!
//! The key is the part before the rank, without its separator. A member is the text after the rank; its score is the
//! row's value. Members are in the order of their ranks: rank 1 has the highest score for `top K`, and the lowest for
//! `top K asc`.
//!
//! A group has at most 10,000 rows, so each command reads all of them in one step.

use std::ops::ControlFlow;

use larder_join::{Engine, Limits, Ranking};
use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};

use super::super::state::ConnectionState;
use super::range::successor;
use super::{parse_integer, syntax_error};
use crate::error::show;
use crate::tables::{NoReply, Refusal, require_done};

/// A row of a ranking.
struct RankedRow {
    member: Vec<u8>,
    value: Vec<u8>,
}

pub(in crate::resp) fn count(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    read(state, request, RankingQuery::Count)
}

pub(in crate::resp) fn count_between(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let bounds = ScoreRange::parse(request.arg(2), request.arg(3))?;
    read(state, request, RankingQuery::CountBetween(bounds))
}

/// Executes ZSCORE (`single`) and ZMSCORE.
pub(in crate::resp) fn scores(
    state: &mut ConnectionState,
    request: Request<'_>,
    single: bool,
) -> Result<(), NoReply> {
    let members = request.args().skip(2).collect();
    read(state, request, RankingQuery::Scores { members, single })
}

/// Executes ZRANK, and ZREVRANK (`reverse`).
pub(in crate::resp) fn rank(
    state: &mut ConnectionState,
    request: Request<'_>,
    reverse: bool,
) -> Result<(), NoReply> {
    let with_score = match request.get(3) {
        None => false,
        Some(word) if word.eq_ignore_ascii_case(b"WITHSCORE") => true,
        Some(_) => return Err(syntax_error().into()),
    };
    let query = RankingQuery::Rank {
        member: request.arg(2),
        reverse,
        with_score,
    };
    read(state, request, query)
}

/// Executes ZRANGE and its older variants.
pub(in crate::resp) fn range(
    state: &mut ConnectionState,
    id: Id,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let range = MemberRange::parse(id, request)?;
    read(state, request, RankingQuery::Range(range))
}

fn read(
    state: &mut ConnectionState,
    request: Request<'_>,
    query: RankingQuery<'_>,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let ascending = tables.read(|engine, now| read_rows(engine, request.arg(1), now))?;
    let mark = state.output.mark();
    let result = encode_reply(state, query, ascending);
    if result.is_err() {
        state.output.rewind(mark);
    }
    Ok(result?)
}

/// # Errors
/// A row's value is not a number. The reply may be incomplete.
fn encode_reply(
    state: &mut ConnectionState,
    query: RankingQuery<'_>,
    ascending: Vec<RankedRow>,
) -> Result<(), Refusal> {
    let position = |member: &[u8]| ascending.iter().position(|row| row.member == member);
    match query {
        RankingQuery::Count => state.encoder().count(ascending.len() as u64),
        RankingQuery::CountBetween(bounds) => {
            let mut count = 0;
            for row in &ascending {
                count += u64::from(bounds.admit(row_score(row)?));
            }
            state.encoder().count(count);
        }
        RankingQuery::Scores { members, single } => {
            if !single {
                state.encoder().array(members.len());
            }
            for member in members {
                match position(member) {
                    Some(at) => encode_score(state, &ascending[at])?,
                    None => state.encoder().null(),
                }
            }
        }
        RankingQuery::Rank {
            member,
            reverse,
            with_score,
        } => match position(member) {
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
                    encode_score(state, &ascending[at])?;
                }
            }
        },
        RankingQuery::Range(range) => {
            let rows = range.select(ascending)?;
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
                    encode_score(state, &row)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the rows of a group by ascending score.
fn read_rows(engine: &mut Engine, group: &[u8], now: u64) -> Result<Vec<RankedRow>, NoReply> {
    let no_members = |why: &str| {
        let message = format!(
            "{why}; the key of a ranking is the part of a join's output before <rank>, such as leaders|chess for the output leaders|<game>|<rank:2>|<user>"
        );
        NoReply::from((Code::BadRequest, message))
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
        return Err(no_members("the join's output has no slot after <rank>"));
    };
    let limits = Limits {
        limit: None,
        reverse: descending,
        keys_only: false,
        total_limit: None,
    };
    let mut rows = Vec::new();
    require_done(engine.range(
        &prefix,
        &successor(&prefix),
        limits,
        now,
        &mut |key, value| {
            rows.push(RankedRow {
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
fn row_score(row: &RankedRow) -> Result<f64, Refusal> {
    parse_score(&row.value).ok_or_else(|| {
        let (value, member) = (show(&row.value), show(&row.member));
        let message =
            format!("the value {value} of {member} is not a score, because it is not a number");
        (Code::BadRequest, message)
    })
}

/// Appends a score: the row's text in RESP2, a double in RESP3.
fn encode_score(state: &mut ConnectionState, row: &RankedRow) -> Result<(), Refusal> {
    let score = row_score(row)?;
    match state.proto {
        Proto::Resp2 => state.encoder().bulk(&row.value),
        Proto::Resp3 => state.encoder().double(score),
    }
    Ok(())
}

/// A parsed command.
enum RankingQuery<'a> {
    Count,
    CountBetween(ScoreRange),
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
    Range(MemberRange),
}

/// The arguments of ZRANGE and its older variants.
struct MemberRange {
    by: RangeSelector,
    reverse: bool,
    /// LIMIT: offset and count within a range of scores.
    limit: Option<(i64, i64)>,
    with_scores: bool,
}

#[derive(Clone, Copy)]
enum RangeSelector {
    /// First and last index, both inclusive; negative indexes count from the end.
    Index(i64, i64),
    Score(ScoreRange),
}

/// A range of scores.
#[derive(Clone, Copy)]
struct ScoreRange {
    min: ScoreBound,
    max: ScoreBound,
}

#[derive(Clone, Copy)]
struct ScoreBound {
    score: f64,
    excluded: bool,
}

impl ScoreBound {
    fn parse(text: &[u8]) -> Result<ScoreBound, Refusal> {
        let (text, excluded) = match text.strip_prefix(b"(") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let score = parse_score(text);
        let message = || (Code::BadRequest, "min or max is not a float".to_owned());
        Ok(ScoreBound {
            score: score.ok_or_else(message)?,
            excluded,
        })
    }
}

impl ScoreRange {
    fn parse(min: &[u8], max: &[u8]) -> Result<ScoreRange, Refusal> {
        Ok(ScoreRange {
            min: ScoreBound::parse(min)?,
            max: ScoreBound::parse(max)?,
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

impl MemberRange {
    fn parse(id: Id, request: Request<'_>) -> Result<MemberRange, Refusal> {
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
                    let argument = |at| {
                        request
                            .get(at)
                            .ok_or_else(syntax_error)
                            .and_then(parse_integer)
                    };
                    limit = Some((argument(at)?, argument(at + 1)?));
                    at += 2;
                }
                _ => return Err(syntax_error()),
            }
        }
        if limit.is_some() && !by_score {
            let message =
                "syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
            return Err((Code::BadRequest, message.to_owned()));
        }
        let (first, second) = (request.arg(2), request.arg(3));
        let by = match (by_score, reverse) {
            (true, false) => RangeSelector::Score(ScoreRange::parse(first, second)?),
            (true, true) => RangeSelector::Score(ScoreRange::parse(second, first)?),
            (false, _) => RangeSelector::Index(parse_integer(first)?, parse_integer(second)?),
        };
        Ok(MemberRange {
            by,
            reverse,
            limit,
            with_scores,
        })
    }

    fn select(&self, mut rows: Vec<RankedRow>) -> Result<Vec<RankedRow>, Refusal> {
        if self.reverse {
            rows.reverse();
        }
        match self.by {
            RangeSelector::Index(start, stop) => {
                let len = rows.len() as i64;
                let absolute = |index: i64| {
                    if index < 0 {
                        index.saturating_add(len)
                    } else {
                        index
                    }
                };
                let start = absolute(start).clamp(0, len);
                let end = absolute(stop).saturating_add(1).clamp(start, len);
                rows.truncate(end as usize);
                rows.drain(..start as usize);
            }
            RangeSelector::Score(bounds) => {
                let mut selected = Vec::new();
                for row in rows {
                    if bounds.admit(row_score(&row)?) {
                        selected.push(row);
                    }
                }
                let (offset, count) = self.limit.unwrap_or((0, -1));
                // A negative offset selects no rows, a negative count all of them.
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                selected.drain(..offset.min(selected.len()));
                selected.truncate(usize::try_from(count).unwrap_or(usize::MAX));
                rows = selected;
            }
        }
        Ok(rows)
    }
}
