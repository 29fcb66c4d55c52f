//! The commands on hashes and their fields.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use larder_protocol::errors::Code;
use larder_protocol::resp::{Proto, Request};
use larder_space::base::number::Number;
use larder_space::object::{ChangeError, Hash, HashView, Object, ObjectKind};
use larder_types::{Random, integer, key_hash};

use super::super::state::ConnectionState;
use super::access::{BoundedReply, NewState, change, read_hash};
use crate::glob::Glob;
use crate::tables::{NoReply, Refusal};

/// Maximum product of fields and names that are compared one by one; beyond it, names are looked up in a map.
const COMPARED_MAX: usize = 4096;
/// Minimum number of fields per HSCAN reply; COUNT can raise it. Each call scans the complete hash, so small replies
/// would be inefficient.
const SCAN_FIELDS_MIN: usize = 256;
/// Maximum number of fields that HRANDFIELD draws with repetition.
const RANDOM_FIELDS_MAX: u64 = 100_000;

fn bad_request(message: &str) -> Refusal {
    (Code::BadRequest, message.to_owned())
}

fn wrong_arity(command: &str) -> Refusal {
    let message = format!("wrong number of arguments for '{command}' command");
    (Code::WrongArity, message)
}

pub(super) fn syntax_error() -> Refusal {
    (Code::Syntax, "syntax error".to_owned())
}

pub(super) fn change_refusal(error: ChangeError) -> Refusal {
    let code = match error {
        ChangeError::WrongKind => Code::WrongType,
        _ => Code::BadRequest,
    };
    (code, error.to_string())
}

/// Changes the hash of a key; an absent key counts as an empty hash.
pub(super) fn change_hash<T>(
    state: &mut ConnectionState,
    key: &[u8],
    decide: impl FnOnce(&mut Hash, u64) -> Result<(T, bool), Refusal>,
) -> Result<T, NoReply> {
    change(state, key, ObjectKind::Hash, |before, now| {
        let mut hash = match before {
            Some(Object::Hash(hash)) => hash,
            _ => Hash::default(),
        };
        let (answer, is_changed) = decide(&mut hash, now)?;
        let new_state = if is_changed {
            NewState::Replaced(Object::Hash(hash))
        } else {
            NewState::Unchanged
        };
        Ok((answer, new_state))
    })
}

/// Executes HSET, and HMSET, which returns OK.
pub fn set(
    state: &mut ConnectionState,
    request: Request<'_>,
    returns_ok: bool,
) -> Result<(), NoReply> {
    if !request.len().is_multiple_of(2) {
        let name = if returns_ok { "hmset" } else { "hset" };
        return Err(wrong_arity(name).into());
    }
    let new = change_hash(state, request.arg(1), |hash, _| {
        let pairs = (2..request.len()).step_by(2);
        let new = hash.set_all(pairs.map(|at| (request.arg(at), request.arg(at + 1))));
        Ok((new, true))
    })?;
    if returns_ok {
        state.encoder().ok()
    } else {
        state.encoder().count(new as u64)
    }
    Ok(())
}

pub fn set_if_absent(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let is_set = change_hash(state, request.arg(1), |hash, _| {
        let is_set = hash.set_if_absent(request.arg(2), request.arg(3));
        Ok((is_set, is_set))
    })?;
    state.encoder().count(u64::from(is_set));
    Ok(())
}

pub fn delete(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let removed = change_hash(state, request.arg(1), |hash, _| {
        let removed = hash.remove_all(request.args().skip(2));
        Ok((removed, removed > 0))
    })?;
    state.encoder().count(removed as u64);
    Ok(())
}

pub fn increment(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let by = integer(request.arg(3));
    let by = by.ok_or_else(|| bad_request("value is not an integer or out of range"))?;
    let sum = change_hash(state, request.arg(1), |hash, _| {
        let sum = hash.increment(request.arg(2), by).map_err(change_refusal)?;
        Ok((sum, true))
    })?;
    state.encoder().integer(sum);
    Ok(())
}

pub fn increment_float(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let by = request.arg(3);
    Number::parse(by).ok_or_else(|| bad_request("value is not a valid float"))?;
    let sum = change_hash(state, request.arg(1), |hash, _| {
        let sum = hash
            .increment_float(request.arg(2), by)
            .map_err(change_refusal)?;
        Ok((sum, true))
    })?;
    state.encoder().bulk(&sum);
    Ok(())
}

pub fn get(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        to.value(find_value(hash, request.arg(2), now))
    })
}

pub fn get_several(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        let names = request.args().skip(2);
        to.encoder().array(names.len());
        for value in find_all(hash, names, now) {
            to.value(value.map(|(value, _)| value))?;
        }
        Ok(())
    })
}

fn find_value<'a>(hash: Option<HashView<'a>>, name: &[u8], now: u64) -> Option<&'a [u8]> {
    hash?.get_at(name, now).map(|(value, _)| value)
}

/// Returns for each name the field's value and expiry time, if it exists.
pub(super) fn find_all<'a, 'n>(
    hash: Option<HashView<'a>>,
    names: impl ExactSizeIterator<Item = &'n [u8]>,
    now: u64,
) -> Vec<Option<(&'a [u8], Option<u64>)>> {
    let Some(hash) = hash else {
        return vec![None; names.len()];
    };
    if names.len().saturating_mul(hash.count()) <= COMPARED_MAX {
        return names.map(|name| hash.get_at(name, now)).collect();
    }
    let fields = hash.fields_at(now);
    let by_name: HashMap<_, _> = fields
        .map(|(name, value, at)| (name, (value, at)))
        .collect();
    names.map(|name| by_name.get(name).copied()).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldParts {
    Both,
    Names,
    Values,
}

/// Executes HGETALL, HKEYS and HVALS.
pub fn read_all(
    state: &mut ConnectionState,
    request: Request<'_>,
    parts: FieldParts,
) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        let fields: Vec<_> = hash
            .into_iter()
            .flat_map(|hash| hash.fields_at(now))
            .collect();
        match parts {
            FieldParts::Both => to.encoder().map(fields.len()),
            _ => to.encoder().array(fields.len()),
        }
        for (name, value, _) in fields {
            if parts != FieldParts::Values {
                to.bulk(name)?;
            }
            if parts != FieldParts::Names {
                to.bulk(value)?;
            }
        }
        Ok(())
    })
}

pub fn length(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        let count = hash.map_or(0, |hash| {
            if hash.expires() {
                hash.fields_at(now).count()
            } else {
                hash.count()
            }
        });
        to.encoder().count(count as u64);
        Ok(())
    })
}

pub fn exists(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        let value = find_value(hash, request.arg(2), now);
        to.encoder().count(u64::from(value.is_some()));
        Ok(())
    })
}

pub fn value_length(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    read_hash(state, request.arg(1), |hash, now, to| {
        let value = find_value(hash, request.arg(2), now);
        to.encoder().count(value.map_or(0, <[u8]>::len) as u64);
        Ok(())
    })
}

/// Executes HRANDFIELD. Without a count, it returns one field or null; with a positive count, that many distinct
/// fields; with a negative count, that many fields with repetition.
pub fn random(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let not_integer = || bad_request("value is not an integer or out of range");
    let count = match request.get(2) {
        None => None,
        Some(text) => Some(integer(text).ok_or_else(not_integer)?),
    };
    let with_values = match (request.get(3), request.len()) {
        (None, _) => false,
        (Some(word), 4) if word.eq_ignore_ascii_case(b"WITHVALUES") => true,
        _ => return Err(syntax_error().into()),
    };
    if count.is_some_and(|count| count < 0 && count.unsigned_abs() > RANDOM_FIELDS_MAX) {
        let message =
            format!("value is out of range: HRANDFIELD returns at most {RANDOM_FIELDS_MAX} fields");
        return Err((Code::BadRequest, message).into());
    }
    let mut random = Random::new(RandomState::new().build_hasher().finish());
    read_hash(state, request.arg(1), |hash, now, to| {
        let mut fields: Vec<_> = hash
            .into_iter()
            .flat_map(|hash| hash.fields_at(now))
            .collect();
        let Some(count) = count else {
            let drawn = (!fields.is_empty()).then(|| fields[random.index(fields.len())].0);
            return to.value(drawn);
        };
        if count >= 0 {
            let count =
                usize::try_from(count).map_or(fields.len(), |count| count.min(fields.len()));
            for at in 0..count {
                let other = at + random.index(fields.len() - at);
                fields.swap(at, other);
            }
            fields.truncate(count);
            return write_fields(to, fields.len(), fields.into_iter(), with_values);
        }
        let count = if fields.is_empty() {
            0
        } else {
            count.unsigned_abs() as usize
        };
        let drawn = (0..count).map(|_| fields[random.index(fields.len())]);
        write_fields(to, count, drawn, with_values)
    })
}

fn write_fields<'a>(
    to: &mut BoundedReply<'_>,
    count: usize,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8], Option<u64>)>,
    with_values: bool,
) -> Result<(), Refusal> {
    let in_pairs = with_values && to.proto() == Proto::Resp3;
    let flat = with_values && !in_pairs;
    to.encoder().array(count * if flat { 2 } else { 1 });
    for (name, value, _) in fields {
        if in_pairs {
            to.encoder().array(2);
        }
        to.bulk(name)?;
        if with_values {
            to.bulk(value)?;
        }
    }
    Ok(())
}

/// Executes HSCAN. A small hash is returned in one reply, as in Redis. Otherwise, fields are returned in the order of
/// their [places](place_of), which other changes of the hash do not affect. A field that exists during the complete
/// iteration is therefore returned exactly once.
pub fn scan(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let cursor = std::str::from_utf8(request.arg(2)).ok();
    let cursor = cursor.and_then(|text| text.parse::<u64>().ok());
    let cursor = cursor.ok_or_else(|| bad_request("invalid cursor"))?;
    let (mut pattern, mut with_values, mut count, mut at) = (None, true, SCAN_FIELDS_MIN, 3);
    while let Some(option) = request.get(at) {
        let value = request.get(at + 1).ok_or_else(syntax_error);
        match option.to_ascii_uppercase().as_slice() {
            b"NOVALUES" => {
                with_values = false;
                at += 1;
                continue;
            }
            b"MATCH" => pattern = Some(Glob::parse(value?)?),
            b"COUNT" => match integer(value?) {
                None => return Err(bad_request("value is not an integer or out of range").into()),
                Some(..1) => return Err(syntax_error().into()),
                Some(more) => count = count.max(usize::try_from(more).unwrap_or(usize::MAX)),
            },
            _ => return Err(syntax_error().into()),
        }
        at += 2;
    }
    if let Some(glob) = &pattern {
        count = count.min(glob.texts_max());
    }
    read_hash(state, request.arg(1), |hash, now, to| {
        let is_match = |name: &[u8]| pattern.as_ref().is_none_or(|glob| glob.matches(name));
        let fields = hash.into_iter().flat_map(|hash| hash.fields_at(now));
        let (next, mut fields) = next_fields(fields.collect(), cursor, count);
        fields.retain(|(name, ..)| is_match(name));
        to.encoder().array(2);
        to.bulk(next.to_string().as_bytes())?;
        to.encoder()
            .array(fields.len() * if with_values { 2 } else { 1 });
        for (name, value, _) in fields {
            to.bulk(name)?;
            if with_values {
                to.bulk(value)?;
            }
        }
        Ok(())
    })
}

/// A field's name, value and expiry time.
type Field<'a> = (&'a [u8], &'a [u8], Option<u64>);

/// Returns the next `count` fields from a cursor, and the next cursor: 0 after the last field.
fn next_fields(mut fields: Vec<Field<'_>>, cursor: u64, count: usize) -> (u64, Vec<Field<'_>>) {
    if cursor == 0 && fields.len() <= count {
        return (0, fields);
    }
    fields.retain(|(name, ..)| scan_position(name) >= cursor);
    if fields.len() <= count {
        return (0, fields);
    }
    let (_, (last, ..), _) =
        fields.select_nth_unstable_by_key(count - 1, |(name, ..)| scan_position(name));
    let last = scan_position(last);
    let before = fields.len();
    // Include all fields with the same place.
    fields.retain(|(name, ..)| scan_position(name) <= last);
    let next = if fields.len() < before { last + 1 } else { 0 };
    (next, fields)
}

/// Returns a field's position in the order of HSCAN, which is the same on every node. It is at least 1 and has 53 bits,
/// which the numbers of every client can represent.
fn scan_position(name: &[u8]) -> u64 {
    (key_hash(name) >> 12) + 1
}
