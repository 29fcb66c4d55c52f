//! Files that must be on disk when a call returns.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::Error;

/// Which file or folder it is, by whatever name: all links to one file have the same, until a restart of the machine at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// # Errors
    /// There is nothing at the path, or it cannot be looked at.
    pub fn at(path: &Path) -> io::Result<FileId> {
        fs::metadata(path).map(FileId::of)
    }

    /// # Errors
    /// It cannot be looked at.
    pub fn of_open(file: &File) -> io::Result<FileId> {
        file.metadata().map(FileId::of)
    }

    fn of(metadata: fs::Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

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

/// A file that is written front to back, in whole pieces, and sent on its way to disk as it grows, so that the last
/// sync has little left to do. [`StreamingFile::finish`] writes what is left; without it the end of the file is missing.
pub struct StreamingFile {
    file: File,
    piece_bytes: usize,
    gathered: Vec<u8>,
    written: u64,
    started: u64,
}

/// What a build writes at a time: its output is read once, front to back.
const PIECE_BYTES: usize = 256 << 10;
/// What is written at a time of a file that is to be served. A piece of this size at a multiple of it is one huge page
/// in the page cache, where the file system can (ext4 since Linux 6.16, XFS, tmpfs): a map of the file then needs one
/// entry in the page table for it instead of 512, and a random read misses the TLB far less. It is not free: to a
/// virtual machine whose host backs memory as it is first touched, a new huge page came seven times as dear as its
/// 512 small ones.
const HUGE_PIECE_BYTES: usize = 2 << 20;
const WRITEBACK_BYTES: u64 = 8 << 20;

impl StreamingFile {
    /// A new file, in small pieces.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file exists.
    pub fn create(path: &Path) -> Result<StreamingFile, Error> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(Error::io("create", path))?;
        Ok(StreamingFile::new(file, 0, PIECE_BYTES))
    }

    /// Writes on from `offset` of an open file that is to be served, whose cursor stands there: in huge pages.
    pub fn serving(file: File, offset: u64) -> StreamingFile {
        StreamingFile::new(file, offset, HUGE_PIECE_BYTES)
    }

    fn new(file: File, offset: u64, piece_bytes: usize) -> StreamingFile {
        StreamingFile {
            file,
            piece_bytes,
            gathered: Vec::with_capacity(piece_bytes),
            written: offset,
            started: offset,
        }
    }

    /// Writes what is left and makes all of it durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self, path: &Path) -> Result<(), Error> {
        self.flush()
            .and_then(|()| self.file.sync_all())
            .map_err(Error::io("write", path))
    }

    /// How many bytes are missing to the next multiple of a piece.
    fn room(&self) -> usize {
        let end = self.written + self.gathered.len() as u64;
        self.piece_bytes - (end % self.piece_bytes as u64) as usize
    }

    fn write_back(&mut self) {
        if self.written - self.started < WRITEBACK_BYTES {
            return;
        }
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
}

impl Write for StreamingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room();
        let taken = &bytes[..bytes.len().min(room)];
        self.gathered.extend_from_slice(taken);
        if taken.len() == room {
            self.flush()?;
        }
        Ok(taken.len())
    }

    /// Writes what has been gathered.
    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.gathered)?;
        self.written += self.gathered.len() as u64;
        self.gathered.clear();
        self.write_back();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_pieces_give_the_same_bytes_from_any_offset() {
        let folder = tempfile::tempdir().expect("folder");
        let bytes: Vec<u8> = (0..3 * HUGE_PIECE_BYTES + 17)
            .map(|i| (i / 7) as u8)
            .collect();
        for (name, start) in [("new", 0), ("resumed", 1_000_003)] {
            let path = folder.path().join(name);
            let mut file = File::create(&path).expect("create");
            file.write_all(&bytes[..start]).expect("write");
            let mut file = StreamingFile::serving(file, start as u64);
            for part in bytes[start..].chunks(777_777) {
                file.write_all(part).expect("write");
            }
            file.finish(&path).expect("finish");
            assert!(fs::read(&path).expect("read") == bytes, "{name}");
        }
    }
}
