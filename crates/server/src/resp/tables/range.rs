//! RANGE, RANGECOUNT, RANGEDEL and FLUSHDB.
//!
//! A short reply is produced in one step. A [`RangeJob`] reads a long one in steps, a number of rows per turn of the
//! core's loop, as a snapshot of the moment when the command was executed. If the number of rows is known, the reply is
//! sent as the client reads it. The number is unknown in two cases: some computed rows cannot be summed and are
//! omitted, or several joins contribute and their rows must be merged. The complete reply is then built first.

use std::borrow::Cow;
use std::ops::ControlFlow;

use larder_join::{Engine, Error, Limits, Reading, range_slot};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};

use super::super::output::LONG_BYTES;
use super::super::pending::Work;
use super::super::state::State;
use super::coordinate::MOVED;
use super::head::Head;
use super::{number, syntax};
use crate::clients::Charge;
use crate::tables::{Refusal, Tables, Unanswered, complete, refusal};

/// Maximum number of rows and bytes read per turn of the core's loop.
const CHUNK_ROWS: u64 = 1024;
const CHUNK_BYTES: usize = 512 << 10;
/// Maximum number of rows removed per turn.
const REMOVE_ROWS: u64 = 1024;

/// The arguments of a RANGE, or its remaining part.
pub(in crate::resp) struct Asked<'a> {
    pub lo: Cow<'a, [u8]>,
    pub hi: Cow<'a, [u8]>,
    pub left: u64,
    pub reverse: bool,
    pub form: Form,
}

/// The parts of a row that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Form {
    Rows,
    Keys,
    /// The part of the key from this byte on, for SMEMBERS.
    Members(usize),
}

/// A reply that is being read.
pub(in crate::resp) struct Answer {
    reading: Reading,
    form: Form,
    proto: Proto,
    /// Number of rows read so far, whether in `whole` or sent.
    rows: u64,
    /// The total number of rows, if it has been sent in the header.
    announced: Option<u64>,
    /// The rows read so far, if they are sent only once all have been read.
    whole: Vec<u8>,
    whole_counted: Charge,
}

/// A read or removal that takes several turns.
pub(in crate::resp) enum RangeJob {
    Read(Answer),
    Remove(Removal),
}

/// Rows to remove: of one range for RANGEDEL, of all tables for FLUSHDB and FLUSHALL.
pub(in crate::resp) struct Removal {
    /// The reply is the number of removed rows.
    counts: bool,
    /// The remaining ranges. Each ends at the last row that it had at the start, so that rows added after it do not
    /// prolong the removal.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    removed: u64,
    /// The first epoch of the ownership at the start.
    owners_since: u64,
}

pub(in crate::resp) fn one_row(encoder: &mut Encoder<'_>, form: Form, key: &[u8], value: &[u8]) {
    match form {
        Form::Rows => {}
        Form::Keys => return encoder.bulk(key),
        Form::Members(at) => return encoder.bulk(&key[at..]),
    }
    if encoder.proto == Proto::Resp3 {
        encoder.array(2);
    }
    encoder.bulk(key);
    encoder.bulk(value);
}

pub(in crate::resp) fn header(encoder: &mut Encoder<'_>, form: Form, rows: u64) {
    let rows = rows as usize;
    match form {
        Form::Rows if encoder.proto == Proto::Resp2 => encoder.array(rows * 2),
        Form::Rows | Form::Keys => encoder.array(rows),
        Form::Members(_) => encoder.set(rows),
    }
}

impl<'a> Asked<'a> {
    pub fn parse(request: Request<'a>) -> Result<Asked<'a>, Refusal> {
        let mut asked = Asked {
            lo: request.arg(1).into(),
            hi: request.arg(2).into(),
            left: u64::MAX,
            reverse: false,
            form: Form::Rows,
        };
        let mut at = 3;
        while let Some(option) = request.get(at) {
            at += 1;
            if option.eq_ignore_ascii_case(b"REV") {
                asked.reverse = true;
            } else if option.eq_ignore_ascii_case(b"KEYSONLY") {
                asked.form = Form::Keys;
            } else if option.eq_ignore_ascii_case(b"LIMIT") {
                let limit = number(request.get(at).ok_or_else(syntax)?)?;
                asked.left = u64::try_from(limit)
                    .map_err(|_| (Code::BadRequest, "LIMIT must not be negative".to_owned()))?;
                at += 1;
            } else {
                return Err(syntax());
            }
        }
        Ok(asked)
    }

    /// Returns an owned copy.
    pub fn owned(&self) -> Asked<'static> {
        Asked {
            lo: self.lo.to_vec().into(),
            hi: self.hi.to_vec().into(),
            ..*self
        }
    }

    pub fn keys_only(&self) -> bool {
        self.form != Form::Rows
    }

    fn limits(&self) -> Limits {
        Limits {
            limit: Some(self.left),
            reverse: self.reverse,
            keys_only: self.keys_only(),
            in_all: Some(self.left).filter(|left| *left < u64::MAX),
        }
    }

    /// Appends rows to `out` until `rows_max` or `bytes_max` is reached. Returns their number, and a reading for the
    /// remaining rows.
    fn begin(
        &self,
        engine: &mut Engine,
        now: u64,
        (out, proto): (&mut Vec<u8>, Proto),
        (rows_max, bytes_max): (u64, usize),
    ) -> Result<(u64, Option<Reading>), Unanswered> {
        let mut rows = 0;
        let end = out.len() + bytes_max.min(isize::MAX as usize - out.len());
        let (form, may) = (self.form, self.left.min(rows_max));
        let each = |key: &[u8], value: &[u8]| {
            one_row(&mut Encoder { out, proto }, form, key, value);
            rows += 1;
            if rows == may || out.len() >= end {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let begun = engine.begin_range(&self.lo, &self.hi, self.limits(), now, each);
        let rest = complete(begun)?;
        Ok((rows, rest))
    }
}

pub(super) fn range(
    state: &mut State,
    request: Request<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    read(state, &Asked::parse(request)?, whole)
}

/// Reads the rows of a range.
pub(super) fn read(
    state: &mut State,
    asked: &Asked<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    let (tables, proto, form) = (state.tables(), state.proto, asked.form);
    let limits = state.core.clients.limits;
    let at_once = if whole {
        (u64::MAX, limits.answer().saturating_sub(state.output.len()))
    } else {
        (CHUNK_ROWS, CHUNK_BYTES)
    };
    let mark = state.output.mark();
    turn_over(state);
    let (counts, out) = (&state.core.row_counts, &mut state.output.tail);
    let head = Head::guess(out, proto, form, counts.last(&asked.lo));
    let read = tables.read(|engine, now| {
        let (rows, rest) = asked.begin(engine, now, (out, proto), at_once)?;
        if whole && rest.is_some() {
            return Err(limits.too_long().into());
        }
        let left = rest.as_ref().map(Reading::rows);
        Ok((rows, rest, left))
    });
    let (rows, rest, left) = match read {
        Ok(read) => read,
        Err(refusal) => {
            head.take_back(out);
            return Err(refusal);
        }
    };
    if state.output.len() > limits.most() {
        // The first rows alone exceed the limit.
        state.output.rewind(mark);
        return Err(limits.too_long().into());
    }
    let (counts, out) = (&state.core.row_counts, &mut state.output.tail);
    let announced = match left {
        None => Some(rows),
        Some(left) => left.map(|left| rows + left),
    };
    let whole = match announced {
        Some(rows) => {
            counts.note(&asked.lo, rows);
            head.correct(out, proto, form, rows);
            Vec::new()
        }
        None => head.take_back(out),
    };
    let reading = rest.filter(|_| left != Some(Some(0)));
    Ok(reading.map(|mut reading| {
        reading.charge(&state.client.elsewhere);
        Work::Range(RangeJob::Read(Answer {
            reading,
            form,
            proto,
            rows,
            announced,
            whole,
            whole_counted: Charge::new(&state.client),
        }))
    }))
}

/// Sets the output buffer aside if it is long.
fn turn_over(state: &mut State) {
    if state.output.is_long() {
        let next = state.core.take_buffer();
        state.output.turn_over(next);
    }
}

/// Moves a separately built reply into the output.
fn give(state: &mut State, built: Vec<u8>) {
    if built.len() < LONG_BYTES || state.output.has_holes {
        return state.output.tail.extend_from_slice(&built);
    }
    state.output.turn_over(built);
    turn_over(state);
}

pub(super) fn count(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let tables = state.tables();
    let counted = tables.read(|engine, now| engine.count(request.arg(1), request.arg(2), now));
    let count = complete(counted)?;
    state.encoder().count(count);
    Ok(())
}

pub(super) fn remove(
    state: &mut State,
    request: Request<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    let range = (request.arg(1).to_vec(), request.arg(2).to_vec());
    Removal::new(vec![range], true).begin(state, whole)
}

/// Checks the option of FLUSHDB and FLUSHALL.
pub(super) fn check_flush(request: Request<'_>) -> Result<(), Refusal> {
    let how = request.get(1).map(<[u8]>::to_ascii_uppercase);
    match how.as_deref() {
        None | Some(b"ASYNC" | b"SYNC") if request.len() <= 2 => Ok(()),
        _ => Err(syntax()),
    }
}

/// Executes FLUSHDB and FLUSHALL on this core: removes all rows of all tables that clients write.
pub(super) fn flush(
    state: &mut State,
    request: Request<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    check_flush(request)?;
    let tables = state.tables();
    let ranges = tables.read(|engine, _| {
        let tables = engine.tables().into_iter();
        let own = tables.filter(|table| !table.computed && !table.supplied);
        own.map(|table| (table.name.clone(), successor(&table.name)))
            .collect()
    });
    Removal::new(ranges, false).begin(state, whole)
}

/// Returns the first key after all keys with the prefix `text`, which must contain a byte less than 0xff.
pub(super) fn successor(text: &[u8]) -> Vec<u8> {
    let end = text.iter().rposition(|byte| *byte < 0xff);
    let mut after = text[..end.map_or(0, |end| end + 1)].to_vec();
    if let Some(last) = after.last_mut() {
        *last += 1;
    }
    after
}

impl Removal {
    fn new(ranges: Vec<(Vec<u8>, Vec<u8>)>, counts: bool) -> Removal {
        Removal {
            counts,
            ranges,
            removed: 0,
            owners_since: 0,
        }
    }

    fn begin(mut self, state: &mut State, whole: bool) -> Result<Option<Work>, Unanswered> {
        self.owners_since = state.tables().owners_since();
        for (lo, hi) in &self.ranges {
            // Only checks for errors; removes no rows.
            remove_rows(state, lo, hi, 0)?;
        }
        if whole {
            for (lo, hi) in std::mem::take(&mut self.ranges) {
                self.removed += remove_rows(state, &lo, &hi, u64::MAX)?;
            }
        } else {
            let tables = state.tables();
            tables.read(|engine, now| {
                let ends = |(lo, hi): &mut (Vec<u8>, Vec<u8>)| end_at_last_row(engine, now, lo, hi);
                self.ranges.iter_mut().try_for_each(ends)
            })?;
        }
        if self.advance(state)? {
            Ok(None)
        } else {
            Ok(Some(Work::Range(RangeJob::Remove(self))))
        }
    }

    /// # Errors
    /// Since the last turn, the lease may have expired, or rows have moved to another node.
    fn ensure_goes_on(&self, state: &State) -> Result<(), Refusal> {
        let tables = state.tables();
        let taken = tables.ensure_writes_taken().map_err(|(_, why)| why);
        let goes_on = if self.has_moved(&tables) {
            Err(MOVED.to_owned())
        } else {
            taken
        };
        goes_on.map_err(|why| {
            let message = format!("{why}; {} rows were removed, not all", self.removed);
            (Code::Unknown, message)
        })
    }

    fn has_moved(&self, tables: &Tables) -> bool {
        if tables.owners_since() == self.owners_since {
            return false;
        }
        let Some(shard) = tables.shard() else {
            return false;
        };
        let mut slots = self.ranges.iter().map(|(lo, hi)| range_slot(lo, hi));
        !slots.all(|slot| slot.is_some_and(|slot| shard.owner_of_slot(slot) == shard.index))
    }

    /// Removes the next rows. Returns whether all are removed.
    fn advance(&mut self, state: &mut State) -> Result<bool, Unanswered> {
        if self.removed > 0 && !self.ranges.is_empty() {
            self.ensure_goes_on(state)?;
        }
        let mut left = REMOVE_ROWS;
        while left > 0
            && let Some((lo, hi)) = self.ranges.last_mut()
        {
            let cut = cut_after(state, lo, hi, left)?;
            let removed = remove_rows(state, lo, cut.as_deref().unwrap_or(hi), u64::MAX)?;
            self.removed += removed;
            left -= removed.min(left);
            match cut {
                Some(cut) => *lo = cut,
                None => drop(self.ranges.pop()),
            }
        }
        if !self.ranges.is_empty() {
            return Ok(false);
        }
        if self.counts {
            state.encoder().count(self.removed)
        } else {
            state.encoder().ok()
        }
        Ok(true)
    }
}

/// Shortens a range so that it ends directly after its last row.
fn end_at_last_row(
    engine: &mut Engine,
    now: u64,
    lo: &[u8],
    hi: &mut Vec<u8>,
) -> Result<(), Unanswered> {
    let limits = Limits {
        limit: Some(1),
        reverse: true,
        keys_only: true,
        in_all: None,
    };
    let mut last = None;
    complete(engine.range(lo, hi, limits, now, &mut |key, _| {
        last = Some([key, b"\0"].concat());
        ControlFlow::Break(())
    }))?;
    *hi = last.unwrap_or_else(|| lo.to_vec());
    Ok(())
}

/// Returns the key after the first `rows` rows of a range; `None` if it has no further rows.
fn cut_after(
    state: &mut State,
    lo: &[u8],
    hi: &[u8],
    rows: u64,
) -> Result<Option<Vec<u8>>, Unanswered> {
    let limits = Limits {
        limit: Some(rows + 1),
        reverse: false,
        keys_only: true,
        in_all: None,
    };
    let (mut seen, mut cut) = (0, None);
    let tables = state.tables();
    let read = tables.read(|engine, now| {
        engine.range(lo, hi, limits, now, &mut |key, _| {
            seen += 1;
            if seen <= rows {
                return ControlFlow::Continue(());
            }
            cut = Some(key.to_vec());
            ControlFlow::Break(())
        })
    });
    complete(read)?;
    Ok(cut)
}

fn remove_rows(state: &mut State, lo: &[u8], hi: &[u8], rows_max: u64) -> Result<u64, Unanswered> {
    let tables = state.tables();
    tables.write(&mut state.gate, |engine, now| {
        let written = engine
            .remove_range(lo, hi, rows_max, now)
            .map_err(refusal)?;
        Ok((written.rows, written.waits_for))
    })
}

impl RangeJob {
    /// Continues for one turn. Returns whether the job is complete.
    pub fn advance(&mut self, state: &mut State) -> bool {
        match self {
            RangeJob::Read(answer) => answer.advance(state),
            RangeJob::Remove(removal) => match removal.advance(state) {
                Ok(ended) => ended,
                Err(why) => {
                    state.refuse(why.refusal());
                    true
                }
            },
        }
    }
}

impl Answer {
    /// Reads for one turn. Returns whether the reply is complete.
    fn advance(&mut self, state: &mut State) -> bool {
        turn_over(state);
        let tables = state.tables();
        let out = match self.announced {
            Some(_) => &mut state.output.tail,
            None => &mut self.whole,
        };
        let end = out.len() + CHUNK_BYTES;
        let (proto, form, rows) = (self.proto, self.form, &mut self.rows);
        let reading = &mut self.reading;
        let read = tables.read(|engine, _| {
            engine.read_more(reading, CHUNK_ROWS, &mut |key, value| {
                one_row(&mut Encoder { out, proto }, form, key, value);
                *rows += 1;
                if out.len() < end {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        });
        self.whole_counted.set(self.whole.len());
        let limits = state.core.clients.limits;
        match (read, self.announced) {
            (_, Some(announced)) if self.rows == announced => true,
            _ if self.reading.is_lost() => {
                if self.announced.is_none() {
                    state.refuse(refusal(Error::AnswerLost));
                } else {
                    // The announced number of rows cannot be sent, so the connection must be closed.
                    state.core.clients.note_lost(&state.client);
                    state.failed = true;
                    state.closing = true;
                }
                true
            }
            (false, None) if self.whole.len() > limits.answer() => {
                self.whole = Vec::new();
                state.refuse(limits.too_long());
                true
            }
            (false, None) => false,
            // With any other number of rows, the client would misinterpret the bytes that follow.
            (false, Some(announced)) if self.rows < announced => false,
            (_, Some(announced)) => {
                tracing::error!(announced, rows = self.rows, "a long RANGE is not as said");
                state.failed = true;
                state.closing = true;
                true
            }
            (true, None) => {
                header(&mut state.encoder(), self.form, self.rows);
                give(state, std::mem::take(&mut self.whole));
                true
            }
        }
    }
}
