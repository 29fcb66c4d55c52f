//! Compaction: merges a version of several layers into a complete one.
//!
//! Each partition is read sequentially twice: once for the number and sizes of its records, which determine the
//! segment's layout, and once to write it. The result is byte for byte what a build of the same records with the
//! options of the lowest layer would write. Compaction needs memory for one window per layer.

use std::path::Path;

use larder_types::{fault_point, key_hash};

use super::counts::RowCounts;
use super::delta_base::Changes;
use super::out_folder::OutFolder;
use super::{BuildOptions, BuiltSegment};
use crate::built::Built;
use crate::error::Error;
use crate::manifest::{Manifest, SegmentEntry, segment_file};
use crate::profile::{Collector, Shape};
use crate::segment::{SegmentOptions, SegmentPlan, SegmentSummary, SegmentWriter};
use crate::signature::SecretKey;
use crate::version::{Version, Walk, files};

/// The parameters of a compaction.
pub struct Compaction<'a> {
    pub version: &'a Version,
    /// The program's name and version, and the time, for the manifest.
    pub by: String,
    pub at: u64,
    pub sign: Option<&'a SecretKey>,
    /// Called with a number of record bytes to read, before they are read; each record is read twice. It may block to
    /// throttle the compaction, and returns whether to continue.
    pub pace: &'a dyn Fn(u64) -> bool,
}

/// Receives a key and its value.
type RecordSink<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), Error> + 'a;

/// `pace` is called once per this many bytes.
const PACE_BYTES: u64 = 256 << 10;

impl Compaction<'_> {
    /// Writes into a new folder, which is emptied on an error.
    ///
    /// # Errors
    /// Like [`Compaction::write`]; [`Error::State`] for a folder that is not empty.
    pub fn write_new(&self, out: &Path) -> Result<Manifest, Error> {
        let mut folder = OutFolder::create(out)?;
        let manifest = self.write(out)?;
        folder.keep();
        Ok(manifest)
    }

    /// Writes the segments and then the manifest durably into a folder that has neither.
    ///
    /// # Errors
    /// [`Error::State`] for a version with missing partitions or only one layer; errors of reading the version or
    /// writing the new one, including a full disk; [`Error::Cancelled`].
    pub fn write(&self, out: &Path) -> Result<Manifest, Error> {
        let manifest = self.version.manifest();
        if !manifest.is_delta() {
            return Err(Error::state(format!(
                "the version in {} has one layer; there is nothing to compact",
                self.version.path().display()
            )));
        }
        if !self.version.has_all_partitions() {
            return Err(Error::state(format!(
                "{} contains only some partitions of the version; compact a complete copy",
                self.version.path().display()
            )));
        }
        let mut built = self.built();
        let mut collector = profile_shape(&built).map(Collector::new);
        let mut parts = Vec::new();
        for partition in 0..manifest.partitions {
            parts.push(self.segment(partition, out, &mut collector)?);
            fault_point("compact.segment");
        }
        if let Some(collector) = collector {
            built.profile = Some(collector.finish(&built.key));
        }
        let options = BuildOptions {
            partitions: manifest.partitions,
            compression: manifest.compression,
            sign: self.sign.cloned(),
            ..BuildOptions::new(manifest.store.clone())
        };
        let whole = Manifest::from_parts(&options, Some(built), parts)?;
        if (whole.record_count, whole.key_bytes, whole.value_bytes)
            != (
                manifest.record_count,
                manifest.key_bytes,
                manifest.value_bytes,
            )
        {
            return Err(Error::corrupted(
                format!("version {}", self.version.path().display()),
                format!(
                    "its layers have {} records in total, its manifest lists {}",
                    whole.record_count, manifest.record_count
                ),
            ));
        }
        let bytes = whole.encode();
        fault_point("compact.manifest");
        files::write_durably(&out.join(Manifest::FILE), &bytes)?;
        Manifest::decode("just written", &bytes)
    }

    /// Returns the `built` part of the manifest: that of the newest layer, marked as compacted.
    fn built(&self) -> Built {
        let manifest = self.version.manifest();
        let mut built = manifest.built.clone().unwrap_or_default();
        (built.by, built.at) = (self.by.clone(), self.at);
        built.on = Vec::new();
        let layers = format!("{} layers", manifest.layer_count());
        built.options.insert("compacted".to_owned(), layers);
        built
    }

    fn segment(
        &self,
        partition: u32,
        out: &Path,
        collector: &mut Option<Collector>,
    ) -> Result<BuiltSegment, Error> {
        let version = self.version;
        let manifest = version.manifest();
        let path = out.join(segment_file(partition));
        let io = || Error::io("write", &path);
        let base = version.base_footer(partition as usize)?;
        let options = SegmentOptions {
            compression: manifest.compression,
            block_size: base.block_size,
            filter: base.filter_size > 0,
            format: crate::segment::format::FORMAT,
            is_delta: false,
        };
        let plan = self.plan(partition)?;
        let file = files::StreamingFile::create(&path)?;
        let mut writer = SegmentWriter::new(file, options, plan).map_err(io())?;
        self.for_each_record(partition, &mut |key, value| {
            if let Some(collector) = collector {
                collector.add(key, value);
            }
            writer.push(key_hash(key), key, value).map_err(io())
        })?;
        let (file, summary) = writer.finish().map_err(io())?;
        file.finish(&path)?;
        Ok(part(&manifest.segments[partition as usize], summary))
    }

    fn plan(&self, partition: u32) -> Result<SegmentPlan, Error> {
        let manifest = self.version.manifest();
        let is_collected = manifest
            .built
            .as_ref()
            .is_some_and(|built| built.collect_as.is_some());
        let mut counts = RowCounts::new(is_collected);
        self.for_each_record(partition, &mut |key, value| {
            counts.add_row(key, value);
            Ok(())
        })?;
        Ok(counts.plan(partition, manifest.partitions))
    }

    fn for_each_record(&self, partition: u32, each: &mut RecordSink<'_>) -> Result<(), Error> {
        let at = partition as usize;
        let mut unpaced = 0;
        for record in Walk::of_partitions(self.version, at..at + 1) {
            let (key, value) = record?;
            unpaced += (key.len() + value.len()) as u64;
            if unpaced >= PACE_BYTES && !(self.pace)(std::mem::take(&mut unpaced)) {
                return Err(Error::Cancelled);
            }
            each(&key, &value)?;
        }
        if (self.pace)(unpaced) {
            Ok(())
        } else {
            Err(Error::Cancelled)
        }
    }
}

/// Returns the columns of the values if the version should have a profile and the newest layer has none. The profile
/// of a delta covers only its own rows.
fn profile_shape(built: &Built) -> Option<Shape> {
    let is_refused = built.options.contains_key("no-profile");
    if built.profile.is_none() && !is_refused {
        Shape::from_built(built)
    } else {
        None
    }
}

fn part(place: &SegmentEntry, summary: SegmentSummary) -> BuiltSegment {
    BuiltSegment {
        key_bytes: summary.key_bytes,
        value_bytes: summary.value_bytes,
        changes: None::<Changes>,
        entry: SegmentEntry {
            file: segment_file(place.partition.0),
            size_bytes: summary.size_bytes,
            record_count: summary.record_count,
            digest: summary.digest,
            ..place.clone()
        },
    }
}
