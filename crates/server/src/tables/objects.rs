//! Objects among the rows of tables: a key has a row, or an object, or neither of them.
//!
//! An object (a hash, a JSON document) is the row that [`larder_types::object_row`] names, and its value is what
//! [`larder_space::object::Object::encode`] makes of it. So it is logged, replicated, moved and expired as any row is. Where an engine has no
//! objects, that costs a look at a flag.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use larder_join::{Engine, KeyRange, LogEntry};
use larder_protocol::errors::Code;
use larder_space::object::{Object, ObjectKind, ObjectView};
use larder_types::{is_plain, object_key, object_row, text_row, with_object_row};

use super::{Refusal, Tables, Unanswered, refusal};

/// How large an object may be: each change decodes it and encodes it again, and a core has others to serve.
pub const OBJECT_BYTES_MAX: usize = 4 << 20;

/// Hashes whose fields go at once.
const LATE_AT_ONCE: usize = 64;

/// What is kept under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Text,
    Hash,
    Json,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Text, Kind::Hash, Kind::Json];

    /// As TYPE and SCAN know it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Text => "string",
            Kind::Hash => "hash",
            Kind::Json => "ReJSON-RL",
        }
    }

    pub fn named(name: &[u8]) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| name.eq_ignore_ascii_case(kind.name().as_bytes()))
    }

    /// Of an object as it is kept.
    pub fn of_object(bytes: &[u8]) -> Kind {
        match ObjectView::kind_of(bytes) {
            ObjectKind::Json => Kind::Json,
            ObjectKind::Hash => Kind::Hash,
        }
    }
}

/// Redis's text.
pub fn wrong_type() -> Refusal {
    let message = "Operation against a key holding the wrong kind of value".to_owned();
    (Code::WrongType, message)
}

/// Hands over the object of a key as it is kept. `None`: there is none.
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
        // What it has whose time has come goes first.
        engine.expires_at(row, now);
        let (bytes, _) = engine.base_row(row)?;
        if ObjectView::next_expiry_ms(bytes).is_some_and(|at| at <= now) {
            drop_late_fields(engine, row, now);
        }
        engine.base_row(row).map(|(bytes, _)| read(bytes))
    })
}

/// Takes the fields out of a hash whose time has come, and the hash with its last.
#[cold]
fn drop_late_fields(engine: &mut Engine, row: &[u8], now: u64) {
    let at = engine.expires_at(row, now);
    let Some(Ok(Object::Hash(mut hash))) = engine.base_row(row).map(|(it, _)| Object::decode(it))
    else {
        return;
    };
    hash.expire(now);
    let done = match hash.fields.is_empty() {
        true => engine.remove(row, now).map(drop),
        false => engine
            .put(row, &Object::Hash(hash).encode(), now)
            .and_then(|_| match at {
                Some(_) => engine.expire(row, at, now).map(drop),
                None => Ok(()),
            }),
    };
    if let Err(error) = done {
        // They are not seen all the same: who reads a hash looks at their times.
        tracing::debug!(%error, "fields that have expired stay for now");
    }
}

/// When fields of a core's hashes go: of each hash the first. They go when it is read, or when anything is read; within a second at the latest.
#[derive(Default)]
pub(super) struct FieldTimes {
    times: RefCell<Times>,
    /// The earliest; `u64::MAX` if there is none.
    next: Cell<Next>,
}

#[derive(Default)]
struct Times {
    by_time: BTreeSet<(u64, Box<[u8]>)>,
    by_key: HashMap<Box<[u8]>, u64>,
}

#[derive(Clone, Copy)]
struct Next(u64);

impl Default for Next {
    fn default() -> Next {
        Next(u64::MAX)
    }
}

impl FieldTimes {
    #[inline]
    pub fn are_due(&self, now: u64) -> bool {
        self.next.get().0 <= now
    }

    /// After rows were put or removed.
    pub fn note(&self, changes: &[LogEntry]) {
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

    /// A row is put whose fields go from this time on, or is none that has such.
    pub fn set(&self, row: &[u8], at: Option<u64>) {
        let Some(key) = object_key(row) else { return };
        let times = &mut *self.times.borrow_mut();
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
        self.next.set(Next(next));
    }

    /// Some keys of hashes that have fields whose time has come.
    fn due(&self, now: u64) -> Vec<Box<[u8]>> {
        let times = self.times.borrow();
        let due = times.by_time.iter().take_while(|(at, _)| *at <= now);
        due.take(LATE_AT_ONCE).map(|(_, key)| key.clone()).collect()
    }
}

/// Whether a key has an object.
#[inline]
pub fn has_object(engine: &mut Engine, key: &[u8], now: u64) -> bool {
    read_object(engine, key, now, |_| ()).is_some()
}

/// The row that a key has: its object's, or else its own.
pub fn row_of<'k>(engine: &mut Engine, key: &'k [u8], now: u64) -> Cow<'k, [u8]> {
    match has_object(engine, key, now) {
        true => object_row(key).into(),
        false => text_row(key),
    }
}

/// Puts a row that expires at `at`, if that is some time; returns what the outputs wait for.
pub fn put_until(
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
/// The key has a row of text, so it has no object.
pub fn refuse_text(engine: &mut Engine, key: &[u8], now: u64) -> Result<(), Refusal> {
    let row = &*text_row(key);
    engine.expires_at(row, now);
    match engine.base_row(row) {
        Some(_) => Err(wrong_type()),
        None => Ok(()),
    }
}

/// # Errors
/// The key cannot have an object: its table is computed, or kept in PostgreSQL, or its row is text.
pub fn refuse_no_object(engine: &mut Engine, key: &[u8], now: u64) -> Result<(), Refusal> {
    refuse_computed(engine, key)?;
    refuse_text(engine, key, now)
}

/// # Errors
/// The key's table is computed, or kept in PostgreSQL.
pub fn refuse_computed(engine: &Engine, key: &[u8]) -> Result<(), Refusal> {
    if is_plain(key) {
        return Ok(());
    }
    engine.refuse_computed_row(key).map_err(refusal)?;
    if engine.is_supplied(key) {
        let message = "the table is kept in PostgreSQL, which keeps no objects of larder";
        return Err((Code::ReadOnly, message.to_owned()));
    }
    Ok(())
}

/// Removes the object of a key; says whether there was one, and what that waits for.
pub fn remove_object(
    engine: &mut Engine,
    key: &[u8],
    now: u64,
) -> Result<(bool, Option<u64>), Unanswered> {
    if !has_object(engine, key, now) {
        return Ok((false, None));
    }
    let removed = with_object_row(key, |row| engine.remove(row, now)).map_err(refusal)?;
    Ok((removed.rows > 0, removed.waits_for))
}

impl Tables {
    /// Takes some fields out whose time has come.
    pub(super) fn drop_due_fields(&self, engine: &mut Engine, now: u64) {
        for key in self.field_times.due(now) {
            let left = read_object(engine, &key, now, ObjectView::next_expiry_ms).flatten();
            // It has gone with its slot, or could not be put; else it is noted again when the change is.
            let again = left.map(|at| at.max(now + 1000));
            with_object_row(&key, |row| self.field_times.set(row, again));
        }
    }

    /// At the start: of all hashes that there are.
    pub(super) fn note_field_times(&self) {
        let engine = self.engine.borrow();
        for table in engine.tables() {
            let range = KeyRange::prefix(&table.name);
            if object_key(&table.name).is_none() {
                continue;
            }
            engine.read_base_rows(&range.lo, &range.hi, &mut |row, object, _| {
                if ObjectView::expires(object) {
                    self.field_times
                        .set(row, ObjectView::next_expiry_ms(object));
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Of rows that came with their slots, or left with them.
    pub(super) fn note_moved_field_times(&self, rows: &[Box<[u8]>]) {
        if rows.is_empty() {
            return;
        }
        let engine = self.engine.borrow();
        for row in rows {
            let object = engine.base_row(row);
            let at = object.and_then(|(object, _)| ObjectView::next_expiry_ms(object));
            self.field_times.set(row, at);
        }
    }

    /// Whether hashes have fields whose time has come, which go some at a time. Who reads one hash does not see them.
    pub fn has_late_fields(&self) -> bool {
        self.field_times.are_due(self.now())
    }
}
