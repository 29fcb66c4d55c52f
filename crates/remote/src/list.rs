//! What there is in a folder or under a pattern.

use futures::StreamExt;
use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use std::path::Path;

use crate::error::{Error, Result};
use crate::location::{Location, Place};

/// Files whose name begins so are bookkeeping of the tools that wrote the folder.
fn is_hidden(name: &str) -> bool {
    name.starts_with(['_', '.'])
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

impl Location {
    /// The files of this folder (not of folders inside it), or those that match the pattern in its path
    /// (`*`, `?`, `[a-z]`), sorted by name. Of a folder, names that begin with `_` or `.` are left out. A file lists as itself.
    ///
    /// # Errors
    /// `Unsupported` for a pattern or a folder over HTTP; `NotFound` when nothing matches.
    pub async fn list(&self) -> Result<Vec<Location>> {
        let mut found = match &self.place {
            Place::Local(path) => self.list_local(path)?,
            Place::Http(url) if is_pattern(url.path()) || url.path().ends_with('/') => {
                return Err(Error::Unsupported {
                    location: self.to_string(),
                    reason: "folders cannot be listed over http; name each file".into(),
                });
            }
            Place::Http(_) => vec![self.clone()],
            Place::Store { store, path, .. } => self.list_store(store.as_ref(), path).await?,
        };
        if found.is_empty() {
            return Err(Error::NotFound {
                location: self.to_string(),
            });
        }
        found.sort_by_key(|location| location.to_string());
        Ok(found)
    }

    fn list_local(&self, path: &Path) -> Result<Vec<Location>> {
        if path.is_dir() {
            let mut found = Vec::new();
            for entry in std::fs::read_dir(path).map_err(|e| Error::from_io(self, &e))? {
                let entry = entry.map_err(|e| Error::from_io(self, &e))?;
                let hidden = is_hidden(&entry.file_name().to_string_lossy());
                if !hidden && entry.path().is_file() {
                    found.push(Location::local(entry.path()));
                }
            }
            return Ok(found);
        }
        let text = path.to_string_lossy();
        if path.exists() || !is_pattern(&text) {
            return Ok(if path.exists() {
                vec![self.clone()]
            } else {
                Vec::new()
            });
        }
        let paths = glob::glob(&text).map_err(|e| Error::BadLocation {
            text: text.clone().into_owned(),
            reason: format!("the pattern is wrong: {e}"),
        })?;
        Ok(paths
            .filter_map(|path| path.ok())
            .filter(|path| path.is_file())
            .map(Location::local)
            .collect())
    }

    async fn list_store(
        &self,
        store: &dyn ObjectStore,
        path: &ObjectPath,
    ) -> Result<Vec<Location>> {
        let text = path.to_string();
        let bad = |e: glob::PatternError| Error::BadLocation {
            text: self.to_string(),
            reason: format!("the pattern is wrong: {e}"),
        };
        // The URL keeps `*` as it is, but the object path escapes it: take the text before that.
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
        let options = glob::MatchOptions {
            require_literal_separator: true,
            ..glob::MatchOptions::default()
        };
        let mut found = Vec::new();
        let mut objects = store.list(Some(&ObjectPath::from(folder)));
        while let Some(object) = objects.next().await {
            let object = object.map_err(|e| Error::from_store(self, e))?;
            let name = object.location.to_string();
            let wanted = match &pattern {
                Some(pattern) => pattern.matches_with(&name, options),
                None => {
                    let inside = name
                        .strip_prefix(folder)
                        .unwrap_or(&name)
                        .trim_start_matches('/');
                    !inside.contains('/') && !is_hidden(inside)
                }
            };
            if wanted {
                found.push(self.sibling(&object.location));
            }
        }
        // Stores list what is below a name, not the object of that very name.
        if found.is_empty() && pattern.is_none() {
            self.size().await?;
            found.push(self.clone());
        }
        Ok(found)
    }

    /// Another object of the same store.
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
