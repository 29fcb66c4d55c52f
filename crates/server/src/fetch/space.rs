//! Reserves disk space for a pull before the first byte is fetched.
//!
//! Blocks are reserved beyond the end of each file (`FALLOC_FL_KEEP_SIZE`), so that a file's length remains the number of bytes
//! fetched, where a resumed pull continues.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use larder_types::ByteSize;
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;

use super::download::WantedSegment;
use crate::error::Error;

/// Space left for logs, metadata and other uses of the disk.
const SPARE_BYTES: u64 = 4 << 20;

/// Reserves the space that these segments still need, in files under `folder`, which must exist.
///
/// # Errors
/// [`Error::DiskFull`] with the needed and the free space. Files created here have then been removed, and those of an earlier
/// pull are unchanged.
pub fn reserve(folder: &Path, segments: &[WantedSegment<'_>]) -> Result<(), Error> {
    let held: Vec<Option<u64>> = segments
        .iter()
        .map(|segment| {
            let metadata = std::fs::metadata(&segment.path).ok()?;
            Some(metadata.blocks() * 512)
        })
        .collect();
    let need: u64 = segments
        .iter()
        .zip(&held)
        .map(|(segment, held)| segment.entry.size_bytes.saturating_sub(held.unwrap_or(0)))
        .sum();
    let free = free_bytes(folder)?;
    if need.saturating_add(SPARE_BYTES) > free && need > 0 {
        return Err(disk_full_error(folder, need, free));
    }
    for (index, WantedSegment { entry, path, .. }) in segments.iter().enumerate() {
        let file = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(Error::io("create", path))?;
        match fallocate(&file, FallocateFlags::KEEP_SIZE, 0, entry.size_bytes.max(1)) {
            Ok(()) => {}
            // The file system does not support reservation; the check above must suffice.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => return Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT) => {
                for (made, _) in segments[..=index]
                    .iter()
                    .zip(&held)
                    .filter(|(_, held)| held.is_none())
                {
                    let _ = std::fs::remove_file(&made.path);
                }
                return Err(disk_full_error(folder, need, free_bytes(folder)?));
            }
            Err(errno) => return Err(Error::io("reserve space for", path)(errno.into())),
        }
    }
    Ok(())
}

/// Checks whether `need` bytes can be written under `folder`, without a reservation.
///
/// # Errors
/// [`Error::DiskFull`].
pub fn check(folder: &Path, need: u64) -> Result<(), Error> {
    let free = free_bytes(folder)?;
    if need.saturating_add(SPARE_BYTES) > free {
        Err(disk_full_error(folder, need, free))
    } else {
        Ok(())
    }
}

fn free_bytes(folder: &Path) -> Result<u64, Error> {
    let stat = statvfs(folder).map_err(|errno| Error::io("look at", folder)(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn disk_full_error(folder: &Path, need: u64, free: u64) -> Error {
    Error::DiskFull(format!(
        "the version needs {} ({need} bytes) more on the disk of {}, besides {} that are reserved for logs, and {} ({free} bytes) are free; \
         remove old versions or lower stores.retain_versions, then try again",
        ByteSize(need),
        folder.display(),
        ByteSize(SPARE_BYTES),
        ByteSize(free)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_reported_with_the_reserved_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let refused = check(folder.path(), u64::MAX).expect_err("no disk has as much free");
        let kept = format!("besides {} that are reserved", ByteSize(SPARE_BYTES));
        assert_eq!(kept, "besides 4MiB that are reserved");
        let message = refused.to_string();
        assert!(message.contains(&kept), "{message}");
    }
}
