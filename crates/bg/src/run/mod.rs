//! Runs trials in this process: starts workers with their emulated threads, collects their results and validates their
//! reads.
//!
//! ```text
//!   Process::run ──spawns──► worker threads: connect ──► (gate) ──► the start ──► emulated threads (emulate, act, call)
//!        ▲                         │ every second                                      │ each call
//!        └── Interval ─────────────┘                                    records ───────┴──► writer ──► judge
//! ```
//!
//! Start with `setup` and `process`.
//!
//! | module | contents |
//! |---|---|
//! | `setup` | the parts of a trial |
//! | `process` | starts a trial and adds up its results |
//! | `emulate` | the loop of one emulated thread |
//! | `act` | chooses the members of an action |
//! | `call` | makes the call, timestamps it and records its outcome |
//! | `worker` | the thread on which emulated threads run |
//! | `pace` | when actions start in an open loop |
//! | `schedule` | the start and end of the parts of a trial |
//! | `budget` | the remaining actions of a trial bounded by a count |
//! | `live` | the state that others can watch during the trial |
//! | `online` | validates reads during the trial |
//! | `in_flight` | the oldest call in flight, which limits how far `online` can validate |
//! | `writer` | writes the trace |
//! | `preflight` | samples the data store before the first trial |
//!
//! Invariants:
//!
//! 1. Between the two timestamps of a call, only the call takes place.
//! 2. A call is measured if its scheduled start is in the measured time; all calls are traced. No call starts after the
//!    end of the trial: its start timestamp decides.
//! 3. A trial ends when every call has its answer or its timeout: no outcome is lost.
//! 4. No worker starts before all are connected and the gate opens.

mod act;
mod budget;
mod call;
mod clock;
mod effort;
mod emulate;
mod in_flight;
pub mod live;
mod online;
mod pace;
mod preflight;
mod process;
mod schedule;
mod setup;
mod worker;
mod writer;

pub use process::Process;
pub use setup::{RunOptions, Setup, Tracing};
