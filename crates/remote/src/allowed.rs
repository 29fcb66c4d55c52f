//! The locations that may be read on behalf of others: a server reads for any client, with its own permissions.
//!
//! An entry is a folder (`/data/exports`), or the prefix of a URL: `https://` for every host, `s3://bucket/dir`, or
//! `http://host:8000/exports`; without a port, every port of the host. `hdfs://` covers what this machine's Hadoop
//! settings name, such as `hdfs:///dir`; a namenode with its port must be listed explicitly: `hdfs://namenode:8020/`.
//!
//! 1. A file that is read lies in an entry's folder, wherever links on its path lead: the opened file is checked. The
//!    links themselves are checked before their target is accessed, so that a rejection does not reveal whether the
//!    target exists.
//! 2. A requested URL begins like an entry, and so does every redirect target.
//! 3. An address of this machine, a link-local address, or an address of a cloud's metadata service is contacted only
//!    if an entry names that host. The check applies to the address to which a name resolves when the connection is
//!    made.

use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use url::{Host, Url};

use crate::error::{Error, Result};
use crate::file::real_path;
use crate::hdfs::Hdfs;
use crate::location::{Location, Place};

const REDIRECTS_MAX: usize = 10;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allowed(Vec<Entry>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Folder(PathBuf),
    Url {
        scheme: &'static str,
        /// `None` means every host or bucket.
        host: Option<String>,
        port: Option<u16>,
        /// Without a trailing slash.
        path: String,
    },
    /// A name service, or a namenode with or without a port. `None` means those without a port in the Hadoop
    /// settings, so that the text of a source alone does not lead to an address.
    Hdfs {
        authority: Option<String>,
        /// Without a trailing slash.
        path: String,
    },
}

/// The reason for rejecting an address or a redirect, passed through the HTTP client.
#[derive(Debug)]
pub(crate) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Allowed {
    /// # Errors
    /// Names the invalid entry and describes the valid forms.
    pub fn parse(entries: &[String]) -> std::result::Result<Arc<Allowed>, String> {
        let entries: std::result::Result<_, _> =
            entries.iter().map(|text| parse_entry(text)).collect();
        Ok(Arc::new(Allowed(entries?)))
    }

    /// Checks whether the location may be read, as far as its text determines it.
    pub(crate) fn check(&self, location: &Location) -> Result<()> {
        let is_allowed = match &location.place {
            Place::Local(path) => self.allows_path(path),
            Place::Http(url) => return self.check_url(url).map_err(|why| denied(location, why.0)),
            Place::Store { url, .. } => self.allows_url(url),
            Place::Hdfs(hdfs) => self.allows_hdfs(hdfs),
        };
        if is_allowed {
            Ok(())
        } else {
            Err(denied(location, NOT_ALLOWED.to_owned()))
        }
    }

    /// Checks whether the target of a path may be read, whether it exists or not.
    pub(crate) fn check_links(&self, location: &Location, path: &Path) -> Result<()> {
        let real = follow(path);
        let inside = |folder: &PathBuf| real.starts_with(follow(folder));
        if self.folders().any(inside) {
            Ok(())
        } else {
            Err(denied(location, LINK_ESCAPES.to_owned()))
        }
    }

    /// Checks whether the opened file may be read.
    pub(crate) fn check_file(&self, location: &Location, file: &File) -> Result<()> {
        if self.folders().any(|folder| folder == Path::new("/")) {
            return Ok(());
        }
        let real = real_path(file).map_err(|e| Error::from_io(location, &e))?;
        let inside = |folder: &PathBuf| {
            folder
                .canonicalize()
                .is_ok_and(|folder| real.starts_with(folder))
        };
        if self.folders().any(inside) {
            Ok(())
        } else {
            Err(denied(location, LINK_ESCAPES.to_owned()))
        }
    }

    fn check_url(&self, url: &Url) -> std::result::Result<(), Refused> {
        if !self.allows_url(url) {
            return Err(Refused(NOT_ALLOWED.to_owned()));
        }
        let address = match url.host() {
            Some(Host::Ipv4(address)) => IpAddr::V4(address),
            Some(Host::Ipv6(address)) => IpAddr::V6(address),
            _ => return Ok(()),
        };
        if is_local(address) && !self.allows_host(url.host_str().unwrap_or_default()) {
            Err(refuse_local(address))
        } else {
            Ok(())
        }
    }

    fn folders(&self) -> impl Iterator<Item = &PathBuf> {
        self.0.iter().filter_map(|parse_entry| match parse_entry {
            Entry::Folder(folder) => Some(folder),
            Entry::Url { .. } | Entry::Hdfs { .. } => None,
        })
    }

    /// Decides by the text alone, so that a rejection does not reveal whether a file exists.
    fn allows_path(&self, path: &Path) -> bool {
        let Ok(path) = std::path::absolute(path) else {
            return false;
        };
        let climbs = path.components().any(|part| part == Component::ParentDir);
        self.folders().any(|folder| {
            folder == Path::new("/")
                || !climbs
                    && (path.starts_with(folder)
                        || folder
                            .canonicalize()
                            .is_ok_and(|folder| path.starts_with(folder)))
        })
    }

    fn allows_url(&self, url: &Url) -> bool {
        let requested = family(url.scheme());
        self.0.iter().any(|parse_entry| match parse_entry {
            Entry::Folder(_) | Entry::Hdfs { .. } => false,
            Entry::Url {
                scheme,
                host,
                port,
                path,
            } => {
                requested == Some(*scheme)
                    && host
                        .as_deref()
                        .is_none_or(|host| url.host_str() == Some(host))
                    && port.is_none_or(|port| url.port_or_known_default() == Some(port))
                    && is_below(url.path(), path)
            }
        })
    }

    fn allows_hdfs(&self, hdfs: &Hdfs) -> bool {
        let requested = hdfs.authority();
        let host = requested.rsplit_once(':').map(|(host, _)| host);
        self.0.iter().any(|parse_entry| match parse_entry {
            Entry::Hdfs { authority, path } => {
                let is_named = match authority.as_deref() {
                    None => host.is_none(),
                    Some(named) => {
                        named.eq_ignore_ascii_case(requested)
                            || host.is_some_and(|host| host.eq_ignore_ascii_case(named))
                    }
                };
                is_named && is_below(hdfs.path(), path)
            }
            Entry::Folder(_) | Entry::Url { .. } => false,
        })
    }

    fn allows_host(&self, requested: &str) -> bool {
        self.0.iter().any(
            |parse_entry| matches!(parse_entry, Entry::Url { host: Some(host), .. } if host.eq_ignore_ascii_case(requested)),
        )
    }

    /// Follows redirects to permitted URLs.
    pub(crate) fn redirects(self: &Arc<Self>) -> Policy {
        let allowed = self.clone();
        Policy::custom(move |attempt| {
            if attempt.previous().len() > REDIRECTS_MAX {
                return attempt.error(Refused("it redirects too often".to_owned()));
            }
            match allowed.check_url(attempt.url()) {
                Ok(()) => attempt.follow(),
                Err(Refused(why)) => {
                    attempt.error(Refused(format!("it redirects elsewhere, and there {why}")))
                }
            }
        })
    }

    /// Resolves names to permitted addresses.
    pub(crate) fn resolver(self: &Arc<Self>) -> Arc<dyn Resolve> {
        Arc::new(Resolver(self.clone()))
    }
}

fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

const NOT_ALLOWED: &str = "it is not among the sources that may be read";
const LINK_ESCAPES: &str = "a link leads out of the folders that may be read";

/// The system's limit for following links.
const LINKS_MAX: usize = 40;

/// Returns the target of a path after following its links. Missing or inaccessible parts are not links.
fn follow(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut real, mut left, mut links) = (PathBuf::from("/"), parts(&path), 0);
    while let Some(part) = left.pop() {
        if part == "." {
            continue;
        }
        if part == ".." {
            real.pop();
            continue;
        }
        // A root component restarts the path.
        let next = real.join(part);
        match std::fs::read_link(&next) {
            Ok(target) if links < LINKS_MAX => {
                links += 1;
                left.extend(parts(&target));
            }
            _ => real = next,
        }
    }
    real
}

fn denied(location: &Location, reason: String) -> Error {
    Error::NotAllowed {
        location: location.to_string(),
        reason,
    }
}

fn refuse_local(address: IpAddr) -> Refused {
    Refused(format!(
        "{address} is an address of this machine or its link, which is read only where its host is named"
    ))
}

struct Resolver(Arc<Allowed>);

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allowed = self.0.clone();
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let found: Vec<SocketAddr> = found.collect();
            if allowed.allows_host(name.as_str()) || is_proxy(name.as_str()) {
                return Ok(Box::new(found.into_iter()) as Addrs);
            }
            // One rejected address rejects all: the name is not what its users assume.
            if let Some(refused) = found.iter().find(|addr| is_local(addr.ip())) {
                return Err(Box::new(refuse_local(refused.ip())) as _);
            }
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Returns whether the environment uses this host as an HTTP proxy. It may be contacted, and itself decides about
/// addresses.
fn is_proxy(host: &str) -> bool {
    ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"]
        .iter()
        .any(|name| {
            let set = std::env::var(name).or_else(|_| std::env::var(name.to_ascii_lowercase()));
            set.ok()
                .and_then(|proxy| Url::parse(&proxy).ok())
                .is_some_and(|proxy| {
                    proxy
                        .host_str()
                        .is_some_and(|proxy| proxy.eq_ignore_ascii_case(host))
                })
        })
}

/// Returns a common name for schemes of the same store.
fn family(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "http" => "http",
        "https" => "https",
        "s3" | "s3a" => "s3",
        "gs" => "gs",
        "az" | "azure" | "abfs" | "abfss" | "adl" => "az",
        _ => return None,
    })
}

fn parse_entry(text: &str) -> std::result::Result<Entry, String> {
    let expected = || {
        format!(
            "{text:?} is neither an absolute folder, such as /data/exports, nor the beginning of an http, https, s3, gs, az or hdfs URL, such as \
             https:// or s3://bucket/dir"
        )
    };
    let text = match text.strip_prefix("file://") {
        Some(path) => path,
        None => text,
    };
    if text.starts_with('/') {
        let folder = PathBuf::from(text);
        let climbs = folder.components().any(|part| part == Component::ParentDir);
        return if climbs {
            Err(expected())
        } else {
            Ok(Entry::Folder(folder))
        };
    }
    let (scheme, rest) = text.split_once("://").ok_or_else(expected)?;
    if scheme == "hdfs" {
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let climbs = path.split('/').any(|part| part == "..");
        let is_plain = !climbs && !authority.contains(['@', '?', '#', ' ']);
        return is_plain
            .then(|| Entry::Hdfs {
                authority: (!authority.is_empty()).then(|| authority.to_owned()),
                path: format!("/{path}").trim_end_matches('/').to_owned(),
            })
            .ok_or_else(expected);
    }
    let scheme = family(scheme).ok_or_else(expected)?;
    if rest.is_empty() {
        return Ok(Entry::Url {
            scheme,
            host: None,
            port: None,
            path: String::new(),
        });
    }
    let url = Url::parse(text).map_err(|_| expected())?;
    let given = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // `Url` omits a port that is the scheme's default.
    let has_port = given
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(Entry::Url {
        scheme,
        host: Some(url.host_str().ok_or_else(expected)?.to_owned()),
        port: has_port.then(|| url.port_or_known_default()).flatten(),
        path: url.path().trim_end_matches('/').to_owned(),
    })
}

/// Returns whether an address belongs to this machine, is link-local, or belongs to a cloud's metadata service.
fn is_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_local_v4(address),
        IpAddr::V6(address) => {
            let segments = address.segments();
            let inside = |high: u16, low: u16| {
                let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
                is_local_v4(Ipv4Addr::new(a, b, c, d))
            };
            address.is_loopback()
                || address.is_unspecified()
                || address.is_multicast()
                || segments[0] & 0xffc0 == 0xfe80
                || address == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)
                || match segments {
                    // Embedded IPv4 addresses: mapped, compatible, NAT64, 6to4.
                    [0, 0, 0, 0, 0, 0xffff | 0, high, low] => inside(high, low),
                    [0x64, 0xff9b, 0, 0, 0, 0, high, low] => inside(high, low),
                    [0x2002, high, low, ..] => inside(high, low),
                    _ => false,
                }
        }
    }
}

fn is_local_v4(address: Ipv4Addr) -> bool {
    const CLOUD_METADATA: [Ipv4Addr; 3] = [
        Ipv4Addr::new(100, 100, 100, 200),
        Ipv4Addr::new(168, 63, 129, 16),
        Ipv4Addr::new(192, 0, 0, 192),
    ];
    address.is_loopback()
        || address.is_link_local()
        || address.octets()[0] == 0
        || address.is_multicast()
        || address.is_broadcast()
        || CLOUD_METADATA.contains(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(entries: &[&str], source: &str, is_allowed: bool) {
        let entries: Vec<String> = entries
            .iter()
            .map(|&parse_entry| parse_entry.to_owned())
            .collect();
        let allowed = Allowed::parse(&entries).expect("entries");
        let verdict = Location::parse(source)
            .expect("a location")
            .within(&allowed);
        assert_eq!(verdict.is_ok(), is_allowed, "{source} by {entries:?}");
    }

    #[test]
    fn a_source_is_allowed_by_its_prefix() {
        let web = ["http://", "https://"];
        check(&web, "https://example.com/v7?sig=1", true);
        check(&web, "http://10.0.0.5:8000/v7", true);
        check(&web, "/data/v7", false);
        check(&web, "s3://bucket/v7", false);
        check(&["https://"], "http://example.com/", false);
        let one = ["https://example.com/exports/"];
        check(&one, "https://example.com/exports", true);
        check(&one, "https://ann:pw@EXAMPLE.com:8443/exports/v7", true);
        check(&one, "https://example.com/exports2/v7", false);
        check(&one, "https://example.com/exports/../v7", false);
        check(&one, "https://example.com/exports/%2e%2e/v7", false);
        check(&one, "https://example.com.evil.example/exports/v7", false);
        check(&["http://h:80/"], "http://h/v7", true);
        check(&["http://h:80/"], "http://h:81/v7", false);
        check(&["s3://"], "s3a://bucket/v7", true);
        check(&["s3://bucket/dir"], "s3://bucket/dir/v7", true);
        check(&["s3://bucket/dir"], "s3://bucket/other", false);
        check(&["hdfs://n:8020/dir/"], "hdfs://N:8020/dir/v7", true);
        check(&["hdfs://n:8020/dir"], "hdfs://n:8020/dir2/v7", false);
        check(&["hdfs://n:8020"], "hdfs://n:9000/v7", false);
        check(&["hdfs://n"], "hdfs://n:9000/v7", true);
        check(&["hdfs://"], "hdfs://n:9000/v7", false);
        check(&["/data"], "/data/v7", true);
        check(&["/data"], "file:///data/v7", true);
        check(&["/data"], "/database/v7", false);
        check(&["/data"], "/data/../etc", false);
        check(&["/"], "/etc/../etc", true);
        check(&[], "/data/v7", false);
    }

    #[test]
    fn links_are_followed_even_if_the_target_is_missing() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a path");
        let (inside, outside) = (root.join("inside"), root.join("outside"));
        std::fs::create_dir(&inside).expect("a folder");
        symlink(&outside, inside.join("out")).expect("a link");
        symlink("../outside/./x/..", inside.join("climbs")).expect("a link");
        symlink("here", inside.join("again")).expect("a link");
        symlink("loop", inside.join("loop")).expect("a link");
        for (path, leads) in [
            ("here/v1", "inside/here/v1"),
            ("again/v1", "inside/here/v1"),
            ("out/v1", "outside/v1"),
            ("climbs/v1", "outside/v1"),
            ("loop/v1", "inside/loop/v1"),
        ] {
            assert_eq!(follow(&inside.join(path)), root.join(leads), "{path}");
        }
    }

    #[test]
    fn local_addresses_are_allowed_only_by_host_name() {
        for host in [
            "127.0.0.1",
            "127.9.9.9",
            "2130706433",
            "0x7f.1",
            "0.0.0.0",
            "169.254.169.254",
            "100.100.100.200",
            "[::1]",
            "[::]",
            "[fe80::1]",
            "[::ffff:127.0.0.1]",
            "[::ffff:a9fe:a9fe]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:7f00:1::]",
            "[fd00:ec2::254]",
            "255.255.255.255",
        ] {
            check(&["http://"], &format!("http://{host}:8000/v7"), false);
            check(
                &["http://", &format!("http://{host}/")],
                &format!("http://{host}:8000/v7"),
                true,
            );
        }
        for host in [
            "10.1.2.3",
            "192.168.1.1",
            "93.184.216.34",
            "[2606:2800:220:1::1]",
        ] {
            check(&["http://"], &format!("http://{host}/v7"), true);
        }
    }

    #[test]
    fn entries_must_be_folders_or_urls() {
        for wrong in ["", "data", "ftp://x", "/data/../x", "http//x", "http://["] {
            assert!(Allowed::parse(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
