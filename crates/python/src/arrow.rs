//! The Arrow C stream interface, in both directions.

use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use larder_ingest::{Batches, CStream};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::failed;

const NAME: &CStr = c"arrow_array_stream";

/// Returns the record batches of an object with a C stream.
///
/// # Errors
/// `TypeError` if it has none; `larder.Error` if its columns cannot be read.
pub fn batches(frame: &Bound<'_, PyAny>) -> PyResult<Batches> {
    let Ok(method) = frame.getattr("__arrow_c_stream__") else {
        let what = frame.get_type().name()?;
        return Err(PyTypeError::new_err(format!(
            "{what} does not export its rows by the Arrow C stream interface (__arrow_c_stream__)"
        )));
    };
    let made = method.call0()?;
    let capsule = made.cast::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(NAME))?;
    // SAFETY: a capsule with this name contains a stream by the interface's specification, which requires the
    // consumer to move it out.
    unsafe { Batches::from_c_stream(stream.cast::<CStream>().as_ptr()) }.map_err(failed)
}

/// Record batches for consumers of a C stream: pyarrow, Polars, pandas, DuckDB. They can be consumed once.
#[pyclass(frozen, module = "larder._native")]
pub struct Stream(Mutex<Option<SendStream>>);

/// The contents of a capsule.
#[repr(transparent)]
struct SendStream(CStream);

// SAFETY: a stream is not bound to a thread: it is produced by an iterator that is `Send`.
unsafe impl Send for SendStream {}

impl Stream {
    pub fn new(stream: CStream) -> Stream {
        Stream(Mutex::new(Some(SendStream(stream))))
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
        // Converting to another schema is left to the consumer.
        drop(requested_schema);
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let held = held.ok_or_else(|| failed("these batches were taken already"))?;
        // The consumer moves the stream out; otherwise it is released with the capsule.
        PyCapsule::new_with_value(py, held, NAME)
    }
}
