//! Relays the replication client through a connection opened by this crate. The client does not accept an open
//! connection, but it can connect to a Unix socket.
//!
//! ```text
//!  ReplicationClient ── Unix socket in a private directory ── relay ── TLS ──► PostgreSQL
//! ```
//!
//! The directory is removed as soon as the client has connected.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::UnixListener;

use crate::connect::Wire;

/// A directory that is removed with its socket on drop.
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
                // An earlier process may have left one behind.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Folder(path)),
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // At worst, an empty directory or an unused socket is left.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a directory with a socket for `port`. The first connection to it, if it arrives within `timeout`, is relayed
/// to `wire`.
///
/// # Errors
/// The directory or the socket cannot be created.
pub fn to(mut wire: Wire, port: u16, timeout: Duration) -> io::Result<PathBuf> {
    let folder = Folder::make()?;
    let listener = UnixListener::bind(socket(&folder.0, port))?;
    let path = folder.0.clone();
    tokio::spawn(async move {
        let accepted = tokio::time::timeout(timeout, listener.accept()).await;
        drop((listener, folder));
        if let Ok(Ok((mut client, _))) = accepted {
            // Both ends detect the end themselves.
            let _ = copy_bidirectional(&mut client, &mut wire).await;
        }
    });
    Ok(path)
}

/// Returns the path at which PostgreSQL's clients look for a socket.
fn socket(folder: &Path, port: u16) -> PathBuf {
    folder.join(format!(".s.PGSQL.{port}"))
}
