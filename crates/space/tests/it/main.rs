//! The tests of the crate, in one binary. `language`, `index` and `story` test spaces from outside, by arguments of
//! commands and returned rows.

mod index;
mod language;
mod mapping;
mod plan;
mod story;

use larder_space::schema::Definition;

/// Declares a space with these arguments of FT.CREATE. No argument contains a space.
fn space(text: &str) -> Definition {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    Definition::parse_create(&words).unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
}
