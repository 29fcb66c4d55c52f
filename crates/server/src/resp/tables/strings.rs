//! Commands that compute a row's new value from the current one: APPEND, SETRANGE, INCRBYFLOAT, GETSET, GETDEL, GETEX.
//! Also SETEX.

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_types::{decimal, text_row};

use super::super::objects::{put_with_expiry, wrong_type};
use super::super::state::ConnectionState;
use super::expire::{deadline, ensure_positive, expiry};
use super::rows::{get, put_text, write};
use super::{parse_integer, syntax_error};
use crate::clients::Limits;
use crate::tables::{NoReply, Refusal, has_object, refusal};

/// A change of a row.
enum ValueChange {
    Keep,
    Remove,
    /// A new value that keeps the TTL.
    ReplaceValue(Vec<u8>),
    /// A new value and its expiry time.
    Replace(Vec<u8>, Option<u64>),
    /// A new expiry time for the current value.
    SetExpiry(Option<u64>),
}

pub(in crate::resp) fn append(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let max = state.core.argument_bytes_max();
    let len = update_row(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        check_value_size(value.len() + request.arg(2).len(), max)?;
        value.extend_from_slice(request.arg(2));
        Ok((value.len(), ValueChange::ReplaceValue(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(in crate::resp) fn increment_by_float(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let sum = update_row(state, request.arg(1), |before, _| {
        let before = before.as_deref().unwrap_or(b"0");
        let sum = decimal::add(before, request.arg(2)).map_err(|why| {
            let message = why.to_owned();
            (Code::BadRequest, message)
        })?;
        Ok((sum.clone(), ValueChange::ReplaceValue(sum.into_bytes())))
    })?;
    state.encoder().text(&sum);
    Ok(())
}

pub(in crate::resp) fn get_set(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let bound = ReturnedValueLimit::of(state);
    let before = update_row(state, request.arg(1), |before, _| {
        let new = ValueChange::Replace(request.arg(2).to_vec(), None);
        Ok(bound.change_unless_too_long(before, new))
    })??;
    append_previous(state, "GETSET", before);
    Ok(())
}

pub(in crate::resp) fn get_del(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let bound = ReturnedValueLimit::of(state);
    let before = update_row(state, request.arg(1), |before, _| {
        Ok(bound.change_unless_too_long(before, ValueChange::Remove))
    })??;
    append_previous(state, "GETDEL", before);
    Ok(())
}

/// Executes SETEX and PSETEX, with the equivalent option of SET.
pub(in crate::resp) fn set_ex(
    state: &mut ConnectionState,
    request: Request<'_>,
    name: &str,
    option: &[u8],
) -> Result<(), NoReply> {
    let expiry = ensure_positive(expiry(option, parse_integer(request.arg(2))?), name)?;
    write(state, |engine, now| {
        let at = deadline(expiry, now, name)?;
        let waits_for = put_text(engine, request.arg(1), request.arg(3), Some(at), now)?;
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}

/// Returns the key of a write that returns the previous value.
pub(super) fn returned_value_key(command: Command<'_>) -> Option<&[u8]> {
    let returns_value = match command.id() {
        Id::GetSet | Id::GetDel | Id::GetEx => true,
        Id::Set => command
            .args()
            .skip(3)
            .any(|word| word.eq_ignore_ascii_case(b"GET")),
        _ => false,
    };
    returns_value.then(|| command.arg(1))
}

/// The length limit of a value that a write returns.
pub(super) struct ReturnedValueLimit {
    limits: Limits,
    reply_len: usize,
    /// In a transaction, all commands are executed, and an error replaces a reply that is too long.
    in_transaction: bool,
}

impl ReturnedValueLimit {
    pub fn of(state: &ConnectionState) -> ReturnedValueLimit {
        ReturnedValueLimit {
            limits: state.core.clients.limits,
            reply_len: state.output.len(),
            in_transaction: state.core.tables.in_transaction(),
        }
    }

    /// Rejects a reply that is too long, before anything is changed.
    pub fn refuse_long(&self, value: Option<&[u8]>) -> Result<(), Refusal> {
        let bytes = value.map_or(0, <[u8]>::len);
        if self.in_transaction || self.limits.admits(self.reply_len, bytes) {
            Ok(())
        } else {
            Err(self.limits.reply_too_long())
        }
    }

    /// Returns the change together with the previous value, or no change if that value is too long to return.
    fn change_unless_too_long(
        &self,
        before: Option<Vec<u8>>,
        change: ValueChange,
    ) -> (PreviousValue, ValueChange) {
        match self.refuse_long(before.as_deref()) {
            Ok(()) => (Ok(before), change),
            Err(refusal) => (Err(refusal), ValueChange::Keep),
        }
    }
}

/// The previous value of a row, or the error to return instead.
type PreviousValue = Result<Option<Vec<u8>>, Refusal>;

/// Appends the previous value of a row that `command` has changed.
pub(super) fn append_previous(state: &mut ConnectionState, command: &str, value: Option<Vec<u8>>) {
    let limits = state.core.clients.limits;
    match value {
        Some(value) if limits.fits(state.output.len(), value.len()) => {
            state.encoder().bulk(&value);
        }
        Some(value) => state.refuse(limits.executed_reply_too_long(command, value.len())),
        None => state.encoder().null(),
    }
}

/// Applies the change that `decide` computes from the row's value and the time, atomically.
fn update_row<T>(
    state: &mut ConnectionState,
    key: &[u8],
    decide: impl FnOnce(Option<Vec<u8>>, u64) -> Result<(T, ValueChange), Refusal>,
) -> Result<T, NoReply> {
    let row = &*text_row(key);
    write(state, |engine, now| {
        // A computed row is rejected before it is computed.
        engine.refuse_computed_row(row).map_err(refusal)?;
        if has_object(engine, key, now) {
            return Err(wrong_type().into());
        }
        let mut before = None;
        get(engine, row, now, |value| before = Some(value.to_vec()))?;
        let exists = before.is_some();
        let (result, change) = decide(before, now)?;
        let waits_for = match change {
            ValueChange::Keep => None,
            ValueChange::Remove => engine.remove(row, now).map_err(refusal)?.waits_for,
            ValueChange::SetExpiry(at) => {
                if exists {
                    engine.expire(row, at, now).map_err(refusal)?;
                }
                None
            }
            ValueChange::ReplaceValue(value) => {
                let at = engine.expires_at(row, now);
                put_with_expiry(engine, row, &value, at, now)?
            }
            ValueChange::Replace(value, at) => put_with_expiry(engine, row, &value, at, now)?,
        };
        Ok((result, waits_for))
    })
}

/// Rejects a value that is longer than one argument may be.
fn check_value_size(len: usize, (max, setting): (usize, &str)) -> Result<(), Refusal> {
    if len <= max {
        return Ok(());
    }
    let message = format!("string exceeds maximum allowed size ({setting}, {max} bytes)");
    Err((Code::BadRequest, message))
}

pub(in crate::resp) fn set_range(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let (offset, part) = (parse_integer(request.arg(2))?, request.arg(3));
    let offset = usize::try_from(offset).map_err(|_| {
        let message = "offset is out of range".to_owned();
        (Code::BadRequest, message)
    })?;
    let max = state.core.argument_bytes_max();
    let extended_max = state.core.shared.config.server.max_setrange_bytes.0;
    let extended_max = usize::try_from(extended_max).unwrap_or(usize::MAX);
    let len = update_row(state, request.arg(1), |before, _| {
        let mut value = before.unwrap_or_default();
        if part.is_empty() {
            return Ok((value.len(), ValueChange::Keep));
        }
        let end = offset.saturating_add(part.len());
        check_value_size(end, max)?;
        if end > value.len().max(extended_max) {
            let message = format!(
                "SETRANGE would lengthen the value to {end} bytes, and server.max_setrange_bytes allows {extended_max}: raise the setting, or send the value with SET"
            );
            return Err((Code::BadRequest, message));
        }
        value.resize(value.len().max(end), 0);
        value[offset..end].copy_from_slice(part);
        Ok((value.len(), ValueChange::ReplaceValue(value)))
    })?;
    state.encoder().count(len as u64);
    Ok(())
}

pub(in crate::resp) fn get_ex(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let option = request.get(2).map(<[u8]>::to_ascii_uppercase);
    let expiry = match (option.as_deref(), request.len()) {
        (None, _) | (Some(b"PERSIST"), 3) => None,
        (Some(word @ (b"EX" | b"PX" | b"EXAT" | b"PXAT")), 4) => Some(ensure_positive(
            expiry(word, parse_integer(request.arg(3))?),
            "getex",
        )?),
        _ => return Err(syntax_error().into()),
    };
    let is_plain = option.is_none();
    let bound = ReturnedValueLimit::of(state);
    let before = update_row(state, request.arg(1), |before, now| {
        let change = match expiry {
            None if is_plain => ValueChange::Keep,
            None => ValueChange::SetExpiry(None),
            Some(expiry) => match deadline(expiry, now, "getex")? {
                at if at <= now => ValueChange::Remove,
                at => ValueChange::SetExpiry(Some(at)),
            },
        };
        Ok(bound.change_unless_too_long(before, change))
    })??;
    append_previous(state, "GETEX", before);
    Ok(())
}
