//! Commands on single rows, as Redis's users know them.

use larder_join::{Engine, Error};
use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;

use super::super::reads::{range_of, show};
use super::super::session::State;
use super::{keys, number, strings, syntax};
use crate::tables::{Refusal, Tables, refusal};

pub(super) fn execute(state: &mut State, id: Id, request: Request<'_>) -> Result<(), Refusal> {
    match id {
        Id::Set => set(state, request),
        Id::SetNx => {
            let written = write(state, |engine, now| {
                let written = engine.put_if_absent(request.arg(1), request.arg(2), now);
                let written = written.map_err(refusal)?;
                Ok((written.rows, written.waits_for))
            })?;
            state.encoder().count(written);
            Ok(())
        }
        Id::MSet => {
            keys::mset(state, "mset", request, false)?;
            state.encoder().ok();
            Ok(())
        }
        Id::MSetNx => {
            let put = keys::mset(state, "msetnx", request, true)?;
            state.encoder().count(u64::from(put));
            Ok(())
        }
        Id::Rename | Id::RenameNx | Id::Copy => keys::copy(state, id, request),
        Id::Append
        | Id::GetDel
        | Id::GetEx
        | Id::GetSet
        | Id::IncrByFloat
        | Id::PSetEx
        | Id::SetEx
        | Id::SetRange => strings::execute(state, id, request),
        Id::Del | Id::Unlink => del(state, request),
        Id::Incr => increment(state, request.arg(1), Some(1)),
        Id::Decr => increment(state, request.arg(1), Some(-1)),
        Id::IncrBy => increment(state, request.arg(1), Some(number(request.arg(2))?)),
        Id::DecrBy => increment(state, request.arg(1), number(request.arg(2))?.checked_neg()),
        Id::Expire => expire(state, request, "expire", (1000, true)),
        Id::PExpire => expire(state, request, "pexpire", (1, true)),
        Id::ExpireAt => expire(state, request, "expireat", (1000, false)),
        Id::PExpireAt => expire(state, request, "pexpireat", (1, false)),
        Id::Persist => {
            let persisted = write(state, |engine, now| {
                let was = engine.expires_at(request.arg(1), now).is_some();
                if was {
                    engine.expire(request.arg(1), None, now).map_err(refusal)?;
                }
                Ok((was, None))
            })?;
            state.encoder().count(u64::from(persisted));
            Ok(())
        }
        Id::Ttl => ttl(state, request.arg(1), 1000),
        Id::PTtl => ttl(state, request.arg(1), 1),
        Id::ExpireTime => expire_time(state, request.arg(1), 1000),
        Id::PExpireTime => expire_time(state, request.arg(1), 1),
        _ => read(state, id, request),
    }
}

pub(super) fn write<T>(
    state: &mut State,
    change: impl FnOnce(&mut Engine, u64) -> Result<(T, Option<u64>), Refusal>,
) -> Result<T, Refusal> {
    let tables = state.tables();
    tables.write(&mut state.gate, change)
}

/// Hands `each` the value of a row; says whether there is one.
pub(super) fn get(
    tables: &Tables,
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<bool, Refusal> {
    let mut found = false;
    let outcome = engine.get(key, now, &mut |value| {
        found = true;
        each(value);
    });
    tables.complete(outcome)?;
    Ok(found)
}

/// What was found at a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Row,
    Nothing,
    /// A row that does not add up.
    NoValue,
}

/// As [`get`], among other rows: one that does not add up has no value.
fn get_among(
    tables: &Tables,
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    mut each: impl FnMut(&[u8]),
) -> Result<Found, Refusal> {
    let mut found = Found::Nothing;
    let outcome = engine.get(key, now, &mut |value| {
        found = Found::Row;
        each(value);
    });
    match outcome {
        Err(Error::NotANumber { .. }) => Ok(Found::NoValue),
        outcome => tables.complete(outcome).map(|()| found),
    }
}

fn read(state: &mut State, id: Id, request: Request<'_>) -> Result<(), Refusal> {
    let tables = state.tables();
    let mark = state.output.mark();
    let keys = match id {
        Id::MGet | Id::Exists | Id::Touch => 1..request.len(),
        Id::Memory => 2..3,
        _ => 1..2,
    };
    let part = match id {
        Id::GetRange | Id::SubStr => Some((number(request.arg(2))?, number(request.arg(3))?)),
        _ => None,
    };
    let asked = keys.len() as u64;
    let limits = state.core.clients.limits;
    let (output, proto) = (&mut state.output, state.proto);
    let absent = tables.read(|engine, now| -> Result<u64, Refusal> {
        if id == Id::MGet {
            output.encoder(proto).array(keys.len());
        }
        let mut absent = 0;
        for key in keys.clone().map(|at| request.arg(at)) {
            if output.len() > limits.answer() {
                return Err(limits.too_long());
            }
            let each = |value: &[u8]| {
                let mut encoder = output.encoder(proto);
                match id {
                    Id::Exists | Id::Touch => {}
                    Id::StrLen => encoder.count(value.len() as u64),
                    Id::Memory => encoder.count((key.len() + value.len()) as u64),
                    Id::Type => encoder.simple("string"),
                    Id::GetRange | Id::SubStr => {
                        let (start, end) = part.unwrap_or((0, -1));
                        encoder.bulk(&value[range_of(start, end, value.len())]);
                    }
                    _ => encoder.bulk(value),
                }
            };
            let found = match id {
                Id::MGet | Id::Exists | Id::Touch => get_among(&tables, engine, key, now, each)?,
                _ if get(&tables, engine, key, now, each)? => Found::Row,
                _ => Found::Nothing,
            };
            if found != Found::Row {
                absent += 1;
                if matches!(id, Id::Get | Id::MGet)
                    && found == Found::Nothing
                    && let Some(otherwise) = engine.otherwise(key)
                {
                    output.encoder(proto).bulk(otherwise);
                    continue;
                }
                let mut encoder = output.encoder(proto);
                match id {
                    Id::Exists | Id::Touch => {}
                    Id::StrLen => encoder.integer(0),
                    Id::Type => encoder.simple("none"),
                    Id::GetRange | Id::SubStr => encoder.bulk(b""),
                    _ => encoder.null(),
                }
            }
        }
        Ok(absent)
    });
    match absent {
        Ok(absent) => {
            if matches!(id, Id::Exists | Id::Touch) {
                state.encoder().count(asked - absent);
            }
            state.keys = (asked, absent);
            Ok(())
        }
        Err(refusal) => {
            state.output.rewind(mark);
            Err(refusal)
        }
    }
}

/// What SET was told beside the value.
#[derive(Default)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep_ttl: bool,
    /// The time, its unit in milliseconds, and whether it counts from now.
    expiry: Option<(i64, i64, bool)>,
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

/// What EX, PX, EXAT and PXAT mean: the time, its unit in milliseconds, and whether it counts from now.
pub(super) fn expiry(option: &[u8], time: i64) -> (i64, i64, bool) {
    let unit = if option[0] == b'P' { 1 } else { 1000 };
    (time, unit, !option.ends_with(b"AT"))
}

pub(super) fn positive(
    expiry: (i64, i64, bool),
    command: &str,
) -> Result<(i64, i64, bool), Refusal> {
    match expiry.0 {
        1.. => Ok(expiry),
        _ => Err(invalid_expire(command)),
    }
}

fn invalid_expire(command: &str) -> Refusal {
    let message = format!("invalid expire time in '{command}' command");
    (Code::BadRequest, message)
}

fn set(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
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
    let tables = state.tables();
    let (put, before) = write(state, |engine, now| {
        let mut before = None;
        let deadline = match options.expiry {
            None if options.keep_ttl => engine.expires_at(key, now),
            None => None,
            Some(expiry) => Some(deadline(expiry, now, "set")?),
        };
        if options.get || options.if_absent || options.if_present {
            get(&tables, engine, key, now, |value| {
                before = Some(value.to_vec())
            })?;
        }
        if (options.if_absent && before.is_some()) || (options.if_present && before.is_none()) {
            return Ok(((false, before), None));
        }
        let written = engine.put(key, value, now).map_err(refusal)?;
        if deadline.is_some() {
            engine.expire(key, deadline, now).map_err(refusal)?;
        }
        Ok(((true, before), written.waits_for))
    })?;
    let mut encoder = state.encoder();
    match before {
        Some(before) if options.get => encoder.bulk(&before),
        _ if options.get || !put => encoder.null(),
        _ => encoder.ok(),
    }
    Ok(())
}

pub(super) fn deadline(
    (time, unit, from_now): (i64, i64, bool),
    now: u64,
    command: &str,
) -> Result<u64, Refusal> {
    let base = if from_now { now as i64 } else { 0 };
    let at = time
        .checked_mul(unit)
        .and_then(|time| time.checked_add(base));
    let at = at.ok_or_else(|| invalid_expire(command))?;
    Ok(u64::try_from(at).unwrap_or(0))
}

fn del(state: &mut State, request: Request<'_>) -> Result<(), Refusal> {
    let mut removed = 0;
    for key in request.args().skip(1) {
        removed += write(state, |engine, now| {
            let written = engine.remove(key, now).map_err(refusal)?;
            Ok((written.rows, written.waits_for))
        })?;
    }
    state.encoder().count(removed);
    Ok(())
}

fn increment(state: &mut State, key: &[u8], by: Option<i64>) -> Result<(), Refusal> {
    let by = by.ok_or_else(|| (Code::BadRequest, "decrement would overflow".to_owned()))?;
    let sum = write(state, |engine, now| {
        let (sum, written) = engine.increment(key, by, now).map_err(refusal)?;
        Ok((sum, written.waits_for))
    })?;
    state.encoder().integer(sum);
    Ok(())
}

/// When EXPIRE and its kin do nothing.
#[derive(Default)]
struct ExpireOptions {
    if_none: bool,
    if_any: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireOptions {
    fn parse(request: Request<'_>) -> Result<ExpireOptions, Refusal> {
        let mut options = ExpireOptions::default();
        for option in request.args().skip(3) {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => options.if_none = true,
                b"XX" => options.if_any = true,
                b"GT" => options.if_later = true,
                b"LT" => options.if_sooner = true,
                _ => {
                    let message = format!("Unsupported option {}", show(option));
                    return Err((Code::BadRequest, message));
                }
            }
        }
        let with = options.if_any || options.if_later || options.if_sooner;
        let refused = match () {
            () if options.if_none && with => "NX and XX, GT or LT",
            () if options.if_later && options.if_sooner => "GT and LT",
            () => return Ok(options),
        };
        let message = format!("{refused} options at the same time are not compatible");
        Err((Code::BadRequest, message))
    }

    /// Whether a row that goes at `before`, or never, is to go at `at`.
    fn hold(&self, before: Option<u64>, at: u64) -> bool {
        !(self.if_none && before.is_some()
            || self.if_any && before.is_none()
            || self.if_later && before.is_none_or(|before| at <= before)
            || self.if_sooner && before.is_some_and(|before| at >= before))
    }
}

/// EXPIRE and its kin, whose time is of a unit in milliseconds and counts from now or from 1970.
fn expire(
    state: &mut State,
    request: Request<'_>,
    command: &str,
    (unit, from_now): (i64, bool),
) -> Result<(), Refusal> {
    let key = request.arg(1);
    let options = ExpireOptions::parse(request)?;
    let time = number(request.arg(2))?;
    let set = write(state, |engine, now| {
        let at = deadline((time, unit, from_now), now, command)?;
        if !options.hold(engine.expires_at(key, now), at) {
            return Ok((false, None));
        }
        if at <= now {
            let written = engine.remove(key, now).map_err(refusal)?;
            return Ok((written.rows > 0, written.waits_for));
        }
        Ok((engine.expire(key, Some(at), now).map_err(refusal)?, None))
    })?;
    state.encoder().count(u64::from(set));
    Ok(())
}

fn ttl(state: &mut State, key: &[u8], unit: u64) -> Result<(), Refusal> {
    // Rounded as Redis rounds.
    answer_time(state, key, |at, now| {
        (at.saturating_sub(now) + unit / 2) / unit
    })
}

fn expire_time(state: &mut State, key: &[u8], unit: u64) -> Result<(), Refusal> {
    answer_time(state, key, |at, _| (at + unit / 2) / unit)
}

/// Answers a row's time to go, or -1 if it stays, or -2 if there is none.
fn answer_time(
    state: &mut State,
    key: &[u8],
    shown: impl FnOnce(u64, u64) -> u64,
) -> Result<(), Refusal> {
    let tables = state.tables();
    let time = tables.read(|engine, now| -> Result<i64, Refusal> {
        if let Some(at) = engine.expires_at(key, now) {
            return Ok(shown(at, now) as i64);
        }
        Ok(if get(&tables, engine, key, now, |_| {})? {
            -1
        } else {
            -2
        })
    })?;
    state.encoder().integer(time);
    Ok(())
}
