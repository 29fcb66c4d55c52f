//! Rows that are kept elsewhere: by another engine of this server, or in a database.
//!
//! Read `owner` for who has a key, `exchange` for what engines say to one another, `guests` for copies of other engines' rows, and
//! `supply` for tables whose rows a database keeps.

pub(crate) mod exchange;
pub(crate) mod guests;
pub(crate) mod owner;
pub(crate) mod supply;
