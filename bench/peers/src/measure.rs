//! The measurement of a child process: one build, or one series of lookups.

use std::hint::black_box;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::data::{KeyKind, DataSet, Key, keys};
use crate::engine::{Engine, Reader, Result};

/// The number of lookups of each kind.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Counts {
    pub untimed: usize,
    pub timed: usize,
    pub cold: usize,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Built {
    pub build_s: f64,
    pub file_bytes: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Warm {
    pub open_ms: f64,
    pub hit_ns_mean: f64,
    pub hit_ns_p50: f64,
    pub hit_ns_p99: f64,
    pub miss_ns_mean: f64,
    /// One call for 100 keys, and 100 calls, measured in turns; only where the engine has such a call.
    pub many_100_ns: Option<f64>,
    pub gets_100_ns: Option<f64>,
    pub directory_bytes: Option<u64>,
    /// The cost of reading the clock, which is part of p50 and p99, but not of means.
    pub clock_ns: f64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Cold {
    pub hit_us_mean: f64,
    pub hit_disk_reads: f64,
    pub hit_disk_bytes: f64,
    pub miss_us_mean: f64,
    pub miss_disk_reads: f64,
    /// True if `drop_caches` emptied the page cache; false if the kernel was only advised to drop the files' pages.
    pub dropped_all: bool,
    /// True if reads were counted for the disk (`/proc/diskstats`); otherwise they are 4 KiB pages of `/proc/self/io`.
    pub counted_by_disk: bool,
}

pub fn build(engine: &dyn Engine, data: &DataSet, out: &Path) -> Result<Built> {
    let started = Instant::now();
    engine.build(data, out)?;
    Ok(Built {
        build_s: started.elapsed().as_secs_f64(),
        file_bytes: folder_bytes(out)?,
    })
}

pub fn warm(
    engine: &dyn Engine,
    data: &DataSet,
    out: &Path,
    counts: Counts,
    seed: u64,
) -> Result<Warm> {
    engine.install(out)?;
    read_all(out)?;
    let started = Instant::now();
    let mut reader = engine.open(out)?;
    let open_ms = started.elapsed().as_secs_f64() * 1e3;
    reader.on_warmed();
    let reader = &mut *reader;
    // One pass over as many keys faults the maps in.
    expect_found(
        look_up(reader, &keys(data, KeyKind::Present, counts.untimed, seed ^ 1)).1,
        counts.untimed,
    )?;
    let present = keys(data, KeyKind::Present, counts.untimed, seed ^ 2);
    let (hit_ns_mean, found) = look_up(reader, &present);
    expect_found(found, counts.untimed)?;
    let absent = keys(data, KeyKind::Absent, counts.untimed, seed ^ 3);
    look_up(reader, &absent[..counts.untimed / 8]);
    let (miss_ns_mean, found) = look_up(reader, &absent);
    expect_found(found, 0)?;
    let mut singles = timed(reader, &present[..counts.timed.min(present.len())]);
    singles.sort_unstable();
    let at = |share: f64| singles[((singles.len() - 1) as f64 * share) as usize] as f64;
    let (many_100_ns, gets_100_ns) = measure_batches(
        reader,
        &keys(data, KeyKind::Present, counts.untimed / 2, seed ^ 4),
    )
    .unzip();
    Ok(Warm {
        open_ms,
        hit_ns_mean,
        hit_ns_p50: at(0.5),
        hit_ns_p99: at(0.99),
        miss_ns_mean,
        many_100_ns,
        gets_100_ns,
        directory_bytes: reader.directory_bytes(),
        clock_ns: clock_ns(),
    })
}

pub fn cold(
    engine: &dyn Engine,
    data: &DataSet,
    out: &Path,
    counts: Counts,
    seed: u64,
) -> Result<Cold> {
    let present = keys(data, KeyKind::Present, counts.cold, seed ^ 5);
    let absent = keys(data, KeyKind::Absent, counts.cold, seed ^ 6);
    let dropped_all = drop_caches(out)?;
    let mut reader = engine.open(out)?;
    let disk = Disk::of(out)?;
    let before = disk.reads()?;
    let (hit_ns, found) = look_up(&mut *reader, &present);
    let between = disk.reads()?;
    expect_found(found, counts.cold)?;
    drop(reader);
    drop_caches(out)?;
    let mut reader = engine.open(out)?;
    let before_misses = disk.reads()?;
    let (miss_ns, found) = look_up(&mut *reader, &absent);
    let after = disk.reads()?;
    expect_found(found, 0)?;
    let per_lookup = |reads: u64| reads as f64 / counts.cold as f64;
    Ok(Cold {
        hit_us_mean: hit_ns / 1e3,
        hit_disk_reads: per_lookup(between.count - before.count),
        hit_disk_bytes: per_lookup(between.bytes - before.bytes),
        miss_us_mean: miss_ns / 1e3,
        miss_disk_reads: per_lookup(after.count - before_misses.count),
        dropped_all,
        counted_by_disk: disk.device.is_some(),
    })
}

fn expect_found(found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{found} of the keys were found, {expected} should have been").into())
}

/// Nanoseconds per lookup, and how many were found.
fn look_up(reader: &mut dyn Reader, keys: &[Key]) -> (f64, usize) {
    let (mut sum, mut found) = (0u64, 0);
    let started = Instant::now();
    for key in keys {
        if let Some(touched) = reader.get(key.bytes()) {
            sum = sum.wrapping_add(touched);
            found += 1;
        }
    }
    let took = started.elapsed();
    black_box(sum);
    (took.as_nanos() as f64 / keys.len().max(1) as f64, found)
}

fn timed(reader: &mut dyn Reader, keys: &[Key]) -> Vec<u32> {
    keys.iter()
        .map(|key| {
            let started = Instant::now();
            black_box(reader.get(key.bytes()));
            started.elapsed().as_nanos() as u32
        })
        .collect()
}

/// Nanoseconds of one call for 100 keys, and of 100 calls for other 100 keys.
fn measure_batches(reader: &mut dyn Reader, keys: &[Key]) -> Option<(f64, f64)> {
    reader.get_many(&[])?;
    let (mut many_ns, mut gets_ns, mut turns) = (0u128, 0u128, 0u32);
    for pair in keys.chunks_exact(200) {
        let (batch, singles) = pair.split_at(100);
        let batch: Vec<&[u8]> = batch.iter().map(Key::bytes).collect();
        let started = Instant::now();
        black_box(reader.get_many(&batch));
        many_ns += started.elapsed().as_nanos();
        let started = Instant::now();
        for key in singles {
            black_box(reader.get(key.bytes()));
        }
        gets_ns += started.elapsed().as_nanos();
        turns += 1;
    }
    let turns = f64::from(turns.max(1));
    Some((many_ns as f64 / turns, gets_ns as f64 / turns))
}

fn clock_ns() -> f64 {
    let started = Instant::now();
    for _ in 0..100_000 {
        black_box(Instant::now());
    }
    started.elapsed().as_nanos() as f64 / 1e5
}

/// All files under a folder.
pub fn files(folder: &Path) -> std::io::Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    Ok(found)
}

/// Bytes that the files take: their lengths, or less where they have holes.
pub fn folder_bytes(folder: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for file in files(folder)? {
        let metadata = file.metadata()?;
        bytes += metadata.len().min(metadata.blocks() * 512);
    }
    Ok(bytes)
}

/// Brings all files of a folder into the page cache.
fn read_all(folder: &Path) -> std::io::Result<()> {
    for file in files(folder)? {
        if file.metadata()?.blocks() * 512 >= file.metadata()?.len() {
            std::io::copy(&mut std::fs::File::open(file)?, &mut std::io::sink())?;
        }
    }
    Ok(())
}

/// Empties the page cache. Returns true if all of it was emptied, false if only pages of files in the folder were.
pub fn drop_caches(folder: &Path) -> Result<bool> {
    // SAFETY: `sync` takes nothing.
    unsafe { libc::sync() };
    if std::fs::write("/proc/sys/vm/drop_caches", "3").is_ok() {
        return Ok(true);
    }
    for path in files(folder)? {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open(path)?;
        // SAFETY: the descriptor is open.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    Ok(false)
}

#[derive(Clone, Copy)]
struct DiskReads {
    count: u64,
    bytes: u64,
}

/// The disk that holds a folder.
struct Disk {
    device: Option<(u32, u32)>,
}

impl Disk {
    fn of(folder: &Path) -> Result<Disk> {
        let device = folder.metadata()?.dev();
        let device = (libc::major(device), libc::minor(device));
        let disk = Disk {
            device: Some(device),
        };
        let known = disk.reads().is_ok();
        Ok(Disk {
            device: known.then_some(device),
        })
    }

    fn reads(&self) -> Result<DiskReads> {
        let Some((major, minor)) = self.device else {
            let io = std::fs::read_to_string("/proc/self/io")?;
            let bytes = io
                .lines()
                .find_map(|line| line.strip_prefix("read_bytes: "))
                .ok_or("no read_bytes in /proc/self/io")?;
            let bytes = bytes.trim().parse()?;
            return Ok(DiskReads {
                count: bytes / 4096,
                bytes,
            });
        };
        for line in std::fs::read_to_string("/proc/diskstats")?.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.len() > 5 && fields[0].parse() == Ok(major) && fields[1].parse() == Ok(minor)
            {
                return Ok(DiskReads {
                    count: fields[3].parse()?,
                    bytes: fields[5].parse::<u64>()? * 512,
                });
            }
        }
        Err("the folder's disk is not in /proc/diskstats".into())
    }
}
