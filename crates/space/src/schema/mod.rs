//! What a space is: the objects that it covers, their attributes, and how they are laid out.
//!
//! `attribute` has the types and their options, `definition` a whole space; `create` reads the arguments of FT.CREATE and FT.ALTER, `layout` how
//! subspaces become others, and `render` writes all of it again.

pub mod attribute;
mod create;
pub mod definition;
mod layout;
mod render;
#[cfg(test)]
mod tests;

pub use attribute::{Attribute, AttributeId, Kind};
pub use definition::{Cut, Definition, Filter};
pub use layout::{Alteration, Filling, Shape, Turnover};
