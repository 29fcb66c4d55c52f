//! Versions against an oracle: what is built is what is found, whatever the options; and damage is
//! an error, never an answer.

mod damage;
mod golden;
mod layers;
mod lookups;
mod publishing;
mod support;
