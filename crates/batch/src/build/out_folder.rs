//! The folder that a version is built into.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The output folder: what was written into it goes again, unless it is kept.
pub(super) struct OutFolder {
    pub path: PathBuf,
    created: bool,
    kept: bool,
}

impl OutFolder {
    pub fn create(path: &Path) -> Result<OutFolder, Error> {
        let created = !path.exists();
        fs::create_dir_all(path).map_err(Error::io("create folder", path))?;
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
            created,
            kept: false,
        })
    }

    pub fn keep(&mut self) {
        self.kept = true;
    }
}

impl Drop for OutFolder {
    fn drop(&mut self) {
        if self.kept {
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
