//! A version that the tasks of an engine make together.
//!
//! 1. What a task leaves is a pure function of its partitions' rows: a task that runs twice, or beside itself, leaves the same bytes under the
//!    same names.
//! 2. The manifest is written last, by the driver. Before that there is no version.

use larder_batch::manifest::partition_of;
use larder_batch::{Builder, Manifest, SegmentPart};
use larder_ingest::{
    InputOptions, KEY_COLUMN, VALUE_COLUMN, ValueSpec, assemble_c_stream, ingest_batches,
};
use larder_types::SlotPrefix;
use pyo3::prelude::*;

use crate::build::{place, put, sink, temp_folder, text};
use crate::interrupt::without_lock;
use crate::options::Options;
use crate::{arrow, failed};

/// Rows as three columns: their partition, key and value.
#[pyfunction]
pub fn assemble(frame: &Bound<'_, PyAny>, options: &str) -> PyResult<arrow::Stream> {
    let options = Options::parse(options)?;
    let slots = SlotPrefix::new(format!("{}:", options.store).as_bytes());
    let partitions = options.partitions;
    let partition_of = move |key: &[u8]| partition_of(slots.slot(key), partitions);
    let batches = arrow::batches(frame)?;
    let stream = assemble_c_stream(batches, options.input()?, Box::new(partition_of));
    Ok(arrow::Stream::new(stream.map_err(failed)?))
}

/// Writes the segments of what [`assemble`] made of all rows of some partitions; gives what [`finish`] is to know of each.
#[pyfunction]
pub fn write_parts(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    options: &str,
    out: &str,
) -> PyResult<Vec<String>> {
    let options = Options::parse(options)?;
    let batches = arrow::batches(frame)?;
    without_lock(py, move || {
        let place = place(out)?;
        let input = InputOptions {
            key: vec![KEY_COLUMN.to_owned()],
            value: ValueSpec::Column(VALUE_COLUMN.to_owned()),
            ..options.input()?
        };
        write(&options, &place, |builder| {
            ingest_batches(batches, &input, &|| sink(builder))
                .map(drop)
                .map_err(failed)
        })
    })
}

fn write(
    options: &Options,
    place: &larder_remote::Location,
    feed: impl FnOnce(&Builder) -> PyResult<()>,
) -> PyResult<Vec<String>> {
    let temp = temp_folder(options)?;
    let folder = temp.path().join("parts");
    let builder = Builder::new(options.build()?, &folder).map_err(failed)?;
    feed(&builder)?;
    let parts = builder.finish_parts(&|_| {}).map_err(failed)?;
    parts
        .iter()
        .map(|part| {
            put(&folder, place, &part.entry.file)?;
            serde_json::to_string(part).map_err(failed)
        })
        .collect()
}

/// Makes sure that a version can be built to `out`.
#[pyfunction]
pub fn check_out(py: Python<'_>, options: &str, out: &str) -> PyResult<()> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        options.build()?;
        let manifest = place(out)?.join(Manifest::FILE).map_err(failed)?;
        match manifest.size_blocking() {
            Ok(_) => Err(failed(format!(
                "there is a version at {} already; choose another place, or remove it first",
                place(out)?
            ))),
            Err(larder_remote::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    })
}

/// Writes segments of the partitions that have no rows, and then the manifest; gives its text.
#[pyfunction]
pub fn finish(py: Python<'_>, parts: Vec<String>, options: &str, out: &str) -> PyResult<String> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        let place = place(out)?;
        let parts = parts.iter().map(|text| serde_json::from_str(text));
        let mut parts: Vec<SegmentPart> = parts.collect::<Result<_, _>>().map_err(failed)?;
        if parts.is_empty() && !options.allow_empty {
            return Err(failed(
                "the input holds no rows; a version without records is built only with allow_empty=True",
            ));
        }
        let temp = temp_folder(&options)?;
        let folder = temp.path().join("empty");
        let mut build = options.build()?;
        let built = build.built.take();
        let empty = Builder::new(build.clone(), &folder).map_err(failed)?;
        for part in empty.finish_all_parts(&|_| {}).map_err(failed)? {
            let is_same = |it: &SegmentPart| it.entry.partition == part.entry.partition;
            if !parts.iter().any(is_same) {
                put(&folder, &place, &part.entry.file)?;
                parts.push(part);
            }
        }
        let manifest = Manifest::of_parts(&build, built, parts).map_err(failed)?;
        let text = text(&manifest);
        std::fs::write(folder.join(Manifest::FILE), &text).map_err(failed)?;
        put(&folder, &place, Manifest::FILE)?;
        // What tasks that were killed in the middle have left. A task that still runs is one too many, and the version is whole without it.
        let _ = place.remove_unfinished_blocking();
        Ok(text)
    })
}
