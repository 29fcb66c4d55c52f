//! Evicts the files of a running server from memory.
//!
//! `drop_caches` alone does not: it skips pages that a process has mapped, and a server maps its segments. So the
//! server's mappings are paged out first (`process_madvise` with `MADV_PAGEOUT`, Linux 5.10, needs root), then the page
//! cache is dropped, and `mincore` checks the outcome.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::engine::Result;
use crate::measure::drop_caches;

/// The share of the files that may stay in memory. Reads go on meanwhile and bring some pages back.
const RESIDENT_SHARE_MAX: f64 = 0.05;

/// Evicts all files under `folder` that the process has mapped.
///
/// # Errors
///
/// If more than [`RESIDENT_SHARE_MAX`] of their bytes are in memory afterwards.
pub fn evict(process: u32, folder: &Path) -> Result<()> {
    let folder = folder.canonicalize()?;
    let mappings = mappings_of(process, &folder)?;
    let mut files: Vec<PathBuf> = mappings.iter().map(|it| it.file.clone()).collect();
    files.sort();
    files.dedup();
    page_out(process, &mappings)?;
    drop_caches(&folder)?;
    let (mut resident, mut bytes) = (0, 0);
    for file in &files {
        let map = File::open(file)?;
        // SAFETY: segments never change.
        let map = unsafe { Mmap::map(&map)? };
        resident += resident_bytes(&map)?;
        bytes += map.len();
    }
    let share = resident as f64 / bytes.max(1) as f64;
    eprintln!("evicted: {resident} of {bytes} bytes are still in memory");
    if files.is_empty() || share > RESIDENT_SHARE_MAX {
        return Err(format!(
            "{} files under {} are mapped, and {resident} of their {bytes} bytes are in memory after the eviction",
            files.len(),
            folder.display()
        )
        .into());
    }
    Ok(())
}

struct Mapping {
    start: usize,
    bytes: usize,
    file: PathBuf,
}

/// The mappings of files under a folder, from `/proc/PID/maps`.
fn mappings_of(process: u32, folder: &Path) -> Result<Vec<Mapping>> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    let mapping = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let file = PathBuf::from(&rest[rest.find('/')?..]);
        let (start, end) = range.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        file.starts_with(folder).then_some(Mapping {
            start,
            bytes: end - start,
            file,
        })
    };
    Ok(maps.lines().filter_map(mapping).collect())
}

fn page_out(process: u32, mappings: &[Mapping]) -> Result<()> {
    let failed = || std::io::Error::last_os_error();
    // SAFETY: the call takes a process id and flags.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
    if pidfd < 0 {
        return Err(failed().into());
    }
    for mapping in mappings {
        let range = libc::iovec {
            iov_base: mapping.start as *mut libc::c_void,
            iov_len: mapping.bytes,
        };
        // SAFETY: the range names memory of the other process, whose contents the advice does not change.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd,
                &raw const range,
                1,
                libc::MADV_PAGEOUT,
                0,
            )
        };
        if advised < 0 {
            return Err(format!("process_madvise: {}", failed()).into());
        }
    }
    // SAFETY: the descriptor is ours.
    unsafe { libc::close(pidfd as i32) };
    Ok(())
}

fn resident_bytes(map: &Mmap) -> Result<usize> {
    // SAFETY: the call takes a name.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let mut pages = vec![0u8; map.len().div_ceil(page)];
    // SAFETY: the map is alive, and the vector has a byte for each of its pages.
    let asked =
        unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), map.len(), pages.as_mut_ptr()) };
    if asked != 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(pages.iter().filter(|&&page| page & 1 == 1).count() * page)
}
