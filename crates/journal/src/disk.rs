//! The environment of the journal: files, a clock, and unique numbers.
//!
//! [`RealDisk`] is the operating system. Tests replace it with a model that loses unsynced data, tears writes and
//! fails on demand.
//!
//! The journal relies on these guarantees, and the model provides no others:
//! 1. Bytes are durable after a successful `sync` of their file; before that any part of them may be, in any order. A
//!    failed `sync` guarantees nothing about later ones.
//! 2. Names are durable after a successful `sync_folder`. A rename is atomic.

use std::any::Any;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub trait Disk: Send + Sync {
    /// Creates a folder and its parents durably, unless it exists.
    fn create_folder(&self, path: &Path) -> io::Result<()>;

    /// Locks a folder against other processes until the result is dropped.
    fn lock(&self, folder: &Path) -> io::Result<Box<dyn Any + Send + Sync>>;

    /// Returns the names in a folder, in any order.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;

    /// Creates an empty file for writing, and replaces an existing one.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;

    /// Returns the time since an unspecified instant before the first call; monotonic.
    fn now(&self) -> Duration;

    /// Returns a number that no earlier call returned, on this machine or another.
    fn new_id(&self) -> io::Result<u64>;
}

/// A file. Concurrent calls are allowed, but only one at a time may write or change the size.
pub trait DiskFile: Send + Sync {
    /// Writes all of `parts` consecutively from `offset` on.
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()>;

    /// Reads up to `into.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    fn size(&self) -> io::Result<u64>;

    fn truncate(&self, size: u64) -> io::Result<()>;

    /// Makes the bytes and the size durable that were written before the call.
    fn sync(&self) -> io::Result<()>;
}

/// The operating system's files and clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

struct RealFile(File);

struct RealLock(File);

impl Drop for RealLock {
    fn drop(&mut self) {
        // Closing is not enough: a child process that is being started shares the lock until it executes its own
        // program. SAFETY: the descriptor is open; flock accesses no memory.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

impl Disk for RealDisk {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        if path.as_os_str().is_empty() || path.exists() {
            return Ok(());
        }
        // Each name is durable before another is created in it.
        let parent = path.parent().unwrap_or(Path::new(""));
        self.create_folder(parent)?;
        fs::create_dir(path)?;
        self.sync_folder(parent)
    }

    fn lock(&self, folder: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        let held = File::open(folder)?;
        // SAFETY: the descriptor is open; flock accesses no memory.
        if unsafe { libc::flock(held.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Box::new(RealLock(held)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        // A read of a pipe would wait forever.
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(Box::new(RealFile(file)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        File::open(folder)?.sync_all()
    }

    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    fn new_id(&self) -> io::Result<u64> {
        let mut bytes = [0u8; 8];
        // SAFETY: the pointer and the size are those of `bytes`, which outlives the call.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        // Requests of fewer than 256 bytes are never interrupted.
        if got != bytes.len() as isize {
            return Err(io::Error::last_os_error());
        }
        Ok(u64::from_le_bytes(bytes))
    }
}

impl DiskFile for RealFile {
    fn write_at(&self, mut offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        /// Linux's limit per call (`IOV_MAX`) is higher, but more slices gain nothing.
        const SLICES_MAX: usize = 256;
        for parts in parts.chunks(SLICES_MAX) {
            let mut slices: Vec<IoSlice<'_>> =
                parts.iter().map(|part| IoSlice::new(part)).collect();
            let mut left = &mut slices[..];
            // Removes empty slices, since a write of zero bytes would look like a full disk.
            IoSlice::advance_slices(&mut left, 0);
            while !left.is_empty() {
                // SAFETY: an IoSlice has the layout of an iovec; the slices outlive the call.
                let wrote = unsafe {
                    libc::pwritev(
                        self.0.as_raw_fd(),
                        left.as_ptr().cast(),
                        left.len() as i32,
                        offset as i64,
                    )
                };
                match wrote {
                    ..0 => {
                        let error = io::Error::last_os_error();
                        if error.kind() != io::ErrorKind::Interrupted {
                            return Err(error);
                        }
                    }
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    _ => {
                        offset += wrote as u64;
                        IoSlice::advance_slices(&mut left, wrote as usize);
                    }
                }
            }
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut got = 0;
        while got < into.len() {
            match self.0.read_at(&mut into[got..], offset + got as u64) {
                Ok(0) => break,
                Ok(size) => got += size,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(got)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_parts_is_written_consecutively() {
        let folder = tempfile::tempdir().expect("folder");
        let file = RealDisk.create(&folder.path().join("f")).expect("create");
        let parts: Vec<Vec<u8>> = (0..1000usize).map(|i| vec![i as u8; i % 7]).collect();
        let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        file.write_at(3, &slices).expect("write");
        let expected = parts.concat();
        assert_eq!(file.size().expect("size"), expected.len() as u64 + 3);
        let mut got = vec![0; expected.len() + 10];
        assert_eq!(file.read_at(3, &mut got).expect("read"), expected.len());
        assert!(got[..expected.len()] == expected);
    }

    #[test]
    fn a_locked_folder_is_locked_for_others() {
        let folder = tempfile::tempdir().expect("folder");
        let held = RealDisk.lock(folder.path()).expect("first");
        assert!(RealDisk.lock(folder.path()).is_err());
        let shared = held
            .downcast_ref::<RealLock>()
            .expect("a lock of ours")
            .0
            .try_clone()
            .expect("as a child process has it");
        drop(held);
        RealDisk.lock(folder.path()).expect("free again");
        drop(shared);
    }
}
