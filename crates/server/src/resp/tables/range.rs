//! RANGE, RANGECOUNT and RANGEDEL.
//!
//! A short answer is built at once. A long one of base rows is sent as the client takes it: the first part at once,
//! with the count of all; then a [`RangeJob`] reads on, some rows in each turn of the core's loop. What a join
//! computes is read in one piece, since a later read could compute other rows.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Instant;

use larder_join::{Engine, Error, Limits, Outcome};
use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};

use super::super::dispatch::Job;
use super::super::finish::kept_args;
use super::super::output::LONG_ANSWER_BYTES;
use super::super::session::State;
use super::{number, syntax};
use crate::tables::{Pending, Refusal, refusal};

/// Rows and bytes that one turn of the core's loop reads.
const CHUNK_ROWS: u64 = 1024;
const CHUNK_BYTES: usize = 64 << 10;
/// What an answer was built in is kept up to this size.
const SCRATCH_BYTES_MAX: usize = 1 << 20;
/// Rows that one turn removes.
const REMOVE_ROWS: u64 = 1024;

/// What a RANGE asks for, or what of it is still to be read.
#[derive(Clone)]
pub(in crate::resp) struct Asked {
    pub lo: Vec<u8>,
    pub hi: Vec<u8>,
    pub left: u64,
    pub reverse: bool,
    pub keys_only: bool,
}

/// What is still to be read of an answer.
struct Rest {
    asked: Asked,
    proto: Proto,
    /// The rest of the answer, once its table was about to change, and how much of it was sent.
    copied: Option<(Vec<u8>, usize)>,
}

/// An answer, or a removal, that takes several turns.
pub(in crate::resp) enum RangeJob {
    Read {
        rest: Rc<RangeRest>,
        started: Instant,
        args: Vec<Vec<u8>>,
    },
    Remove {
        lo: Vec<u8>,
        hi: Vec<u8>,
        removed: u64,
        left: u64,
        started: Instant,
        args: Vec<Vec<u8>>,
    },
}

pub(in crate::resp) struct RangeRest(RefCell<Rest>);

/// A read that is whole, or why it is not.
pub(super) fn complete(outcome: Result<Outcome, Error>) -> Result<(), Refusal> {
    match outcome {
        Ok(Outcome::Done) => Ok(()),
        Ok(Outcome::Missing(_)) => Err((
            Code::Io,
            "rows that come from elsewhere are not here yet".to_owned(),
        )),
        Ok(Outcome::PutOff) => Err((Code::Io, "the rows are being computed".to_owned())),
        Err(error) => Err(refusal(error)),
    }
}

pub(in crate::resp) fn one_row(
    encoder: &mut Encoder<'_>,
    keys_only: bool,
    key: &[u8],
    value: &[u8],
) {
    if keys_only {
        return encoder.bulk(key);
    }
    if encoder.proto == Proto::Resp3 {
        encoder.array(2);
    }
    encoder.bulk(key);
    encoder.bulk(value);
}

pub(in crate::resp) fn header(encoder: &mut Encoder<'_>, keys_only: bool, rows: u64) {
    let flat = !keys_only && encoder.proto == Proto::Resp2;
    encoder.array(rows as usize * if flat { 2 } else { 1 });
}

impl Rest {
    /// Appends rows to `out` until there are `rows_max`, or `bytes_max` is reached. Says whether all were.
    fn read(
        &mut self,
        engine: &mut Engine,
        now: u64,
        out: &mut Vec<u8>,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<(bool, u64), Refusal> {
        let limits = Limits {
            limit: Some(self.asked.left.min(rows_max)),
            reverse: self.asked.reverse,
            keys_only: self.asked.keys_only,
        };
        let (keys_only, proto) = (self.asked.keys_only, self.proto);
        let (mut rows, mut stopped) = (0, false);
        let mut last: Vec<u8> = Vec::new();
        let end = out.len() + bytes_max.min(isize::MAX as usize - out.len());
        let outcome = engine.range(
            &self.asked.lo,
            &self.asked.hi,
            limits,
            now,
            &mut |key, value| {
                one_row(&mut Encoder { out, proto }, keys_only, key, value);
                rows += 1;
                stopped = out.len() >= end;
                if stopped || rows == rows_max {
                    last.extend_from_slice(key);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            },
        );
        complete(outcome)?;
        self.asked.left -= rows;
        let all = self.asked.left == 0 || (!stopped && rows < rows_max);
        if !all {
            if self.asked.reverse {
                self.asked.hi = last;
            } else {
                last.push(0);
                self.asked.lo = last;
            }
        }
        Ok((all, rows))
    }
}

impl Pending for RangeRest {
    fn reads(&self, key: &[u8]) -> bool {
        self.0.borrow().asked.is_of_table(key)
    }

    fn copy(&self, engine: &mut Engine, now: u64) {
        let mut rest = self.0.borrow_mut();
        let mut out = Vec::new();
        // An error leaves an answer that is too short: `run` sees it and closes the connection.
        if rest
            .read(engine, now, &mut out, u64::MAX, usize::MAX)
            .is_ok()
        {
            rest.copied = Some((out, 0));
        }
    }
}

impl Asked {
    pub fn parse(request: Request<'_>) -> Result<Asked, Refusal> {
        let mut asked = Asked {
            lo: request.arg(1).to_vec(),
            hi: request.arg(2).to_vec(),
            left: u64::MAX,
            reverse: false,
            keys_only: false,
        };
        let mut at = 3;
        while let Some(option) = request.get(at) {
            at += 1;
            match option.to_ascii_uppercase().as_slice() {
                b"REV" => asked.reverse = true,
                b"KEYSONLY" => asked.keys_only = true,
                b"LIMIT" => {
                    let limit = number(request.get(at).ok_or_else(syntax)?)?;
                    asked.left = u64::try_from(limit)
                        .map_err(|_| (Code::BadRequest, "LIMIT must not be negative".to_owned()))?;
                    at += 1;
                }
                _ => return Err(syntax()),
            }
        }
        Ok(asked)
    }

    /// Whether a key is of the table that is read.
    pub fn is_of_table(&self, key: &[u8]) -> bool {
        let table = |key: &[u8]| key.iter().position(|&byte| byte == b'|' || byte == b':');
        table(&self.lo).is_some_and(|end| key.starts_with(&self.lo[..=end]))
    }
}

pub(super) fn range(
    state: &mut State,
    request: Request<'_>,
    whole: bool,
) -> Result<Option<Job>, Refusal> {
    let mut rest = Rest {
        asked: Asked::parse(request)?,
        proto: state.proto,
        copied: None,
    };
    let tables = state.tables();
    let mut scratch = std::mem::take(&mut *state.core.scratch.borrow_mut());
    scratch.clear();
    let read = tables.read(|engine, now| -> Result<(bool, u64), Refusal> {
        if rest.asked.left == 0 {
            // The range is checked nevertheless.
            complete(engine.range(
                &rest.asked.lo,
                &rest.asked.lo,
                Limits::default(),
                now,
                &mut |_, _| ControlFlow::Break(()),
            ))?;
            return Ok((true, 0));
        }
        let (lo, hi) = (rest.asked.lo.clone(), rest.asked.hi.clone());
        if whole || engine.table_of(&lo) != Some(false) || engine.is_supplied(&lo) {
            return rest.read(engine, now, &mut scratch, u64::MAX, usize::MAX);
        }
        let left = rest.asked.left;
        let (all, rows) = rest.read(engine, now, &mut scratch, CHUNK_ROWS, CHUNK_BYTES)?;
        if all {
            return Ok((true, rows));
        }
        let (count, outcome) = engine.count(&lo, &hi, now).map_err(refusal)?;
        complete(Ok(outcome))?;
        rest.asked.left = count.min(left) - rows;
        Ok((rest.asked.left == 0, count.min(left)))
    });
    let done = match read {
        Err(refusal) => Err(refusal),
        Ok((all, rows)) => {
            header(&mut state.encoder(), rest.asked.keys_only, rows);
            if scratch.len() >= LONG_ANSWER_BYTES && !state.output.has_holes {
                let answer = std::mem::replace(&mut scratch, state.core.take_buffer());
                let next = state.core.take_buffer();
                state.output.long(answer, next);
            } else {
                state.output.tail.extend_from_slice(&scratch);
            }
            Ok((!all).then(|| {
                let rest = Rc::new(RangeRest(RefCell::new(rest)));
                let pending: Rc<dyn Pending> = rest.clone();
                tables.keep(&pending);
                Job::Range(RangeJob::Read {
                    rest,
                    started: Instant::now(),
                    args: kept_args(&request),
                })
            }))
        }
    };
    if scratch.capacity() <= SCRATCH_BYTES_MAX {
        *state.core.scratch.borrow_mut() = scratch;
    }
    done
}

pub(super) fn count(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let tables = state.tables();
    let counted = tables.read(|engine, now| engine.count(request.arg(1), request.arg(2), now));
    let (count, outcome) = counted.map_err(refusal)?;
    complete(Ok(outcome))?;
    state.encoder().count(count);
    Ok(())
}

pub(super) fn remove(
    state: &mut State,
    request: Request<'_>,
    whole: bool,
) -> Result<Option<Job>, Refusal> {
    let (lo, hi) = (request.arg(1), request.arg(2));
    let rows_max = if whole { u64::MAX } else { REMOVE_ROWS };
    let removed = remove_some(state, lo, hi, rows_max)?;
    if removed < rows_max {
        state.encoder().count(removed);
        return Ok(None);
    }
    let tables = state.tables();
    // Rows that come meanwhile do not keep it busy for ever.
    let counted = tables.read(|engine, now| engine.count(lo, hi, now));
    let (left, _) = counted.map_err(refusal)?;
    Ok(Some(Job::Range(RangeJob::Remove {
        lo: lo.to_vec(),
        hi: hi.to_vec(),
        removed,
        left,
        started: Instant::now(),
        args: kept_args(&request),
    })))
}

fn remove_some(state: &mut State, lo: &[u8], hi: &[u8], rows_max: u64) -> Result<u64, Refusal> {
    let tables = state.tables();
    tables.write(&mut state.gate, lo, |engine, now| {
        let written = engine
            .remove_range(lo, hi, rows_max, now)
            .map_err(refusal)?;
        Ok((written.rows, written.waits_for))
    })
}

impl RangeJob {
    pub fn command(&self) -> Id {
        match self {
            RangeJob::Read { .. } => Id::Range,
            RangeJob::Remove { .. } => Id::RangeDel,
        }
    }

    pub fn started(&self) -> Instant {
        match self {
            RangeJob::Read { started, .. } | RangeJob::Remove { started, .. } => *started,
        }
    }

    pub fn args(&mut self) -> Vec<Vec<u8>> {
        match self {
            RangeJob::Read { args, .. } | RangeJob::Remove { args, .. } => std::mem::take(args),
        }
    }

    /// Goes on for one turn; says whether it has ended.
    pub fn advance(&mut self, state: &mut State) -> bool {
        match self {
            RangeJob::Read { rest, .. } => advance_read(state, rest),
            RangeJob::Remove {
                lo,
                hi,
                removed,
                left,
                ..
            } => {
                let wanted = (*left).min(REMOVE_ROWS);
                match remove_some(state, lo, hi, wanted) {
                    Err(refusal) => {
                        state.refuse(refusal);
                        true
                    }
                    Ok(rows) => {
                        *removed += rows;
                        *left -= rows;
                        let ended = rows < wanted || *left == 0;
                        if ended {
                            state.encoder().count(*removed);
                        }
                        ended
                    }
                }
            }
        }
    }
}

fn advance_read(state: &mut State, rest: &RangeRest) -> bool {
    let tables = state.tables();
    let mut scratch = std::mem::take(&mut *state.core.scratch.borrow_mut());
    scratch.clear();
    let read = tables.read(|engine, now| {
        let mut rest = rest.0.borrow_mut();
        let Some((copied, sent)) = &mut rest.copied else {
            let all = rest.read(engine, now, &mut scratch, CHUNK_ROWS, CHUNK_BYTES);
            return all.is_err() || all.is_ok_and(|(all, _)| all);
        };
        let next = &copied[*sent..];
        let next = &next[..next.len().min(CHUNK_BYTES)];
        scratch.extend_from_slice(next);
        *sent += next.len();
        *sent == copied.len()
    });
    state.output.tail.extend_from_slice(&scratch);
    *state.core.scratch.borrow_mut() = scratch;
    read && ended(state, rest.0.borrow().asked.left)
}

/// An answer that cannot be as long as was said ends the connection: the client must not take what follows for it.
fn ended(state: &mut State, left: u64) -> bool {
    if left > 0 {
        tracing::error!(left, "a long RANGE could not be read to its end");
        state.failed = true;
        state.closing = true;
    }
    true
}
