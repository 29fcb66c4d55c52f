//! Objects: hashes and JSON documents, and the effects of commands on them, as pure functions.
//!
//! - `path`: JSON paths.
//! - `hash` and `document`: the two kinds of objects, each with the commands of its family.
//! - `change`: several changes of one object, applied atomically.
//! - `applied_mark`: changes that are applied once, however often the request is sent.
//! - `codec`: the byte encoding of objects.

mod applied_mark;
pub mod change;
mod codec;
pub mod document;
pub mod hash;
pub mod path;
#[cfg(test)]
mod tests;

pub use applied_mark::AppliedMark;
pub use change::{Arithmetic, Change, ChangeError, Target, apply};
pub use codec::{HashView, ObjectView};
pub use document::Document;
pub use hash::Hash;
pub use path::Path;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Object {
    Hash(Hash),
    Json(Document),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    Hash,
    Json,
}

impl Object {
    pub fn kind(&self) -> ObjectKind {
        match self {
            Object::Hash(_) => ObjectKind::Hash,
            Object::Json(_) => ObjectKind::Json,
        }
    }
}
