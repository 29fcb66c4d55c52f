//! `--on`: a build of what differs from a version that there is.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use larder_batch::{Base, Manifest, On};
use larder_types::StoreName;
use tempfile::TempDir;

use super::given::Given;
use super::{parse_location, read_manifest, temp_folder};
use crate::failure::Failure;
use crate::interrupt;

#[derive(Args, Clone, Default)]
pub struct OnArgs {
    /// Build a delta on this version, a folder or URL that `larder build` created: the inputs contain new and changed records,
    /// and all other keys keep their values
    #[arg(long, value_name = "PATH|URL", help_heading = "Increment")]
    pub on: Option<String>,
    /// The inputs contain all records of the new version: the build determines the differences, and removes keys that are
    /// not in the inputs
    #[arg(
        long,
        requires = "on",
        conflicts_with = "deleted",
        help_heading = "Increment"
    )]
    pub full: bool,
    /// A file with the keys to remove, in the columns of --key; other columns are ignored
    #[arg(long, value_name = "FILE", requires = "on", help_heading = "Increment")]
    pub deleted: Vec<String>,
}

/// What the version that is built on decides.
const OF_THE_BASE: [&str; 3] = ["partitions", "compress", "no-filter"];

impl OnArgs {
    /// Opens the version that is built on, if there is one. `out` is where what is built will be.
    ///
    /// # Errors
    /// There is no version, or none that can be built on for this store; an option is not to be given with it.
    pub fn open(
        &self,
        given: &Given,
        store: &StoreName,
        out: &str,
        temp: Option<&Path>,
    ) -> Result<Option<On>, Failure> {
        let Some(told) = &self.on else {
            return Ok(None);
        };
        if let Some(name) = OF_THE_BASE.iter().find(|name| given.has(name)) {
            return Err(Failure::usage(format!(
                "--{name} is decided by the version that is built on; leave it out, or build a whole version"
            )));
        }
        let place = parse_location(told)?;
        let (folder, place, _temp) = match place.as_local() {
            Some(folder) => {
                if !folder.join(Manifest::FILE).is_file() {
                    return Err(Failure::usage(format!(
                        "--on {told} is not a version: a folder with a {} is",
                        Manifest::FILE
                    )));
                }
                let folder = folder
                    .canonicalize()
                    .map_err(Failure::io(format!("open {told}")))?;
                let place = folder.to_string_lossy().into_owned();
                (folder, place, None)
            }
            None => {
                let fetched = fetch(told, temp)?;
                let place = told.trim_end_matches('/').to_owned();
                // The version keeps its files open, so they may go when it has been opened.
                (fetched.path().to_owned(), place, Some(fetched))
            }
        };
        let own = read_manifest(&folder)?.store;
        if own != *store {
            return Err(Failure::usage(format!(
                "--on {told} is a version of store {own}, and one of {store} cannot be built on it"
            )));
        }
        let target = parse_location(out)?.told_as(out);
        let target = target.map_err(|error| Failure::new(error.to_string()))?;
        let base = Base::open(&folder, &place, &target)?;
        Ok(Some(On {
            base: Arc::new(base),
            is_full: self.full,
        }))
    }
}

/// Copies a version, with those below it, into a folder of its own.
fn fetch(url: &str, temp: Option<&Path>) -> Result<TempDir, Failure> {
    let folder = temp_folder(temp)?;
    let copy = |root: &str, file: &str| -> Result<(), Failure> {
        interrupt::check()?;
        let place = parse_location(root)?.join(file)?;
        let mut reader = place.reader()?;
        let path = folder.path().join(file);
        let copied = File::create(&path).and_then(|mut out| io::copy(&mut reader, &mut out));
        copied
            .map(drop)
            .map_err(Failure::io(format!("copy {place} to {}", path.display())))
    };
    copy(url, Manifest::FILE)?;
    let manifest = read_manifest(folder.path())?;
    let roots = manifest.roots(url);
    for partition in 0..manifest.partitions {
        for (root, entry) in roots.iter().zip(manifest.entries_of(partition)) {
            copy(root, &entry.file)?;
        }
    }
    Ok(folder)
}
