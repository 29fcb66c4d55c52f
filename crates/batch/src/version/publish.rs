//! A store's folder: versions being pulled, published versions, and the live version.
//!
//! ```text
//! <data>/stores/<name>/
//!     LIVE                 a symbolic link to the live version's folder; replaced by rename
//!     v0000000007/         published: never modified
//!     v0000000008.pull/    being pulled; survives a crash so that the pull can resume
//!     v0000000006.trash/   being removed
//!
//!   begin_pull ──> .pull ──publish──> v ──set_live──> LIVE ──(later) remove──> .trash ──> deleted
//! ```
//!
//! 1. A folder named `v<number>` is complete and durable: `publish` syncs every file and the folder before the
//!    rename, and the parent folder after it.
//! 2. The rename of `LIVE` is the commit point of a swap. It is a link, not a file, so that one sync (of the folder)
//!    makes it durable. After a crash before the rename the old version is live; after a crash following it, the new
//!    one.
//! 3. A number is not reused while anything of it is left, and increases with each pull.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use larder_types::{StoreName, VersionId, fault_point};

use super::files;
use crate::error::Error;

/// See the module. It holds only paths: the caller ensures that one thread at a time changes a store.
#[derive(Debug, Clone)]
pub struct StoreDir {
    path: PathBuf,
}

const LIVE: &str = "LIVE";
const LIVE_TEMPORARY: &str = "LIVE.tmp";
const PULL: &str = ".pull";
const TRASH: &str = ".trash";

impl StoreDir {
    /// # Errors
    /// [`Error::Io`] if the folder cannot be created.
    pub fn open_or_create(data: &Path, name: &StoreName) -> Result<StoreDir, Error> {
        let stores = data.join("stores");
        let path = stores.join(name.as_str());
        if !path.exists() {
            fs::create_dir_all(&path).map_err(Error::io("create folder", &path))?;
            files::sync_folder(&stores)?;
        }
        Ok(StoreDir { path })
    }

    /// Returns the store in this folder, wherever it is.
    pub fn at(path: &Path) -> StoreDir {
        StoreDir {
            path: path.to_owned(),
        }
    }

    /// Returns the names of the stores in a data folder, in order. Folders with other names are skipped.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn list(data: &Path) -> Result<Vec<StoreName>, Error> {
        let stores = data.join("stores");
        if !stores.exists() {
            return Ok(Vec::new());
        }
        let mut names: Vec<StoreName> = names_in(&stores)?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        names.sort();
        Ok(names)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the published versions, in ascending order.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn versions(&self) -> Result<Vec<VersionId>, Error> {
        self.numbered("")
    }

    /// Returns the versions whose pull has not ended, in ascending order, with their folders.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn pulls(&self) -> Result<Vec<(VersionId, PathBuf)>, Error> {
        Ok(self
            .numbered(PULL)?
            .into_iter()
            .map(|version| (version, self.pull_path(version)))
            .collect())
    }

    /// Returns the number of the next pull: one above every number that is in use or was live.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Corrupted`] for an invalid `LIVE`.
    pub fn next_version(&self) -> Result<VersionId, Error> {
        let mut used = self.versions()?;
        used.extend(self.numbered(PULL)?);
        used.extend(self.numbered(TRASH)?);
        used.extend(self.live()?);
        Ok(VersionId(
            used.into_iter().max().map_or(0, |version| version.0) + 1,
        ))
    }

    /// Returns the live version, if any.
    ///
    /// # Errors
    /// [`Error::Corrupted`] if `LIVE` is invalid.
    pub fn live(&self) -> Result<Option<VersionId>, Error> {
        let path = self.path.join(LIVE);
        let target = match fs::read_link(&path) {
            Ok(target) => target,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            // EINVAL: the name exists but is not a link.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => PathBuf::new(),
            Err(error) => return Err(Error::io("read", &path)(error)),
        };
        match target.to_str().and_then(VersionId::from_folder) {
            Some(version) => Ok(Some(version)),
            None => Err(Error::corrupted(
                path.display().to_string(),
                "it is not a link to the folder of a version of the store; link it to the version that should be live",
            )),
        }
    }

    /// Makes `version` live, or none. The change is durable on return.
    ///
    /// # Errors
    /// [`Error::State`] for a version that is not published; [`Error::Io`].
    pub fn set_live(&self, version: Option<VersionId>) -> Result<(), Error> {
        if let Some(version) = version
            && !self.version_path(version).is_dir()
        {
            return Err(Error::state(format!(
                "version {version} is not in {}",
                self.path.display()
            )));
        }
        let (link, temporary) = (self.path.join(LIVE), self.path.join(LIVE_TEMPORARY));
        let removed = |path: &Path| match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io("remove", path)(error))
            }
            _ => Ok(()),
        };
        match version {
            None => removed(&link)?,
            Some(version) => {
                removed(&temporary)?;
                symlink(version.folder(), &temporary)
                    .and_then(|()| fs::rename(&temporary, &link))
                    .map_err(Error::io("write", &link))?;
            }
        }
        files::sync_folder(&self.path)
    }

    pub fn version_path(&self, version: VersionId) -> PathBuf {
        self.path.join(version.folder())
    }

    pub fn pull_path(&self, version: VersionId) -> PathBuf {
        self.path.join(format!("{}{PULL}", version.folder()))
    }

    /// Returns the folder into which `version` is pulled, and creates it unless an earlier attempt did.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn begin_pull(&self, version: VersionId) -> Result<PathBuf, Error> {
        let path = self.pull_path(version);
        fs::create_dir_all(&path).map_err(Error::io("create folder", &path))?;
        Ok(path)
    }

    /// Makes a pulled version durable and gives it its final name.
    ///
    /// # Errors
    /// [`Error::Io`]; the pull is then still there.
    pub fn publish(&self, version: VersionId) -> Result<PathBuf, Error> {
        let (from, to) = (self.pull_path(version), self.version_path(version));
        for name in names_in(&from)? {
            files::sync_file(&from.join(name))?;
        }
        files::sync_folder(&from)?;
        fault_point("publish.synced");
        fs::rename(&from, &to).map_err(Error::io("rename to its place", &to))?;
        fault_point("publish.renamed");
        files::sync_folder(&self.path)?;
        Ok(to)
    }

    /// Removes a published version. Readers that have it open are not affected.
    ///
    /// # Errors
    /// [`Error::State`] for the live version; [`Error::Io`].
    pub fn remove(&self, version: VersionId) -> Result<(), Error> {
        if self.live()? == Some(version) {
            return Err(Error::state(format!(
                "version {version} is live; swap or roll back to another one first"
            )));
        }
        self.discard(&self.version_path(version), version)
    }

    /// Abandons a pull and removes the fetched files.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove_pull(&self, version: VersionId) -> Result<(), Error> {
        self.discard(&self.pull_path(version), version)
    }

    /// Removes the remains of interrupted removals and writes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sweep(&self) -> Result<(), Error> {
        for version in self.numbered(TRASH)? {
            let path = self.trash_path(version);
            fs::remove_dir_all(&path).map_err(Error::io("remove", &path))?;
        }
        Ok(())
    }

    /// Removes the store: every version, and its folder.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn remove_store(self) -> Result<(), Error> {
        self.set_live(None)?;
        fs::remove_dir_all(&self.path).map_err(Error::io("remove", &self.path))?;
        files::sync_folder(self.path.parent().expect("a store's folder has a parent"))
    }

    /// Renames first, so that a crash during the removal leaves nothing that looks like a version.
    fn discard(&self, path: &Path, version: VersionId) -> Result<(), Error> {
        let trash = self.trash_path(version);
        if trash.exists() {
            fs::remove_dir_all(&trash).map_err(Error::io("remove", &trash))?;
        }
        fs::rename(path, &trash).map_err(Error::io("remove", path))?;
        fault_point("remove.renamed");
        fs::remove_dir_all(&trash).map_err(Error::io("remove", &trash))?;
        files::sync_folder(&self.path)
    }

    fn trash_path(&self, version: VersionId) -> PathBuf {
        self.path.join(format!("{}{TRASH}", version.folder()))
    }

    fn numbered(&self, suffix: &str) -> Result<Vec<VersionId>, Error> {
        let names = names_in(&self.path)?;
        let mut found: Vec<VersionId> = names
            .iter()
            .filter_map(|name| VersionId::from_folder(name.strip_suffix(suffix)?))
            .collect();
        found.sort();
        Ok(found)
    }
}

fn names_in(folder: &Path) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io("read folder", folder))? {
        let entry = entry.map_err(Error::io("read folder", folder))?;
        names.extend(entry.file_name().into_string());
    }
    Ok(names)
}
