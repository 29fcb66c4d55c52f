//! The results of a trial, their validation, and their evaluation against an agreement.
//!
//! ```text
//!   run ──► measure::Measurements ──────────────────────────────────┐
//!    └────► trace: a folder ──► judge ──► measure::ReadValidation ──┴──► agreement::Verdict
//! ```
//!
//! Start with `measure`: it defines trials, their results, and `TrialRunner`, the executor of trials. `trace` is the
//! self-contained folder to validate. `judge` passes it to larder-validate through `validate`, which processes records
//! on disk in bounded memory. `agreement` compares the results with the agreement. `scratch` manages temporary folders.

pub mod agreement;
pub mod judge;
pub mod measure;
pub mod scratch;
pub mod trace;
pub mod validate;
