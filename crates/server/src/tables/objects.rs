//! Objects among the rows of tables: a key has a row, or an object, or neither.
//!
//! An object (a hash or a JSON document) is stored as the row [`larder_types::object_row`], with the value of
//! [`larder_space::object::Object::encode`]. It is therefore logged, replicated, moved and expired like any row. In an
//! engine without objects, the cost is the check of a flag.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use larder_join::{Engine, KeyRange, LogEntry};
use larder_protocol::errors::Code;
use larder_space::object::{Object, ObjectKind, ObjectView};
use larder_types::{is_plain, object_key, object_row, text_row, with_object_row};

use super::{NoReply, Refusal, Tables, refusal};

/// Maximum size of an object. Each change decodes and encodes it, which delays other clients of the core.
pub const OBJECT_BYTES_MAX: usize = 4 << 20;

/// Maximum number of hashes whose expired fields are removed in one step.
const EXPIRED_HASHES_PER_STEP: usize = 64;

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueType {
    Text,
    Hash,
    Json,
}

impl ValueType {
    pub const ALL: [ValueType; 3] = [ValueType::Text, ValueType::Hash, ValueType::Json];

    /// The type's name for TYPE and SCAN.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::Text => "string",
            ValueType::Hash => "hash",
            ValueType::Json => "ReJSON-RL",
        }
    }

    pub fn from_name(name: &[u8]) -> Option<ValueType> {
        ValueType::ALL
            .into_iter()
            .find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    /// Returns the type of an encoded object.
    pub fn of_object(bytes: &[u8]) -> ValueType {
        match ObjectView::kind_of(bytes) {
            ObjectKind::Json => ValueType::Json,
            ObjectKind::Hash => ValueType::Hash,
        }
    }
}

/// Redis's error message.
pub fn wrong_type() -> Refusal {
    let message = "Operation against a key holding the wrong kind of value".to_owned();
    (Code::WrongType, message)
}

/// Passes a key's encoded object to `read`. Returns `None` if there is none.
#[inline]
pub fn read_object<T>(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
    read: impl FnOnce(&[u8]) -> T,
) -> Option<T> {
    if !engine.has_objects() {
        return None;
    }
    with_object_row(key, |row| {
        // Remove the object or its fields first, if they have expired.
        engine.expires_at(row, now);
        let (bytes, _) = engine.base_row(row)?;
        if ObjectView::next_expiry_ms(bytes).is_some_and(|at| at <= now) {
            remove_expired_fields(engine, row, now);
        }
        engine.base_row(row).map(|(bytes, _)| read(bytes))
    })
}

/// Removes expired fields of a hash, and the hash with its last field.
#[cold]
fn remove_expired_fields(engine: &mut Engine, row: &[u8], now: u64) {
    let at = engine.expires_at(row, now);
    let Some(Ok(Object::Hash(mut hash))) = engine.base_row(row).map(|(it, _)| Object::decode(it))
    else {
        return;
    };
    hash.expire(now);
    let done = if hash.fields.is_empty() {
        engine.remove(row, now).map(drop)
    } else {
        engine
            .put(row, &Object::Hash(hash).encode(), now)
            .and_then(|_| match at {
                Some(_) => engine.expire(row, at, now).map(drop),
                None => Ok(()),
            })
    };
    if let Err(error) = done {
        // The fields are invisible nevertheless: readers of a hash check expiry times.
        tracing::debug!(%error, "expired fields cannot be removed yet");
    }
}

/// The expiry times of hash fields on a core: the earliest of each hash. Expired fields are removed by a read of the
/// hash, or by any read, and within a second at the latest.
#[derive(Default)]
pub(super) struct FieldExpiries {
    index: RefCell<ExpiryIndex>,
    /// The earliest time; `u64::MAX` if there is none.
    next: Cell<NextExpiry>,
}

#[derive(Default)]
struct ExpiryIndex {
    by_time: BTreeSet<(u64, Box<[u8]>)>,
    by_key: HashMap<Box<[u8]>, u64>,
}

#[derive(Clone, Copy)]
struct NextExpiry(u64);

impl Default for NextExpiry {
    fn default() -> NextExpiry {
        NextExpiry(u64::MAX)
    }
}

impl FieldExpiries {
    #[inline]
    pub fn are_due(&self, now: u64) -> bool {
        self.next.get().0 <= now
    }

    /// Updates the times after rows were put or removed.
    pub fn apply_changes(&self, changes: &[LogEntry]) {
        for change in changes {
            match change {
                LogEntry::Put { key, value } if ObjectView::expires(value) => {
                    self.set(key, ObjectView::next_expiry_ms(value));
                }
                LogEntry::Put { key, .. } | LogEntry::Remove { key } => self.set(key, None),
                _ => {}
            }
        }
    }

    /// Sets the earliest expiry time of a hash's fields; `None` removes it.
    pub fn set(&self, row: &[u8], at: Option<u64>) {
        let Some(key) = object_key(row) else { return };
        let times = &mut *self.index.borrow_mut();
        if at.is_none() && times.by_key.is_empty() {
            return;
        }
        if let Some(before) = times.by_key.remove(key) {
            times.by_time.remove(&(before, key.into()));
        }
        if let Some(at) = at {
            times.by_key.insert(key.into(), at);
            times.by_time.insert((at, key.into()));
        }
        let next = times.by_time.first().map_or(u64::MAX, |(at, _)| *at);
        self.next.set(NextExpiry(next));
    }

    /// Returns the keys of some hashes with expired fields.
    fn due_keys(&self, now: u64) -> Vec<Box<[u8]>> {
        let times = self.index.borrow();
        let due = times.by_time.iter().take_while(|(at, _)| *at <= now);
        due.take(EXPIRED_HASHES_PER_STEP)
            .map(|(_, key)| key.clone())
            .collect()
    }
}

/// Returns whether a key has an object.
#[inline]
pub fn has_object(engine: &mut Engine, key: &[u8], now: u64) -> bool {
    read_object(engine, key, now, |_| ()).is_some()
}

/// Returns the row of a key: its object's, or else its own.
pub fn find_row<'k>(engine: &mut Engine, key: &'k [u8], now: u64) -> Cow<'k, [u8]> {
    if has_object(engine, key, now) {
        object_row(key).into()
    } else {
        text_row(key)
    }
}

/// Puts a row that expires at `at`, if that is set. Returns the change that outputs wait for.
pub fn put_with_expiry(
    engine: &mut Engine,
    row: &[u8],
    value: &[u8],
    at: Option<u64>,
    now: u64,
) -> Result<Option<u64>, Refusal> {
    let written = engine.put(row, value, now).map_err(refusal)?;
    if at.is_some() {
        engine.expire(row, at, now).map_err(refusal)?;
    }
    Ok(written.waits_for)
}

/// # Errors
/// The key has a row of text, so it cannot have an object.
pub fn check_not_text(engine: &mut Engine, key: &[u8], now: u64) -> Result<(), Refusal> {
    let row = &*text_row(key);
    engine.expires_at(row, now);
    match engine.base_row(row) {
        Some(_) => Err(wrong_type()),
        None => Ok(()),
    }
}

/// # Errors
/// The key cannot have an object: its table is computed, or in PostgreSQL, or its row is text.
pub fn check_can_hold_object(engine: &mut Engine, key: &[u8], now: u64) -> Result<(), Refusal> {
    check_not_computed(engine, key)?;
    check_not_text(engine, key, now)
}

/// # Errors
/// The key's table is computed, or in PostgreSQL.
pub fn check_not_computed(engine: &Engine, key: &[u8]) -> Result<(), Refusal> {
    if is_plain(key) {
        return Ok(());
    }
    engine.refuse_computed_row(key).map_err(refusal)?;
    if engine.is_supplied(key) {
        let message = "the table is stored in PostgreSQL, which cannot store objects of larder";
        return Err((Code::ReadOnly, message.to_owned()));
    }
    Ok(())
}

/// Removes the object of a key. Returns whether it existed, and the change that outputs wait for.
pub fn remove_object(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
) -> Result<(bool, Option<u64>), NoReply> {
    if !has_object(engine, key, now) {
        return Ok((false, None));
    }
    let removed = with_object_row(key, |row| engine.remove(row, now)).map_err(refusal)?;
    Ok((removed.rows > 0, removed.waits_for))
}

impl Tables {
    /// Removes some expired fields.
    pub(super) fn remove_due_fields(&self, engine: &mut Engine, now: u64) {
        for key in self.field_expiries.due_keys(now) {
            let left = read_object(engine, &key, now, ObjectView::next_expiry_ms).flatten();
            // The hash may have moved with its slot, or the change failed. Otherwise, the change sets the time again.
            let next_expiry = left.map(|at| at.max(now + 1000));
            with_object_row(&key, |row| self.field_expiries.set(row, next_expiry));
        }
    }

    /// Records the times of all hashes at startup.
    pub(super) fn load_field_expiries(&self) {
        let engine = self.engine.borrow();
        for table in engine.tables() {
            let range = KeyRange::prefix(&table.name);
            if object_key(&table.name).is_none() {
                continue;
            }
            engine.read_base_rows(&range.lo, &range.hi, &mut |row, object, _| {
                if ObjectView::expires(object) {
                    self.field_expiries
                        .set(row, ObjectView::next_expiry_ms(object));
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Updates the times of rows that arrived or left with their slots.
    pub(super) fn update_moved_field_expiries(&self, rows: &[Box<[u8]>]) {
        if rows.is_empty() {
            return;
        }
        let engine = self.engine.borrow();
        for row in rows {
            let object = engine.base_row(row);
            let at = object.and_then(|(object, _)| ObjectView::next_expiry_ms(object));
            self.field_expiries.set(row, at);
        }
    }

    /// Returns whether hashes have expired fields, which are removed in steps. Reads of a hash do not return them.
    pub fn has_expired_fields(&self) -> bool {
        self.field_expiries.are_due(self.now())
    }
}
