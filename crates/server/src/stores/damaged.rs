//! Records damage that a verification or a dump found in a version, in a file in the version's folder, until a verification finds
//! it intact.
//!
//! A rollback skips damaged versions, and a swap to one must be forced: returning to bytes that are known to be wrong is useless,
//! and a likely mistake in an urgent rollback.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use larder_batch::version::VerifyReport;
use larder_batch::version::files::{self, FileId};
use larder_batch::{Error as BatchError, Version};
use larder_types::VersionId;
use serde::{Deserialize, Serialize};

use super::{KeptVersion, Store, StoreState};
use crate::clock::unix_seconds;
use crate::error::Error;

const FILE: &str = "damaged.json";

#[derive(Serialize, Deserialize)]
struct Record {
    /// The damage that was found.
    reason: String,
    /// Seconds since 1970.
    found_at: u64,
}

/// Returns the recorded damage of a version, if any. A record that cannot be read also counts as damage.
pub fn read(version_dir: &Path) -> Option<String> {
    let path = version_dir.join(FILE);
    match files::read_regular(&path) {
        Ok(bytes) => Some(match serde_json::from_slice::<Record>(&bytes) {
            Ok(record) => record.reason,
            Err(error) => format!("{} cannot be read: {error}", path.display()),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("{} cannot be read: {error}", path.display())),
    }
}

/// Durably records the damage, or removes the record. Idempotent.
fn write(version_dir: &Path, reason: Option<&str>) -> Result<(), Error> {
    let path = version_dir.join(FILE);
    match reason {
        Some(reason) => {
            let record = Record {
                reason: reason.to_owned(),
                found_at: unix_seconds(),
            };
            let bytes = serde_json::to_vec_pretty(&record).expect("plain structs become JSON");
            files::write_durably(&path, &bytes)?;
        }
        None => match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Error::io("remove", &path)(error)),
        },
    }
    Ok(files::sync_folder(version_dir)?)
}

fn files_of(version: &Version) -> impl Iterator<Item = PathBuf> {
    let entries = version.manifest().entries();
    entries.map(|entry| version.path().join(&entry.file))
}

/// Returns the file of a version that an error names.
fn damaged_file(version: &Version, place: &str) -> Option<FileId> {
    let named = |path: &PathBuf| place.contains(&*path.to_string_lossy());
    FileId::at(&files_of(version).find(named)?).ok()
}

impl Store {
    /// Records the result of the verification of a kept version. Damage is recorded for every version that shares the damaged
    /// file.
    pub fn note_verified(
        &self,
        id: VersionId,
        version: &Version,
        report: &Result<VerifyReport, BatchError>,
    ) {
        match report {
            Ok(_) => self.note(id, None, None),
            Err(error) => self.note_damage(id, version, error),
        }
    }

    /// Records damage found while reading a kept version, if the error reports damage.
    pub fn note_damage(&self, id: VersionId, version: &Version, error: &BatchError) {
        if let BatchError::Corrupted { place, .. } = error {
            let file = damaged_file(version, place);
            self.note(id, Some(error.to_string()), file);
        }
    }

    fn note(&self, id: VersionId, found: Option<String>, damaged_file: Option<FileId>) {
        let Ok(mut state) = self.lock() else { return };
        let shares = |kept: &KeptVersion| {
            let (Some(file), Ok(version)) = (damaged_file, &kept.opened) else {
                return false;
            };
            files_of(version).any(|path| FileId::at(&path).is_ok_and(|it| it == file))
        };
        for (kept_id, kept) in &mut state.kept {
            let is_affected = *kept_id == id || shares(kept);
            if !is_affected || found.is_some() == kept.damaged.is_some() {
                continue;
            }
            if let Some(reason) = &found {
                tracing::error!(store = %self.name, version = kept_id.0, %reason, "damage was found");
            }
            let path = self.dir.version_path(*kept_id);
            if let Err(error) = write(&path, found.as_deref()) {
                tracing::warn!(store = %self.name, version = kept_id.0, %error, "the damage could not be recorded; it is forgotten at a restart");
            }
            kept.damaged = found.clone();
        }
    }

    /// # Errors
    /// [`Error::Refused`] for a version that is damaged, or empty while the live one is not.
    pub(super) fn check_swap(&self, state: &StoreState, id: VersionId) -> Result<(), Error> {
        const FORCE: &str = "--force (\"force\": true over HTTP) makes it live anyway";
        let name = &self.name;
        let Some(kept) = state.kept.get(&id) else {
            return Ok(());
        };
        if let Some(reason) = &kept.damaged {
            return Err(Error::Refused(format!(
                "version {id} of store {name} was found damaged ({reason}); the live version is unchanged: choose another version, or push this one again; {FORCE}"
            )));
        }
        let records = |id: &VersionId| {
            let version = state.kept.get(id)?.opened.as_ref().ok()?;
            Some(version.manifest().record_count)
        };
        let live = state.live.filter(|live| *live != id);
        match (records(&id), live.as_ref().and_then(records)) {
            (Some(0), Some(before @ 1..)) => Err(Error::Refused(format!(
                "version {id} of store {name} holds no records and the live one has {before}; the live version is unchanged; {FORCE}"
            ))),
            _ => Ok(()),
        }
    }
}
