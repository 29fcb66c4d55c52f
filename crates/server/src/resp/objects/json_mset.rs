//! JSON.MSET: sets values in several documents atomically.

use std::collections::BTreeMap;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::document::SetRule;
use larder_space::object::{Object, Path};
use larder_types::object_row;
use serde_json::Value;

use super::super::state::ConnectionState;
use super::access::{corrupted_object, put};
use super::json::{parse_json, parse_path, set_in};
use crate::tables::objects::{check_can_hold_object, read_object};
use crate::tables::{NoReply, Refusal};

/// One of the values to set.
pub(in crate::resp) struct PathAssignment<'a> {
    pub key: &'a [u8],
    path: Path,
    value: Value,
    bytes: usize,
}

/// Parses the arguments of JSON.MSET.
///
/// # Errors
/// Arguments are missing, or a value or path is invalid.
pub(in crate::resp) fn parse_assignments(
    request: Request<'_>,
) -> Result<Vec<PathAssignment<'_>>, Refusal> {
    if request.len() % 3 != 1 {
        let message = "wrong number of arguments for 'json.mset' command".to_owned();
        return Err((Code::WrongArity, message));
    }
    let assignment = |at: usize| {
        Ok(PathAssignment {
            key: request.arg(at),
            path: parse_path(Some(request.arg(at + 1)))?,
            value: parse_json(request.arg(at + 2))?,
            bytes: request.arg(at + 2).len(),
        })
    };
    (1..request.len()).step_by(3).map(assignment).collect()
}

/// Returns the new documents by key, given the current ones. Unchanged documents are omitted.
///
/// # Errors
/// A value cannot be set.
pub(in crate::resp) fn assign_all<'a>(
    assignments: Vec<PathAssignment<'a>>,
    before: &BTreeMap<&'a [u8], Object>,
) -> Result<BTreeMap<&'a [u8], Object>, Refusal> {
    let mut after: BTreeMap<&[u8], Object> = BTreeMap::new();
    for assignment in assignments {
        let PathAssignment {
            key,
            path,
            value,
            bytes,
        } = assignment;
        let current = after.get(key).or_else(|| before.get(key));
        if let Some(document) = set_in(current, &path, value, bytes, SetRule::Always)? {
            after.insert(key, Object::Json(document));
        }
    }
    Ok(after)
}

pub(super) fn set_several(
    state: &mut ConnectionState,
    request: Request<'_>,
) -> Result<(), NoReply> {
    let assignments = parse_assignments(request)?;
    let tables = state.tables();
    tables.write(&mut state.gate, |engine, now| {
        let mut before = BTreeMap::new();
        for PathAssignment { key, .. } in &assignments {
            match read_object(engine, key, now, Object::decode) {
                Some(object) => drop(before.insert(*key, object.map_err(|_| corrupted_object())?)),
                None => check_can_hold_object(engine, key, now)?,
            }
        }
        let after = assign_all(assignments, &before)?;
        let encoded: Vec<_> = after.iter().map(|(key, it)| (*key, it.encode())).collect();
        let mut waits_for = None;
        for (_, bytes) in &encoded {
            super::access::check_object_size(bytes.len())?;
        }
        for (key, bytes) in encoded {
            waits_for = put(engine, &object_row(key), &bytes, now)?.max(waits_for);
        }
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}
