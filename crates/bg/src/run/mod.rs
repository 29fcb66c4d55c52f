//! A trial in this process: workers with their emulated threads, their results collected, their reads judged.
//!
//! ```text
//!   Process::run ──spawns──► worker threads: connect ──► (gate) ──► the start ──► emulated threads (emulate, act, call)
//!        ▲                         │ every second                                      │ each call
//!        └── Interval ─────────────┘                                    records ───────┴──► writer ──► judge
//! ```
//!
//! Read `setup` first, what a trial is made of, and `process`, who starts it and adds up. `emulate` is the loop of one emulated thread, `act` says whom an action takes, `call` makes it, stamps it and keeps what came of it;
//! `worker` is the thread that all of that runs on, `pace` when actions begin in an open loop, `schedule` when the parts of a trial are, `budget` how many actions are left of a trial that a count bounds, `live` what others see meanwhile, `online` the judge
//! of reads who does not wait for the end, with `under_way` to tell how far he can see; `writer` has the trace written, `preflight` looks at the data store
//! before the first trial.
//!
//! Invariants:
//!
//! 1. Between the two stamps of a call there is nothing but the call.
//! 2. A call is measured if it was meant to begin within the measured time; all calls are traced. No call begins when the trial is over: the
//!    stamp of its beginning decides.
//! 3. A trial ends when every call has its answer or its timeout: no outcome is lost.
//! 4. No worker begins before all are connected and whoever guards the gate lets them.

mod act;
mod budget;
mod call;
mod clock;
mod effort;
mod emulate;
pub mod live;
mod online;
mod pace;
mod preflight;
mod process;
mod schedule;
mod setup;
mod under_way;
mod worker;
mod writer;

pub use process::Process;
pub use setup::{Conduct, Setup, Tracing};
