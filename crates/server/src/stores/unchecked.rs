//! Published versions that have not passed their gates: the remainder of a pull that was interrupted by a crash.
//!
//! ```text
//!  pull ─ publish ─► unchecked ─ verify, gates ─► kept ─ go_live ─► live
//!                        │ crash                    ▲
//!                        └─ listed as unchecked; a swap to it, or the next pull of the same bytes, checks it
//! ```
//!
//! A pull writes the gates that its version must pass into the version's folder before it publishes the version, and removes them
//! when it has passed. A version with this file is therefore known to be unchecked, even after a crash, and can become live only
//! through its gates.

use std::fs;
use std::io;
use std::path::Path;

use larder_batch::version::files;
use larder_protocol::http::Gates;
use larder_types::VersionId;

use super::{Store, gates};
use crate::error::Error;
use crate::low_priority::lower_thread_priority;
use crate::supervision::contain;

const FILE: &str = "unchecked.json";

/// Marks the version in `folder`, which is not published yet, as having to pass `gates`.
pub fn mark(folder: &Path, gates: &Gates) -> Result<(), Error> {
    let path = folder.join(FILE);
    let bytes = serde_json::to_vec_pretty(gates).expect("plain structs become JSON");
    fs::write(&path, bytes).map_err(Error::io("write", &path))
}

/// Durably marks a kept version that is about to receive unverified partitions.
pub fn mark_kept(version_dir: &Path, gates: &Gates) -> Result<(), Error> {
    mark(version_dir, gates)?;
    files::sync_file(&version_dir.join(FILE))?;
    Ok(files::sync_folder(version_dir)?)
}

/// Durably removes the mark of a version that has passed. Idempotent.
pub fn clear(version_dir: &Path) -> Result<(), Error> {
    let path = version_dir.join(FILE);
    match fs::remove_file(&path) {
        Ok(()) => Ok(files::sync_folder(version_dir)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", &path)(error)),
    }
}

/// The gates that a version has not passed yet; `None` if it has passed.
pub fn read(version_dir: &Path) -> Result<Option<Gates>, Error> {
    let path = version_dir.join(FILE);
    let bytes = match files::read_regular(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path)(error)),
    };
    let gates = serde_json::from_slice(&bytes).map_err(|error| {
        Error::Corrupted(format!(
            "the gates in {} cannot be read: {error}; push the version again",
            path.display()
        ))
    })?;
    Ok(Some(gates))
}

impl Store {
    /// Verifies and checks the version, unless that has been done. This may take as long as reading all of it. A version that
    /// fails is kept, so that it can be examined or removed.
    ///
    /// # Errors
    /// [`Error::Corrupted`], or [`Error::Refused`] by one of its gates.
    /// [`Error::Corrupted`], or [`Error::Refused`] by one of its gates.
    pub fn check_unchecked(&self, id: VersionId) -> Result<(), Error> {
        let (gates, version, live) = {
            let state = self.lock()?;
            let Some(gates) = state.kept.get(&id).and_then(|kept| kept.unchecked.clone()) else {
                return Ok(());
            };
            let live = state
                .live
                .and_then(|id| Some((id, self.open_version(&state, id).ok()?)));
            (gates, self.open_version(&state, id)?, live)
        };
        let judge = || {
            lower_thread_priority();
            let what = format!("verifying version {id} of store {}", self.name);
            contain(&what, || {
                version.verify(&|_| true)?;
                let live = live.as_ref().map(|(id, version)| (*id, &**version));
                gates::check(&gates, self.program.as_deref(), &version, live, &|| true)
            })
        };
        let verdict = std::thread::scope(|scope| scope.spawn(judge).join());
        verdict.expect("the thread contains its panics")?;
        clear(&self.dir.version_path(id))?;
        tracing::info!(store = %self.name, version = id.0, "verified and accepted by its gates");
        if let Some(kept) = self.lock()?.kept.get_mut(&id) {
            kept.unchecked = None;
        }
        Ok(())
    }
}
