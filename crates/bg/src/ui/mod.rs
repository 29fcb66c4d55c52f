//! What a user says and sees.
//!
//! Read `command` first, a file for each command; `page` is a rating on paper, `deck` a run in the browser while it runs.

pub mod command;
pub mod deck;
pub mod page;
