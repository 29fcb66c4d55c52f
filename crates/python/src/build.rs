//! Builds a version from a data frame or from files.

use std::path::Path;

use larder_batch::profile::{self, PreviousVersion};
use larder_batch::{Builder, Manifest, RowWriter};
use larder_ingest::{
    Batches, InputOptions, RowSink, SinkError, Summary, ingest, ingest_batches, seq_after,
};
use larder_remote::Location;
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::interrupt::{is_interrupted, without_lock};
use crate::on::read_manifest;
use crate::options::Options;
use crate::{arrow, bad_argument, failed};

/// The source of rows.
enum Source {
    Batches(Batches),
    /// A list of paths and URLs, as for `larder build`.
    Files(Vec<String>),
}

impl Source {
    fn of(given: &Bound<'_, PyAny>) -> PyResult<Source> {
        Ok(match given.cast::<PyList>() {
            Ok(files) => Source::Files(files.extract()?),
            Err(_) => Source::Batches(arrow::batches(given)?),
        })
    }

    fn ingest<'a>(
        self,
        input: InputOptions,
        sink: &(dyn Fn() -> Box<dyn RowSink + 'a> + Sync),
    ) -> PyResult<Summary> {
        let sink = || Ok(sink());
        let done = match self {
            Source::Batches(batches) => ingest_batches(batches, &input, &sink),
            Source::Files(inputs) => {
                let input = InputOptions { inputs, ..input };
                ingest(&input, &sink, &|_| {})
            }
        };
        done.map_err(failed)
    }
}

/// Builds from rows, from keys to remove from the base, or from both; returns the manifest's text and the number of
/// skipped rows.
#[pyfunction]
pub fn build(
    py: Python<'_>,
    rows: Option<&Bound<'_, PyAny>>,
    deleted: Option<&Bound<'_, PyAny>>,
    options: &str,
    out: &str,
) -> PyResult<(String, u64)> {
    let options = Options::parse(options)?;
    let rows = rows.map(Source::of).transpose()?;
    let deleted = deleted.map(Source::of).transpose()?;
    without_lock(py, move || {
        build_with_gates(&options, out, |builder| {
            let mut done = Summary::default();
            if let Some(rows) = rows {
                done = rows.ingest(options.input()?, &|| Box::new(sink(builder)))?;
            }
            if let Some(deleted) = deleted {
                let files_before = done.files;
                let removed = deleted.ingest(options.input_of_keys()?, &|| {
                    Box::new(Removed {
                        rows: sink(builder),
                        files_before,
                    })
                })?;
                done.rows += removed.rows;
                done.skipped += removed.skipped;
            }
            Ok(done)
        })
    })
}

/// Returns a sink that passes rows to a builder.
pub fn sink(builder: &Builder) -> Sink<'_> {
    Sink(builder.writer())
}

pub struct Sink<'a>(RowWriter<'a>);

impl Sink<'_> {
    /// Removes a key of the base.
    pub fn removed(&mut self, seq: u64, key: &[u8]) -> Result<(), SinkError> {
        Ok(self.0.push_removed(seq, key)?)
    }
}

impl RowSink for Sink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        Ok(self.0.push(seq, key, value)?)
    }

    fn check(&mut self) -> Result<(), SinkError> {
        if is_interrupted() {
            Err("interrupted".into())
        } else {
            Ok(())
        }
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(self.0.close()?)
    }
}

/// Rows of which only the key is used. They are numbered after those of the preceding files.
struct Removed<'a> {
    rows: Sink<'a>,
    files_before: u64,
}

impl RowSink for Removed<'_> {
    fn row(&mut self, seq: u64, key: &[u8], _: &[u8]) -> Result<(), SinkError> {
        self.rows.removed(seq_after(self.files_before, seq), key)
    }

    fn check(&mut self) -> Result<(), SinkError> {
        self.rows.check()
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Box::new(self.rows).finish()
    }
}

fn build_with_gates(
    options: &Options,
    out: &str,
    feed: impl FnOnce(&Builder) -> PyResult<Summary>,
) -> PyResult<(String, u64)> {
    let place = place(out)?;
    let gates = Gates::of(options)?;
    let build_into = |folder: &Path| -> PyResult<(Manifest, u64)> {
        let mut build = options.build_at(out)?;
        build.profile = options.profile;
        let builder = Builder::new(build, folder).map_err(failed)?;
        let done = feed(&builder)?;
        reject_empty(options, &done)?;
        let manifest =
            (builder.finish_checked(&|_| {}, &|manifest| gates.judge(manifest))).map_err(failed)?;
        Ok((manifest, done.skipped))
    };
    let (manifest, skipped) = match place.as_local() {
        Some(folder) => build_into(folder)?,
        None => {
            let temp = temp_folder(options)?;
            let folder = temp.path().join("version");
            let built = build_into(&folder)?;
            let files = built.0.segments.iter().map(|it| it.file.as_str());
            for file in files.chain([Manifest::FILE]) {
                put(&folder, &place, file)?;
            }
            built
        }
    };
    Ok((text(&manifest), skipped))
}

/// The conditions that a version must meet, and the version for comparison.
pub struct Gates<'a> {
    options: &'a Options,
    before: Option<(String, Manifest)>,
}

impl Gates<'_> {
    /// # Errors
    /// If the version for comparison does not exist.
    pub fn of(options: &Options) -> PyResult<Gates<'_>> {
        let before = options.against.as_deref().map(read_previous).transpose()?;
        Ok(Gates { options, before })
    }

    /// # Errors
    /// The messages of all gates that reject the version.
    pub fn judge(&self, manifest: &Manifest) -> Result<(), larder_batch::Error> {
        let before =
            (self.before.as_ref()).map(|(name, manifest)| PreviousVersion { name, manifest });
        let verdicts = profile::evaluate_gates(&self.options.limits(), manifest, before);
        let reasons: Vec<String> = (verdicts.into_iter())
            .filter(|it| !it.is_passed)
            .map(|it| it.message)
            .chain(reject_empty_result(self.options, manifest))
            .collect();
        if reasons.is_empty() {
            Ok(())
        } else {
            Err(larder_batch::Error::Refused(reasons.join("; ")))
        }
    }
}

/// Returns the version with which gates compare, and its name.
fn read_previous(against: &str) -> PyResult<(String, Manifest)> {
    let location = place(against)?;
    let name = format!("the version at {location}");
    Ok((name, read_manifest(&location)?))
}

/// Returns the reason for rejecting a delta that removes all records.
fn reject_empty_result(options: &Options, manifest: &Manifest) -> Option<String> {
    let refused = manifest.reject_empty_delta("allow_empty=True");
    refused.filter(|_| !options.allow_empty)
}

fn reject_empty(options: &Options, done: &Summary) -> PyResult<()> {
    match (done.rows, done.skipped) {
        // A delta without changes.
        (0, 0) if options.is_of_changes() => Ok(()),
        (0, skipped) if !options.allow_empty => Err(failed(match skipped {
            0 => "the input holds no rows; a version without records is built only with allow_empty=True".to_owned(),
            skipped => format!("skip_nulls left out all {skipped} rows of the input; a version without records is built only with allow_empty=True"),
        })),
        _ => Ok(()),
    }
}

/// # Errors
/// `ValueError` if it is neither a path nor a URL.
pub fn place(out: &str) -> PyResult<Location> {
    Location::parse(out).map_err(bad_argument)
}

/// Copies a built file; it becomes visible only when it is complete.
pub fn put(folder: &Path, place: &Location, file: &str) -> PyResult<()> {
    let target = place.join(file).map_err(failed)?;
    target.put_file_blocking(&folder.join(file)).map_err(failed)
}

/// Creates a folder that is removed on drop.
pub fn temp_folder(options: &Options) -> PyResult<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("larder-");
    let made = match &options.temp {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    };
    made.map_err(|error| failed(format!("cannot make a temporary folder: {error}")))
}

pub fn text(manifest: &Manifest) -> String {
    String::from_utf8_lossy(&manifest.encode()).into_owned()
}
