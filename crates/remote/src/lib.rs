//! Files at their location: a local path, or an object with a `file`, `http(s)`, `s3`, `gs`, `az` or `hdfs` URL.
//!
//! ```text
//!  text ── Location::parse ──► Location ──┬─ size, get_all, stream ──► the server's pull
//!                                         ├─ list, reader, read_ranges ──► ingest (blocking)
//!                                         └─ put_file, remove ──► a push to an object store or HDFS
//! ```
//!
//! Read `location` first (the meaning of a text, and what is never printed), then `allowed` (what may be read on
//! behalf of others), `read` (a stream that resumes, and its checks), and `blocking` for callers without a runtime.
//! `hdfs` and `hdfs_error` are Hadoop's file system.
//!
//! This is the only crate that links object stores and HDFS. Except for HDFS's connections, it keeps no state between
//! calls. It starts no timers, and leaves throttling and stall timeouts to the caller.

mod allowed;
mod blocking;
mod certificates;
mod error;
mod file;
mod hdfs;
mod hdfs_error;
mod http;
mod list;
mod location;
mod ranges;
mod read;
mod write;

pub use allowed::Allowed;
pub use blocking::{set_interrupt_check, stdin, temp_file};
pub use certificates::Certificates;
pub use error::Error;
pub use list::ListedFile;
pub use location::{Location, Scheme};
pub use read::ByteStream;
