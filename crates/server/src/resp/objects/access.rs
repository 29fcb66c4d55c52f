//! Functions with which commands read and change an object.

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::object::{HashView, Object, ObjectKind, ObjectView};
use larder_types::object_row;

use super::super::output::Output;
use super::super::state::State;
use crate::clients::Limits;
use crate::tables::objects::{
    OBJECT_BYTES_MAX, put_until, read_object, refuse_no_object, refuse_text, wrong_type,
};
use crate::tables::{Refusal, Unanswered, refusal};

/// The new state of an object after a command.
pub enum Becomes {
    AsItWas,
    /// A new value. A hash without fields is removed.
    This(Object),
    Gone,
}

/// The reply of a command, limited in size by the client's memory limit.
pub struct Answer<'a> {
    output: &'a mut Output,
    proto: Proto,
    limits: Limits,
}

impl Answer<'_> {
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
            return Err(self.limits.too_long());
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

pub fn broken() -> Refusal {
    let message = "the object's bytes are none that this larder writes".to_owned();
    (Code::Corrupted, message)
}

/// Reads an object in its stored form, and calls `answer` to append the reply. If `answer` fails, its output is
/// discarded.
pub fn read(
    state: &mut State,
    key: &[u8],
    answer: impl FnOnce(Option<ObjectView<'_>>, u64, &mut Answer<'_>) -> Result<(), Refusal>,
) -> Result<(), Unanswered> {
    let tables = state.tables();
    let mark = state.output.mark();
    let limits = state.core.clients.limits;
    let mut place = Answer {
        output: &mut state.output,
        proto: state.proto,
        limits,
    };
    tables.spaces().note_get(key);
    let done = tables.read(|engine, now| -> Result<(), Refusal> {
        let mut answer = Some(answer);
        let read = read_object(engine, key, now, |bytes| {
            let view = ObjectView::new(bytes).map_err(|_| broken())?;
            match answer.take() {
                Some(answer) => answer(Some(view), now, &mut place),
                None => Ok(()),
            }
        });
        match (read, answer) {
            (Some(done), _) => done,
            (None, Some(answer)) => {
                refuse_text(engine, key, now)?;
                answer(None, now, &mut place)
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
    state: &mut State,
    key: &[u8],
    answer: impl FnOnce(Option<HashView<'_>>, u64, &mut Answer<'_>) -> Result<(), Refusal>,
) -> Result<(), Unanswered> {
    read(state, key, |view, now, to| match view {
        None => answer(None, now, to),
        Some(ObjectView::Hash(hash)) => answer(Some(hash), now, to),
        Some(ObjectView::Json(_)) => Err(wrong_type()),
    })
}

/// Changes or creates an object of the given kind atomically. `decide` receives the current object and time, and
/// returns the new state. The object's TTL is unchanged.
pub fn change<T>(
    state: &mut State,
    key: &[u8],
    kind: ObjectKind,
    decide: impl FnOnce(Option<Object>, u64) -> Result<(T, Becomes), Refusal>,
) -> Result<T, Unanswered> {
    let tables = state.tables();
    tables.write(&mut state.gate, |engine, now| {
        let before = read_object(engine, key, now, Object::decode);
        let before = match before {
            Some(Ok(object)) if object.kind() != kind => return Err(wrong_type().into()),
            Some(object) => Some(object.map_err(|_| broken())?),
            None => {
                refuse_no_object(engine, key, now)?;
                None
            }
        };
        let is_there = before.is_some();
        let (answer, becomes) = decide(before, now)?;
        let row = object_row(key);
        let waits_for = match becomes {
            Becomes::AsItWas => None,
            Becomes::This(Object::Hash(hash)) if hash.fields.is_empty() && !is_there => None,
            Becomes::This(object) if !is_empty(&object) => {
                let bytes = object.encode();
                refuse_large(bytes.len())?;
                put(engine, &row, &bytes, now)?
            }
            Becomes::This(_) | Becomes::Gone => {
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
    put_until(engine, row, bytes, at, now)
}

fn is_empty(object: &Object) -> bool {
    matches!(object, Object::Hash(hash) if hash.fields.is_empty())
}

/// # Errors
/// The object would exceed the maximum size.
pub fn refuse_large(bytes: usize) -> Result<(), Refusal> {
    if bytes > OBJECT_BYTES_MAX {
        let message = format!(
            "the object would have {bytes} bytes; {OBJECT_BYTES_MAX} are allowed: nothing was changed"
        );
        Err((Code::BadRequest, message))
    } else {
        Ok(())
    }
}
