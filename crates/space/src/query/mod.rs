//! The query language, dialect 2 of RediSearch: from a text to a predicate, and from predicates to what they hold for.
//!
//! `predicate` is the tree that everything else is about; `parser` reads the text (`scan` its signs, `operands` what stands in brackets);
//! `matches` evaluates, `reach` tells which values of an attribute a predicate allows, `condition` whether a write
//! may be made, `explain` prints.
//!
//! ```text
//! query = and {"|" and} ;  and = unary {unary} ;  unary = ("-" | "~") unary | primary ["=>" "{" attributes "}"]
//! primary = "(" query ")" | "*" | term | phrase | "ismissing(" "@" name ")" | "@" name {"|" name} ":" clause | "@" name test value
//! clause = "{" tag {"|" tag} "}" | "[" range "]" | term | phrase | "(" query of texts ")"
//! range = value | bound bound | longitude latitude radius unit ;  bound = ["("] value, with a blank or a comma between two
//! ```
//!
//! Larder's own: ranges over tags and texts (`@city:["a" ("b"]`), over dates (`@at:[2024-01-01 2024-02-01]`), tests with any ordered value
//! (`@city >= "b"`), tags with punctuation unescaped (`@mail:{ann@x.org}`). Where RediSearch skips punctuation that it does not know, or takes `a-b` for `a -b`,
//! it is refused here, and the error points at it. The attributes behind `=>` are checked and have no effect. Not supported, each with an error that says
//! so: fuzzy terms, vectors, phonetics.

mod condition;
mod explain;
mod matches;
mod operands;
mod parser;
pub mod predicate;
mod reach;
mod scan;
#[cfg(test)]
mod tests;

pub use condition::Condition;
pub use explain::explain;
pub use matches::matches;
pub(crate) use operands::circle;
pub use parser::{Params, parse};
pub use predicate::{Leaf, Pattern, Predicate, Span, Test};
pub use reach::{Reach, reach, says_nothing_of};
