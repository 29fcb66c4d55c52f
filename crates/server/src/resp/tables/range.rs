//! RANGE, RANGECOUNT, RANGEDEL and FLUSHDB.
//!
//! A short reply is produced in one step. A [`RangeJob`] reads a long one in steps, a number of rows per turn of the
//! core's loop, as a snapshot of the moment when the command was executed. If the number of rows is known, the reply is
//! sent as the client reads it. The number is unknown in two cases: some computed rows cannot be summed and are
//! omitted, or several joins contribute and their rows must be merged. The complete reply is then built first.

use std::borrow::Cow;
use std::ops::ControlFlow;

use larder_join::{Engine, Error, Limits, RangeReader, range_slot};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto, Request};

use super::super::output::LONG_BYTES;
use super::super::pending::Work;
use super::super::spaces;
use super::super::state::ConnectionState;
use super::coordinate::SLOTS_MOVED;
use super::reply_header::GuessedHeader;
use super::{parse_integer, syntax_error};
use crate::clients::Charge;
use crate::tables::{NoReply, Refusal, Tables, refusal, require_done};

/// Maximum number of rows and bytes read per turn of the core's loop.
const CHUNK_ROWS: u64 = 1024;
const CHUNK_BYTES: usize = 512 << 10;
/// Maximum number of rows removed per turn.
const REMOVE_ROWS: u64 = 1024;

/// The arguments of a RANGE, or its remaining part.
pub(in crate::resp) struct RangeQuery<'a> {
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
pub(in crate::resp) struct RangeRead {
    reading: RangeReader,
    form: Form,
    proto: Proto,
    /// Number of rows read so far, whether in `buffered` or sent.
    rows: u64,
    /// The total number of rows, if it has been sent in the header.
    announced: Option<u64>,
    /// The rows read so far, if they are sent only once all have been read.
    buffered: Vec<u8>,
    buffered_charge: Charge,
}

/// A read or removal that takes several turns.
pub(in crate::resp) enum RangeJob {
    Read(RangeRead),
    Remove(Removal),
}

/// Rows to remove: of one range for RANGEDEL, of all tables for FLUSHDB and FLUSHALL.
pub(in crate::resp) struct Removal {
    /// The reply is the number of removed rows.
    returns_count: bool,
    /// The remaining ranges. Each ends at the last row that it had at the start, so that rows added after it do not
    /// prolong the removal.
    ranges: Vec<(Vec<u8>, Vec<u8>)>,
    removed: u64,
    /// The first epoch of the ownership at the start.
    owners_since: u64,
}

pub(in crate::resp) fn encode_row(encoder: &mut Encoder<'_>, form: Form, key: &[u8], value: &[u8]) {
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

pub(in crate::resp) fn encode_header(encoder: &mut Encoder<'_>, form: Form, rows: u64) {
    let rows = rows as usize;
    match form {
        Form::Rows if encoder.proto == Proto::Resp2 => encoder.array(rows * 2),
        Form::Rows | Form::Keys => encoder.array(rows),
        Form::Members(_) => encoder.set(rows),
    }
}

impl<'a> RangeQuery<'a> {
    pub fn parse(request: Request<'a>) -> Result<RangeQuery<'a>, Refusal> {
        let mut query = RangeQuery {
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
                query.reverse = true;
            } else if option.eq_ignore_ascii_case(b"KEYSONLY") {
                query.form = Form::Keys;
            } else if option.eq_ignore_ascii_case(b"LIMIT") {
                let limit = parse_integer(request.get(at).ok_or_else(syntax_error)?)?;
                query.left = u64::try_from(limit)
                    .map_err(|_| (Code::BadRequest, "LIMIT must not be negative".to_owned()))?;
                at += 1;
            } else {
                return Err(syntax_error());
            }
        }
        Ok(query)
    }

    /// Returns an owned copy.
    pub fn owned(&self) -> RangeQuery<'static> {
        RangeQuery {
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
            total_limit: Some(self.left).filter(|left| *left < u64::MAX),
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
    ) -> Result<(u64, Option<RangeReader>), NoReply> {
        let mut rows = 0;
        let end = out.len() + bytes_max.min(isize::MAX as usize - out.len());
        let (form, may) = (self.form, self.left.min(rows_max));
        let each = |key: &[u8], value: &[u8]| {
            encode_row(&mut Encoder { out, proto }, form, key, value);
            rows += 1;
            if rows == may || out.len() >= end {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let begun = engine.begin_range(&self.lo, &self.hi, self.limits(), now, each);
        let rest = require_done(begun)?;
        Ok((rows, rest))
    }
}

pub(in crate::resp) fn range(
    state: &mut ConnectionState,
    request: Request<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    read(state, &RangeQuery::parse(request)?, atomic)
}

/// Reads the rows of a range.
pub(super) fn read(
    state: &mut ConnectionState,
    query: &RangeQuery<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let (tables, proto, form) = (state.tables(), state.proto, query.form);
    let limits = state.core.clients.limits;
    let first_chunk_max = if atomic {
        (
            u64::MAX,
            limits.reply_bytes().saturating_sub(state.output.len()),
        )
    } else {
        (CHUNK_ROWS, CHUNK_BYTES)
    };
    let mark = state.output.mark();
    rotate_output(state);
    let (counts, out) = (&state.core.row_counts, &mut state.output.tail);
    let guessed = GuessedHeader::guess(out, proto, form, counts.last(&query.lo));
    let read = tables.read(|engine, now| {
        let (rows, rest) = query.begin(engine, now, (out, proto), first_chunk_max)?;
        if atomic && rest.is_some() {
            return Err(limits.reply_too_long().into());
        }
        let left = rest.as_ref().map(RangeReader::rows);
        Ok((rows, rest, left))
    });
    let (rows, rest, left) = match read {
        Ok(read) => read,
        Err(refusal) => {
            guessed.remove(out);
            return Err(refusal);
        }
    };
    if state.output.len() > limits.unsent_bytes() {
        // The first rows alone exceed the limit.
        state.output.rewind(mark);
        return Err(limits.reply_too_long().into());
    }
    let (counts, out) = (&state.core.row_counts, &mut state.output.tail);
    let announced = match left {
        None => Some(rows),
        Some(left) => left.map(|left| rows + left),
    };
    let buffered = match announced {
        Some(rows) => {
            counts.record(&query.lo, rows);
            guessed.correct(out, proto, form, rows);
            Vec::new()
        }
        None => guessed.remove(out),
    };
    let reading = rest.filter(|_| left != Some(Some(0)));
    Ok(reading.map(|mut reading| {
        reading.charge(&state.client.remote_bytes);
        Work::Range(RangeJob::Read(RangeRead {
            reading,
            form,
            proto,
            rows,
            announced,
            buffered,
            buffered_charge: Charge::new(&state.client),
        }))
    }))
}

/// Sets the output buffer aside if it is long.
fn rotate_output(state: &mut ConnectionState) {
    if state.output.is_long() {
        let next = state.core.take_buffer();
        state.output.rotate_tail(next);
    }
}

/// Moves a separately built reply into the output.
fn append_built(state: &mut ConnectionState, built: Vec<u8>) {
    if built.len() < LONG_BYTES || state.output.has_holes {
        return state.output.tail.extend_from_slice(&built);
    }
    state.output.rotate_tail(built);
    rotate_output(state);
}

pub(in crate::resp) fn count(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let counted = tables.read(|engine, now| engine.count(request.arg(1), request.arg(2), now));
    let count = require_done(counted)?;
    state.encoder().count(count);
    Ok(())
}

pub(in crate::resp) fn remove(
    state: &mut ConnectionState,
    request: Request<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let range = (request.arg(1).to_vec(), request.arg(2).to_vec());
    Removal::new(vec![range], true).begin(state, atomic)
}

/// Checks the option of FLUSHDB and FLUSHALL.
pub(super) fn check_flush(request: Request<'_>) -> Result<(), Refusal> {
    let how = request.get(1).map(<[u8]>::to_ascii_uppercase);
    match how.as_deref() {
        None | Some(b"ASYNC" | b"SYNC") if request.len() <= 2 => Ok(()),
        _ => Err(syntax_error()),
    }
}

/// Executes FLUSHDB and FLUSHALL on this core: removes all rows of all tables that clients write.
pub(in crate::resp) fn flush(
    state: &mut ConnectionState,
    request: Request<'_>,
    name: &str,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    // With several cores or nodes, the coordinator drops the spaces first.
    let is_alone = state.core.shared.tables.cores() == 1 && !state.executes_part;
    if is_alone && spaces::must_drop_spaces(&state.core) {
        if !atomic {
            return Ok(Some(spaces::coordinate()));
        }
        check_flush(request)?;
        return Err(spaces::flush_in_multi_refusal(name).into());
    }
    check_flush(request)?;
    let tables = state.tables();
    let ranges = tables.read(|engine, _| {
        let tables = engine.tables().into_iter();
        let own = tables.filter(|table| !table.computed && !table.supplied);
        own.map(|table| (table.name.clone(), successor(&table.name)))
            .collect()
    });
    Removal::new(ranges, false).begin(state, atomic)
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
    fn new(ranges: Vec<(Vec<u8>, Vec<u8>)>, returns_count: bool) -> Removal {
        Removal {
            returns_count,
            ranges,
            removed: 0,
            owners_since: 0,
        }
    }

    fn begin(mut self, state: &mut ConnectionState, atomic: bool) -> Result<Option<Work>, NoReply> {
        self.owners_since = state.tables().ownership_epoch();
        for (lo, hi) in &self.ranges {
            // Only checks for errors; removes no rows.
            remove_rows(state, lo, hi, 0)?;
        }
        if atomic {
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
    fn ensure_may_continue(&self, state: &ConnectionState) -> Result<(), Refusal> {
        let tables = state.tables();
        let taken = tables.ensure_writes_accepted().map_err(|(_, why)| why);
        let checked = if self.has_moved(&tables) {
            Err(SLOTS_MOVED.to_owned())
        } else {
            taken
        };
        checked.map_err(|why| {
            let message = format!(
                "{why}; {} rows were removed before that, and the others remain",
                self.removed
            );
            (Code::Unknown, message)
        })
    }

    fn has_moved(&self, tables: &Tables) -> bool {
        if tables.ownership_epoch() == self.owners_since {
            return false;
        }
        let Some(shard) = tables.shard() else {
            return false;
        };
        let mut slots = self.ranges.iter().map(|(lo, hi)| range_slot(lo, hi));
        !slots.all(|slot| slot.is_some_and(|slot| shard.owner_of_slot(slot) == shard.index))
    }

    /// Removes the next rows. Returns whether all are removed.
    fn advance(&mut self, state: &mut ConnectionState) -> Result<bool, NoReply> {
        if self.removed > 0 && !self.ranges.is_empty() {
            self.ensure_may_continue(state)?;
        }
        let mut left = REMOVE_ROWS;
        while left > 0
            && let Some((lo, hi)) = self.ranges.last_mut()
        {
            let cut = find_cut_key(state, lo, hi, left)?;
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
        if self.returns_count {
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
) -> Result<(), NoReply> {
    let limits = Limits {
        limit: Some(1),
        reverse: true,
        keys_only: true,
        total_limit: None,
    };
    let mut last = None;
    require_done(engine.range(lo, hi, limits, now, &mut |key, _| {
        last = Some([key, b"\0"].concat());
        ControlFlow::Break(())
    }))?;
    *hi = last.unwrap_or_else(|| lo.to_vec());
    Ok(())
}

/// Returns the key after the first `rows` rows of a range; `None` if it has no further rows.
fn find_cut_key(
    state: &mut ConnectionState,
    lo: &[u8],
    hi: &[u8],
    rows: u64,
) -> Result<Option<Vec<u8>>, NoReply> {
    let limits = Limits {
        limit: Some(rows + 1),
        reverse: false,
        keys_only: true,
        total_limit: None,
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
    require_done(read)?;
    Ok(cut)
}

fn remove_rows(
    state: &mut ConnectionState,
    lo: &[u8],
    hi: &[u8],
    rows_max: u64,
) -> Result<u64, NoReply> {
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
    pub fn advance(&mut self, state: &mut ConnectionState) -> bool {
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

impl RangeRead {
    /// Reads for one turn. Returns whether the reply is complete.
    fn advance(&mut self, state: &mut ConnectionState) -> bool {
        rotate_output(state);
        let tables = state.tables();
        let out = match self.announced {
            Some(_) => &mut state.output.tail,
            None => &mut self.buffered,
        };
        let end = out.len() + CHUNK_BYTES;
        let (proto, form, rows) = (self.proto, self.form, &mut self.rows);
        let reading = &mut self.reading;
        let read = tables.read(|engine, _| {
            engine.read_more(reading, CHUNK_ROWS, &mut |key, value| {
                encode_row(&mut Encoder { out, proto }, form, key, value);
                *rows += 1;
                if out.len() < end {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        });
        self.buffered_charge.set(self.buffered.len());
        let limits = state.core.clients.limits;
        match (read, self.announced) {
            (_, Some(announced)) if self.rows == announced => true,
            _ if self.reading.is_lost() => {
                if self.announced.is_none() {
                    state.refuse(refusal(Error::SnapshotTooOld));
                } else {
                    // The announced number of rows cannot be sent, so the connection must be closed.
                    state.core.clients.record_lost_reply(&state.client);
                    state.failed = true;
                    state.closing = true;
                }
                true
            }
            (false, None) if self.buffered.len() > limits.reply_bytes() => {
                self.buffered = Vec::new();
                state.refuse(limits.reply_too_long());
                true
            }
            (false, None) => false,
            // With any other number of rows, the client would misinterpret the bytes that follow.
            (false, Some(announced)) if self.rows < announced => false,
            (_, Some(announced)) => {
                tracing::error!(
                    announced,
                    rows = self.rows,
                    "a long RANGE returned another number of rows than its header announced; the connection is closed"
                );
                state.failed = true;
                state.closing = true;
                true
            }
            (true, None) => {
                encode_header(&mut state.encoder(), self.form, self.rows);
                append_built(state, std::mem::take(&mut self.buffered));
                true
            }
        }
    }
}
