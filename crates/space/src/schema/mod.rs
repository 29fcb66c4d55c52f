//! The definition of a space: the objects that it covers, their attributes, and their layout.
//!
//! - `attribute`: the types of attributes and their options.
//! - `definition`: the definition of a space.
//! - `create`: parses the arguments of FT.CREATE and FT.ALTER.
//! - `layout`: replaces the subspaces of a space.
//! - `render`: formats a definition as arguments, and as bytes.

pub mod attribute;
mod create;
pub mod definition;
mod layout;
mod render;
#[cfg(test)]
mod tests;

pub use attribute::{Attribute, AttributeId, AttributeKind};
pub use definition::{Cut, Definition, Filter};
pub use layout::{Alteration, Filling, Shape, SubspaceChange};
