//! Objects: hashes and JSON documents, and what commands make of them, as pure functions.
//!
//! `path` is the text of a JSON path; `hash` and `document` are the two kinds of objects, each with the commands of its family; `change` is several
//! changes of one object, all or none, and `once` how they are made once however often they are sent; `codec` is an object as bytes.

pub mod change;
mod codec;
pub mod document;
pub mod hash;
mod once;
pub mod path;
#[cfg(test)]
mod tests;

pub use change::{Arithmetic, Change, ChangeError, Target, apply};
pub use codec::{HashView, ObjectView};
pub use document::Document;
pub use hash::Hash;
pub use once::Mark;
pub use path::Path;

/// What is kept under a key.
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
