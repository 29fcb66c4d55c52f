//! The Rust part of the Python package `larder`: the module `larder._native`.
//!
//! ```text
//!  larder.build(frame) ─────────────► build: rows of Arrow batches ─► Builder ─► a version
//!                                     on:    the base of a delta, here and below
//!  larder.spark.build_store(df) ─┬──► parts::assemble  (before the shuffle: bundles of rows)
//!                                ├──► parts::write_parts (after it: the segments of one task)
//!                                └──► parts::finish      (the driver: the missing segments, and the manifest)
//!  larder.open(path) ───────────────► store: a version's files, read in this process
//! ```
//!
//! `python/larder` checks and documents the arguments. Options are passed as one JSON text, so that a Spark task
//! receives them unchanged. Data frames are exchanged by the Arrow C stream interface. Rust code runs without the
//! interpreter's lock.

mod arrow;
mod build;
mod interrupt;
mod on;
mod options;
mod parts;
mod store;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    larder,
    Error,
    PyException,
    "A larder operation failed; the message contains the reason."
);

/// Converts an error to `larder.Error`.
fn failed(error: impl std::fmt::Display) -> PyErr {
    Error::new_err(error.to_string())
}

/// Converts an error about an argument to `ValueError`.
fn bad_argument(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::Store>()?;
    module.add_class::<store::Records>()?;
    module.add_class::<arrow::Stream>()?;
    module.add_function(wrap_pyfunction!(build::build, module)?)?;
    module.add_function(wrap_pyfunction!(on::base, module)?)?;
    module.add_function(wrap_pyfunction!(parts::assemble, module)?)?;
    module.add_function(wrap_pyfunction!(parts::write_parts, module)?)?;
    module.add_function(wrap_pyfunction!(parts::merge_collected, module)?)?;
    module.add_function(wrap_pyfunction!(parts::check_out, module)?)?;
    module.add_function(wrap_pyfunction!(parts::finish, module)?)?;
    Ok(())
}
