//! Lists the files in a folder or those that match a pattern.
//!
//! Folders named `column=value` within a folder are included recursively, since Hive and Spark lay out tables this
//! way. Other folders are ignored.

use futures::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use std::path::Path;

use crate::error::{Error, Result};
use crate::hdfs::Hdfs;
use crate::location::{Location, Place};

/// Returns whether a file is hidden: such names are metadata of the tools that wrote the folder.
fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

/// Returns whether a pattern skips a hidden file, as a folder listing does: it does not name the start of the file's
/// name.
fn is_skipped(pattern: &str, listed: &ListedFile) -> bool {
    let last = pattern.rsplit('/').next().unwrap_or(pattern);
    let is_deep = pattern.contains("**");
    (last.starts_with(['*', '?']) && is_hidden(&listed.location.file_name()))
        || (is_deep && listed.folders.iter().any(|name| is_hidden(name)))
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Returns whether a folder, such as `day=2024-01-02`, holds a part of a table.
fn is_part(name: &str) -> bool {
    !is_hidden(name) && name.find('=').is_some_and(|at| at > 0)
}

/// Maximum nesting of parts.
const PARTS_MAX: usize = 64;

/// A wildcard matches within one component of a path.
const MATCH_COMPONENTS: glob::MatchOptions = glob::MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

/// A file of a listing.
#[derive(Debug, Clone)]
pub struct ListedFile {
    pub location: Location,
    /// The names of the folders between the named location and the file: those inside the folder, or those from a
    /// pattern's first wildcard on.
    pub folders: Vec<String>,
}

impl ListedFile {
    /// Returns an entry for the file at the path `inside`, with its folders.
    fn at(location: Location, inside: &str) -> ListedFile {
        let folders = inside.rsplit_once('/').map_or("", |(folders, _)| folders);
        let folders = folders.split('/').filter(|name| !name.is_empty());
        ListedFile {
            location,
            folders: folders.map(str::to_owned).collect(),
        }
    }
}

impl Location {
    /// Returns the files of this folder and of its `column=value` folders, or those that match the pattern in its
    /// path (`*`, `?`, `[a-z]`), sorted by name. In a folder, and with a pattern whose last component begins with a
    /// wildcard, names that begin with `_` or `.` are skipped. A file lists itself.
    ///
    /// # Errors
    /// `Unsupported` for a pattern or a folder over HTTP; `NotFound` if nothing matches.
    pub async fn list(&self) -> Result<Vec<ListedFile>> {
        let mut found = match &self.place {
            Place::Local(path) => self.list_local(path)?,
            Place::Http(url) if is_pattern(url.path()) || url.path().ends_with('/') => {
                return Err(Error::Unsupported {
                    location: self.to_string(),
                    reason: "folders cannot be listed over http; name each file".into(),
                });
            }
            Place::Http(_) => vec![ListedFile::at(self.clone(), "")],
            Place::Store { store, path, .. } => self.list_store(store.as_ref(), path).await?,
            Place::Hdfs(hdfs) => self.list_hdfs(hdfs).await?,
        };
        if found.is_empty() {
            return Err(Error::NotFound {
                location: self.to_string(),
            });
        }
        found.sort_by_key(|file| file.location.to_string());
        Ok(found)
    }

    fn list_local(&self, path: &Path) -> Result<Vec<ListedFile>> {
        if path.is_dir() {
            let mut found = Vec::new();
            self.list_parts(path, &mut Vec::new(), &mut found)?;
            return Ok(found);
        }
        let text = path.to_string_lossy();
        if path.exists() || !is_pattern(&text) {
            return Ok(if path.exists() {
                vec![ListedFile::at(self.clone(), "")]
            } else {
                Vec::new()
            });
        }
        // Folders from the first wildcard on: as many as in the rest of the pattern, or any number with `**`.
        let literal = text
            .find(['*', '?', '['])
            .map_or(0, |at| text[..at].rfind('/').map_or(0, |at| at + 1));
        let wild_folders = text[literal..].matches('/').count();
        let is_any_depth = text.contains("**");
        let paths = glob::glob(&text).map_err(|e| Error::BadLocation {
            text: text.clone().into_owned(),
            reason: format!("the pattern is wrong: {e}"),
        })?;
        Ok(paths
            .filter_map(|path| path.ok())
            .filter(|path| path.is_file())
            .map(|path| {
                let shown = path.to_string_lossy().into_owned();
                let places: Vec<usize> = shown.match_indices('/').map(|(at, _)| at).collect();
                let inside = match places.len().checked_sub(wild_folders + 1) {
                    _ if is_any_depth => shown.strip_prefix(&text[..literal]).unwrap_or(&shown),
                    Some(last) => &shown[places[last] + 1..],
                    None => &shown,
                };
                ListedFile::at(Location::local(&path), inside)
            })
            .filter(|listed| !is_skipped(&text, listed))
            .collect())
    }

    /// Adds the files of a folder and of the parts in it; `folders` are the enclosing parts.
    fn list_parts(
        &self,
        path: &Path,
        folders: &mut Vec<String>,
        found: &mut Vec<ListedFile>,
    ) -> Result<()> {
        for entry in std::fs::read_dir(path).map_err(|e| Error::from_io(self, &e))? {
            let entry = entry.map_err(|e| Error::from_io(self, &e))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = entry.path();
            if is_part(&name) && path.is_dir() && folders.len() < PARTS_MAX {
                folders.push(name);
                self.list_parts(&path, folders, found)?;
                folders.pop();
            } else if !is_hidden(&name) && path.is_file() {
                found.push(ListedFile {
                    location: Location::local(path),
                    folders: folders.clone(),
                });
            }
        }
        Ok(())
    }

    async fn list_store(
        &self,
        store: &dyn ObjectStore,
        path: &ObjectPath,
    ) -> Result<Vec<ListedFile>> {
        let text = path.to_string();
        let bad = |e: glob::PatternError| Error::BadLocation {
            text: self.to_string(),
            reason: format!("the pattern is wrong: {e}"),
        };
        // The URL keeps `*` unchanged, but the object path escapes it; the text before that is used.
        let text = percent_decoded(&text);
        let pattern = is_pattern(&text)
            .then(|| glob::Pattern::new(&text).map_err(bad))
            .transpose()?;
        let literal = text
            .find(['*', '?', '['])
            .map_or(text.as_str(), |at| &text[..at]);
        let folder = match &pattern {
            Some(_) => literal.rsplit_once('/').map_or("", |(folder, _)| folder),
            None => literal,
        };
        let mut found = Vec::new();
        let mut objects = store.list(Some(&ObjectPath::from(folder)));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|e| Error::from_store(self, e))?;
            let name = object.location.to_string();
            let inside = name
                .strip_prefix(folder)
                .unwrap_or(&name)
                .trim_start_matches('/');
            let is_match = match &pattern {
                Some(pattern) => pattern.matches_with(&name, MATCH_COMPONENTS),
                None => {
                    let (folders, file) = inside.rsplit_once('/').unwrap_or(("", inside));
                    let mut folders = folders.split('/').filter(|name| !name.is_empty());
                    !is_hidden(file) && folders.all(is_part)
                }
            };
            let listed = ListedFile::at(self.sibling(&object.location), inside);
            if is_match && !(pattern.is_some() && is_skipped(&text, &listed)) {
                found.push(listed);
            }
        }
        // Stores list what is below a name, but not the object with that name.
        if found.is_empty() && pattern.is_none() {
            self.size().await?;
            found.push(ListedFile::at(self.clone(), ""));
        }
        Ok(found)
    }

    /// Descends from the folder before the first wildcard to the depth of the pattern, or into the parts of a folder.
    async fn list_hdfs(&self, hdfs: &Hdfs) -> Result<Vec<ListedFile>> {
        let text = hdfs.path();
        let bad = |e: glob::PatternError| Error::BadLocation {
            text: self.to_string(),
            reason: format!("the pattern is wrong: {e}"),
        };
        let pattern = is_pattern(text)
            .then(|| glob::Pattern::new(text).map_err(bad))
            .transpose()?;
        let literal = text.find(['*', '?', '[']).map_or(text, |at| &text[..at]);
        let (folder, depth_max) = match &pattern {
            None if !hdfs.status(self).await?.isdir => {
                return Ok(vec![ListedFile::at(self.clone(), "")]);
            }
            None => (text, PARTS_MAX),
            Some(_) => {
                let folder = literal.rsplit_once('/').map_or("", |(folder, _)| folder);
                let depth = text[folder.len() + 1..].matches('/').count();
                (
                    folder,
                    if text.contains("**") {
                        PARTS_MAX
                    } else {
                        depth
                    },
                )
            }
        };
        let mut found = Vec::new();
        let mut folders = vec![(self.with_hdfs(hdfs.at(format!("{folder}/"))), 0)];
        while let Some((location, depth)) = folders.pop() {
            let Place::Hdfs(here) = &location.place else {
                continue;
            };
            for entry in here.entries(&location).await? {
                let (parent, name) = entry.path.rsplit_once('/').unwrap_or(("", &entry.path));
                let path = format!("{}/{name}", parent.trim_end_matches('/'));
                let entered = depth < depth_max && (pattern.is_some() || is_part(name));
                let is_match = match &pattern {
                    Some(pattern) => pattern.matches_with(&path, MATCH_COMPONENTS),
                    None => !is_hidden(name),
                };
                let inside = path[folder.len()..].trim_start_matches('/').to_owned();
                let location = self.with_hdfs(hdfs.at(path));
                if entry.isdir && entered {
                    folders.push((location, depth + 1));
                } else if !entry.isdir && is_match {
                    let listed = ListedFile::at(location, &inside);
                    if pattern.is_none() || !is_skipped(text, &listed) {
                        found.push(listed);
                    }
                }
            }
        }
        Ok(found)
    }

    fn with_hdfs(&self, hdfs: Hdfs) -> Location {
        let mut location = self.clone();
        location.place = Place::Hdfs(Box::new(hdfs));
        location
    }

    /// Returns another object of the same store.
    fn sibling(&self, path: &ObjectPath) -> Location {
        let mut location = self.clone();
        if let Place::Store { url, path: own, .. } = &mut location.place {
            url.set_path(path.as_ref());
            *own = path.clone();
        }
        location
    }
}

fn percent_decoded(text: &str) -> String {
    text.replace("%2A", "*")
        .replace("%3F", "?")
        .replace("%5B", "[")
        .replace("%5D", "]")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_of_a_table_are_listed_with_their_folders_without_hidden_files() {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "_SUCCESS",
            ".part-0.crc",
            "day=1/hour=2/a.csv",
            "day=1/_SUCCESS",
            "day=2/b.csv",
            "_temporary/day=3/c.csv",
            "other/d.csv",
            "e.csv",
        ] {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
        let listed = async |pattern: &str| {
            let location = Location::local(folder.path().join(pattern));
            let found = location.list().await.unwrap();
            let shown = found.iter().map(|file| {
                format!(
                    "{} in {}",
                    file.location.file_name(),
                    file.folders.join("/")
                )
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(
            listed("").await,
            ["a.csv in day=1/hour=2", "b.csv in day=2", "e.csv in "]
        );
        assert_eq!(listed("day=*/*").await, ["b.csv in day=2"]);
        assert_eq!(listed("day=1").await, ["a.csv in hour=2"]);
        assert_eq!(
            listed("**/*.csv").await,
            [
                "a.csv in day=1/hour=2",
                "b.csv in day=2",
                "e.csv in ",
                "d.csv in other"
            ]
        );
        assert_eq!(listed("day=2/b.csv").await, ["b.csv in "]);
        assert_eq!(listed("_SUCC*").await, ["_SUCCESS in "]);
    }
}
