//! SET, DEL, INCR and similar: the commands of Redis that put or remove single rows.

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{object_row, text_row};

use super::super::objects::{check_not_computed, put_with_expiry, remove_object, wrong_type};
use super::super::state::ConnectionState;
use super::condition::Condition;
use super::expire::TtlOption;
use super::partial_write::partial_write_error;
use super::{strings, syntax_error};
use crate::tables::{NoReply, Refusal, has_object, read_object, refusal, require_done};

pub(super) fn write<T>(
    state: &mut ConnectionState,
    change: impl FnOnce(&mut Engine, u64) -> Result<(T, Option<u64>), NoReply>,
) -> Result<T, NoReply> {
    let tables = state.tables();
    tables.write(&mut state.gate, change)
}

/// Passes the value of a row to `each`. Returns whether the row exists.
pub(super) fn get(
    engine: &mut Engine,
    row: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<bool, NoReply> {
    let mut found = false;
    let outcome = engine.get(row, now, &mut |value| {
        found = true;
        each(value);
    });
    require_done(outcome).map(|()| found)
}

/// Replaces the value of a key, whether a text or an object, with a text. Returns what the write must wait for.
///
/// # Errors
/// The text is rejected. The key keeps its value.
pub(super) fn put_text(
    engine: &mut Engine,
    key: &[u8],
    value: &[u8],
    deadline: Option<u64>,
    now: u64,
) -> Result<Option<u64>, NoReply> {
    // The object is removed first, so that subscribers receive `del` before `set`.
    let object = take_object(engine, key, now)?;
    replace(engine, &text_row(key), value, deadline, object, now)
}

/// As [`put_text`], for an object. `bytes` is its encoding.
pub(super) fn put_object(
    engine: &mut Engine,
    key: &[u8],
    bytes: &[u8],
    deadline: Option<u64>,
    now: u64,
) -> Result<Option<u64>, NoReply> {
    check_not_computed(engine, key)?;
    let text = take_text(engine, key, now)?;
    replace(engine, &object_row(key), bytes, deadline, text, now)
}

/// Puts a row after `replaced` was removed. If the row is rejected, `replaced` is restored.
fn replace(
    engine: &mut Engine,
    row: &[u8],
    value: &[u8],
    deadline: Option<u64>,
    replaced: Option<ReplacedValue>,
    now: u64,
) -> Result<Option<u64>, NoReply> {
    let refused = match put_with_expiry(engine, row, value, deadline, now) {
        Ok(waits_for) => return Ok(waits_for),
        Err(refused) => refused,
    };
    if let Some(replaced) = replaced {
        replaced.restore(engine, now)?;
    }
    Err(refused.into())
}

/// Rejects a command that writes rows of a computed table, before it writes anything.
///
/// # Errors
/// A join computes the table of one of the keys.
pub(super) fn refuse_computed_rows<'k>(
    engine: &Engine,
    keys: impl IntoIterator<Item = &'k [u8]>,
) -> Result<(), Refusal> {
    let mut keys = keys.into_iter();
    keys.try_for_each(|key| engine.refuse_computed_row(key).map_err(refusal))
}

/// Returns whether a key has a text or an object.
pub(super) fn key_exists(engine: &mut Engine, key: &[u8], now: u64) -> Result<bool, NoReply> {
    Ok(has_object(engine, key, now) || get(engine, &text_row(key), now, |_| {})?)
}

/// Removes the text or object of a key. Returns the number of removed values, and what the write must wait for.
pub(super) fn remove_value(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
) -> Result<(u64, Option<u64>), NoReply> {
    let (was_object, waits_for) = remove_object(engine, key, now)?;
    let written = engine.remove(&text_row(key), now).map_err(refusal)?;
    let values = written.rows + u64::from(was_object);
    Ok((values, written.waits_for.max(waits_for)))
}

/// A value that is replaced by one of the other kind.
struct ReplacedValue {
    row: Vec<u8>,
    bytes: Vec<u8>,
    at: Option<u64>,
}

/// Removes the object of a key, if it has one.
fn take_object(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
) -> Result<Option<ReplacedValue>, NoReply> {
    let Some(bytes) = read_object(engine, key, now, <[u8]>::to_vec) else {
        return Ok(None);
    };
    check_not_computed(engine, key)?;
    let row = object_row(key);
    let at = engine.expires_at(&row, now);
    engine.remove(&row, now).map_err(refusal)?;
    Ok(Some(ReplacedValue { row, bytes, at }))
}

/// Removes the text of a key, if it has one. The key's table must not be computed.
fn take_text(engine: &mut Engine, key: &[u8], now: u64) -> Result<Option<ReplacedValue>, NoReply> {
    let row = text_row(key).into_owned();
    let at = engine.expires_at(&row, now);
    let Some(bytes) = engine.base_row(&row).map(|(value, _)| value.to_vec()) else {
        return Ok(None);
    };
    engine.remove(&row, now).map_err(refusal)?;
    Ok(Some(ReplacedValue { row, bytes, at }))
}

impl ReplacedValue {
    fn restore(&self, engine: &mut Engine, now: u64) -> Result<(), NoReply> {
        let put = engine.put_beyond_limit(&self.row, &self.bytes, now);
        put.map_err(refusal)?;
        if self.at.is_some() {
            engine.expire(&self.row, self.at, now).map_err(refusal)?;
        }
        Ok(())
    }
}

/// The options of SET.
#[derive(Default)]
struct SetOptions<'a> {
    condition: Condition<'a>,
    get: bool,
    ttl: TtlOption<'a>,
}

fn parse_set_options(request: Request<'_>) -> Result<SetOptions<'_>, Refusal> {
    let mut options = SetOptions::default();
    let mut at = 3;
    while let Some(option) = request.get(at) {
        at += 1;
        let option = option.to_ascii_uppercase();
        let value = || request.get(at).ok_or_else(syntax_error);
        match option.as_slice() {
            b"NX" => options.set_condition(Condition::IfAbsent)?,
            b"XX" => options.set_condition(Condition::IfPresent)?,
            b"GET" => options.get = true,
            word if options.ttl.parse_option(word, value)? => {
                at += usize::from(word != b"KEEPTTL");
            }
            word => {
                let condition = Condition::parse(word, value)?.ok_or_else(syntax_error)?;
                options.set_condition(condition)?;
                at += 1;
            }
        }
    }
    Ok(options)
}

impl<'a> SetOptions<'a> {
    /// # Errors
    /// A different condition was given before.
    fn set_condition(&mut self, condition: Condition<'a>) -> Result<(), Refusal> {
        if self.condition != Condition::Always && self.condition != condition {
            return Err(syntax_error());
        }
        self.condition = condition;
        Ok(())
    }
}

pub(in crate::resp) fn set_if_absent(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let written = write(state, |engine, now| {
        if has_object(engine, key, now) {
            return Ok((0, None));
        }
        let written = engine.put_if_absent(&text_row(key), request.arg(2), now);
        let written = written.map_err(refusal)?;
        Ok((written.rows, written.waits_for))
    })?;
    state.encoder().count(written);
    Ok(())
}

pub(in crate::resp) fn set(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let (key, value) = (request.arg(1), request.arg(2));
    if request.len() == 3 {
        write(state, |engine, now| {
            Ok(((), put_text(engine, key, value, None, now)?))
        })?;
        state.encoder().ok();
        return Ok(());
    }
    let options = parse_set_options(request)?;
    let ttl = options.ttl.validate("set")?;
    let bound = strings::ReturnedValueLimit::of(state);
    let (put, before) = write(state, |engine, now| {
        let mut before = None;
        let deadline = ttl.deadline(engine, key, now, "set")?;
        let is_object = has_object(engine, key, now);
        if is_object && (options.get || options.condition.compares_value()) {
            return Err(wrong_type().into());
        }
        if options.get || options.condition != Condition::Always {
            get(engine, &text_row(key), now, |value| {
                before = Some(value.to_vec());
            })?;
        }
        if options.get
            && let Err(refusal) = bound.refuse_long(before.as_deref())
        {
            return Ok((Err(refusal), None));
        }
        if !options.condition.is_met(before.as_deref(), is_object) {
            return Ok((Ok((false, before)), None));
        }
        let waits_for = put_text(engine, key, value, deadline, now)?;
        Ok((Ok((true, before)), waits_for))
    })??;
    match before {
        before if options.get => strings::append_previous(state, "SET", before),
        _ if !put => state.encoder().null(),
        _ => state.encoder().ok(),
    }
    Ok(())
}

/// Executes DELEX: removes a key if its text meets a condition.
pub(in crate::resp) fn del_if(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let condition = match (request.get(2), request.get(3), request.len()) {
        (None, ..) => Condition::Always,
        (Some(word), Some(value), 4) => {
            let condition = Condition::parse(&word.to_ascii_uppercase(), || Ok(value))?;
            condition.ok_or_else(syntax_error)?
        }
        _ => return Err(syntax_error().into()),
    };
    if condition == Condition::Always {
        return del(state, request);
    }
    let row = &*text_row(key);
    let removed = write(state, |engine, now| {
        // A computed row is rejected before it is computed.
        engine.refuse_computed_row(row).map_err(refusal)?;
        if has_object(engine, key, now) {
            return Err(wrong_type().into());
        }
        let mut is_met = false;
        let found = get(engine, row, now, |value| {
            is_met = condition.is_met(Some(value), false);
        })?;
        if !found || !is_met {
            return Ok((0, None));
        }
        let written = engine.remove(row, now).map_err(refusal)?;
        Ok((written.rows, written.waits_for))
    })?;
    state.encoder().count(removed);
    Ok(())
}

pub(in crate::resp) fn del(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let mut removed = 0;
    if request.len() > 2 {
        let keys = request.args().skip(1);
        let tables = state.tables();
        tables.read(|engine, _| refuse_computed_rows(engine, keys))?;
    }
    for (before, key) in request.args().skip(1).enumerate() {
        let done = write(state, |engine, now| remove_value(engine, key, now));
        removed += done.map_err(|why| partial_write_error(before, "DEL", why))?;
    }
    state.encoder().count(removed);
    Ok(())
}

/// Executes INCRBY and similar. `by` is `None` if its negation overflowed.
pub(in crate::resp) fn increment(
    state: &mut ConnectionState,
    key: &[u8],
    by: Option<i64>,
) -> Result<(), NoReply> {
    let by = by.ok_or_else(|| (Code::BadRequest, "decrement would overflow".to_owned()))?;
    let row = &*text_row(key);
    let sum = write(state, |engine, now| {
        if has_object(engine, key, now) {
            return Err(wrong_type().into());
        }
        let (sum, written) = engine.increment(row, by, now).map_err(refusal)?;
        Ok((sum, written.waits_for))
    })?;
    state.encoder().integer(sum);
    Ok(())
}
