//! A version whose gates have not been evaluated: it is built in a folder next to its place, and moved there in one
//! step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_batch::version::files;

use crate::failure::Failure;

/// The temporary folder of a version. It is removed on drop.
pub struct StagedFolder {
    place: PathBuf,
    parent: PathBuf,
    temp: tempfile::TempDir,
}

impl StagedFolder {
    /// Creates a folder for a version that will be at `place`.
    ///
    /// # Errors
    /// `place` is occupied, or its parent is not writable.
    pub fn create(place: &Path) -> Result<StagedFolder, Failure> {
        let shown = place.display();
        if place.exists() {
            larder_batch::clear_remains(place)?;
        }
        let absolute = std::path::absolute(place).map_err(Failure::io(format!("find {shown}")))?;
        let parent = absolute.parent().ok_or_else(|| {
            Failure::usage(format!("{shown} is no place for a version: name a folder"))
        })?;
        let made = fs::create_dir_all(parent).and_then(|()| {
            let mut builder = tempfile::Builder::new();
            // Like any new folder, it has the permissions that the umask allows.
            let builder = builder.permissions(fs::Permissions::from_mode(0o777));
            builder.prefix(".larder-unchecked-").tempdir_in(parent)
        });
        Ok(StagedFolder {
            temp: made.map_err(Failure::io(format!("create a folder next to {shown}")))?,
            parent: parent.to_owned(),
            place: absolute,
        })
    }

    /// The version's folder. It is in the same parent folder as the version's place, so a delta finds its base.
    pub fn version(&self) -> &Path {
        self.temp.path()
    }

    /// Moves the version to its place, durably.
    pub fn move_to_place(self) -> Result<(), Failure> {
        // The rename replaces an empty folder.
        fs::rename(self.version(), &self.place).map_err(Failure::io(format!(
            "move the version to {}",
            self.place.display()
        )))?;
        let _moved = self.temp.keep();
        Ok(files::sync_folder(&self.parent)?)
    }
}
