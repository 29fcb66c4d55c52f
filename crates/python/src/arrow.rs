//! The Arrow C stream interface, both ways.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use larder_ingest::{Batches, CStream};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::failed;

const NAME: &CStr = c"arrow_array_stream";

/// The record batches of whatever hands over a C stream.
///
/// # Errors
/// `TypeError`, if it does not; `larder.Error` if its columns cannot be read.
pub fn batches(frame: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let Ok(method) = frame.getattr("__arrow_c_stream__") else {
        let what = frame.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "{what} does not hand its rows over by the Arrow C stream interface (__arrow_c_stream__)"
        )));
    };
    let made = method.call0()?;
    let capsule = made.cast::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(NAME))?;
    // SAFETY: a capsule of this name holds a stream by the interface's specification, which says that it is to be moved out.
    unsafe { Batches::from_c_stream(stream.cast::<CStream>().as_ptr()) }.map_err(failed)
}

/// Record batches for who takes a C stream: pyarrow, Polars, pandas, DuckDB. They can be taken once.
#[pyclass(frozen, module = "larder._native")]
pub struct Stream(Mutex<Option<Held>>);

/// What a capsule holds.
#[repr(transparent)]
struct Held(CStream);

// SAFETY: a stream has no ties to a thread: what it hands over is made by an iterator that is `Send`.
unsafe impl Send for Held {}

impl Stream {
    pub fn new(stream: CStream) -> Stream {
        Stream(Mutex::new(Some(Held(stream))))
    }
}

#[pymethods]
impl Stream {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // Another schema is the taker's to make of this one.
        drop(requested_schema);
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let held = held.ok_or_else(|| failed("these batches were taken already"))?;
        // Who takes the stream moves it out; else it is released with the capsule.
        PyCapsule::new_with_value(py, held, NAME)
    }
}
