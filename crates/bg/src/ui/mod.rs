//! The user interface.
//!
//! Start with `command`, which has a file for each command. `page` generates the web page of a rating, and `deck`
//! serves the page of a running command.

pub mod command;
pub mod deck;
pub mod page;
