//! Files in HDFS, over Hadoop's native protocol, without Java or a gateway.
//!
//! The settings are Hadoop's. `HADOOP_CONF_DIR` (or `HADOOP_HOME`) names the folder of `core-site.xml` and
//! `hdfs-site.xml`, which define name services, the meaning of `hdfs:///dir`, and security. The user is that of
//! `HADOOP_USER_NAME`, the owner of a delegation token in the file `HADOOP_TOKEN_FILE_LOCATION`, or that of a
//! Kerberos ticket, if the system has `libgssapi_krb5`.
//!
//! 1. A path is literal, as in Hadoop: `%3A` is not a colon.
//! 2. A file appears under its name only when it is complete. It is written under a unique hidden name and renamed,
//!    which atomically replaces an existing file. A killed process leaves the hidden file.
//! 3. Every step has a timeout of [`STEP_TIMEOUT`].

use std::any::Any;
use std::future::Future;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use hdfs_native::client::FileStatus;
use hdfs_native::{Client, ClientBuilder, HdfsError, WriteOptions};
use tokio::io::AsyncReadExt;
use tokio::runtime::{Handle, Runtime};

use crate::error::{Error, Result};
use crate::hdfs_error::explain;
use crate::location::Location;
use crate::write::UNFINISHED;

/// Number of retries of a call to an unresponsive namenode, within about 7 seconds. For a name service with several
/// namenodes, Hadoop's settings define it.
const CALL_RETRIES: &str = "3";

/// The timeout of a step. The library waits for a datanode for 60 seconds, and then continues without it.
const STEP_TIMEOUT: Duration = Duration::from_secs(180);

/// The pauses before a file is written again. The namenode may choose a datanode that has just disappeared for a new
/// block, and the library does not request another one.
const PAUSES: [Duration; 3] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
];

const PART_BYTES: usize = 1 << 20;

const TOKEN_FILE_VARIABLE: &str = "HADOOP_TOKEN_FILE_LOCATION";

/// A file or a folder in HDFS.
#[derive(Clone)]
pub(crate) struct Hdfs {
    client: Client,
    /// The name of the name service, or a host and its port; empty for the default file system of Hadoop's settings.
    authority: String,
    /// Absolute, without a trailing slash.
    path: String,
}

impl Hdfs {
    /// Parses the text after `hdfs://`.
    ///
    /// # Errors
    /// Describes the problem and the remedy; nothing is contacted.
    pub fn parse(rest: &str) -> Result<Hdfs, String> {
        let (authority, path) = rest
            .split_once('/')
            .ok_or("it names no path; write hdfs://namenode:8020/dir")?;
        if authority.contains('@') {
            return Err(
                "it names a user; set HADOOP_USER_NAME, or have a Kerberos ticket".to_owned(),
            );
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        if parts.iter().any(|part| matches!(*part, "." | "..")) {
            return Err("its path must not climb".to_owned());
        }
        let mut settings = Vec::new();
        if check_tokens()? {
            // The library uses tokens only with this setting, and then behaves like Hadoop's own client.
            settings.push(("hadoop.security.authentication", "kerberos"));
        }
        if authority.contains(':') {
            settings.push(("dfs.client.failover.max.attempts", CALL_RETRIES));
        }
        let client = ClientBuilder::new()
            .with_url(format!("hdfs://{authority}/"))
            .with_config(settings)
            .with_io_runtime(runtime()?)
            .build();
        Ok(Hdfs {
            client: client.map_err(|e| no_client(authority, &e))?,
            authority: authority.to_owned(),
            path: format!("/{}", parts.join("/")),
        })
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn join(&self, name: &str) -> Hdfs {
        self.at(format!("{}/{name}", self.path.trim_end_matches('/')))
    }

    /// Returns another path in the same file system.
    pub fn at(&self, path: String) -> Hdfs {
        Hdfs {
            path,
            ..self.clone()
        }
    }

    pub async fn size(&self, location: &Location) -> Result<u64> {
        let status = self.status(location).await?;
        if status.isdir {
            return Err(is_folder(location));
        }
        Ok(status.length as u64)
    }

    pub async fn status(&self, location: &Location) -> Result<FileStatus> {
        step(location, self.client.get_file_info(&self.path)).await
    }

    /// Returns the direct entries of this folder.
    pub async fn entries(&self, location: &Location) -> Result<Vec<FileStatus>> {
        step(location, self.client.list_status(&self.path, false)).await
    }

    /// Returns some or all bytes from an offset on, and the size of the file; `check` is called with the size before
    /// anything is read.
    pub async fn stream(
        &self,
        location: &Location,
        from: u64,
        length: Option<usize>,
        check: impl FnOnce(u64) -> Result<()>,
    ) -> Result<(BoxStream<'static, Result<Bytes>>, u64)> {
        let opened = step(location, self.client.read(&self.path)).await;
        let reader = match opened {
            // For a folder, the namenode reports that it is not a file, as for a missing path.
            Err(error) if self.status(location).await.is_ok_and(|it| it.isdir) => {
                drop(error);
                return Err(is_folder(location));
            }
            opened => opened?,
        };
        let size = reader.file_length() as u64;
        check(size)?;
        let left = size.saturating_sub(from) as usize;
        let length = length.map_or(left, |length| length.min(left));
        let location = location.clone();
        let stream = AssertUnwindSafe(reader.read_range_stream(from as usize, length))
            .catch_unwind()
            .map(move |part| match part {
                Ok(part) => part.map_err(|e| explain(&location, e)),
                Err(panic) => Err(panicked(&location, panic.as_ref())),
            });
        Ok((stream.boxed(), size))
    }

    pub async fn remove(&self, location: &Location) -> Result<()> {
        step(location, self.client.delete(&self.path, false))
            .await
            .map(drop)
    }

    pub async fn remove_unfinished(&self, location: &Location) -> Result<()> {
        for entry in self.entries(location).await? {
            let name = entry.path.rsplit('/').next().unwrap_or_default();
            let ending = name.rsplit('.').next();
            if !entry.isdir && name.starts_with('.') && ending == Some(UNFINISHED) {
                let removed = self.client.delete(&entry.path, false);
                step(location, removed).await?;
            }
        }
        Ok(())
    }

    /// Writes a file according to invariant 2. `progress` never counts bytes twice, however often the write is
    /// restarted.
    pub async fn put(
        &self,
        location: &Location,
        local: &Path,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let reported = AtomicU64::new(0);
        let progress = move |done| {
            if reported.fetch_max(done, Ordering::Relaxed) < done {
                progress(done);
            }
        };
        for pause in PAUSES {
            match self.put_once(location, local, &progress).await {
                Err(error) if error.is_retryable() => tokio::time::sleep(pause).await,
                done => return done,
            }
        }
        self.put_once(location, local, &progress).await
    }

    async fn put_once(
        &self,
        location: &Location,
        local: &Path,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let (folder, name) = self.path.rsplit_once('/').unwrap_or(("", &self.path));
        let number = RandomState::new().build_hasher().finish();
        let unfinished = format!("{folder}/.{name}.{number:016x}.{UNFINISHED}");
        let done = match self.write(location, local, &unfinished, progress).await {
            Ok(()) => {
                let renamed = self.client.rename(&unfinished, &self.path, true);
                step(location, renamed).await
            }
            failed => failed,
        };
        if done.is_err() {
            // Best effort: the removal may fail too, but the name is hidden, and no other attempt uses it.
            let removed = self.client.delete(&unfinished, false);
            let _ = step(location, removed).await;
        }
        done
    }

    async fn write(
        &self,
        location: &Location,
        local: &Path,
        unfinished: &str,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let here = Location::local(local);
        let file = tokio::fs::File::open(local).await;
        let mut file = file.map_err(|e| Error::from_io(&here, &e))?;
        let options = WriteOptions::default();
        let mut writer = step(location, self.client.create(unfinished, options)).await?;
        let mut done = 0;
        loop {
            let mut part = BytesMut::with_capacity(PART_BYTES);
            let read = file.read_buf(&mut part).await;
            if read.map_err(|e| Error::from_io(&here, &e))? == 0 {
                break;
            }
            done += step(location, writer.write_bytes(part.freeze())).await? as u64;
            progress(done);
        }
        step(location, writer.close()).await
    }
}

/// Executes one step of the library with the timeout [`STEP_TIMEOUT`], and catches its panics, which a damaged token file
/// causes.
async fn step<T>(
    location: &Location,
    call: impl Future<Output = hdfs_native::Result<T>>,
) -> Result<T> {
    let call = AssertUnwindSafe(call).catch_unwind();
    match tokio::time::timeout(STEP_TIMEOUT, call).await {
        Ok(Ok(answer)) => answer.map_err(|e| explain(location, e)),
        Ok(Err(panic)) => Err(panicked(location, panic.as_ref())),
        Err(_) => Err(Error::Failed {
            location: location.to_string(),
            reason: format!("HDFS did not answer for {} seconds", STEP_TIMEOUT.as_secs()),
            retry: true,
        }),
    }
}

fn panicked(location: &Location, panic: &(dyn Any + Send)) -> Error {
    let message = panic.downcast_ref::<&str>().map(|&it| it.to_owned());
    let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
    Error::Failed {
        location: location.to_string(),
        reason: format!(
            "the HDFS client failed ({}); a damaged file {TOKEN_FILE_VARIABLE} can cause this",
            message.unwrap_or_default()
        ),
        retry: false,
    }
}

fn is_folder(location: &Location) -> Error {
    Error::Unsupported {
        location: location.to_string(),
        reason: "it is a folder, not a file".into(),
    }
}

fn no_client(authority: &str, error: &HdfsError) -> String {
    match authority {
        "" => format!(
            "the address names no HDFS cluster ({error}); write hdfs://namenode:8020/dir, or have HADOOP_CONF_DIR name a folder with a core-site.xml that has fs.defaultFS"
        ),
        name if !name.contains(':') => format!(
            "{name} is no name service that is known here ({error}); write the namenode's port as well, hdfs://{name}:8020/dir, or have HADOOP_CONF_DIR name the \
             folder of the hdfs-site.xml that has it"
        ),
        _ => format!("this is not a valid HDFS address: {error}"),
    }
}

/// Returns whether there is a token file. The library treats one that it cannot read as one without tokens.
fn check_tokens() -> Result<bool, String> {
    let Some(path) = std::env::var_os(TOKEN_FILE_VARIABLE) else {
        return Ok(false);
    };
    let wrong = |what: &str| {
        let path = Path::new(&path).display();
        format!(
            "{TOKEN_FILE_VARIABLE} names {path}, and {what}; name a file of delegation tokens, or unset it"
        )
    };
    let bytes = std::fs::read(&path).map_err(|e| wrong(&e.to_string()))?;
    match bytes.as_slice() {
        [b'H', b'D', b'T', b'S', 0 | 1, _, ..] => Ok(true),
        _ => Err(wrong("that is no file of Hadoop's tokens")),
    }
}

/// Returns the runtime of the connections. It must outlive the callers' runtimes, since connections end with their
/// runtime.
fn runtime() -> Result<Handle, String> {
    static RUNTIME: OnceLock<std::result::Result<Runtime, String>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("larder-hdfs")
            .enable_all()
            .build()
            .map_err(|e| e.to_string())
    });
    let runtime = runtime.as_ref().map_err(Clone::clone)?;
    Ok(runtime.handle().clone())
}

#[cfg(test)]
mod tests {
    use super::Hdfs;

    #[test]
    fn paths_are_used_unchanged() {
        for (text, authority, path) in [
            ("n:8020/a/day=1/at=09%3A30", "n:8020", "/a/day=1/at=09%3A30"),
            ("n:8020//a//b/", "n:8020", "/a/b"),
            ("n:8020/", "n:8020", "/"),
            ("n:8020/a?/b#c", "n:8020", "/a?/b#c"),
        ] {
            let hdfs = Hdfs::parse(text).unwrap();
            assert_eq!((hdfs.authority(), hdfs.path()), (authority, path), "{text}");
        }
        let root = Hdfs::parse("n:8020/").unwrap();
        assert_eq!(root.join("a/b").path(), "/a/b");
    }

    #[track_caller]
    fn check_wrong(text: &str, expected: &str) {
        let why = Hdfs::parse(text).err().expect("it is wrong");
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn invalid_addresses_are_reported_with_advice() {
        check_wrong("n:8020", "hdfs://namenode:8020/dir");
        check_wrong("ann@n:8020/x", "HADOOP_USER_NAME");
        check_wrong("n:8020/a/../b", "climb");
        check_wrong("n:port/a", "this is not a valid HDFS address");
        check_wrong("nobody-knows/a", "hdfs://nobody-knows:8020/dir");
        check_wrong("/a", "fs.defaultFS");
    }
}
