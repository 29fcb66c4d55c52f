//! The folder that a version is built into.
//!
//! 1. One build at a time writes into it: each holds a lock on the folder itself, which leaves no file behind and goes with the
//!    process. Where the file system has no such locks, nothing keeps two builds apart.
//! 2. What a build removes is what it wrote: it locked the folder before anything was in it, and the folder is still the one
//!    that it locked.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::version::files::FileId;

/// The output folder: what was written into it goes again, unless it is kept.
pub(super) struct OutFolder {
    pub path: PathBuf,
    /// Locked; `None` for who works within the folder of another.
    open: Option<File>,
    created: bool,
    kept: bool,
}

impl OutFolder {
    pub fn create(path: &Path) -> Result<OutFolder, Error> {
        let created = !path.exists();
        fs::create_dir_all(path).map_err(Error::io("create folder", path))?;
        let open = File::open(path).map_err(Error::io("open folder", path))?;
        let is_taken = matches!(open.try_lock(), Err(TryLockError::WouldBlock));
        // Another build may have removed the folder before it was locked here.
        if is_taken || !is_at(&open, path) {
            return Err(Error::state(format!(
                "another build writes into the output folder {}; choose another folder, or wait until that build has ended",
                path.display()
            )));
        }
        let mut entries = fs::read_dir(path).map_err(Error::io("read folder", path))?;
        if let Some(Ok(entry)) = entries.next() {
            return Err(Error::state(format!(
                "output folder {} is not empty (it holds {:?}); choose a new folder, or remove it first",
                path.display(),
                entry.file_name()
            )));
        }
        Ok(OutFolder {
            path: path.to_owned(),
            open: Some(open),
            created,
            kept: false,
        })
    }

    /// For another builder of the same version, which leaves it to this one to remove what was written.
    pub fn shared(&self) -> OutFolder {
        OutFolder {
            path: self.path.clone(),
            open: None,
            created: false,
            kept: true,
        }
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }
}

/// Whether the open folder is what this path leads to.
fn is_at(open: &File, path: &Path) -> bool {
    match (FileId::of_open(open), FileId::at(path)) {
        (Ok(own), Ok(there)) => own == there,
        _ => false,
    }
}

impl Drop for OutFolder {
    fn drop(&mut self) {
        if self.kept || !(self.open.as_ref()).is_some_and(|open| is_at(open, &self.path)) {
            return;
        }
        // Best effort: an error is on its way already, and says more than this one would.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        if self.created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}
