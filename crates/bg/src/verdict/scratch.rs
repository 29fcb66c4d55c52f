//! Temporary folders that are removed when bg ends: traces that are validated but not kept, and parts of traces larger
//! than memory.
//!
//! Dropping its [`Scratch`] removes a folder. A process that ends immediately calls [`remove_all`]. Folders remain only
//! if the process is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The folders of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A temporary folder, removed when this value is dropped.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Registers the folder. The caller creates it.
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
        // If the folder cannot be removed, it stays.
        let _ = fs::remove_dir_all(&self.0);
        all().retain(|folder| *folder != self.0);
    }
}

/// Removes all temporary folders, before the process ends without dropping its values.
pub fn remove_all() {
    for folder in all().drain(..) {
        let _ = fs::remove_dir_all(folder);
    }
}

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}
