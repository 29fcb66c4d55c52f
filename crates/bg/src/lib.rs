//! bg: rates a data store by social actions under an agreement, and proves what it read.
//!
//! The benchmark is BG (Barahmand and Ghandeharizadeh, "BG: A Benchmark to Evaluate Interactive Social Networking
//! Actions", CIDR 2013, and its technical report): members who look at each other's profiles, invite, accept,
//! thaw and comment. A run measures how many such *actions* a second a data store does, how many of them within the agreed
//! time, and how many of its answers no order of the writes explains.
//!
//! ```text
//!   population ──► load ──► stores/* (the trait in store.rs)
//!                               ▲ │ answers
//!   mix ──► draw ──► action ────┘ ▼
//!                            trace ──► validate ──► sla ──► rate
//! ```
//!
//! Read `action` for what members do, `population` for whom there is, `store` for what a data store must answer, and
//! `content` for how an answer's bytes are known to be right; `measure` says what a trial gives. `deck` shows it in a browser while it runs.

pub mod action;
pub mod clock;
pub mod command;
pub mod compare;
pub mod content;
pub mod coordinate;
pub mod deck;
pub mod draw;
mod duration;
pub mod item;
pub mod judge;
pub mod load;
pub mod mark;
pub mod measure;
pub mod mix;
pub mod population;
pub mod random;
pub mod rate;
pub mod report;
mod resp;
pub mod run;
pub mod scratch;
pub mod session;
pub mod sla;
pub mod state;
pub mod store;
pub mod stores;
pub mod trace;
pub mod validate;
