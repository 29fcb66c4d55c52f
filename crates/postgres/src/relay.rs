//! A way for the replication client through a connection that we made: it cannot be given one, but it can use a Unix socket.
//!
//! ```text
//!  ReplicationClient ── Unix socket in a folder that nobody else may enter ── relay ── TLS ──► PostgreSQL
//! ```
//!
//! The folder is gone as soon as the one connection has come.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::UnixListener;

use crate::connect::Wire;

/// A folder that goes when it is dropped, with the socket in it.
struct Folder(PathBuf);

impl Folder {
    fn make() -> io::Result<Folder> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        loop {
            let name = format!(
                "larder-{}-{}",
                std::process::id(),
                COUNT.fetch_add(1, Relaxed)
            );
            let path = std::env::temp_dir().join(name);
            match builder.create(&path) {
                // An earlier process may have left one.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Folder(path)),
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left is an empty folder, or a socket that nobody listens on.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folder in which one connection to `port`, if it comes before `timeout`, is passed on to `wire`.
///
/// # Errors
/// The folder or the socket cannot be made.
pub fn to(mut wire: Wire, port: u16, timeout: Duration) -> io::Result<PathBuf> {
    let folder = Folder::make()?;
    let listener = UnixListener::bind(socket(&folder.0, port))?;
    let path = folder.0.clone();
    tokio::spawn(async move {
        let accepted = tokio::time::timeout(timeout, listener.accept()).await;
        drop((listener, folder));
        if let Ok(Ok((mut client, _))) = accepted {
            // How it ended is seen at both ends.
            let _ = copy_bidirectional(&mut client, &mut wire).await;
        }
    });
    Ok(path)
}

/// Where PostgreSQL's clients look for a socket.
fn socket(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}
