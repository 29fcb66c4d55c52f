//! Commands that compute a row's new value from the current one: APPEND, SETRANGE, INCRBYFLOAT, GETSET, GETDEL, GETEX.
//! Also SETEX.

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{decimal, text_row};

use super::super::state::State;
use super::expire::{deadline, expiry, positive};
use super::rows::{get, put_text, write};
use super::{number, syntax};
use crate::clients::Limits;
use crate::tables::objects::{has_object, put_until, wrong_type};
use crate::tables::{Refusal, Unanswered, refusal};

/// A change of a row.
enum Change {
    Stays,
    Goes,
    /// A new value that keeps the TTL.
    Value(Vec<u8>),
    /// A new value and its expiry time.
    New(Vec<u8>, Option<u64>),
    /// A new expiry time for the current value.
    Until(Option<u64>),
}

pub(super) fn append(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let max = state.core.argument_bytes_max();
    let len = change(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        fits(value.len() + request.arg(2).len(), max)?;
        value.extend_from_slice(request.arg(2));
        Ok((value.len(), Change::Value(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(super) fn increment_by_float(
    state: &mut State,
    request: Request<'_>,
) -> Result<(), Unanswered> {
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

pub(super) fn get_set(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let bound = Bound::of(state);
    let before = change(state, request.arg(1), |before, _| {
        let new = Change::New(request.arg(2).to_vec(), None);
        Ok(bound.unless_long(before, new))
    })??;
    answer(state, "GETSET", before);
    Ok(())
}

pub(super) fn get_del(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let bound = Bound::of(state);
    let before = change(state, request.arg(1), |before, _| {
        Ok(bound.unless_long(before, Change::Goes))
    })??;
    answer(state, "GETDEL", before);
    Ok(())
}

/// Executes SETEX and PSETEX, with the equivalent option of SET.
pub(super) fn set_ex(
    state: &mut State,
    request: Request<'_>,
    name: &str,
    option: &[u8],
) -> Result<(), Unanswered> {
    let expiry = positive(expiry(option, number(request.arg(2))?), name)?;
    write(state, |engine, now| {
        let at = deadline(expiry, now, name)?;
        let waits_for = put_text(engine, request.arg(1), request.arg(3), Some(at), now)?;
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}

/// Returns the key of a write that returns the previous value.
pub(super) fn key_of_answer(command: Command<'_>) -> Option<&[u8]> {
    let answers = match command.id() {
        Id::GetSet | Id::GetDel | Id::GetEx => true,
        Id::Set => command
            .args()
            .skip(3)
            .any(|word| word.eq_ignore_ascii_case(b"GET")),
        _ => false,
    };
    answers.then(|| command.arg(1))
}

/// The length limit of a value that a write returns.
pub(super) struct Bound {
    limits: Limits,
    answered: usize,
    /// In a transaction, all commands are executed, and an error replaces a reply that is too long.
    in_transaction: bool,
}

impl Bound {
    pub fn of(state: &State) -> Bound {
        Bound {
            limits: state.core.clients.limits,
            answered: state.output.len(),
            in_transaction: state.core.tables.in_transaction(),
        }
    }

    /// Rejects a reply that is too long, before anything is changed.
    pub fn refuse_long(&self, value: Option<&[u8]>) -> Result<(), Refusal> {
        let bytes = value.map_or(0, <[u8]>::len);
        if self.in_transaction || self.limits.admits(self.answered, bytes) {
            Ok(())
        } else {
            Err(self.limits.too_long())
        }
    }

    /// Returns the change together with the previous value, or no change if that value is too long to return.
    fn unless_long(&self, before: Option<Vec<u8>>, change: Change) -> (Before, Change) {
        match self.refuse_long(before.as_deref()) {
            Ok(()) => (Ok(before), change),
            Err(refusal) => (Err(refusal), Change::Stays),
        }
    }
}

/// The previous value of a row, or the error to return instead.
type Before = Result<Option<Vec<u8>>, Refusal>;

/// Appends the previous value of a row that `command` has changed.
pub(super) fn answer(state: &mut State, command: &str, value: Option<Vec<u8>>) {
    let limits = state.core.clients.limits;
    match value {
        Some(value) if limits.fits(state.output.len(), value.len()) => {
            state.encoder().bulk(&value);
        }
        Some(value) => state.refuse(limits.executed(command, value.len())),
        None => state.encoder().null(),
    }
}

/// Applies the change that `decide` computes from the row's value and the time, atomically.
fn change<T>(
    state: &mut State,
    key: &[u8],
    decide: impl FnOnce(Option<Vec<u8>>, u64) -> Result<(T, Change), Refusal>,
) -> Result<T, Unanswered> {
    let row = &*text_row(key);
    write(state, |engine, now| {
        // A computed row is rejected before it is computed.
        engine.refuse_computed_row(row).map_err(refusal)?;
        if has_object(engine, key, now) {
            return Err(wrong_type().into());
        }
        let mut before = None;
        get(engine, row, now, |value| before = Some(value.to_vec()))?;
        let is_there = before.is_some();
        let (answer, change) = decide(before, now)?;
        let waits_for = match change {
            Change::Stays => None,
            Change::Goes => engine.remove(row, now).map_err(refusal)?.waits_for,
            Change::Until(at) => {
                if is_there {
                    engine.expire(row, at, now).map_err(refusal)?;
                }
                None
            }
            Change::Value(value) => {
                let at = engine.expires_at(row, now);
                put_until(engine, row, &value, at, now)?
            }
            Change::New(value, at) => put_until(engine, row, &value, at, now)?,
        };
        Ok((answer, waits_for))
    })
}

/// Rejects a value that is longer than one argument may be.
fn fits(len: usize, (max, setting): (usize, &str)) -> Result<(), Refusal> {
    if len <= max {
        return Ok(());
    }
    let message = format!("string exceeds maximum allowed size ({setting}, {max} bytes)");
    Err((Code::BadRequest, message))
}

pub(super) fn set_range(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let (offset, part) = (number(request.arg(2))?, request.arg(3));
    let offset = usize::try_from(offset).map_err(|_| {
        let message = "offset is out of range".to_owned();
        (Code::BadRequest, message)
    })?;
    let max = state.core.argument_bytes_max();
    let made_max = state.core.shared.config.server.max_setrange_bytes.0;
    let made_max = usize::try_from(made_max).unwrap_or(usize::MAX);
    let len = change(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        if part.is_empty() {
            return Ok((value.len(), Change::Stays));
        }
        let end = offset.saturating_add(part.len());
        fits(end, max)?;
        if end > value.len().max(made_max) {
            let message = format!(
                "SETRANGE would lengthen the value to {end} bytes, and server.max_setrange_bytes allows {made_max}: raise it, or send the value with SET"
            );
            return Err((Code::BadRequest, message));
        }
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(part);
        Ok((value.len(), Change::Value(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(super) fn get_ex(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let option = request.get(2).map(<[u8]>::to_ascii_uppercase);
    let expiry = match (option.as_deref(), request.len()) {
        (None, _) | (Some(b"PERSIST"), 3) => None,
        (Some(word @ (b"EX" | b"PX" | b"EXAT" | b"PXAT")), 4) => {
            Some(positive(expiry(word, number(request.arg(3))?), "getex")?)
        }
        _ => return Err(syntax().into()),
    };
    let is_plain = option.is_none();
    let bound = Bound::of(state);
    let before = change(state, request.arg(1), |before, now| {
        let change = match expiry {
            None if is_plain => Change::Stays,
            None => Change::Until(None),
            Some(expiry) => match deadline(expiry, now, "getex")? {
                at if at <= now => Change::Goes,
                at => Change::Until(Some(at)),
            },
        };
        Ok(bound.unless_long(before, change))
    })??;
    answer(state, "GETEX", before);
    Ok(())
}
