//! JSON.MSET: sets values in several documents atomically. If they are on several cores, the core of the connection
//! computes the new documents, in a pause.

use std::collections::BTreeMap;

use larder_protocol::commands::Id;
use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::document::SetRule;
use larder_space::object::{Document, Object, Path};
use larder_types::object_row;
use serde_json::Value;

use super::super::reply_decoding;
use super::super::state::ConnectionState;
use super::super::tables::{Coordinator, is_of_object};
use super::access::{check_object_size, corrupted_object, put};
use super::json::{parse_json, parse_path, set_in};
use super::rows::{check_can_hold_object, wrong_type};
use crate::tables::{NoReply, Refusal, read_object};

/// One of the values to set.
struct PathAssignment<'a> {
    key: &'a [u8],
    path: Path,
    value: Value,
    bytes: usize,
}

/// Parses the arguments of JSON.MSET.
///
/// # Errors
/// Arguments are missing, or a value or path is invalid.
fn parse_assignments(request: Request<'_>) -> Result<Vec<PathAssignment<'_>>, Refusal> {
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
fn assign_all<'a>(
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

pub fn set_several(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
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
            check_object_size(bytes.len())?;
        }
        for (key, bytes) in encoded {
            waits_for = put(engine, &object_row(key), &bytes, now)?.max(waits_for);
        }
        Ok(((), waits_for))
    })?;
    state.encoder().ok();
    Ok(())
}

impl Coordinator {
    pub(in crate::resp) async fn json_mset(
        &mut self,
        request: Request<'_>,
    ) -> Result<Vec<u8>, Refusal> {
        let paused = self.pause().await?;
        let done = self.json_mset_in_pause(request).await;
        self.resume(paused).await?;
        done
    }

    /// Reads all documents and computes the new ones before the first is put.
    async fn json_mset_in_pause(&self, request: Request<'_>) -> Result<Vec<u8>, Refusal> {
        let settings = parse_assignments(request)?;
        let mut before = BTreeMap::new();
        for setting in &settings {
            let key = setting.key;
            if before.contains_key(key) {
                continue;
            }
            match self.read_value(key).await? {
                Ok(Some(_)) => return Err(wrong_type()),
                // Returns an error for a key of a computed or mapped table.
                Ok(None) => {
                    let reply = self.execute_on_owner(Id::Del, &[key]).await?;
                    if reply.first() == Some(&b'-') {
                        return Ok(reply);
                    }
                }
                Err(error) if is_of_object(&error) => {
                    let reply = self.execute_on_owner(Id::JsonGet, &[key]).await?;
                    if reply.first() == Some(&b'-') {
                        // The key holds a hash.
                        return Ok(reply);
                    }
                    let Some(text) = reply_decoding::decode_value(&reply) else {
                        // The key has expired since then.
                        continue;
                    };
                    let document = Document::parse(text).map_err(|_| corrupted_object())?;
                    let object = Object::Json(document);
                    before.insert(key, object);
                }
                Err(error) => return Ok(error),
            }
        }
        let after = assign_all(settings, &before)?;
        for object in after.values() {
            check_object_size(object.encode().len())?;
        }
        for (key, object) in &after {
            let Object::Json(document) = object else {
                return Err(wrong_type());
            };
            let args: &[&[u8]] = &[key, b"$", &document.print()];
            let reply = self.execute_on_owner(Id::JsonSet, args).await?;
            if reply.first() == Some(&b'-') {
                return Ok(reply);
            }
        }
        Ok(self.encode(|encoder| encoder.ok()))
    }
}
