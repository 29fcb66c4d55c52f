//! DUMP and RESTORE of texts and hashes in Redis's format, and of JSON documents ([`larder_protocol::dump`]).

use std::collections::HashSet;

use larder_join::Engine;
use larder_protocol::dump::{DumpError, DumpLimits, Dumped, DumpedField};
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::hash::Field;
use larder_space::object::{Document, Hash, Object};
use larder_types::{VALUE_BYTES_MAX, text_row};

use super::super::objects::{broken, refuse_large};
use super::super::state::State;
use super::rows::{get, is_there, put_object, put_text, remove_value, write};
use super::{number, syntax};
use crate::tables::objects::{OBJECT_BYTES_MAX, read_object};
use crate::tables::{Refusal, Unanswered};

fn bad(message: &str) -> Refusal {
    (Code::BadRequest, message.to_owned())
}

pub(super) fn dump(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let key = request.arg(1);
    let tables = state.tables();
    let dumped = tables.read(|engine, now| -> Result<Option<Dumped>, Unanswered> {
        if let Some(object) = read_object(engine, key, now, Object::decode) {
            return match object.map_err(|_| broken())? {
                Object::Hash(hash) => Ok(Some(dumped_hash(hash))),
                Object::Json(document) => Ok(Some(Dumped::Json(document.print()))),
            };
        }
        let mut text = None;
        get(engine, &text_row(key), now, |value| {
            text = Some(Dumped::Text(value.to_vec()));
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
        return Err(limits.too_long().into());
    }
    state.encoder().bulk(&payload);
    Ok(())
}

fn dumped_hash(hash: Hash) -> Dumped {
    let fields = hash.fields.into_iter();
    Dumped::Hash(
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
struct Restoring {
    replaces: bool,
    /// TTL in milliseconds, or with `is_absolute` the expiry time since 1970. 0 means no expiry.
    ttl: u64,
    is_absolute: bool,
}

impl Restoring {
    fn parse(request: Request<'_>) -> Result<Restoring, Refusal> {
        let ttl = u64::try_from(number(request.arg(2))?);
        let mut restoring = Restoring {
            replaces: false,
            ttl: ttl.map_err(|_| bad("Invalid TTL value, must be >= 0"))?,
            is_absolute: false,
        };
        let mut at = 4;
        while let Some(option) = request.get(at) {
            at += 1;
            match option.to_ascii_uppercase().as_slice() {
                b"REPLACE" => restoring.replaces = true,
                b"ABSTTL" => restoring.is_absolute = true,
                // Accepted, but not stored.
                b"IDLETIME" | b"FREQ" => {
                    let value = number(request.get(at).ok_or_else(syntax)?)?;
                    if value < 0 {
                        return Err(bad("Invalid IDLETIME or FREQ value, must be >= 0"));
                    }
                    at += 1;
                }
                _ => return Err(syntax()),
            }
        }
        Ok(restoring)
    }

    fn deadline(&self, now: u64) -> Option<u64> {
        match (self.ttl, self.is_absolute) {
            (0, _) => None,
            (at, true) => Some(at),
            (after, false) => Some(now.saturating_add(after).min(i64::MAX as u64)),
        }
    }
}

pub(super) fn restore(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let key = request.arg(1);
    let restoring = Restoring::parse(request)?;
    let limits = DumpLimits {
        text_bytes: VALUE_BYTES_MAX as usize,
        object_bytes: OBJECT_BYTES_MAX,
    };
    let dumped = Dumped::decode(request.arg(3), limits).map_err(|error| bad(&error.to_string()))?;
    write(state, |engine, now| {
        if !restoring.replaces && is_there(engine, key, now)? {
            let message = "Target key name already exists.".to_owned();
            return Err((Code::KeyExists, message).into());
        }
        let deadline = restoring.deadline(now);
        if deadline.is_some_and(|at| at <= now) {
            return Ok(((), remove_value(engine, key, now)?.1));
        }
        let waits_for = match &dumped {
            Dumped::Text(text) => put_text(engine, key, text, deadline, now)?,
            Dumped::Hash(fields) => match unexpired(fields, now)? {
                hash if hash.fields.is_empty() => remove_value(engine, key, now)?.1,
                hash => replace_by(engine, key, &Object::Hash(hash), deadline, now)?,
            },
            Dumped::Json(text) => {
                let document = Document::parse(text);
                let document = document.map_err(|_| bad(&DumpError::Malformed.to_string()))?;
                replace_by(engine, key, &Object::Json(document), deadline, now)?
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
fn unexpired(fields: &[DumpedField], now: u64) -> Result<Hash, Refusal> {
    let mut names = HashSet::new();
    if !fields.iter().all(|field| names.insert(&field.name)) {
        return Err(bad(&DumpError::Malformed.to_string()));
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
fn replace_by(
    engine: &mut Engine,
    key: &[u8],
    object: &Object,
    deadline: Option<u64>,
    now: u64,
) -> Result<Option<u64>, Unanswered> {
    let bytes = object.encode();
    refuse_large(bytes.len())?;
    put_object(engine, key, &bytes, deadline, now)
}
