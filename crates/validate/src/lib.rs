//! Pure checkers: histories in, verdicts out.
//!
//! A *history* is what the clients of a data store saw from outside: each call is a closed interval
//! on one monotonic clock ([`Span`]), with what it wrote or what it read. A checker says of every
//! read whether a data store that answers correctly could have answered so. Nothing is stored
//! here, nothing measured: no clock, no socket, no file.
//!
//! ```text
//!                          count::Counts         judge(read, value)
//!   writes of one item ──► register::Registers   judge(read)          ──► acceptable | not | undecided
//!                          set::judge            all reads at once
//!   changes of objects ──► objects::judge        all reads and searches at once
//! ```
//!
//! # Definitions
//!
//! * A write takes effect at one instant of its interval; a read observes one instant of its own.
//! * Call a *precedes* call b when a ended before b began. Equal stamps are concurrent: a clock that
//!   ticks coarsely must not order what nobody ordered.
//! * A write whose outcome is *unknown* (a timeout, a lost connection) has an interval without an end,
//!   and may take effect at any instant of it or never. A write known not to have happened is no part of the history.
//! * A value is *acceptable* for a read when some linear order of the item's writes and this one read
//!   agrees with precedence and makes the read return the value.
//!
//! These are the semantics of the BG benchmark (Barahmand and Ghandeharizadeh, "BG: A Benchmark to
//! Evaluate Interactive Social Networking Actions", CIDR 2013, section 4 and Figure 10), made exact
//! where its released code is not: deltas of any size, absolute writes, equal stamps, unknown outcomes.
//!
//! # Invariants
//!
//! 1. A verdict is exact: acceptable if and only if such a linear order exists. Where telling would
//!    take too long (many different deltas in flight are a subset sum) the verdict is
//!    [`Verdict::Undecided`], never a guess. The tests enumerate all linear orders of small histories.
//! 2. A verdict depends on the history alone, not on the order in which its calls are given.
//! 3. No history makes a checker panic.
//!
//! Read `time` first, then `count` for numbers, `register` for contents, `set` for lists, `objects` for searches; `record` is how a call is
//! written down, `trace` judges all of them, afterwards or while the run goes on, `report` says what came of it; `bg_text` reads what
//! the released BG logged.

pub mod bg_text;
pub mod count;
pub mod histogram;
pub mod objects;
pub mod record;
pub mod register;
pub mod report;
pub mod set;
mod time;
pub mod trace;

pub use time::{Span, Verdict};
