//! Confines the files that a client opens for a coordinator to one folder.

use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::model::mix::{self, Mix};

/// An existing folder, by its canonical path.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    ///
    /// The path is not a folder.
    pub fn open(folder: &Path) -> Result<Folder, String> {
        let real = fs::canonicalize(folder);
        let real = real.map_err(|why| format!("--folder {}: {why}", folder.display()))?;
        if real.is_dir() {
            Ok(Folder(real))
        } else {
            Err(format!("--folder {}: is not a folder", folder.display()))
        }
    }

    /// Returns the path of a name below the folder, whether or not it exists.
    fn below(&self, name: &Path) -> Option<PathBuf> {
        let plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        if name.as_os_str().is_empty() || !name.components().all(plain) {
            return None;
        }
        // A symbolic link may lead out of the folder, so the canonical form of the existing part of the path must also
        // be below it.
        let path = self.0.join(name);
        let mut existing = path.as_path();
        while fs::symlink_metadata(existing).is_err() {
            existing = existing.parent()?;
        }
        fs::canonicalize(existing)
            .ok()?
            .starts_with(&self.0)
            .then_some(path)
    }
}

/// Returns the path that a client opens for the name in an option.
///
/// # Errors
///
/// The name leads outside the folder, or the client has no folder. Neither message reveals which files exist.
pub fn confine(folder: Option<&Folder>, option: &str, name: &Path) -> Result<PathBuf, String> {
    let shown = name.display();
    let Some(folder) = folder else {
        return Err(format!(
            "{option} {shown}: this client opens no files; start it with --folder DIR and use a path relative to DIR"
        ));
    };
    folder.below(name).ok_or_else(|| {
        format!(
            "{option} {shown}: must be a relative path within the client's --folder, without .."
        )
    })
}

/// Does the same for a mix, which may also be a predefined or an inline one.
///
/// # Errors
///
/// As for [`confine`].
pub fn confine_mix(folder: Option<&Folder>, name: &str) -> Result<String, String> {
    if mix::NAMED.iter().any(|known| known.name == name) || Mix::is_inline(name) {
        return Ok(name.to_owned());
    }
    let path = confine(folder, "--mix", Path::new(name))?;
    let path = path.into_os_string().into_string();
    path.map_err(|path| format!("--mix {}: its name is not valid UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_within_the_folder_are_accepted() {
        let temporary = tempfile::tempdir().expect("a folder");
        let inside = temporary.path().join("inside");
        fs::create_dir(&inside).expect("made");
        fs::create_dir(inside.join("deep")).expect("made");
        fs::write(temporary.path().join("secret"), "1 2").expect("written");
        std::os::unix::fs::symlink(temporary.path(), inside.join("out")).expect("linked");
        std::os::unix::fs::symlink("../secret", inside.join("edges")).expect("linked");
        std::os::unix::fs::symlink("nowhere", inside.join("dangling")).expect("linked");
        let folder = Folder::open(&inside).expect("there");
        let may = |name: &str| confine(Some(&folder), "--edges", Path::new(name)).is_ok();
        for name in ["a.txt", "deep/a.txt", "new/trace"] {
            assert!(may(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "../secret",
            "/etc/passwd",
            "deep/../../secret",
            "out/secret",
            "edges",
            "out",
            "dangling",
        ] {
            assert!(!may(name), "{name}");
        }
        let why = confine(None, "--trace", Path::new("a")).expect_err("no folder");
        assert!(why.contains("--folder DIR"), "{why}");
        assert!(confine_mix(None, "comments").is_ok());
        assert!(confine_mix(None, "view-profile 80, thaw 20").is_ok());
        assert!(confine_mix(None, "/etc/passwd").is_err());
        assert!(Folder::open(&temporary.path().join("secret")).is_err());
    }
}
