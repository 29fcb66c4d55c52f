//! SET, DEL, INCR and their kin: commands that put or remove single rows, as Redis's users know them.

use larder_join::{Engine, Error};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::has_separator;

use super::super::state::State;
use super::expire::{Expiry, deadline, expiry, positive};
use super::partly::behind;
use super::{number, strings, syntax};
use crate::tables::objects::remove_object;
use crate::tables::{Refusal, Unanswered, complete, refusal};

pub(super) fn write<T>(
    state: &mut State,
    change: impl FnOnce(&mut Engine, u64) -> Result<(T, Option<u64>), Unanswered>,
) -> Result<T, Unanswered> {
    let tables = state.tables();
    tables.write(&mut state.gate, change)
}

/// Hands `each` the value of a row; says whether there is one.
pub(super) fn get(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<bool, Unanswered> {
    let mut found = false;
    let outcome = engine.get(key, now, &mut |value| {
        found = true;
        each(value);
    });
    match outcome {
        // It may have an object.
        Err(Error::NoTable { .. }) => Ok(false),
        outcome => complete(outcome).map(|()| found),
    }
}

/// What SET was told beside the value.
#[derive(Default)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep_ttl: bool,
    expiry: Option<Expiry>,
}

fn set_options(request: Request<'_>) -> Result<SetOptions, Refusal> {
    let mut options = SetOptions::default();
    let mut at = 3;
    while let Some(option) = request.get(at) {
        at += 1;
        let option = option.to_ascii_uppercase();
        match option.as_slice() {
            b"NX" => options.if_absent = true,
            b"XX" => options.if_present = true,
            b"GET" => options.get = true,
            b"KEEPTTL" if options.expiry.is_none() => options.keep_ttl = true,
            b"EX" | b"PX" | b"EXAT" | b"PXAT" if options.expiry.is_none() && !options.keep_ttl => {
                let time = number(request.get(at).ok_or_else(syntax)?)?;
                at += 1;
                options.expiry = Some(positive(expiry(&option, time), "set")?);
            }
            _ => return Err(syntax()),
        }
    }
    if options.if_absent && options.if_present {
        return Err(syntax());
    }
    Ok(options)
}

pub(super) fn set_if_absent(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let written = write(state, |engine, now| {
        let written = engine.put_if_absent(request.arg(1), request.arg(2), now);
        let written = written.map_err(refusal)?;
        Ok((written.rows, written.waits_for))
    })?;
    state.encoder().count(written);
    Ok(())
}

pub(super) fn set(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let (key, value) = (request.arg(1), request.arg(2));
    if request.len() == 3 {
        write(state, |engine, now| {
            let written = engine.put(key, value, now).map_err(refusal)?;
            Ok(((), written.waits_for))
        })?;
        state.encoder().ok();
        return Ok(());
    }
    let options = set_options(request)?;
    let bound = strings::Bound::of(state);
    let (put, before) = write(state, |engine, now| {
        let mut before = None;
        let deadline = match options.expiry {
            None if options.keep_ttl => engine.expires_at(key, now),
            None => None,
            Some(expiry) => Some(deadline(expiry, now, "set")?),
        };
        if options.get || options.if_absent || options.if_present {
            get(engine, key, now, |value| {
                before = Some(value.to_vec());
            })?;
        }
        if options.get
            && let Err(refusal) = bound.refuse_long(before.as_deref())
        {
            return Ok((Err(refusal), None));
        }
        if (options.if_absent && before.is_some()) || (options.if_present && before.is_none()) {
            return Ok((Ok((false, before)), None));
        }
        let written = engine.put(key, value, now).map_err(refusal)?;
        if deadline.is_some() {
            engine.expire(key, deadline, now).map_err(refusal)?;
        }
        Ok((Ok((true, before)), written.waits_for))
    })??;
    match before {
        before if options.get => strings::answer(state, "SET", before),
        _ if !put => state.encoder().null(),
        _ => state.encoder().ok(),
    }
    Ok(())
}

pub(super) fn del(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let mut removed = 0;
    for (before, key) in request.args().skip(1).enumerate() {
        let done = write(state, |engine, now| {
            let (was_object, waits_for) = remove_object(engine, key, now)?;
            if !has_separator(key) {
                return Ok((u64::from(was_object), waits_for));
            }
            let written = engine.remove(key, now).map_err(refusal)?;
            let rows = written.rows + u64::from(was_object);
            Ok((rows, written.waits_for.max(waits_for)))
        });
        removed += done.map_err(|why| behind(before, "DEL", why))?;
    }
    state.encoder().count(removed);
    Ok(())
}

/// `by` is nothing if it is more than an integer holds.
pub(super) fn increment(state: &mut State, key: &[u8], by: Option<i64>) -> Result<(), Unanswered> {
    let by = by.ok_or_else(|| (Code::BadRequest, "decrement would overflow".to_owned()))?;
    let sum = write(state, |engine, now| {
        let (sum, written) = engine.increment(key, by, now).map_err(refusal)?;
        Ok((sum, written.waits_for))
    })?;
    state.encoder().integer(sum);
    Ok(())
}
