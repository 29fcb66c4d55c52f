//! Blocking reads for callers without a runtime, such as a batch build.
//!
//! One thread with a small runtime of its own fetches a remote object, a few parts ahead of the reader. It resumes a
//! broken connection at the same offset and stops when the reader is dropped. While waiting for a source, a reader
//! periodically checks whether the program should end ([`set_interrupt_check`]).

use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use bytes::{Buf, Bytes};
use futures::StreamExt;
use tokio::runtime::Runtime;

use crate::error::{Error, Result};
use crate::list::ListedFile;
use crate::location::Location;

const PARTS_AHEAD: usize = 16;
pub(crate) const RETRIES: u32 = 5;
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// The interval of these checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

static INTERRUPTED: OnceLock<fn() -> bool> = OnceLock::new();

/// Makes blocking reads fail once `interrupted` returns true, whatever the state of their source. Applies to the
/// complete program; only the first call has an effect.
pub fn set_interrupt_check(interrupted: fn() -> bool) {
    let _ = INTERRUPTED.set(interrupted);
}

fn is_interrupted() -> bool {
    INTERRUPTED.get().is_some_and(|interrupted| interrupted())
}

impl Location {
    /// Returns a blocking reader of the object's bytes from the start. It resumes broken connections a few times.
    ///
    /// # Errors
    /// If the object cannot be opened; later failures are the reader's errors. Must not be called inside a runtime.
    pub fn reader(&self) -> Result<Box<dyn Read + Send>> {
        if let Some(path) = self.as_local() {
            return Ok(Box::new(self.open_file(path)?));
        }
        let (parts_in, parts) = sync_channel(PARTS_AHEAD);
        let (opened_in, opened) = sync_channel(1);
        let location = self.clone();
        let pump = move || {
            match runtime(&location) {
                Ok(runtime) => runtime.block_on(pump(&location, &opened_in, &parts_in)),
                Err(error) => drop(opened_in.send(Err(error))),
            };
        };
        let spawned = std::thread::Builder::new()
            .name("larder-remote".into())
            .spawn(pump);
        spawned.map_err(|e| Error::from_io(self, &e))?;
        let opened = wait(&opened).map_err(|e| Error::from_io(self, &e))?;
        opened.unwrap_or_else(|| Err(reader_ended(self)))?;
        Ok(Box::new(PartReader {
            parts,
            part: Bytes::new(),
            done: false,
        }))
    }

    /// Returns the size; blocks. Must not be called inside a runtime.
    pub fn size_blocking(&self) -> Result<u64> {
        self.block_on(self.size())
    }

    /// Returns whether there is a file; blocks. Must not be called inside a runtime.
    ///
    /// # Errors
    /// The location cannot be read for another reason.
    pub fn exists_blocking(&self) -> Result<bool> {
        match self.size_blocking() {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Executes [`Location::list`]; blocks. Must not be called inside a runtime.
    pub fn list_blocking(&self) -> Result<Vec<ListedFile>> {
        self.block_on(self.list())
    }

    /// Executes [`Location::put_file`]; blocks. Must not be called inside a runtime.
    pub fn put_file_blocking(&self, local: &Path) -> Result<()> {
        runtime(self)?.block_on(self.put_file(local, &|_| {}))
    }

    /// Executes [`Location::remove_unfinished`]; blocks. Must not be called inside a runtime.
    pub fn remove_unfinished_blocking(&self) -> Result<()> {
        self.block_on(self.remove_unfinished())
    }

    /// Executes [`Location::remove`]; blocks. Must not be called inside a runtime.
    pub fn remove_blocking(&self) -> Result<()> {
        self.block_on(self.remove())
    }

    /// Waits for a reply of the source, with a timeout, and only until the program should end.
    fn block_on<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        BlockingWait::new(self)?.wait(answer)
    }
}

/// Waits for replies of a source, with a timeout, and only until the program should end.
pub(crate) struct BlockingWait<'a> {
    location: &'a Location,
    /// `None` during the drop.
    runtime: Option<Runtime>,
}

impl<'a> BlockingWait<'a> {
    pub fn new(location: &'a Location) -> Result<BlockingWait<'a>> {
        let runtime = Some(runtime(location)?);
        Ok(BlockingWait { location, runtime })
    }

    pub fn wait<T>(&self, answer: impl Future<Output = Result<T>>) -> Result<T> {
        let interrupted = async {
            while !is_interrupted() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let runtime = self.runtime.as_ref().expect("it is not dropped");
        runtime.block_on(async {
            tokio::select! {
                answer = tokio::time::timeout(STALL_TIMEOUT, answer) => answer.map_err(|_| stalled(self.location))?,
                () = interrupted => Err(reader_ended(self.location)),
            }
        })
    }
}

impl Drop for BlockingWait<'_> {
    fn drop(&mut self) {
        // Does not wait for a name server or file system that hangs.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Creates an unnamed temporary file, which is deleted when it is closed or the process ends.
pub fn temp_file() -> io::Result<File> {
    tempfile::tempfile()
}

fn runtime(location: &Location) -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::from_io(location, &e))
}

fn reader_ended(location: &Location) -> Error {
    Error::Failed {
        location: location.to_string(),
        reason: "the reader stopped unexpectedly".into(),
        retry: true,
    }
}

/// Sends the parts until the end, until a permanent error, or until the receiver is dropped.
async fn pump(
    location: &Location,
    opened: &SyncSender<Result<()>>,
    parts: &SyncSender<io::Result<Bytes>>,
) {
    let (mut offset, mut size, mut retries) = (0, None, 0);
    let mut is_open = false;
    loop {
        let opening = tokio::time::timeout(STALL_TIMEOUT, location.stream_of_size(offset, size));
        let error = match opening.await.unwrap_or_else(|_| Err(stalled(location))) {
            Err(error) => error,
            Ok(mut stream) => {
                if !is_open {
                    is_open = true;
                    opened.send(Ok(())).ok();
                }
                size = stream.size();
                let error = loop {
                    match tokio::time::timeout(STALL_TIMEOUT, stream.next()).await {
                        Err(_) => break stalled(location),
                        Ok(None) => return,
                        Ok(Some(Err(error))) => break error,
                        Ok(Some(Ok(part))) => {
                            retries = 0;
                            if parts.send(Ok(part)).is_err() {
                                return;
                            }
                        }
                    }
                };
                offset = stream.offset();
                error
            }
        };
        retries += 1;
        if !error.is_retryable() || retries > RETRIES {
            if is_open {
                parts.send(Err(io::Error::other(error))).ok();
            } else {
                opened.send(Err(error)).ok();
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(100 << retries)).await;
    }
}

fn stalled(location: &Location) -> Error {
    Error::Failed {
        location: location.to_string(),
        reason: format!("no data arrived for {} seconds", STALL_TIMEOUT.as_secs()),
        retry: true,
    }
}

/// Returns the next item of a pump, `None` after its end.
fn wait<T>(pump: &Receiver<T>) -> io::Result<Option<T>> {
    loop {
        match pump.recv_timeout(POLL_INTERVAL) {
            Ok(next) => return Ok(Some(next)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if is_interrupted() => {
                // Not of the kind `Interrupted`, after which readers retry.
                return Err(io::Error::other("interrupted"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Reads standard input in a separate thread that can be abandoned, since a pipe may block forever.
pub fn stdin() -> io::Result<impl Read + Send> {
    const PART_BYTES: usize = 256 << 10;
    let (parts_in, parts) = sync_channel(PARTS_AHEAD);
    let pump = move || {
        let mut stdin = io::stdin().lock();
        loop {
            let mut part = vec![0; PART_BYTES];
            let read = stdin.read(&mut part).map(|read| {
                part.truncate(read);
                Bytes::from(part)
            });
            match read {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(part) if part.is_empty() => return,
                part => {
                    let failed = part.is_err();
                    if parts_in.send(part).is_err() || failed {
                        return;
                    }
                }
            }
        }
    };
    std::thread::Builder::new()
        .name("larder-stdin".into())
        .spawn(pump)?;
    Ok(PartReader {
        parts,
        part: Bytes::new(),
        done: false,
    })
}

struct PartReader {
    parts: Receiver<io::Result<Bytes>>,
    part: Bytes,
    done: bool,
}

impl Read for PartReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() && !self.done {
            match wait(&self.parts)? {
                Some(part) => self.part = part.inspect_err(|_| self.done = true)?,
                None => self.done = true,
            }
        }
        let count = out.len().min(self.part.len());
        self.part.copy_to_slice(&mut out[..count]);
        Ok(count)
    }
}
