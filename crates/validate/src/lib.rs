//! Pure checkers: they take histories and return verdicts.
//!
//! A *history* is what the clients of a data store observed: each call is a closed interval on one monotonic clock
//! ([`Span`]), with the value that it wrote or read. A checker determines for every read whether a correct data store
//! could have returned it. The checkers neither store nor measure: they use no clock, socket or file.
//!
//! ```text
//!                          count::Counts         judge(read, value)
//!   writes of one item ──► register::Registers   judge(read)          ──► acceptable | not | undecided
//!                          set::judge            all reads together
//!   changes of objects ──► objects::judge        all reads and searches together
//! ```
//!
//! # Definitions
//!
//! * A write takes effect at one instant of its interval; a read observes one instant of its own.
//! * Call a *precedes* call b if a ended before b started. Equal timestamps are concurrent: a coarse clock must not
//!   order calls that were not ordered.
//! * A write whose outcome is *unknown* (a timeout, a lost connection) has an interval without an end, and may take
//!   effect at any instant of it or never. A write that certainly did not happen is not part of the history.
//! * A value is *acceptable* for a read if some linear order of the item's writes and this read agrees with
//!   precedence and makes the read return the value.
//!
//! These are the semantics of the BG benchmark (Barahmand and Ghandeharizadeh, "BG: A Benchmark to Evaluate
//! Interactive Social Networking Actions", CIDR 2013, section 4 and Figure 10), made exact where its released code is
//! not: deltas of any size, absolute writes, equal timestamps, unknown outcomes.
//!
//! # Invariants
//!
//! 1. A verdict is exact: acceptable if and only if such a linear order exists. If the decision would take too long
//!    (many different deltas in flight are a subset sum problem), the verdict is [`Verdict::Undecided`], never a
//!    guess. The tests enumerate all linear orders of small histories.
//! 2. A verdict depends only on the history, not on the order in which its calls are passed.
//! 3. No history makes a checker panic.
//!
//! Read `time` first, then `count` for numbers, `register` for contents, `set` for lists and `objects` for searches.
//! `record` defines the encoding of a call. `trace` validates all calls, after the run or during it, `report` holds
//! the results, and `bg_text` parses the logs of the released BG.

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
