//! Compares versions with an oracle: every lookup returns what was built, for all options, and damage is an error,
//! never a result.

mod damage;
mod golden;
mod layers;
mod lookups;
mod publishing;
mod support;
