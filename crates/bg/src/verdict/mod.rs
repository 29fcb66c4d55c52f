//! What came of a trial, whether what it read was right, and whether it was good enough.
//!
//! ```text
//!   run ──► measure::Measured ───────────────────────────────┐
//!    └────► trace: a folder ──► judge ──► measure::Judged ───┴──► agreement::Verdict
//! ```
//!
//! Read `measure` first: what a trial is and what it gives, and `Laboratory`, whoever can run one. `trace` is the folder that says by itself what to judge,
//! `judge` gives it to larder-validate, through `validate`, which goes through records on disk in bounded memory. `agreement` holds all of that
//! against what was promised. `scratch` is for folders that nobody wants afterwards.

pub mod agreement;
pub mod judge;
pub mod measure;
pub mod scratch;
pub mod trace;
pub mod validate;
