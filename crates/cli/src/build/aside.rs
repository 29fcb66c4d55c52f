//! A version that is built and not judged yet: in a folder beside its place, which it takes in one step.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use larder_batch::version::files;

use crate::failure::Failure;

/// Removes what it holds when it is dropped.
pub struct Aside {
    place: PathBuf,
    parent: PathBuf,
    temp: tempfile::TempDir,
}

impl Aside {
    /// For a version that is to be at `place`.
    ///
    /// # Errors
    /// There is something already, or nothing can be written beside it.
    pub fn of(place: &Path) -> Result<Aside, Failure> {
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
            // As any folder that is made: who may read it is the umask's to say.
            let builder = builder.permissions(fs::Permissions::from_mode(0o777));
            builder.prefix(".larder-unchecked-").tempdir_in(parent)
        });
        Ok(Aside {
            temp: made.map_err(Failure::io(format!("make a folder beside {shown}")))?,
            parent: parent.to_owned(),
            place: absolute,
        })
    }

    /// What lies beside the version's place lies beside this folder too: a delta finds the version below it.
    pub fn version(&self) -> &Path {
        self.temp.path()
    }

    /// Moves the version to its place, durably.
    pub fn take_its_place(self) -> Result<(), Failure> {
        // An empty folder gives way.
        fs::rename(self.version(), &self.place).map_err(Failure::io(format!(
            "move the version to {}",
            self.place.display()
        )))?;
        let _moved = self.temp.keep();
        Ok(files::sync_folder(&self.parent)?)
    }
}
