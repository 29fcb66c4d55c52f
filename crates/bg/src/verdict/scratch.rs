//! Temporary folders, which are removed when bg ends: traces that are judged and not kept, parts of traces larger than memory.
//!
//! A folder goes when its [`Scratch`] is dropped; those of a process that is told to end at once go by [`remove_all`]. Only a process
//! that is killed leaves them behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A folder that goes with this value.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Whoever calls makes the folder.
    pub fn new(folder: PathBuf) -> Scratch {
        all().push(folder.clone());
        Scratch(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing better can be done with a folder that cannot be removed than to leave it.
        let _ = fs::remove_dir_all(&self.0);
        all().retain(|folder| *folder != self.0);
    }
}

/// Before the process ends without dropping what it has.
pub fn remove_all() {
    for folder in all().drain(..) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}
