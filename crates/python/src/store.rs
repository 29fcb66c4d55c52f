//! Reads a version's files in this process, in the format that servers read.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use larder_batch::{Version, Walk};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::failed;
use crate::interrupt::without_lock;

/// An open version. It is immutable and may be read by many threads.
#[pyclass(frozen, module = "larder._native")]
pub struct Store(Arc<Version>);

/// Converts a key: bytes, or text, which is encoded in UTF-8.
fn key<'a>(given: &'a Bound<'_, PyAny>) -> PyResult<Cow<'a, [u8]>> {
    if let Ok(bytes) = given.cast::<PyBytes>() {
        return Ok(Cow::Borrowed(bytes.as_bytes()));
    }
    if let Ok(text) = given.cast::<PyString>() {
        return Ok(match text.to_cow()? {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        });
    }
    let what = given.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a key is bytes or str, and this is {what}"
    )))
}

impl Store {
    /// Checks, after values were copied from the files, that no file was truncated in the meantime.
    fn check_complete<T>(&self, read: T) -> PyResult<T> {
        if self.0.is_intact() {
            Ok(read)
        } else {
            Err(failed(self.0.lost_pages_error()))
        }
    }
}

#[pymethods]
impl Store {
    #[new]
    fn open(py: Python<'_>, path: &str) -> PyResult<Store> {
        let version = py.detach(|| Version::open(Path::new(path)));
        version
            .map(|version| Store(Arc::new(version)))
            .map_err(failed)
    }

    /// Returns the manifest's text.
    #[getter]
    fn manifest_text(&self) -> String {
        crate::build::text(self.0.manifest())
    }

    fn __len__(&self) -> usize {
        self.0.manifest().record_count as usize
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        given: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = self.0.get(&key(given)?).map_err(failed)?;
        self.check_complete(found.map(|value| PyBytes::new(py, &value)))
    }

    fn __contains__(&self, given: &Bound<'_, PyAny>) -> PyResult<bool> {
        let found = self.0.get(&key(given)?).map_err(failed)?;
        Ok(found.is_some())
    }

    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys = keys.iter().map(key).collect::<PyResult<Vec<_>>>()?;
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let mut found = Vec::with_capacity(keys.len());
        self.0.get_many(&keys, &mut found);
        let values = found.into_iter().map(|value| {
            let value = value.map_err(failed)?;
            Ok(value.map(|value| PyBytes::new(py, &value)))
        });
        let values = values.collect::<PyResult<Vec<_>>>()?;
        self.check_complete(values)
    }

    /// Reads every byte and verifies every digest.
    ///
    /// # Errors
    /// The damage that was found.
    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        let version = self.0.clone();
        without_lock(py, move || {
            let report = version.verify(&|_| !crate::interrupt::is_interrupted());
            report.map(drop).map_err(failed)
        })
    }

    fn __iter__(&self) -> Records {
        Records(Walk::new(self.0.clone()))
    }
}

/// An iterator over the records of a version, in the order of its files.
#[pyclass(module = "larder._native")]
pub struct Records(Walk<Arc<Version>>);

#[pymethods]
impl Records {
    fn __iter__(records: PyRef<'_, Self>) -> PyRef<'_, Self> {
        records
    }

    fn __next__<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        match self.0.next() {
            None => Ok(None),
            Some(Ok((key, value))) => Ok(Some((PyBytes::new(py, &key), PyBytes::new(py, &value)))),
            Some(Err(error)) => Err(failed(error)),
        }
    }
}
