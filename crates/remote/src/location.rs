//! Parses locations: a local path, or an object with a URL.
//!
//! Invariants:
//! 1. `Display` and `Debug` never show a user, a password or a query string.
//! 2. A `Location` never changes its scheme: joining keeps the scheme and the host, and a joined name cannot be
//!    absolute or contain `..`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::path::Path as ObjectPath;
use url::Url;

use crate::allowed::Allowed;
use crate::certificates::Certificates;
use crate::error::{Error, Result, redact};
use crate::hdfs::Hdfs;

/// The protocol by which a location is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Local,
    Http,
    /// s3, gs or az.
    ObjectStore,
    Hdfs,
}

/// A file or a folder, local or remote. Cheap to clone.
#[derive(Clone)]
pub struct Location {
    pub(crate) place: Place,
    /// The permitted targets, if it is read on behalf of others.
    pub(crate) allowed: Option<Arc<Allowed>>,
    /// The caller's own certificates, if any.
    pub(crate) certificates: Option<Arc<Certificates>>,
}

#[derive(Clone)]
pub(crate) enum Place {
    Local(PathBuf),
    Http(Box<Url>),
    Store {
        url: Box<Url>,
        store: Arc<dyn ObjectStore>,
        path: ObjectPath,
    },
    Hdfs(Box<Hdfs>),
}

impl Location {
    /// Parses a path (`/p`, `dir/file`), or a `file`, `http`, `https`, `s3`, `gs`, `az` or `hdfs` URL. Credentials
    /// and endpoints of object stores come from the environment variables of the stores' own tools:
    /// `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`, `GOOGLE_SERVICE_ACCOUNT`,
    /// `AZURE_STORAGE_ACCOUNT_NAME` and so on; for HDFS, `HADOOP_CONF_DIR` and related ones.
    ///
    /// # Errors
    /// `BadLocation` with advice; nothing is contacted.
    pub fn parse(text: &str) -> Result<Location> {
        let bad = |reason: String| Error::BadLocation {
            text: redact(text),
            reason,
        };
        if text.is_empty() {
            return Err(bad("it is empty; write a path or a URL".into()));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Location::local(text));
        };
        if scheme.eq_ignore_ascii_case("file") {
            return local_of_file_url(text, rest)
                .map(Location::local)
                .map_err(bad);
        }
        if scheme.eq_ignore_ascii_case("hdfs") {
            let hdfs = Hdfs::parse(rest).map_err(bad)?;
            return Ok(Place::Hdfs(Box::new(hdfs)).into());
        }
        let url = Url::parse(text).map_err(|e| bad(format!("it is not a URL: {e}")))?;
        match url.scheme() {
            "http" | "https" => Ok(Place::Http(Box::new(url)).into()),
            "s3" | "s3a" | "gs" | "az" | "azure" | "abfs" | "abfss" | "adl" => {
                let (store, path) = open_store(&url).map_err(|e| bad(redact(&e.to_string())))?;
                let url = Box::new(url);
                Ok(Place::Store { url, store, path }.into())
            }
            other => Err(bad(format!(
                "scheme {other:?} is unknown; use a path, file, http, https, s3, gs, az or hdfs"
            ))),
        }
    }

    /// Returns a local path, whatever its text looks like.
    pub fn local(path: impl Into<PathBuf>) -> Location {
        Place::Local(path.into()).into()
    }

    /// Returns the location restricted to what `allowed` permits. Joined names and redirects are checked too.
    ///
    /// # Errors
    /// `NotAllowed`; nothing is contacted.
    pub fn within(mut self, allowed: &Arc<Allowed>) -> Result<Location> {
        allowed.check(&self)?;
        self.allowed = Some(allowed.clone());
        Ok(self)
    }

    /// Returns the location with these certificates for HTTPS.
    pub fn with_certificates(mut self, certificates: Arc<Certificates>) -> Location {
        self.certificates = Some(certificates);
        self
    }

    pub fn scheme(&self) -> Scheme {
        match &self.place {
            Place::Local(_) => Scheme::Local,
            Place::Http(_) => Scheme::Http,
            Place::Store { .. } => Scheme::ObjectStore,
            Place::Hdfs(_) => Scheme::Hdfs,
        }
    }

    /// Returns the local path; `None` for a remote location.
    pub fn as_local(&self) -> Option<&Path> {
        match &self.place {
            Place::Local(path) => Some(path),
            _ => None,
        }
    }

    /// Returns a form of `text` that is valid for other processes: an absolute path, or the URL without a trailing
    /// slash. The folder itself need not exist yet.
    ///
    /// # Errors
    /// `Failed`, if this process has no current folder.
    pub fn absolute_form(&self, text: &str) -> Result<String> {
        let Place::Local(path) = &self.place else {
            return Ok(text.trim_end_matches('/').to_owned());
        };
        let path = std::path::absolute(path).map_err(|error| Error::failed(self, &error))?;
        let name = path.file_name().unwrap_or_default();
        // Resolves links before the last name, so that two names in the same folder have the same parent.
        let parent = path.parent().unwrap_or(Path::new("/"));
        let parent = parent.canonicalize().unwrap_or_else(|_| parent.to_owned());
        Ok(parent.join(name).to_string_lossy().into_owned())
    }

    /// Returns the location of `name` in this folder. `name` may contain `/`, but must be relative and without `..`.
    /// A query string of an HTTP URL is kept, as it may contain the permission to read.
    ///
    /// # Errors
    /// `BadLocation` if the name is empty, absolute or contains `..`.
    pub fn join(&self, name: &str) -> Result<Location> {
        let climbs = name
            .split(['/', '\\'])
            .any(|part| part.is_empty() || part == "." || part == "..");
        if climbs || name.contains('\0') {
            return Err(Error::BadLocation {
                text: name.chars().take(200).collect(),
                reason: "a file name inside a folder must not be empty, absolute or climb".into(),
            });
        }
        let joined = Location {
            allowed: self.allowed.clone(),
            certificates: self.certificates.clone(),
            place: match &self.place {
                Place::Local(folder) => Place::Local(folder.join(name)),
                Place::Http(url) => Place::Http(Box::new(joined(url, name))),
                Place::Store { url, store, path } => Place::Store {
                    url: Box::new(joined(url, name)),
                    store: Arc::clone(store),
                    path: name
                        .split('/')
                        .fold(path.clone(), |path, part| path.join(part)),
                },
                Place::Hdfs(hdfs) => Place::Hdfs(Box::new(hdfs.join(name))),
            },
        };
        if let Some(allowed) = &self.allowed {
            allowed.check(&joined)?;
        }
        Ok(joined)
    }

    /// Returns the last component of the path, such as `part-0.csv.gz`; empty for a folder that ends in `/`.
    pub fn file_name(&self) -> String {
        match &self.place {
            Place::Local(path) => path
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            Place::Http(url) | Place::Store { url, .. } => {
                url.path().rsplit('/').next().unwrap_or_default().to_owned()
            }
            Place::Hdfs(hdfs) => {
                let name = hdfs.path().rsplit('/').next();
                name.unwrap_or_default().to_owned()
            }
        }
    }
}

impl From<Place> for Location {
    fn from(place: Place) -> Location {
        Location {
            place,
            allowed: None,
            certificates: None,
        }
    }
}

fn local_of_file_url(text: &str, rest: &str) -> std::result::Result<PathBuf, String> {
    // `file://relative` would name a host, but its writers mean a path, so the message explains the form.
    if !rest.starts_with('/') && !rest.to_ascii_lowercase().starts_with("localhost/") {
        return Err("a file URL has three slashes and an absolute path: file:///dir/file".into());
    }
    Url::parse(text)
        .ok()
        .and_then(|url| url.to_file_path().ok())
        .ok_or_else(|| "it is not a file URL; write file:///dir/file".to_owned())
}

fn joined(folder: &Url, name: &str) -> Url {
    let mut url = folder.clone();
    if let Ok(mut parts) = url.path_segments_mut() {
        parts.pop_if_empty().extend(name.split('/'));
    }
    url
}

fn open_store(
    url: &Url,
) -> std::result::Result<(Arc<dyn ObjectStore>, ObjectPath), object_store::Error> {
    crate::http::install_tls();
    // A body may take hours under a throttle: the caller detects stalls, and does not limit the total time.
    let defaults = [("timeout".to_owned(), "30 days".to_owned())];
    let environment = std::env::vars().filter(|(name, _)| {
        ["AWS_", "GOOGLE_", "AZURE_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    });
    let (store, path) = object_store::parse_url_opts(url, defaults.into_iter().chain(environment))?;
    Ok((Arc::from(store), path))
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Location> {
        Location::parse(text)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Local(path) => write!(f, "{}", path.display()),
            Place::Http(url) | Place::Store { url, .. } => f.write_str(&redact(url.as_str())),
            Place::Hdfs(hdfs) => write!(f, "hdfs://{}{}", hdfs.authority(), hdfs.path()),
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_locations() {
        for (text, shown) in [
            ("dir/file.csv", "dir/file.csv"),
            ("file:///a/b%20c", "/a/b c"),
            ("https://ann:pw@host/x?sig=1", "https://host/x"),
            ("s3://bucket/dir/file", "s3://bucket/dir/file"),
            ("hdfs://n:8020/a%3A//b/", "hdfs://n:8020/a%3A/b"),
        ] {
            assert_eq!(Location::parse(text).unwrap().to_string(), shown, "{text}");
        }
        for bad in ["", "ftp://x/y", "hdfs://n:8020", "file://dir/x", "http://"] {
            let error = Location::parse(bad).unwrap_err();
            assert!(matches!(error, Error::BadLocation { .. }), "{bad}: {error}");
        }
    }

    #[test]
    fn joining_stays_inside() {
        let http = Location::parse("https://host/stores/v7/?sig=1").unwrap();
        assert_eq!(
            http.join("p0.seg").unwrap().to_string(),
            "https://host/stores/v7/p0.seg"
        );
        let s3 = Location::parse("s3://bucket/v7").unwrap();
        assert_eq!(
            s3.join("manifest.json").unwrap().to_string(),
            "s3://bucket/v7/manifest.json"
        );
        for bad in ["", "/etc/passwd", "../x", "a/../b", "a//b"] {
            assert!(http.join(bad).is_err(), "{bad}");
            assert!(Location::local("/data").join(bad).is_err(), "{bad}");
        }
    }
}
