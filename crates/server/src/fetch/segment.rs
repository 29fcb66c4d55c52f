//! Fetches one segment from its source into its file, and checks it while it streams.
//!
//! ```text
//!            ┌────────────── transient fault: back off, resume at the byte reached ◄──┐
//!            ▼                                                                        │
//!  reopen (hash existing bytes) ──► stream (write, hash, throttle) ──► whole? ──no────┘
//!            ▲                                                           │ yes
//!            └── truncate, once ◄── digest differs ◄── compare ◄─────────┘ ──► done
//! ```
//!
//! Invariants:
//! 1. `digest` covers exactly the first `at` bytes of the file, which are written once it is flushed.
//! 2. A segment is reported as fetched only if its digest matches the manifest.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use futures::StreamExt;
use larder_batch::version::files::StreamingFile;
use larder_batch::{SegmentDigest, SegmentEntry};
use larder_remote::Location;

use super::Pull;
use super::throttle::Throttle;
use crate::Shared;
use crate::back_off::back_off;
use crate::error::Error;

/// The tolerance of a fetch for a slow or faulty source.
#[derive(Debug, Clone, Copy)]
pub struct RetryPolicy {
    /// A source that sends nothing for this time is disconnected and retried.
    pub stall_timeout: Duration,
    /// Consecutive faults without any received byte after which the pull fails.
    pub retries: u32,
}

impl RetryPolicy {
    /// The configured values.
    pub fn from_config(shared: &Shared) -> RetryPolicy {
        RetryPolicy {
            stall_timeout: Duration::from_secs(shared.config.fetch.stall_timeout_seconds),
            retries: shared.config.fetch.retries,
        }
    }
}

/// Maximum pause between two attempts.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(10);

pub struct Fetch<'a> {
    pub pull: &'a Pull,
    pub throttle: &'a Throttle,
    pub retry_policy: RetryPolicy,
}

/// A segment's file, with the position and digest reached.
struct Partial {
    file: StreamingFile,
    digest: SegmentDigest,
    at: u64,
}

impl Fetch<'_> {
    /// Fetches `entry` from `source` into `path`, resuming after the bytes in `path`.
    pub async fn fetch_segment(
        &self,
        source: &Location,
        entry: &SegmentEntry,
        path: &Path,
    ) -> Result<(), Error> {
        let mut partial = self.reopen(entry, path)?;
        let fetched = self.fetch_verified(source, entry, path, &mut partial).await;
        // Also after a fault, so that the next pull can resume there.
        let flushed = partial.file.flush().map_err(Error::io("write", path));
        fetched.and(flushed)
    }

    async fn fetch_verified(
        &self,
        source: &Location,
        entry: &SegmentEntry,
        path: &Path,
        partial: &mut Partial,
    ) -> Result<(), Error> {
        let mut is_retry = false;
        loop {
            self.fetch_to_end(source, entry, path, partial).await?;
            if partial.digest.finish_hex() == entry.digest {
                return Ok(());
            }
            self.restart(entry, path, partial)?;
            if is_retry {
                return Err(Error::Source {
                    message: format!(
                        "segment {source} had a digest other than the manifest's in two attempts; build and upload it again"
                    ),
                    retry: false,
                });
            }
            tracing::warn!(segment = %source, "wrong digest; fetching the segment again from its first byte");
            is_retry = true;
        }
    }

    /// Streams until the file has the entry's length, over as many connections as necessary.
    async fn fetch_to_end(
        &self,
        source: &Location,
        entry: &SegmentEntry,
        path: &Path,
        partial: &mut Partial,
    ) -> Result<(), Error> {
        let mut faults = 0;
        while partial.at < entry.size_bytes {
            let before = partial.at;
            match self.stream(source, entry, path, partial).await {
                Ok(()) => {}
                Err(error) if !error.info().retry => return Err(error),
                Err(error) => {
                    faults = if partial.at > before { 1 } else { faults + 1 };
                    if faults > self.retry_policy.retries {
                        return Err(error);
                    }
                    tracing::warn!(segment = %source, at = partial.at, faults, %error, "fetch interrupted; trying again");
                    tokio::time::sleep(back_off(faults, BACK_OFF_MAX)).await;
                }
            }
        }
        Ok(())
    }

    /// Streams over one connection.
    async fn stream(
        &self,
        source: &Location,
        entry: &SegmentEntry,
        path: &Path,
        partial: &mut Partial,
    ) -> Result<(), Error> {
        let stall = self.retry_policy.stall_timeout;
        let opened = tokio::time::timeout(
            stall,
            source.stream_of_size(partial.at, Some(entry.size_bytes)),
        )
        .await;
        let opened = opened.map_err(|_| stall_error(source, stall, partial.at))?;
        let pace = self.throttle.pace();
        let mut chunks = std::pin::pin!(opened.map_err(to_source_error)?);
        loop {
            let next = tokio::time::timeout(stall, chunks.next()).await;
            let Some(chunk) = next.map_err(|_| stall_error(source, stall, partial.at))? else {
                break;
            };
            let chunk = chunk.map_err(to_source_error)?;
            let bytes = chunk.len() as u64;
            if partial.at + bytes > entry.size_bytes {
                return Err(Error::Source {
                    message: format!(
                        "segment {source} is longer than the {} bytes in its manifest; build and upload it again",
                        entry.size_bytes
                    ),
                    retry: false,
                });
            }
            self.throttle.acquire(bytes).await;
            partial.append(&chunk).map_err(Error::io("write", path))?;
            self.pull.count_fetched(bytes);
            pace.step_async().await;
        }
        if partial.at < entry.size_bytes {
            return Err(Error::Source {
                message: format!(
                    "segment {source} ended at byte {} of {}",
                    partial.at, entry.size_bytes
                ),
                retry: true,
            });
        }
        Ok(())
    }

    /// Opens the file and hashes what an earlier attempt left. A file that is too long is truncated.
    fn reopen(&self, entry: &SegmentEntry, path: &Path) -> Result<Partial, Error> {
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("open", path))?;
        let mut digest = entry.begin_digest();
        let mut at = 0;
        let length = file.metadata().map_err(Error::io("look at", path))?.len();
        if length > entry.size_bytes {
            file.set_len(0).map_err(Error::io("empty", path))?;
        }
        let mut buffer = vec![0; 256 << 10];
        let pace = self.throttle.pace();
        let should_continue = || self.pull.stopped().is_none();
        loop {
            let count = file.read(&mut buffer).map_err(Error::io("read", path))?;
            if count == 0 {
                break;
            }
            digest.update(&buffer[..count]);
            at += count as u64;
            self.pull.count_resumed(count as u64);
            pace.step(count as u64, &should_continue);
            self.pull.check_cancelled()?;
        }
        Ok(Partial {
            file: StreamingFile::for_serving(file, at),
            digest,
            at,
        })
    }

    fn restart(
        &self,
        entry: &SegmentEntry,
        path: &Path,
        partial: &mut Partial,
    ) -> Result<(), Error> {
        self.pull.count_discarded(partial.at);
        let file = File::create(path).map_err(Error::io("empty", path))?;
        *partial = Partial {
            file: StreamingFile::for_serving(file, 0),
            digest: entry.begin_digest(),
            at: 0,
        };
        Ok(())
    }
}

impl Partial {
    fn append(&mut self, chunk: &[u8]) -> std::io::Result<()> {
        self.file.write_all(chunk)?;
        self.digest.update(chunk);
        self.at += chunk.len() as u64;
        Ok(())
    }
}

pub fn to_source_error(error: larder_remote::Error) -> Error {
    let advice = match error {
        larder_remote::Error::NotAllowed { .. } => "; see fetch.allow",
        _ => "",
    };
    Error::Source {
        retry: error.is_retryable(),
        message: format!("{error}{advice}"),
    }
}

pub fn stall_error(source: &Location, after: Duration, at: u64) -> Error {
    Error::Source {
        message: format!(
            "{source} sent nothing for {} s at byte {at}",
            after.as_secs_f64()
        ),
        retry: true,
    }
}
