//! A version of a data frame, or of files.

use std::io::Read;
use std::path::Path;

use larder_batch::profile::{self, Before};
use larder_batch::{Builder, Manifest, RowWriter};
use larder_ingest::{InputOptions, RowSink, SinkError, Summary, ingest, ingest_batches};
use larder_remote::Location;
use pyo3::prelude::*;

use crate::interrupt::{is_interrupted, without_lock};
use crate::options::Options;
use crate::{arrow, bad_argument, failed};

/// Builds of what a data frame hands over; gives the manifest's text and how many rows were left out.
#[pyfunction]
pub fn build_frame(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    options: &str,
    out: &str,
) -> PyResult<(String, u64)> {
    let options = Options::parse(options)?;
    let batches = arrow::batches(frame)?;
    without_lock(py, move || {
        let input = options.input()?;
        build(&options, out, |builder| {
            ingest_batches(batches, &input, &|| sink(builder)).map_err(failed)
        })
    })
}

/// Builds of files, as `larder build` does.
#[pyfunction]
pub fn build_files(
    py: Python<'_>,
    inputs: Vec<String>,
    options: &str,
    out: &str,
) -> PyResult<(String, u64)> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        let input = InputOptions {
            inputs,
            ..options.input()?
        };
        build(&options, out, |builder| {
            ingest(&input, &|| sink(builder), &|_| {}).map_err(failed)
        })
    })
}

/// Rows into a builder.
pub fn sink(builder: &Builder) -> Result<Box<dyn RowSink + '_>, SinkError> {
    Ok(Box::new(Sink(builder.writer())))
}

struct Sink<'a>(RowWriter<'a>);

impl RowSink for Sink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        Ok(self.0.push(seq, key, value)?)
    }

    fn check(&mut self) -> Result<(), SinkError> {
        match is_interrupted() {
            true => Err("interrupted".into()),
            false => Ok(()),
        }
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(self.0.close()?)
    }
}

fn build(
    options: &Options,
    out: &str,
    feed: impl FnOnce(&Builder) -> PyResult<Summary>,
) -> PyResult<(String, u64)> {
    let place = place(out)?;
    let before = options.against.as_deref().map(earlier).transpose()?;
    let judge = |manifest: &Manifest| {
        let before = before
            .as_ref()
            .map(|(name, manifest)| Before { name, manifest });
        let verdicts = profile::judge(&options.limits(), manifest, before);
        let told: Vec<String> = (verdicts.into_iter())
            .filter(|it| !it.is_passed)
            .map(|it| it.told)
            .collect();
        match told.is_empty() {
            true => Ok(()),
            false => Err(larder_batch::Error::Refused(told.join("; "))),
        }
    };
    let build_into = |folder: &Path| -> PyResult<(Manifest, u64)> {
        let mut build = options.build()?;
        build.profile = options.profile;
        let builder = Builder::new(build, folder).map_err(failed)?;
        let done = feed(&builder)?;
        refuse_empty(options, &done)?;
        let manifest = builder.finish_judged(&|_| {}, &judge).map_err(failed)?;
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

/// The version that gates compare with, and how it is called.
fn earlier(against: &str) -> PyResult<(String, Manifest)> {
    let location = place(against)?;
    let name = format!("the version at {location}");
    let file = location.join(Manifest::FILE).map_err(failed)?;
    let mut bytes = Vec::new();
    let reader = file.reader().map_err(failed)?;
    let read = reader.take(Manifest::SIZE_MAX).read_to_end(&mut bytes);
    read.map_err(failed)?;
    let manifest = Manifest::decode(&location.to_string(), &bytes).map_err(failed)?;
    Ok((name, manifest))
}

fn refuse_empty(options: &Options, done: &Summary) -> PyResult<()> {
    match (done.rows, done.skipped) {
        (0, skipped) if !options.allow_empty => Err(failed(match skipped {
            0 => "the input holds no rows; a version without records is built only with allow_empty=True".to_owned(),
            skipped => format!("skip_nulls left out all {skipped} rows of the input; a version without records is built only with allow_empty=True"),
        })),
        _ => Ok(()),
    }
}

/// # Errors
/// `ValueError`: it is neither a path nor a URL.
pub fn place(out: &str) -> PyResult<Location> {
    Location::parse(out).map_err(bad_argument)
}

/// Copies a file that was built; nobody sees it before it is whole.
pub fn put(folder: &Path, place: &Location, file: &str) -> PyResult<()> {
    let target = place.join(file).map_err(failed)?;
    target.put_file_blocking(&folder.join(file)).map_err(failed)
}

/// A folder that goes when it is dropped.
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
