//! JSON.MSET: sets values in several documents atomically.

use std::collections::BTreeMap;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::document::SetRule;
use larder_space::object::{Object, Path};
use larder_types::object_row;
use serde_json::Value;

use super::super::state::State;
use super::access::{broken, put};
use super::json::{json, path, set_in};
use crate::tables::objects::{read_object, refuse_no_object};
use crate::tables::{Refusal, Unanswered};

/// One of the values to set.
pub(in crate::resp) struct Setting<'a> {
    pub key: &'a [u8],
    path: Path,
    value: Value,
    bytes: usize,
}

/// Parses the arguments of JSON.MSET.
///
/// # Errors
/// Arguments are missing, or a value or path is invalid.
pub(in crate::resp) fn settings(request: Request<'_>) -> Result<Vec<Setting<'_>>, Refusal> {
    if request.len() % 3 != 1 {
        let message = "wrong number of arguments for 'json.mset' command".to_owned();
        return Err((Code::WrongArity, message));
    }
    let setting = |at: usize| {
        Ok(Setting {
            key: request.arg(at),
            path: path(Some(request.arg(at + 1)))?,
            value: json(request.arg(at + 2))?,
            bytes: request.arg(at + 2).len(),
        })
    };
    (1..request.len()).step_by(3).map(setting).collect()
}

/// Returns the new documents by key, given the current ones. Unchanged documents are omitted.
///
/// # Errors
/// A value cannot be set.
pub(in crate::resp) fn set_all<'a>(
    settings: Vec<Setting<'a>>,
    before: &BTreeMap<&'a [u8], Object>,
) -> Result<BTreeMap<&'a [u8], Object>, Refusal> {
    let mut after: BTreeMap<&[u8], Object> = BTreeMap::new();
    for setting in settings {
        let Setting {
            key,
            path,
            value,
            bytes,
        } = setting;
        let there = after.get(key).or_else(|| before.get(key));
        if let Some(document) = set_in(there, &path, value, bytes, SetRule::Always)? {
            after.insert(key, Object::Json(document));
        }
    }
    Ok(after)
}

pub(super) fn set_several(state: &mut State, request: Request<'_>) -> Result<(), Unanswered> {
    let settings = settings(request)?;
    let tables = state.tables();
    tables.write(&mut state.gate, |engine, now| {
        let mut before = BTreeMap::new();
        for Setting { key, .. } in &settings {
            match read_object(engine, key, now, Object::decode) {
                Some(object) => drop(before.insert(*key, object.map_err(|_| broken())?)),
                None => refuse_no_object(engine, key, now)?,
            }
        }
        let after = set_all(settings, &before)?;
        let encoded: Vec<_> = after.iter().map(|(key, it)| (*key, it.encode())).collect();
        let mut waits_for = None;
        for (_, bytes) in &encoded {
            super::access::refuse_large(bytes.len())?;
        }
        for (key, bytes) in encoded {
            waits_for = put(engine, &object_row(key), &bytes, now)?.max(waits_for);
        }
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}
