//! `--on`: builds a delta on an existing version.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use larder_batch::{Base, DeltaBase, Manifest, served};
use larder_remote::Location;
use larder_types::StoreName;
use tempfile::TempDir;

use super::given_options::GivenOptions;
use super::{parse_location, read_manifest, temp_folder};
use crate::failure::Failure;
use crate::interrupt;

#[derive(Args, Clone, Default)]
pub struct DeltaArgs {
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

/// The options that the base version determines.
const BASE_OPTIONS: [&str; 3] = ["partitions", "compress", "no-filter"];

impl DeltaArgs {
    /// Opens the base version, if there is one. `out` is the location of the new version.
    ///
    /// # Errors
    /// The base does not exist, belongs to another store or cannot be built on, or an option conflicts with it.
    pub fn open(
        &self,
        given: &GivenOptions,
        store: &StoreName,
        out: &str,
        temp: Option<&Path>,
    ) -> Result<Option<DeltaBase>, Failure> {
        let Some(base_place) = &self.on else {
            return Ok(None);
        };
        if let Some(name) = BASE_OPTIONS.iter().find(|name| given.has(name)) {
            return Err(Failure::usage(format!(
                "--{name} is determined by the base version; omit the option, or build a complete version"
            )));
        }
        let place = parse_location(base_place)?;
        let (folder, place, fetched) = match place.as_local() {
            Some(folder) => {
                if !folder.join(Manifest::FILE).is_file() {
                    return Err(Failure::usage(format!(
                        "--on {base_place} is not a version: the folder has no {}",
                        Manifest::FILE
                    )));
                }
                let folder = folder
                    .canonicalize()
                    .map_err(Failure::io(format!("open {base_place}")))?;
                let place = folder.to_string_lossy().into_owned();
                (folder, place, None)
            }
            None => {
                let place = served::live_version_url(base_place.trim_end_matches('/'), read)?;
                let fetched = FetchedBase::from(&place, temp)?;
                (fetched.folder.path().to_owned(), place, Some(fetched))
            }
        };
        let own = read_manifest(&folder)?.store;
        if own != *store {
            return Err(Failure::usage(format!(
                "--on {base_place} is a version of store {own}, so a version of store {store} cannot use it as its base"
            )));
        }
        let target = parse_location(out)?.absolute_form(out);
        let target = target.map_err(|error| Failure::new(error.to_string()))?;
        let mut base = Base::open(&folder, &place, &target)?;
        // The version keeps its files open, so the copy is removed here.
        if let Some(fetched) = fetched {
            base = base.with_roots(fetched.roots);
        }
        Ok(Some(DeltaBase {
            base: Arc::new(base),
            is_full: self.full,
        }))
    }
}

/// A local copy of a version at a URL, with the layers below it.
struct FetchedBase {
    folder: TempDir,
    /// The URL or path of each layer, the lowest first.
    roots: Vec<String>,
}

impl FetchedBase {
    fn from(url: &str, temp: Option<&Path>) -> Result<FetchedBase, Failure> {
        let folder = temp_folder(temp)?;
        let path = folder.path();
        if !copy(url, Manifest::FILE, path)? {
            return Err(Failure::not_found(format!(
                "--on {url} is not a version: it has no {}. A version that a server serves is at {HTTP_PLACE}",
                Manifest::FILE
            )));
        }
        let manifest = read_manifest(path)?;
        let roots = served::roots(&manifest, url, |file| {
            let file = parse_location(url)?.join(file)?;
            Ok::<_, Failure>(file.exists_blocking()?)
        })?;
        let copied = copy_segments(url, &manifest, &roots, path);
        // On a server, another version may have become live meanwhile, with other segments or without some of them.
        let is_same = copy(url, Manifest::FILE, path)? && read_manifest(path)? == manifest;
        if is_same {
            copied.map(|()| FetchedBase { folder, roots })
        } else {
            Err(Failure::new(format!(
                "the version at {url} was replaced while it was copied; run the command again"
            )))
        }
    }
}

/// Copies the segments of all layers into `folder`.
fn copy_segments(
    url: &str,
    manifest: &Manifest,
    roots: &[String],
    folder: &Path,
) -> Result<(), Failure> {
    for partition in 0..manifest.partitions {
        for (root, entry) in roots.iter().zip(manifest.partition_entries(partition)) {
            let Some(reader) = open(&parse_location(root)?.join(&entry.file)?)? else {
                return Err(Failure::not_found(format!(
                    "{url} cannot be used as a base: there is no {} at {root}. Name a location of the complete version: a node of a cluster serves only its own partitions",
                    entry.file
                )));
            };
            let path = folder.join(&entry.file);
            let is_intact = File::create(&path)
                .and_then(|file| entry.copy(reader, file))
                .map_err(copy_failed(root, &path))?;
            if !is_intact {
                return Err(Failure::new(format!(
                    "nothing can be built on {url}: the {} at {root} does not have the digest in the manifest. Push or upload the version again",
                    entry.file
                )));
            }
        }
    }
    Ok(())
}

/// The form of the URL under which a server offers the files of a live version.
const HTTP_PLACE: &str = "http://HOST:PORT/v1/stores/STORE/versions/live/files";

/// Copies a file into `folder`. Returns whether the file exists.
fn copy(root: &str, file: &str, folder: &Path) -> Result<bool, Failure> {
    let Some(mut reader) = open(&parse_location(root)?.join(file)?)? else {
        return Ok(false);
    };
    let path = folder.join(file);
    let copied = File::create(&path).and_then(|mut out| io::copy(&mut reader, &mut out));
    copied.map(|_| true).map_err(copy_failed(root, &path))
}

/// Opens a file for reading. Returns `None` if it does not exist.
fn open(file: &Location) -> Result<Option<Box<dyn Read + Send>>, Failure> {
    interrupt::check()?;
    match file.reader() {
        Err(larder_remote::Error::NotFound { .. }) => Ok(None),
        reader => Ok(Some(reader?)),
    }
}

/// Returns the contents of the file at a URL, or `None` if it does not exist.
fn read(url: &str) -> Result<Option<Vec<u8>>, Failure> {
    let Some(reader) = open(&parse_location(url)?)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    let read = reader.take(served::STATUS_MAX).read_to_end(&mut bytes);
    read.map_err(Failure::io(format!("read {url}")))?;
    Ok(Some(bytes))
}

/// For `map_err`, on a copy of the file of this name at `root`.
fn copy_failed(root: &str, to: &Path) -> impl FnOnce(io::Error) -> Failure + use<> {
    Failure::io(format!("copy from {root} to {}", to.display()))
}
