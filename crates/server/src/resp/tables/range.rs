//! RANGE, RANGECOUNT, RANGEDEL and FLUSHDB.
//!
//! A short answer is built at once. A long one is read some rows in each turn of the core's loop, by a [`RangeJob`], all of
//! the moment when its command was executed. If it is known how many rows it has, it is sent as the client takes it; what a
//! join adds up may turn out not to add up, and is left out then, and what several joins make is known when it was merged, so that is put together first.

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

/// Rows and bytes that one turn of the core's loop reads.
const CHUNK_ROWS: u64 = 1024;
const CHUNK_BYTES: usize = 512 << 10;
/// Rows that one turn removes.
const REMOVE_ROWS: u64 = 1024;

/// What a RANGE asks for, or what of it is still to be read.
pub(in crate::resp) struct Asked<'a> {
    pub lo: Cow<'a, [u8]>,
    pub hi: Cow<'a, [u8]>,
    pub left: u64,
    pub reverse: bool,
    pub form: Form,
}

/// What is sent of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::resp) enum Form {
    Rows,
    Keys,
    /// The part of the key from this byte on: SMEMBERS.
    Members(usize),
}

/// An answer that is being read.
pub(in crate::resp) struct Answer {
    reading: Reading,
    form: Form,
    proto: Proto,
    /// Rows that were read so far, in `whole` or sent.
    rows: u64,
    /// How many there will be, and have been announced.
    announced: Option<u64>,
    /// What is sent once all is read.
    whole: Vec<u8>,
    whole_counted: Charge,
}

/// An answer, or a removal, that takes several turns.
pub(in crate::resp) enum RangeJob {
    Read(Answer),
    Remove(Removal),
}

/// Rows that are removed: of one range for RANGEDEL, of all tables for FLUSHDB and FLUSHALL.
pub(in crate::resp) struct Removal {
    /// The answer is how many there were.
    counts: bool,
    /// What is left of them, each up to the last row that it had at first: rows that come behind it do not keep this busy.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    removed: u64,
    /// The first epoch of the owners when it began.
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

    /// The same, to be kept.
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

    /// Appends the first rows to `out`, until there are `rows_max` or `bytes_max` is reached; says how many, and holds the rest.
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

/// Answers the rows of a range.
pub(super) fn read(
    state: &mut State,
    asked: &Asked<'_>,
    whole: bool,
) -> Result<Option<Work>, Unanswered> {
    let (tables, proto, form) = (state.tables(), state.proto, asked.form);
    let limits = state.core.clients.limits;
    let at_once = match whole {
        true => (u64::MAX, limits.answer().saturating_sub(state.output.len())),
        false => (CHUNK_ROWS, CHUNK_BYTES),
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
        // With its first rows already.
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

/// Leaves what has gathered as it is if that is much.
fn turn_over(state: &mut State) {
    if state.output.is_long() {
        let next = state.core.take_buffer();
        state.output.turn_over(next);
    }
}

/// Sends what was built apart.
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

/// Refuses options of FLUSHDB and FLUSHALL that they do not have.
pub(super) fn check_flush(request: Request<'_>) -> Result<(), Refusal> {
    let how = request.get(1).map(<[u8]>::to_ascii_uppercase);
    match how.as_deref() {
        None | Some(b"ASYNC" | b"SYNC") if request.len() <= 2 => Ok(()),
        _ => Err(syntax()),
    }
}

/// FLUSHDB and FLUSHALL: all rows of all tables that clients write to, on this core.
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

/// The first key after all that begin with a text, which has a byte that is not the last there is.
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
            // For what is refused: nothing goes yet.
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
        match self.advance(state)? {
            true => Ok(None),
            false => Ok(Some(Work::Range(RangeJob::Remove(self)))),
        }
    }

    /// # Errors
    /// Since the last turn the lease may have ended, or rows have moved to another node.
    fn ensure_goes_on(&self, state: &State) -> Result<(), Refusal> {
        let tables = state.tables();
        let taken = tables.ensure_writes_taken().map_err(|(_, why)| why);
        let goes_on = match self.has_moved(&tables) {
            true => Err(MOVED.to_owned()),
            false => taken,
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

    /// Removes some more; says whether all have gone.
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
        match self.counts {
            true => state.encoder().count(self.removed),
            false => state.encoder().ok(),
        }
        Ok(true)
    }
}

/// Ends a range right behind its last row.
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

/// The key behind the first rows of a range; nothing if it has no more than so many.
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
    /// Goes on for one turn; says whether it has ended.
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
    /// Reads on for one turn; says whether it has ended.
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
                match out.len() < end {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
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
                    // Not as many rows can be sent as were announced.
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
            // A row more or less than was said would be taken for something else.
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
