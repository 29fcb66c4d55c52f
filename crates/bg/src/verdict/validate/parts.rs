//! A trace larger than memory is split on disk by member and resource, and judged part by part.
//!
//! Invariants:
//!
//! 1. No more memory is used than the bound, as long as no single member or resource has more records than fit it.
//! 2. Parts are traces themselves, with checksums: what a disk does to them is an error, not another verdict.
//! 3. A part that cannot be written ends the judging with an error; the folder of parts is removed in any case.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use larder_validate::record::{Encoder, Record};
use larder_validate::report::Report;
use larder_validate::trace::{Initial, Options, judge, part};

use super::Records;
use super::files::{self, told};
use crate::verdict::scratch::Scratch;

/// What a record takes while its part is judged: itself, its place in the order of items, its share of an item's structures.
const RECORD_COST: u64 = 256;

/// Parts of more memory take longer: they are beyond the caches, and the system clears their pages.
const PART_MEMORY: u64 = 32 << 20;

/// Files to write at once.
const PARTS_MAX: u64 = 512;

/// How much memory judging may take, and where there is room for parts.
#[derive(Clone, Debug)]
pub struct Bound {
    pub memory_bytes: u64,
    /// A folder; a folder of parts is made in it, and removed.
    pub scratch: PathBuf,
    /// How a file is made.
    pub create: fn(&Path) -> io::Result<Box<dyn Write>>,
}

impl Bound {
    pub fn new(memory_bytes: u64, scratch: &Path) -> Bound {
        Bound {
            memory_bytes,
            scratch: scratch.to_owned(),
            create: |path| Ok(Box::new(File::create_new(path)?)),
        }
    }
}

/// Judges all records, in memory if they fit the bound.
///
/// # Errors
///
/// A trace that is not whole, a disk without room, a bound too small for the trace.
pub fn judge_within(
    records: &dyn Records,
    initial: &dyn Initial,
    options: &Options,
    bound: &Bound,
) -> Result<Report, String> {
    let expected = records.expected()?;
    let parts = (expected * RECORD_COST).div_ceil(bound.memory_bytes.max(1));
    if parts <= 1 {
        let mut all = Vec::with_capacity(expected as usize);
        records.each(&mut |record| {
            all.push(record);
            Ok(())
        })?;
        return Ok(judge(&all, initial, options));
    }
    if parts > PARTS_MAX {
        let least = (expected * RECORD_COST).div_ceil(PARTS_MAX) >> 20;
        return Err(format!(
            "{expected} records do not fit {} bytes in {PARTS_MAX} parts; allow at least {} MiB",
            bound.memory_bytes,
            least + 1
        ));
    }
    let small = (expected * RECORD_COST).div_ceil(PART_MEMORY);
    let parts = parts.max(small.min(PARTS_MAX));
    let mut folder = Parts::create(parts as usize, bound)?;
    records.each(&mut |record| folder.put(&record))?;
    let mut report = Report::default();
    let mut of_part = Vec::new();
    for path in folder.finish()? {
        of_part.clear();
        files::each(&path, &mut |record| {
            of_part.push(record);
            Ok(())
        })?;
        report.add(judge(&of_part, initial, options), options.witnesses_max);
    }
    Ok(report)
}

/// A folder of parts being written; it goes when this does.
struct Parts {
    folder: Scratch,
    parts: Vec<Part>,
}

struct Part {
    path: PathBuf,
    file: BufWriter<Box<dyn Write>>,
    encoder: Encoder,
}

impl Parts {
    fn create(count: usize, bound: &Bound) -> Result<Parts, String> {
        let name = format!("bg-validate-{}", std::process::id());
        let folder = bound.scratch.join(name);
        fs::create_dir(&folder).map_err(|why| told(&folder, &why))?;
        let mut made = Parts {
            folder: Scratch::new(folder),
            parts: Vec::with_capacity(count),
        };
        // A quarter of the memory is for what waits to be written; the system takes longer over larger pieces.
        let buffer = (bound.memory_bytes as usize / 4 / count).clamp(1 << 12, 1 << 17);
        for number in 0..count {
            let path = made.folder.path().join(format!("part-{number:03}.trace"));
            let file = (bound.create)(&path).map_err(|why| unwritten(&path, &why))?;
            let mut file = BufWriter::with_capacity(buffer, file);
            let header = file.write_all(&Encoder::header());
            header.map_err(|why| unwritten(&path, &why))?;
            made.parts.push(Part {
                path,
                file,
                encoder: Encoder::default(),
            });
        }
        Ok(made)
    }

    fn put(&mut self, record: &Record) -> Result<(), String> {
        let number = part(record.item, self.parts.len());
        let part = &mut self.parts[number];
        let written = part.file.write_all(&part.encoder.record(record));
        written.map_err(|why| unwritten(&part.path, &why))
    }

    fn finish(&mut self) -> Result<Vec<PathBuf>, String> {
        let parts = std::mem::take(&mut self.parts);
        let finished = parts.into_iter().map(|mut part| {
            let footer = part.file.write_all(&part.encoder.footer());
            let done = footer.and_then(|()| part.file.flush());
            done.map_err(|why| unwritten(&part.path, &why))?;
            Ok(part.path)
        });
        finished.collect()
    }
}

fn unwritten(path: &Path, why: &io::Error) -> String {
    format!(
        "cannot write {}: {why}; name another folder with --scratch, or allow more memory",
        path.display()
    )
}
