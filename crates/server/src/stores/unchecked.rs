//! Versions that are published and have not been judged: what a crash leaves in the midst of a pull.
//!
//! ```text
//!  pull ─ publish ─► unchecked ─ verify, gates ─► kept ─ go_live ─► live
//!                        │ crash                    ▲
//!                        └─ listed so; a swap to it, or the next pull of the same bytes, judges it
//! ```
//!
//! A pull writes the gates that its version must pass into the version's folder before it publishes
//! it, and removes them when it has passed. So a version with the file is known to be unchecked also
//! to a server that starts after a crash, and no way leads from there to live but through the gates.

use std::fs;
use std::io;
use std::path::Path;

use larder_batch::version::files;
use larder_protocol::http::Gates;
use larder_types::VersionId;

use super::{Store, gates};
use crate::error::Error;
use crate::low_priority::lower_this_thread;
use crate::supervision::contain;

const FILE: &str = "unchecked.json";

/// Says that the version in `folder`, which is not published yet, has to pass `gates`.
pub fn mark(folder: &Path, gates: &Gates) -> Result<(), Error> {
    let path = folder.join(FILE);
    let bytes = serde_json::to_vec_pretty(gates).expect("plain structs become JSON");
    fs::write(&path, bytes).map_err(Error::io("write", &path))
}

/// Says so durably of a version that is kept, and is about to get partitions that nobody has verified.
pub fn mark_kept(version_dir: &Path, gates: &Gates) -> Result<(), Error> {
    mark(version_dir, gates)?;
    files::sync_file(&version_dir.join(FILE))?;
    Ok(files::sync_folder(version_dir)?)
}

/// Says durably that it has passed them. Doing so twice is the same.
pub fn clear(version_dir: &Path) -> Result<(), Error> {
    let path = version_dir.join(FILE);
    match fs::remove_file(&path) {
        Ok(()) => Ok(files::sync_folder(version_dir)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io("remove", &path)(error)),
    }
}

/// The gates that a version has yet to pass; `None` if it has been judged.
pub fn read(version_dir: &Path) -> Result<Option<Gates>, Error> {
    let path = version_dir.join(FILE);
    let bytes = match fs::read(&path) {
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
    /// Verifies and judges the version, if that has not been done: it may take as long as reading all
    /// of it. One that fails stays as it is, to be looked at or removed.
    ///
    /// # Errors
    /// [`Error::Corrupted`], or [`Error::Refused`] by one of its gates.
    pub fn judge_unchecked(&self, id: VersionId) -> Result<(), Error> {
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
            lower_this_thread();
            let what = format!("verifying version {id} of store {}", self.name);
            contain(&what, || {
                version.verify(&|_| true)?;
                let live = live.as_ref().map(|(id, version)| (*id, &**version));
                gates::check(&gates, self.program.as_deref(), &version, live, &|| true)
            })
        };
        let judged = std::thread::scope(|scope| scope.spawn(judge).join());
        judged.expect("the thread contains its panics")?;
        clear(&self.dir.version_path(id))?;
        tracing::info!(store = %self.name, version = id.0, "verified, and let through by its gates");
        if let Some(kept) = self.lock()?.kept.get_mut(&id) {
            kept.unchecked = None;
        }
        Ok(())
    }
}
