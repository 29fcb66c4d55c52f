//! Files that are durable when a call returns, and regular files, whose reads never wait for a writer.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error::Error;

/// The identity of a file or folder, independent of its name: all links to a file have the same, at least until a
/// restart of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// # Errors
    /// If the path does not exist or is not accessible.
    pub fn at(path: &Path) -> io::Result<FileId> {
        fs::metadata(path).map(FileId::of)
    }

    /// # Errors
    /// If the metadata cannot be read.
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

/// Opens a regular file. Opening anything else may wait forever, as for a pipe without a writer.
///
/// # Errors
/// The path leads to something else, or it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    ensure_regular(path)?;
    File::open(path)
}

/// Reads a regular file. See [`open_regular`].
///
/// # Errors
/// As for [`open_regular`], or it cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    ensure_regular(path)?;
    fs::read(path)
}

fn ensure_regular(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        Ok(())
    } else {
        Err(io::Error::other("it is not a regular file"))
    }
}

/// Replaces a file atomically: writes to a temporary name, syncs, renames, and syncs the folder. After a crash, the
/// file has either the new or the previous contents.
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

/// Makes the entries of a folder durable.
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

/// A file that is written sequentially in pieces of a fixed size. Writeback starts while it grows, so that the last
/// sync is short. [`StreamingFile::finish`] writes the rest; without it the end of the file is missing.
pub struct StreamingFile {
    file: File,
    piece_bytes: usize,
    gathered: Vec<u8>,
    written: u64,
    started: u64,
}

/// The piece size of a build, whose output is read once, sequentially.
const PIECE_BYTES: usize = 256 << 10;
/// The piece size of a file to be served. An aligned piece of this size is one huge page in the page cache, if the
/// file system supports it (ext4 since Linux 6.16, XFS, tmpfs). A map of the file then needs one page table entry for
/// it instead of 512, and random reads miss the TLB far less. It has a cost: on a virtual machine whose host
/// allocates memory on first touch, a new huge page took seven times as long as its 512 small ones.
const HUGE_PIECE_BYTES: usize = 2 << 20;
const WRITEBACK_BYTES: u64 = 8 << 20;

impl StreamingFile {
    /// Creates a file that is written in small pieces.
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

    /// Continues at `offset` of an open file to be served, whose cursor is there, in huge pages.
    pub fn for_serving(file: File, offset: u64) -> StreamingFile {
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

    /// Writes the rest and makes the file durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn finish(mut self, path: &Path) -> Result<(), Error> {
        self.flush()
            .and_then(|()| self.file.sync_all())
            .map_err(Error::io("write", path))
    }

    /// Returns the number of bytes to the next multiple of the piece size.
    fn room(&self) -> usize {
        let end = self.written + self.gathered.len() as u64;
        self.piece_bytes - (end % self.piece_bytes as u64) as usize
    }

    fn write_back(&mut self) {
        if self.written - self.started < WRITEBACK_BYTES {
            return;
        }
        let (offset, size) = (self.started as i64, (self.written - self.started) as i64);
        // SAFETY: the descriptor is open; the call starts the writeback of dirty pages and changes no bytes. A
        // failure only delays the writeback.
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

    /// Writes the gathered bytes.
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
            let mut file = StreamingFile::for_serving(file, start as u64);
            for part in bytes[start..].chunks(777_777) {
                file.write_all(part).expect("write");
            }
            file.finish(&path).expect("finish");
            assert!(fs::read(&path).expect("read") == bytes, "{name}");
        }
    }
}
