//! Builds a version with the tasks of a distributed engine.
//!
//! 1. The output of a task is a pure function of its partitions' rows: a task that runs repeatedly or concurrently
//!    with itself writes the same bytes under the same names.
//! 2. The driver writes the manifest last. Before that there is no version.

use std::borrow::Cow;
use std::collections::BTreeSet;

use larder_batch::delta::{self, MarkedValue};
use larder_batch::manifest::partition_of;
use larder_batch::profile::{Collector, Shape};
use larder_batch::{Builder, Built, BuiltSegment, Manifest};
use larder_ingest::{
    BundleOptions, RowSink, SinkError, WriteValue, assemble_c_stream, ingest_bundles,
};
use larder_types::SlotPrefix;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::build::{Gates, Sink, place, put, sink, temp_folder, text};
use crate::interrupt::without_lock;
use crate::options::Options;
use crate::{arrow, bad_argument, failed};

/// Returns the rows as two columns: the target of their partition, one per element of `targets`, and bundles of this
/// size. For a delta, values have the delta marker; rows that remove keys consist only of the key and the marker.
#[pyfunction]
pub fn assemble(
    frame: &Bound<'_, PyAny>,
    options: &str,
    is_removed: bool,
    targets: Vec<i32>,
    bundle_bytes_max: usize,
) -> PyResult<arrow::Stream> {
    let options = Options::parse(options)?;
    let partitions = options.partitions;
    if targets.len() != partitions as usize {
        let have = targets.len();
        return Err(bad_argument(format!(
            "{have} targets are not one for each of {partitions} partitions"
        )));
    }
    let input = if is_removed {
        options.input_of_keys()?
    } else {
        options.input()?
    };
    let write_value: WriteValue = match (is_removed, options.is_of_changes()) {
        (true, _) => Box::new(|_, out| out.push(delta::REMOVED)),
        (false, true) => Box::new(|value, out| {
            out.extend_from_slice(value);
            out.push(delta::PRESENT);
        }),
        (false, false) => Box::new(|value, out| out.extend_from_slice(value)),
    };
    let slots = SlotPrefix::new(format!("{}:", options.store).as_bytes());
    let bundling = BundleOptions {
        partition_of: Box::new(move |key| partition_of(slots.slot(key), partitions)),
        write_value,
        targets,
        bundle_bytes_max,
        open_bytes_max: usize::try_from(options.memory()?.0 / 8).unwrap_or(usize::MAX),
    };
    let batches = arrow::batches(frame)?;
    let stream = assemble_c_stream(batches, input, bundling);
    Ok(arrow::Stream::new(stream.map_err(failed)?))
}

/// The output of a task: a description of each segment for [`finish`], and the collected profile data, if a profile
/// is requested.
type WrittenParts = (Vec<String>, Option<Cow<'static, [u8]>>);

/// Writes the segments from the output of [`assemble`] for all rows of some partitions.
#[pyfunction]
pub fn write_parts(
    py: Python<'_>,
    frame: &Bound<'_, PyAny>,
    options: &str,
    out: &str,
) -> PyResult<WrittenParts> {
    let options = Options::parse(options)?;
    let batches = arrow::batches(frame)?;
    without_lock(py, move || {
        let place = place(out)?;
        write(&options, out, &place, |builder| {
            let is_of_changes = options.is_of_changes();
            let sink = || -> Result<Box<dyn RowSink + '_>, SinkError> {
                let sink = sink(builder);
                Ok(if is_of_changes {
                    Box::new(MarkedSink(sink))
                } else {
                    Box::new(sink)
                })
            };
            let done = ingest_bundles(batches, options.writers(), &sink);
            done.map(drop).map_err(failed)
        })
    })
}

/// Receives rows whose values have the delta marker.
struct MarkedSink<'a>(Sink<'a>);

impl RowSink for MarkedSink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        match delta::decode(value) {
            Some(MarkedValue::Value(value)) => self.0.row(seq, key, value),
            Some(MarkedValue::Removed) => self.0.removed(seq, key),
            None => Err("a row came otherwise than it was sent".into()),
        }
    }

    fn check(&mut self) -> Result<(), SinkError> {
        self.0.check()
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Box::new(self.0).finish()
    }
}

fn write(
    options: &Options,
    out: &str,
    place: &larder_remote::Location,
    feed: impl FnOnce(&Builder) -> PyResult<()>,
) -> PyResult<WrittenParts> {
    let temp = temp_folder(options)?;
    let folder = temp.path().join("parts");
    let mut build = options.build_at(out)?;
    build.profile = options.profile;
    let builder = Builder::new(build, &folder).map_err(failed)?;
    feed(&builder)?;
    let (parts, collected) = builder.finish_parts(&|_| {}).map_err(failed)?;
    let parts = parts.iter().map(|part| {
        put(&folder, place, &part.entry.file)?;
        serde_json::to_string(part).map_err(failed)
    });
    let collected = collected.map(|collector| Cow::Owned(collector.encode()));
    Ok((parts.collect::<PyResult<_>>()?, collected))
}

/// Merges the profile data that several tasks collected.
#[pyfunction]
pub fn merge_collected(
    py: Python<'_>,
    collected: Vec<PyBackedBytes>,
    options: &str,
) -> PyResult<Cow<'static, [u8]>> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        let all = merged(&collected, &options.built_on(None)?)?;
        Ok(Cow::Owned(all.encode()))
    })
}

fn merged(collected: &[PyBackedBytes], built: &Built) -> PyResult<Collector> {
    let shape = Shape::from_built(built).ok_or_else(|| failed("these values have no columns"))?;
    let mut all = Collector::new(shape.clone());
    for bytes in collected {
        all.merge(Collector::decode(shape.clone(), bytes).map_err(failed)?);
    }
    Ok(all)
}

/// Checks that a version can be built to `out`, and that the version with which gates compare exists.
#[pyfunction]
pub fn check_out(py: Python<'_>, options: &str, out: &str) -> PyResult<()> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        options.build()?.check().map_err(failed)?;
        Gates::of(&options)?;
        let manifest = place(out)?.join(Manifest::FILE).map_err(failed)?;
        if manifest.exists_blocking().map_err(failed)? {
            Err(failed(format!(
                "there is a version at {} already; choose another place, or remove it first",
                place(out)?
            )))
        } else {
            Ok(())
        }
    })
}

/// Writes the segments of partitions without rows, and then the manifest, if the gates accept it; returns the
/// manifest's text.
#[pyfunction]
pub fn finish(
    py: Python<'_>,
    parts: Vec<String>,
    collected: Vec<PyBackedBytes>,
    options: &str,
    out: &str,
) -> PyResult<String> {
    let options = Options::parse(options)?;
    without_lock(py, move || {
        let place = place(out)?;
        let gates = Gates::of(&options)?;
        let parts = parts.iter().map(|text| serde_json::from_str(text));
        let mut parts: Vec<BuiltSegment> = parts.collect::<Result<_, _>>().map_err(failed)?;
        if parts.is_empty() && !options.allow_empty && !options.is_of_changes() {
            return Err(failed(
                "the input holds no rows; a version without records is built only with allow_empty=True",
            ));
        }
        let temp = temp_folder(&options)?;
        let folder = temp.path().join("empty");
        let mut build = options.build_at(out)?;
        let mut built = build.built.take();
        if let Some(built) = built.as_mut().filter(|_| options.has_profile()) {
            built.profile = Some(merged(&collected, built)?.finish(&built.key));
        }
        let empty = Builder::new(build.clone(), &folder).map_err(failed)?;
        let there: BTreeSet<usize> = (parts.iter())
            .map(|part| part.entry.partition.0 as usize)
            .collect();
        let missing =
            empty.finish_selected_parts(&|partition| !there.contains(&partition), &|_| {});
        for part in missing.map_err(failed)? {
            put(&folder, &place, &part.entry.file)?;
            parts.push(part);
        }
        let manifest = Manifest::from_parts(&build, built, parts).map_err(failed)?;
        gates.judge(&manifest).map_err(failed)?;
        let text = text(&manifest);
        std::fs::write(folder.join(Manifest::FILE), &text).map_err(failed)?;
        put(&folder, &place, Manifest::FILE)?;
        // Removes the remains of killed tasks. A task that still runs is redundant, and the version is complete
        // without it.
        let _ = place.remove_unfinished_blocking();
        Ok(text)
    })
}
