//! The rows in which objects are stored: a key has a row of text, or an object, or neither.
//!
//! An object (a hash or a JSON document) is stored as the row [`larder_types::object_row`], with the value of
//! [`larder_space::object::Object::encode`]. It is therefore logged, replicated, moved and expired like any row.

use std::borrow::Cow;

use larder_join::Engine;
use larder_protocol::errors::Code;
use larder_space::object::{ObjectKind, ObjectView};
use larder_types::{is_plain, object_row, text_row, with_object_row};

use crate::tables::{NoReply, Refusal, has_object, refusal};

/// Maximum size of an object. Each change decodes and encodes it, which delays other clients of the core.
pub const OBJECT_BYTES_MAX: usize = 4 << 20;

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
