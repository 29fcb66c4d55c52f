//! Locates the files of the layers below a delta.
//!
//! On a server, a version's folder has all its files; those that another version of the store already has are hard
//! links. On the machine that built a delta, its folder has only its own segments, and those of a lower version are in
//! that version's folder. The manifest's `built.on` has the location at the time of the build. A folder is accepted only
//! if its manifest is the one on which the delta was built, or that of a version on top of it whose folder contains
//! its files.

use std::path::{Path, PathBuf};

use super::{Partitions, files};
use crate::error::Error;
use crate::manifest::{Layer, Manifest};

/// Returns the folder of each layer's files, lowest first, for the partitions that are present.
///
/// # Errors
/// [`Error::State`] if a lower version is missing or was replaced; [`Error::Corrupted`] if it is damaged;
/// [`Error::Io`].
pub fn layer_folders(
    path: &Path,
    manifest: &Manifest,
    here: &Partitions,
) -> Result<Vec<PathBuf>, Error> {
    let mut folders = Vec::with_capacity(manifest.layer_count());
    for (at, layer) in manifest.layers.iter().enumerate() {
        let entries = &layer.segments;
        let mut selected = entries.iter().filter(|it| here.contains(it.partition.0));
        // If only some files are missing, that is damage and is detected later.
        let is_own = here.is_empty() || selected.any(|it| path.join(&it.file).exists());
        folders.push(if is_own {
            path.to_owned()
        } else {
            find_layer_folder(path, manifest, layer, at)?
        });
    }
    folders.push(path.to_owned());
    Ok(folders)
}

fn find_layer_folder(
    path: &Path,
    manifest: &Manifest,
    layer: &Layer,
    at: usize,
) -> Result<PathBuf, Error> {
    let lost = |why: String| {
        Error::state(format!(
            "the version in {} is a delta, and the version below it with digest {} {why}; restore it, or build a complete version",
            path.display(),
            layer.digest
        ))
    };
    let recorded_place = manifest.built.as_ref().and_then(|built| built.on.get(at));
    let recorded_place = recorded_place.ok_or_else(|| lost("is not in its folder".to_owned()))?;
    if recorded_place.contains("://") {
        return Err(lost(format!("is at {recorded_place}, not on this machine")));
    }
    let own = std::path::absolute(path).map_err(Error::io("find", path))?;
    let mut reasons = Vec::new();
    for place in resolve_in_folder(&own, recorded_place) {
        let folder = PathBuf::from(place);
        let manifest_path = folder.join(Manifest::FILE);
        let bytes = match files::read_regular(&manifest_path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                reasons.push(format!("is not at {}", folder.display()));
                continue;
            }
            read => read.map_err(Error::io("read", &manifest_path))?,
        };
        let found = Manifest::decode(&manifest_path.display().to_string(), &bytes)?;
        // That version itself, or one on top of it whose folder has its files, as on a server.
        if found.digest == layer.digest || found.has_layer_in(&folder, layer) {
            return Ok(folder);
        }
        reasons.push(format!(
            "is not at {}, where there is another one, with digest {}",
            folder.display(),
            found.digest
        ));
    }
    Err(lost(reasons.join(", and ")))
}

/// Returns the possible meanings of `recorded` for a version in a local folder: relative to the folder as given and, if
/// it is reached through links, relative to its canonical path.
pub fn resolve_in_folder(folder: &Path, recorded: &str) -> Vec<String> {
    let mut places = vec![resolve_place(&folder.to_string_lossy(), recorded)];
    if let Ok(itself) = folder.canonicalize() {
        places.push(resolve_place(&itself.to_string_lossy(), recorded));
        places.dedup();
    }
    places
}

/// Returns the path or URL that `recorded` means for a version at `place`.
pub fn resolve_place(place: &str, recorded: &str) -> String {
    if recorded.contains("://") || recorded.starts_with('/') {
        return recorded.to_owned();
    }
    let mut path = place.trim_end_matches('/').to_owned();
    for part in recorded
        .split('/')
        .filter(|part| !matches!(*part, "" | "."))
    {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent.len());
        match (part, parent) {
            ("..", Some(parent)) => path.truncate(parent),
            _ => path = format!("{path}/{part}"),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn relative_places_resolve_beside_a_link_and_beside_its_target() {
        let temp = tempfile::tempdir().unwrap();
        let temp = temp.path().canonicalize().unwrap();
        fs::create_dir(temp.join("there")).unwrap();
        let (folder, link) = (temp.join("there/tuesday"), temp.join("today"));
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let place = |name: &str| temp.join(name).to_string_lossy().into_owned();
        assert_eq!(
            resolve_in_folder(&link, "../monday"),
            [place("monday"), place("there/monday")]
        );
        assert_eq!(
            resolve_in_folder(&folder, "../monday"),
            [place("there/monday")]
        );
        assert_eq!(resolve_in_folder(&link, "/a/monday"), ["/a/monday"]);
    }

    #[test]
    fn a_relative_place_resolves_against_the_versions_place() {
        assert_eq!(resolve_place("/b/tuesday", "../monday"), "/b/monday");
        assert_eq!(resolve_place("/b/tuesday/", "../../monday"), "/monday");
        assert_eq!(
            resolve_place("s3://b/x/tuesday", "../monday"),
            "s3://b/x/monday"
        );
        assert_eq!(resolve_place("/b/tuesday", "/a/monday"), "/a/monday");
        assert_eq!(
            resolve_place("/b/tuesday", "s3://b/monday"),
            "s3://b/monday"
        );
    }
}
