//! Opens local files: only regular files, and nothing that could block the reader forever.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};
use crate::location::Location;

// The values of `libc` on Linux: opening never blocks, and never acquires a controlling terminal.
const O_NONBLOCK: i32 = 0o4000;
const O_NOCTTY: i32 = 0o400;

impl Location {
    /// Opens the file at `path`, which is this location's. Rejects pipes, sockets, devices and folders, without
    /// blocking. If only some folders may be read, the opened file must be in one of them.
    ///
    /// # Errors
    /// `NotFound`, `Unsupported` with the actual kind, `NotAllowed`, or `Failed`.
    pub(crate) fn open_file(&self, path: &Path) -> Result<File> {
        self.check_links(path)?;
        // Checked before opening, because opening alone triggers actions of some devices.
        self.check_regular(&std::fs::metadata(path).map_err(|e| Error::from_io(self, &e))?)?;
        let opened = File::options()
            .read(true)
            .custom_flags(O_NONBLOCK | O_NOCTTY)
            .open(path);
        let file = opened.map_err(|e| Error::from_io(self, &e))?;
        // Checked again after opening, because the file may have been replaced.
        self.check_regular(&file.metadata().map_err(|e| Error::from_io(self, &e))?)?;
        if let Some(allowed) = &self.allowed {
            allowed.check_file(self, &file)?;
        }
        Ok(file)
    }

    /// Checks the links of a path, before its target is accessed.
    pub(crate) fn check_links(&self, path: &Path) -> Result<()> {
        match &self.allowed {
            Some(allowed) => allowed.check_links(self, path),
            None => Ok(()),
        }
    }

    pub(crate) fn check_regular(&self, meta: &Metadata) -> Result<()> {
        let kind = meta.file_type();
        if kind.is_file() {
            return Ok(());
        }
        let what = match () {
            () if kind.is_dir() => "a folder, not a file",
            () if kind.is_fifo() => {
                "a pipe, which may never end; write what it gives to a file, or give it as standard input"
            }
            () if kind.is_socket() => "a socket, not a file",
            () => "a device, not a file",
        };
        Err(Error::Unsupported {
            location: self.to_string(),
            reason: format!("it is {what}"),
        })
    }
}

/// Returns the path of an open file with all links resolved.
pub(crate) fn real_path(file: &File) -> std::io::Result<std::path::PathBuf> {
    use std::os::fd::AsRawFd;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(ErrorKind::NotFound.into())
    }
}
