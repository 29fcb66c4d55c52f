//! The tests of the crate, one binary. `language`, `index` and `story` are spaces from outside: arguments of commands in, rows out.

mod index;
mod language;
mod mapping;
mod plan;
mod story;

use larder_space::schema::Definition;

/// The space that these arguments of FT.CREATE declare; no argument has a blank.
fn space(text: &str) -> Definition {
    let words: Vec<&[u8]> = text.split(' ').map(str::as_bytes).collect();
    Definition::parse_create(&words).unwrap_or_else(|refusal| panic!("{text}: {refusal}"))
}
