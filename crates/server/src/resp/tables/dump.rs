//! DUMP and RESTORE of texts and hashes in Redis's format, and of JSON documents ([`larder_protocol::dump`]).

use std::collections::HashSet;

use larder_join::Engine;
use larder_protocol::dump::{DumpError, DumpLimits, DumpValue, DumpedField};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::hash::Field;
use larder_space::object::{Document, Hash, Object};
use larder_types::{VALUE_BYTES_MAX, text_row};

use super::super::objects::{OBJECT_BYTES_MAX, check_object_size, corrupted_object};
use super::super::state::ConnectionState;
use super::rows::{get, key_exists, put_object, put_text, remove_value, write};
use super::{parse_integer, syntax_error};
use crate::tables::{NoReply, Refusal, read_object};

fn bad_request(message: &str) -> Refusal {
    (Code::BadRequest, message.to_owned())
}

pub(in crate::resp) fn dump(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let tables = state.tables();
    let dumped = tables.read(|engine, now| -> Result<Option<DumpValue>, NoReply> {
        if let Some(object) = read_object(engine, key, now, Object::decode) {
            return match object.map_err(|_| corrupted_object())? {
                Object::Hash(hash) => Ok(Some(to_dumped_hash(hash))),
                Object::Json(document) => Ok(Some(DumpValue::Json(document.print()))),
            };
        }
        let mut text = None;
        get(engine, &text_row(key), now, |value| {
            text = Some(DumpValue::Text(value.to_vec()));
        })?;
        Ok(text)
    })?;
    let Some(dumped) = dumped else {
        state.encoder().null();
        return Ok(());
    };
    let payload = dumped.encode();
    let limits = state.core.clients.limits;
    if !limits.admits(state.output.len(), payload.len()) {
        return Err(limits.reply_too_long().into());
    }
    state.encoder().bulk(&payload);
    Ok(())
}

fn to_dumped_hash(hash: Hash) -> DumpValue {
    let fields = hash.fields.into_iter();
    DumpValue::Hash(
        fields
            .map(|field| DumpedField {
                name: field.name,
                value: field.value,
                expires_at_ms: field.expires_at_ms,
            })
            .collect(),
    )
}

/// The options of RESTORE, with the TTL.
struct RestoreOptions {
    replaces: bool,
    /// TTL in milliseconds, or with `is_absolute` the expiry time since 1970. 0 means no expiry.
    ttl: u64,
    is_absolute: bool,
}

impl RestoreOptions {
    fn parse(request: Request<'_>) -> Result<RestoreOptions, Refusal> {
        let ttl = u64::try_from(parse_integer(request.arg(2))?);
        let mut options = RestoreOptions {
            replaces: false,
            ttl: ttl.map_err(|_| bad_request("Invalid TTL value, must be >= 0"))?,
            is_absolute: false,
        };
        let mut at = 4;
        while let Some(option) = request.get(at) {
            at += 1;
            match option.to_ascii_uppercase().as_slice() {
                b"REPLACE" => options.replaces = true,
                b"ABSTTL" => options.is_absolute = true,
                // Accepted, but not stored.
                b"IDLETIME" | b"FREQ" => {
                    let value = parse_integer(request.get(at).ok_or_else(syntax_error)?)?;
                    if value < 0 {
                        return Err(bad_request("Invalid IDLETIME or FREQ value, must be >= 0"));
                    }
                    at += 1;
                }
                _ => return Err(syntax_error()),
            }
        }
        Ok(options)
    }

    fn deadline(&self, now: u64) -> Option<u64> {
        match (self.ttl, self.is_absolute) {
            (0, _) => None,
            (at, true) => Some(at),
            (after, false) => Some(now.saturating_add(after).min(i64::MAX as u64)),
        }
    }
}

pub(in crate::resp) fn restore(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let options = RestoreOptions::parse(request)?;
    let limits = DumpLimits {
        text_bytes: VALUE_BYTES_MAX as usize,
        object_bytes: OBJECT_BYTES_MAX,
    };
    let dumped = DumpValue::decode(request.arg(3), limits)
        .map_err(|error| bad_request(&error.to_string()))?;
    write(state, |engine, now| {
        if !options.replaces && key_exists(engine, key, now)? {
            let message = "Target key name already exists.".to_owned();
            return Err((Code::KeyExists, message).into());
        }
        let deadline = options.deadline(now);
        if deadline.is_some_and(|at| at <= now) {
            return Ok(((), remove_value(engine, key, now)?.1));
        }
        let waits_for = match &dumped {
            DumpValue::Text(text) => put_text(engine, key, text, deadline, now)?,
            DumpValue::Hash(fields) => match unexpired_hash(fields, now)? {
                hash if hash.fields.is_empty() => remove_value(engine, key, now)?.1,
                hash => replace_with_object(engine, key, &Object::Hash(hash), deadline, now)?,
            },
            DumpValue::Json(text) => {
                let document = Document::parse(text);
                let document =
                    document.map_err(|_| bad_request(&DumpError::Malformed.to_string()))?;
                replace_with_object(engine, key, &Object::Json(document), deadline, now)?
            }
        };
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}

/// Returns a hash of the fields that have not expired.
///
/// # Errors
/// Two fields have the same name.
fn unexpired_hash(fields: &[DumpedField], now: u64) -> Result<Hash, Refusal> {
    let mut names = HashSet::new();
    if !fields.iter().all(|field| names.insert(&field.name)) {
        return Err(bad_request(&DumpError::Malformed.to_string()));
    }
    let unexpired = fields
        .iter()
        .filter(|field| field.expires_at_ms.is_none_or(|at| at > now));
    Ok(Hash {
        fields: unexpired
            .map(|field| Field {
                name: field.name.clone(),
                value: field.value.clone(),
                expires_at_ms: field.expires_at_ms,
            })
            .collect(),
    })
}

/// Replaces the value of a key with an object.
fn replace_with_object(
    engine: &mut Engine,
    key: &[u8],
    object: &Object,
    deadline: Option<u64>,
    now: u64,
) -> Result<Option<u64>, NoReply> {
    let bytes = object.encode();
    check_object_size(bytes.len())?;
    put_object(engine, key, &bytes, deadline, now)
}
