//! Functions with which commands read and change an object.

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::object::{HashView, Object, ObjectKind, ObjectView};
use larder_types::object_row;

use super::super::output::Output;
use super::super::state::ConnectionState;
use super::rows::{
    OBJECT_BYTES_MAX, check_can_hold_object, check_not_text, put_with_expiry, wrong_type,
};
use crate::clients::Limits;
use crate::tables::{NoReply, Refusal, read_object, refusal};

/// The new state of an object after a command.
pub enum NewState {
    Unchanged,
    /// A new value. A hash without fields is removed.
    Replaced(Object),
    Removed,
}

/// The reply of a command, limited in size by the client's memory limit.
pub struct BoundedReply<'a> {
    output: &'a mut Output,
    proto: Proto,
    limits: Limits,
}

impl BoundedReply<'_> {
    pub fn encoder(&mut self) -> Encoder<'_> {
        self.output.encoder(self.proto)
    }

    pub fn proto(&self) -> Proto {
        self.proto
    }

    /// # Errors
    /// The reply would be too long.
    pub fn bulk(&mut self, value: &[u8]) -> Result<(), Refusal> {
        if self.limits.admits(self.output.len(), value.len()) {
            self.encoder().bulk(value)
        } else {
            return Err(self.limits.reply_too_long());
        }
        Ok(())
    }

    /// As [`Answer::bulk`], with null for `None`.
    ///
    /// # Errors
    /// The reply would be too long.
    pub fn value(&mut self, value: Option<&[u8]>) -> Result<(), Refusal> {
        match value {
            Some(value) => self.bulk(value),
            None => {
                self.encoder().null();
                Ok(())
            }
        }
    }
}

pub fn corrupted_object() -> Refusal {
    let message =
        "the stored object is corrupted, or a newer version of larder wrote it".to_owned();
    (Code::Corrupted, message)
}

/// Reads an object in its stored form, and calls `answer` to append the reply. If `answer` fails, its output is
/// discarded.
pub fn read(
    state: &mut ConnectionState,
    key: &[u8],
    answer: impl FnOnce(Option<ObjectView<'_>>, u64, &mut BoundedReply<'_>) -> Result<(), Refusal>,
) -> Result<(), NoReply> {
    let tables = state.tables();
    let mark = state.output.mark();
    let limits = state.core.clients.limits;
    let mut reply = BoundedReply {
        output: &mut state.output,
        proto: state.proto,
        limits,
    };
    tables.spaces().record_get(key);
    let done = tables.read(|engine, now| -> Result<(), Refusal> {
        let mut answer = Some(answer);
        let read = read_object(engine, key, now, |bytes| {
            let view = ObjectView::new(bytes).map_err(|_| corrupted_object())?;
            match answer.take() {
                Some(answer) => answer(Some(view), now, &mut reply),
                None => Ok(()),
            }
        });
        match (read, answer) {
            (Some(done), _) => done,
            (None, Some(answer)) => {
                check_not_text(engine, key, now)?;
                answer(None, now, &mut reply)
            }
            (None, None) => Ok(()),
        }
    });
    if done.is_err() {
        state.output.rewind(mark);
    }
    Ok(done?)
}

/// As [`read`], for a hash.
pub fn read_hash(
    state: &mut ConnectionState,
    key: &[u8],
    answer: impl FnOnce(Option<HashView<'_>>, u64, &mut BoundedReply<'_>) -> Result<(), Refusal>,
) -> Result<(), NoReply> {
    read(state, key, |view, now, to| match view {
        None => answer(None, now, to),
        Some(ObjectView::Hash(hash)) => answer(Some(hash), now, to),
        Some(ObjectView::Json(_)) => Err(wrong_type()),
    })
}

/// Changes or creates an object of the given kind atomically. `decide` receives the current object and time, and
/// returns the new state. The object's TTL is unchanged.
pub fn change<T>(
    state: &mut ConnectionState,
    key: &[u8],
    kind: ObjectKind,
    decide: impl FnOnce(Option<Object>, u64) -> Result<(T, NewState), Refusal>,
) -> Result<T, NoReply> {
    let tables = state.tables();
    tables.write(&mut state.gate, |engine, now| {
        let before = read_object(engine, key, now, Object::decode);
        let before = match before {
            Some(Ok(object)) if object.kind() != kind => return Err(wrong_type().into()),
            Some(object) => Some(object.map_err(|_| corrupted_object())?),
            None => {
                check_can_hold_object(engine, key, now)?;
                None
            }
        };
        let existed = before.is_some();
        let (answer, new_state) = decide(before, now)?;
        let row = object_row(key);
        let waits_for = match new_state {
            NewState::Unchanged => None,
            NewState::Replaced(Object::Hash(hash)) if hash.fields.is_empty() && !existed => None,
            NewState::Replaced(object) if !is_empty(&object) => {
                let bytes = object.encode();
                check_object_size(bytes.len())?;
                put(engine, &row, &bytes, now)?
            }
            NewState::Replaced(_) | NewState::Removed => {
                engine.remove(&row, now).map_err(refusal)?.waits_for
            }
        };
        Ok((answer, waits_for))
    })
}

/// Puts an object's row and keeps its TTL. Returns what the write must wait for.
pub fn put(
    engine: &mut Engine,
    row: &[u8],
    bytes: &[u8],
    now: u64,
) -> Result<Option<u64>, Refusal> {
    let at = engine.expires_at(row, now);
    put_with_expiry(engine, row, bytes, at, now)
}

fn is_empty(object: &Object) -> bool {
    matches!(object, Object::Hash(hash) if hash.fields.is_empty())
}

/// # Errors
/// The object would exceed the maximum size.
pub fn check_object_size(bytes: usize) -> Result<(), Refusal> {
    if bytes > OBJECT_BYTES_MAX {
        let message = format!(
            "the object would have {bytes} bytes; {OBJECT_BYTES_MAX} are allowed: nothing was changed"
        );
        Err((Code::BadRequest, message))
    } else {
        Ok(())
    }
}
