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
//! (`@city >= "b"`), tags with punctuation unescaped (`@mail:{ann@x.org}`). Punctuation without a meaning of its own separates words, as it does
//! in texts; `a-b`, which RediSearch takes for `a -b`, is refused. So are attributes behind `=>` that would change the answer, fuzzy terms, vectors and phonetics.

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
pub(crate) use parser::ensure_conditions;
pub use parser::{CONDITIONS_MAX, Params, parse};
pub use predicate::{Leaf, Pattern, Predicate, Span, Test};
pub use reach::{Reach, reach, says_nothing_of};
