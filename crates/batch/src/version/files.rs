//! Files that must be on disk when a call returns.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::error::Error;

/// Writes a file so that a crash leaves either the whole of it or what was there before: to a
/// temporary name, synced, renamed, and the folder synced.
///
/// # Errors
/// [`Error::Io`]; the temporary file is removed.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let temporary = path.with_extension("tmp");
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Error::io("write", path)(error)
        })?;
    sync_folder(path.parent().expect("a file is in a folder"))
}

/// Makes the names in a folder durable.
///
/// # Errors
/// [`Error::Io`].
pub fn sync_folder(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .map_err(Error::io("sync folder", path))
}

/// Makes a file's bytes durable.
///
/// # Errors
/// [`Error::Io`].
pub fn sync_file(path: &Path) -> Result<(), Error> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(Error::io("sync", path))
}

/// A new file that is written front to back, and sent on its way to disk as it grows, so that the
/// last sync has little left to do.
pub struct StreamingFile {
    file: File,
    written: u64,
    started: u64,
}

const WRITEBACK_BYTES: u64 = 8 << 20;

impl StreamingFile {
    /// # Errors
    /// [`Error::Io`], also if the file exists.
    pub fn create(path: &Path) -> Result<StreamingFile, Error> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(Error::io("create", path))?;
        Ok(StreamingFile {
            file,
            written: 0,
            started: 0,
        })
    }

    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self, path: &Path) -> Result<(), Error> {
        self.file.sync_all().map_err(Error::io("sync", path))
    }
}

impl Write for StreamingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        if self.written - self.started >= WRITEBACK_BYTES {
            let (offset, size) = (self.started as i64, (self.written - self.started) as i64);
            // SAFETY: the descriptor is open; the call starts writing dirty pages and changes no
            // bytes. Its failure costs only the head start.
            unsafe {
                libc::sync_file_range(
                    self.file.as_raw_fd(),
                    offset,
                    size,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
            self.started = self.written;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
