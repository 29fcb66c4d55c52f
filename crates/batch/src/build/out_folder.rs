//! The output folder of a build.
//!
//! 1. One build at a time writes into a folder. It holds a lock on the folder itself, which leaves no file behind and
//!    ends with the process. File systems without such locks do not prevent concurrent builds.
//! 2. A build removes only files that it wrote: it locked the folder while it was empty, and verifies that the path
//!    still leads to the folder that it locked.
//! 3. A killed build leaves segments and no manifest. The next build into the folder removes them. A folder with any
//!    other file is rejected and left unchanged.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::manifest::Manifest;
use crate::version::files::FileId;

/// The output folder. Its files are removed on drop unless `keep` was called.
pub(super) struct OutFolder {
    pub path: PathBuf,
    /// The locked folder; `None` for a builder that shares the folder of another.
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
        remove_remains(path)?;
        Ok(OutFolder {
            path: path.to_owned(),
            open: Some(open),
            created,
            kept: false,
        })
    }

    /// Returns the folder for a second builder of the same version. The first one still removes the files on a
    /// failure.
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

/// Removes the remains of a killed build from an output folder.
///
/// # Errors
/// [`Error::State`] if the folder has any other file, or another build writes into it.
pub fn clear_remains(path: &Path) -> Result<(), Error> {
    OutFolder::create(path)?.keep();
    Ok(())
}

fn remove_remains(path: &Path) -> Result<(), Error> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(Error::io("read folder", path))?;
    let is_foreign = |entry: &&fs::DirEntry| !entry.file_name().to_str().is_some_and(is_remains);
    if let Some(entry) = entries.iter().find(is_foreign) {
        return Err(Error::state(format!(
            "output folder {} is not empty (it holds {:?}); choose a new folder, or remove it first",
            path.display(),
            entry.file_name()
        )));
    }
    for entry in entries {
        fs::remove_file(entry.path()).map_err(Error::io("remove", &entry.path()))?;
    }
    Ok(())
}

/// Returns whether a build that ended before its manifest was in place may have left a file of this name.
fn is_remains(name: &str) -> bool {
    let numbers = name
        .strip_prefix('p')
        .and_then(|it| it.strip_suffix(".segment"));
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    let temporary = Path::new(Manifest::FILE).with_extension("tmp");
    numbers.is_some_and(|it| it.split('.').all(is_number)) || Path::new(name) == temporary
}

/// Returns whether the path leads to the open folder.
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
        // Best effort: the caller already returns an error that is more useful than one from here.
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let _ = fs::remove_file(entry.path());
        }
        if self.created {
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::layer_file;

    #[test]
    fn segments_without_a_manifest_are_removed_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| fs::write(folder.path().join(name), "x").unwrap();
        let count = || fs::read_dir(folder.path()).unwrap().count();
        for name in [&layer_file(7, 0), &layer_file(0, 3), "manifest.tmp"] {
            write(name);
        }
        clear_remains(folder.path()).unwrap();
        assert_eq!(count(), 0);
        for foreign in [Manifest::FILE, "p1.segment.csv", "p.segment", "notes"] {
            write(&layer_file(0, 0));
            write(foreign);
            let error = clear_remains(folder.path()).unwrap_err().to_string();
            assert!(error.contains(foreign), "{error}");
            assert_eq!(count(), 2);
            fs::remove_file(folder.path().join(foreign)).unwrap();
        }
    }
}
