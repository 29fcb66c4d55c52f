//! The base of a delta. Its partitions are opened individually on first use, so a task reads only those that its own
//! rows require.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_batch::{Base, DeltaBase, Error, Manifest, Partitions, SegmentEntry, Version, served};
use larder_remote::Location;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::build::{place, temp_folder};
use crate::interrupt::is_interrupted;
use crate::options::Options;
use crate::{bad_argument, failed};

/// The options from Python.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
pub struct OnOptions {
    place: String,
    /// The rows are the complete new version.
    pub full: bool,
    /// The digest of the base that the driver found; its tasks accept no other.
    digest: Option<String>,
    /// Only keys to remove are given.
    pub keys_only: bool,
}

/// Reads the manifest of a built version.
///
/// # Errors
/// If it is missing or damaged.
pub fn read_manifest(location: &Location) -> PyResult<Manifest> {
    let file = location.join(Manifest::FILE).map_err(failed)?;
    let read = file.reader().map(|reader| {
        let mut bytes = Vec::new();
        let read = reader.take(Manifest::SIZE_MAX).read_to_end(&mut bytes);
        read.map(|_| bytes)
    });
    let bytes = match read {
        Err(larder_remote::Error::NotFound { .. }) => {
            return Err(failed(format!(
                "there is no version at {location}: a place with a {} is one",
                Manifest::FILE
            )));
        }
        read => read.map_err(failed)?.map_err(failed)?,
    };
    Manifest::decode(&location.to_string(), &bytes).map_err(failed)
}

/// Returns the contents of the file at a URL, or `None` if it does not exist.
fn read(url: &str) -> PyResult<Option<Vec<u8>>> {
    let reader = match place(url)?.reader() {
        Err(larder_remote::Error::NotFound { .. }) => return Ok(None),
        reader => reader.map_err(failed)?,
    };
    let mut bytes = Vec::new();
    let read = reader.take(served::STATUS_MAX).read_to_end(&mut bytes);
    read.map_err(failed)?;
    Ok(Some(bytes))
}

/// Opens the base according to the options. `target` is the location of the new version.
///
/// # Errors
/// If there is no version, a different one, or one that cannot be a base for this store.
pub fn open(options: &Options, target: &str) -> PyResult<Option<DeltaBase>> {
    let Some(on) = &options.on else {
        return Ok(None);
    };
    let base_place = served::live_version_url(&absolute(&on.place)?, read)?;
    let location = place(&base_place)?;
    let manifest = read_manifest(&location)?;
    if let Some(digest) = on.digest.as_ref().filter(|it| **it != manifest.digest) {
        return Err(failed(format!(
            "the version at {location} was replaced: its digest is {} instead of {digest}; build the delta again on the current version",
            manifest.digest
        )));
    }
    if manifest.store != options.store {
        return Err(failed(format!(
            "the version at {location} is one of store {}, and one of {} cannot be built on it",
            manifest.store, options.store
        )));
    }
    if let Some(base) = &manifest.built
        && let Some(why) = options.built_on(Some(base))?.find_mismatch(base)
    {
        return Err(bad_argument(why));
    }
    if let Some(folder) = location.as_local() {
        let here = Partitions::read(folder, &manifest).map_err(failed)?;
        if here.len() < manifest.partitions as usize {
            return Err(failed(format!(
                "nothing can be built on {location}: it is a part of a version; name the location of the complete version"
            )));
        }
    }
    let target = absolute(target)?;
    let base = match location.as_local().map(PathBuf::from) {
        Some(folder) => {
            let open = Box::new(move |partition| Version::open_partition(&folder, partition));
            Base::from_parts(manifest, open, &base_place, &target).map_err(failed)?
        }
        None => {
            let roots = served::roots(&manifest, &base_place, |file| {
                let file = location.join(file).map_err(failed)?;
                file.exists_blocking().map_err(failed)
            })?;
            let (from, of, options) = (roots.clone(), manifest.clone(), options.clone());
            let open = Box::new(move |partition| {
                let fetched = fetch(&from, &of, partition, &options);
                fetched.map_err(|error| replaced(&location, &of).unwrap_or(error))
            });
            let base = Base::from_parts(manifest, open, &base_place, &target).map_err(failed)?;
            base.with_roots(roots)
        }
    };
    Ok(Some(DeltaBase {
        base: Arc::new(base),
        is_full: on.full,
    }))
}

/// Copies the segments of one partition, including those of the lower layers, to this machine. `roots` are the places
/// of the layers' files. The returned version keeps the files open after their folder is removed.
fn fetch(
    roots: &[String],
    manifest: &Manifest,
    partition: u32,
    options: &Options,
) -> Result<Version, Error> {
    let lost = |detail: String| Error::State { detail };
    let temp = temp_folder(options).map_err(|error| lost(error.to_string()))?;
    for (root, entry) in roots.iter().zip(manifest.partition_entries(partition)) {
        if is_interrupted() {
            return Err(Error::Cancelled);
        }
        let path = temp.path().join(&entry.file);
        copy(root, entry, &path).map_err(lost)?;
    }
    let path = temp.path().join(Manifest::FILE);
    let written = std::fs::write(&path, manifest.encode());
    written.map_err(|error| lost(format!("cannot write {}: {error}", path.display())))?;
    Version::open_partition(temp.path(), partition)
}

/// Returns an error if the version at `location` is not, or no longer, the one of `manifest`: the live version of a
/// server may change between the reads of two segments.
fn replaced(location: &Location, manifest: &Manifest) -> Option<Error> {
    let now = read_manifest(location).ok()?;
    (now.digest != manifest.digest).then(|| Error::State {
        detail: format!(
            "the version at {location} was replaced while it was copied; build the delta again"
        ),
    })
}

fn copy(root: &str, entry: &SegmentEntry, to: &Path) -> Result<(), String> {
    let from = Location::parse(root).and_then(|root| root.join(&entry.file));
    let from = from.map_err(|error| error.to_string())?;
    let reader = from
        .reader()
        .map_err(|error| format!("cannot read the version that is built on: {error}"))?;
    let shown = to.display();
    let copied = File::create(to).and_then(|out| entry.copy(reader, out));
    if copied.map_err(|error| format!("cannot copy {from} to {shown}: {error}"))? {
        Ok(())
    } else {
        Err(format!(
            "{from} does not have the digest in the manifest of the version that is built on; push or upload that version again"
        ))
    }
}

/// Returns the properties of the base that the driver adds to the options of the tasks: its digest and its number of
/// partitions.
///
/// # Errors
/// Like [`open`].
#[pyfunction]
pub fn base(py: Python<'_>, options: &str, out: &str) -> PyResult<(String, u32)> {
    let options = Options::parse(options)?;
    crate::interrupt::without_lock(py, move || {
        let on = open(&options, out)?;
        let on = on.ok_or_else(|| bad_argument("on is missing"))?;
        let manifest = on.base.manifest();
        Ok((manifest.digest.clone(), manifest.partitions))
    })
}

/// Returns an absolute path, or the URL.
fn absolute(text: &str) -> PyResult<String> {
    place(text)?.absolute_form(text).map_err(failed)
}
