//! The query language: dialect 2 of RediSearch. Parses a text into a predicate, and evaluates predicates on objects.
//!
//! - `predicate`: the tree that the other modules use.
//! - `parser`: parses the text, with `scan` for characters and `operands` for the contents of brackets.
//! - `matches`: evaluates a predicate.
//! - `value_domain`: the values of an attribute that a predicate allows.
//! - `condition`: the conditions of writes.
//! - `explain`: formats a predicate.
//!
//! ```text
//! query = and {"|" and} ;  and = unary {unary} ;  unary = ("-" | "~") unary | primary ["=>" "{" attributes "}"]
//! primary = "(" query ")" | "*" | term | phrase | "ismissing(" "@" name ")" | "@" name {"|" name} ":" clause | "@" name test value
//! clause = "{" tag {"|" tag} "}" | "[" range "]" | term | phrase | "(" query of texts ")"
//! range = value | bound bound | longitude latitude radius unit ;  bound = ["("] value, with a blank or a comma between two
//! ```
//!
//! larder's extensions: ranges of tags and texts (`@city:["a" ("b"]`), ranges of dates (`@at:[2024-01-01 2024-02-01]`),
//! comparisons with any ordered value (`@city >= "b"`), and tags with unescaped punctuation (`@mail:{ann@x.org}`).
//!
//! Punctuation without another meaning separates words, as in texts. `a-b`, which RediSearch parses as `a -b`, is
//! rejected. Attributes after `=>` that would change the result, fuzzy terms, vectors and phonetics are rejected too.

mod condition;
mod explain;
mod matches;
mod operands;
mod parser;
pub mod predicate;
mod scan;
#[cfg(test)]
mod tests;
mod value_domain;

pub use condition::Condition;
pub use explain::explain;
pub use matches::matches;
pub(crate) use operands::circle;
pub(crate) use parser::ensure_conditions;
pub use parser::{CONDITIONS_MAX, Params, parse};
pub use predicate::{Leaf, Pattern, Predicate, Span, Test};
pub use value_domain::{ValueDomain, is_unconstrained, value_domain};
