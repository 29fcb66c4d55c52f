//! The files of a journal and their names.
//!
//! ```text
//! <folder>/log-0000000007          entries from a sequence number on
//! <folder>/snapshot-0000000007     the rows after all logs before log 7
//! <folder>/<either>.tmp            unfinished; ignored, and removed at the next start
//! ```
//!
//! 1. A file with its final name has a complete, durable header; a snapshot is completely durable. Both are created
//!    under a temporary name and renamed.
//! 2. Log `n + 1` exists only if log `n` is sealed and durable, and snapshot `n` only if log `n` exists.
//! 3. Logs before the number of the newest snapshot, and older snapshots, are obsolete.

use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{Disk, DiskFile};
use crate::error::Error;
use crate::fault::fault_point;
use crate::format::FileHeader;

pub(crate) const TEMPORARY: &str = ".tmp";
const LOG: &str = "log-";
const SNAPSHOT: &str = "snapshot-";

pub(crate) fn log_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{LOG}{number:010}"))
}

pub(crate) fn snapshot_path(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{SNAPSHOT}{number:010}"))
}

pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    name.into()
}

/// The contents of a journal's folder; numbers ascend.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub logs: Vec<u64>,
    pub snapshots: Vec<u64>,
    pub temporary: Vec<String>,
}

impl Listing {
    /// # Errors
    /// [`Error::Io`].
    pub fn read(disk: &dyn Disk, folder: &Path) -> Result<Listing, Error> {
        let mut listing = Listing::default();
        for name in disk.list(folder).map_err(Error::io("list", folder))? {
            if name.ends_with(TEMPORARY) {
                listing.temporary.push(name);
            } else if let Some(number) = parse_number(&name, LOG) {
                listing.logs.push(number);
            } else if let Some(number) = parse_number(&name, SNAPSHOT) {
                listing.snapshots.push(number);
            }
        }
        listing.logs.sort_unstable();
        listing.snapshots.sort_unstable();
        Ok(listing)
    }
}

/// Parses the number in a file name; `None` for any spelling that this crate does not use.
fn parse_number(name: &str, prefix: &str) -> Option<u64> {
    let number: u64 = name.strip_prefix(prefix)?.parse().ok()?;
    (format!("{prefix}{number:010}") == name).then_some(number)
}

/// Creates a durable log without entries, and replaces a file of the same name.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn create_log(
    disk: &dyn Disk,
    folder: &Path,
    header: &FileHeader,
) -> Result<Box<dyn DiskFile>, Error> {
    let file = prepare_log(disk, folder, header)?;
    publish_log(disk, folder, header.number)?;
    Ok(file)
}

/// Creates a log under its temporary name. A failure leaves no file.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn prepare_log(
    disk: &dyn Disk,
    folder: &Path,
    header: &FileHeader,
) -> Result<Box<dyn DiskFile>, Error> {
    let temporary = temporary(&log_path(folder, header.number));
    let file = disk
        .create(&temporary)
        .map_err(Error::io("create", &temporary))?;
    if let Err(error) = file
        .write_at(0, &[&header.encode()])
        .and_then(|()| file.sync())
    {
        // If the removal fails, the next attempt replaces the file, or the next start removes it.
        let _ = disk.remove(&temporary);
        return Err(Error::io("write", &temporary)(error));
    }
    fault_point("journal.created");
    Ok(file)
}

/// Renames a prepared log to its final name. After an error the rename may have happened; it can be repeated.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn publish_log(disk: &dyn Disk, folder: &Path, number: u64) -> Result<(), Error> {
    let path = log_path(folder, number);
    match disk.rename(&temporary(&path), &path) {
        // An earlier attempt renamed it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        renamed => renamed.map_err(Error::io("rename", &path))?,
    }
    disk.sync_folder(folder)
        .map_err(Error::io("sync folder", folder))
}

/// Removes obsolete files (invariant 3), and temporary files if none can be in use.
///
/// # Errors
/// [`Error::Io`]; the next call removes what is left.
pub(crate) fn sweep(
    disk: &dyn Disk,
    folder: &Path,
    newest_snapshot: Option<u64>,
    temporary_too: bool,
) -> Result<(), Error> {
    let listing = Listing::read(disk, folder)?;
    let mut obsolete: Vec<PathBuf> = Vec::new();
    if temporary_too {
        obsolete.extend(listing.temporary.iter().map(|name| folder.join(name)));
    }
    if let Some(newest) = newest_snapshot {
        let older = |numbers: Vec<u64>| numbers.into_iter().filter(move |number| *number < newest);
        obsolete.extend(older(listing.snapshots).map(|number| snapshot_path(folder, number)));
        obsolete.extend(older(listing.logs).map(|number| log_path(folder, number)));
    }
    for path in &obsolete {
        disk.remove(path).map_err(Error::io("remove", path))?;
    }
    if obsolete.is_empty() {
        return Ok(());
    }
    disk.sync_folder(folder)
        .map_err(Error::io("sync folder", folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_crate_have_numbers() {
        assert_eq!(parse_number("log-0000000007", LOG), Some(7));
        assert_eq!(parse_number("log-12345678901", LOG), Some(12_345_678_901));
        for name in [
            "log-7",
            "log-+000000007",
            "log-00000000007",
            "log-",
            "Log-0000000007",
        ] {
            assert_eq!(parse_number(name, LOG), None, "{name}");
        }
    }
}
