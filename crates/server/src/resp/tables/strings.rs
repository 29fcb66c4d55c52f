//! Commands that make a row's new value of what it was: APPEND, SETRANGE, INCRBYFLOAT, GETSET, GETDEL, GETEX; and SETEX.

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::state::State;
use super::expire::{deadline, expiry, positive};
use super::rows::{get, write};
use super::{decimal, number, syntax};
use crate::tables::{Refusal, refusal};

/// What becomes of a row.
enum Change {
    Stays,
    Goes,
    /// When it goes is as it was.
    Value(Vec<u8>),
    /// As one that is new.
    New(Vec<u8>, Option<u64>),
    /// The value is as it was.
    Until(Option<u64>),
}

pub(super) fn append(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let max = state.core.limits.argument_bytes_max;
    let len = change(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        fits(value.len() + request.arg(2).len(), max)?;
        value.extend_from_slice(request.arg(2));
        Ok((value.len(), Change::Value(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(super) fn increment_by_float(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let sum = change(state, request.arg(1), |before, _| {
        let before = before.as_deref().unwrap_or(b"0");
        let sum = decimal::add(before, request.arg(2)).map_err(|why| {
            let message = why.to_owned();
            (Code::BadRequest, message)
        })?;
        Ok((sum.clone(), Change::Value(sum.into_bytes())))
    })?;
    state.encoder().text(&sum);
    Ok(())
}

pub(super) fn get_set(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let before = change(state, request.arg(1), |before, _| {
        Ok((before, Change::New(request.arg(2).to_vec(), None)))
    })?;
    answer(state, before);
    Ok(())
}

pub(super) fn get_del(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let before = change(state, request.arg(1), |before, _| {
        Ok((before, Change::Goes))
    })?;
    answer(state, before);
    Ok(())
}

/// SETEX and PSETEX, by the option of SET that says the same.
pub(super) fn set_ex(
    state: &mut State,
    request: Request<'_>,
    name: &str,
    option: &[u8],
) -> Result<(), Refusal> {
    let expiry = positive(expiry(option, number(request.arg(2))?), name)?;
    change(state, request.arg(1), |_, now| {
        let at = deadline(expiry, now, name)?;
        Ok(((), Change::New(request.arg(3).to_vec(), Some(at))))
    })?;
    state.encoder().ok();
    Ok(())
}

fn answer(state: &mut State, value: Option<Vec<u8>>) {
    match value {
        Some(value) => state.encoder().bulk(&value),
        None => state.encoder().null(),
    }
}

/// Makes the change that `decide` wants, given the row's value and the time; all in one step.
fn change<T>(
    state: &mut State,
    key: &[u8],
    decide: impl FnOnce(Option<Vec<u8>>, u64) -> Result<(T, Change), Refusal>,
) -> Result<T, Refusal> {
    let tables = state.tables();
    write(state, |engine, now| {
        // A computed row is refused before it is computed.
        engine.remove_range(key, key, 0, now).map_err(refusal)?;
        let mut before = None;
        get(&tables, engine, key, now, |value| {
            before = Some(value.to_vec())
        })?;
        let is_there = before.is_some();
        let (answer, change) = decide(before, now)?;
        let waits_for = match change {
            Change::Stays => None,
            Change::Goes => engine.remove(key, now).map_err(refusal)?.waits_for,
            Change::Until(at) => {
                if is_there {
                    engine.expire(key, at, now).map_err(refusal)?;
                }
                None
            }
            Change::Value(value) => {
                let at = engine.expires_at(key, now);
                let written = engine.put(key, &value, now).map_err(refusal)?;
                if at.is_some() {
                    engine.expire(key, at, now).map_err(refusal)?;
                }
                written.waits_for
            }
            Change::New(value, at) => {
                let written = engine.put(key, &value, now).map_err(refusal)?;
                if at.is_some() {
                    engine.expire(key, at, now).map_err(refusal)?;
                }
                written.waits_for
            }
        };
        Ok((answer, waits_for))
    })
}

/// What can be sent in one argument can be a value, and no more.
fn fits(len: usize, max: usize) -> Result<(), Refusal> {
    if len <= max {
        return Ok(());
    }
    let message =
        format!("string exceeds maximum allowed size (server.max_argument_bytes, {max} bytes)");
    Err((Code::BadRequest, message))
}

pub(super) fn set_range(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let (offset, part) = (number(request.arg(2))?, request.arg(3));
    let offset = usize::try_from(offset).map_err(|_| {
        let message = "offset is out of range".to_owned();
        (Code::BadRequest, message)
    })?;
    let max = state.core.limits.argument_bytes_max;
    let len = change(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        if part.is_empty() {
            return Ok((value.len(), Change::Stays));
        }
        let end = offset.saturating_add(part.len());
        fits(end, max)?;
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(part);
        Ok((value.len(), Change::Value(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(super) fn get_ex(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let option = request.get(2).map(<[u8]>::to_ascii_uppercase);
    let expiry = match (option.as_deref(), request.len()) {
        (None, _) | (Some(b"PERSIST"), 3) => None,
        (Some(word @ (b"EX" | b"PX" | b"EXAT" | b"PXAT")), 4) => {
            Some(positive(expiry(word, number(request.arg(3))?), "getex")?)
        }
        _ => return Err(syntax()),
    };
    let is_plain = option.is_none();
    let before = change(state, request.arg(1), |before, now| {
        let change = match expiry {
            None if is_plain => Change::Stays,
            None => Change::Until(None),
            Some(expiry) => match deadline(expiry, now, "getex")? {
                at if at <= now => Change::Goes,
                at => Change::Until(Some(at)),
            },
        };
        Ok((before, change))
    })?;
    answer(state, before);
    Ok(())
}
