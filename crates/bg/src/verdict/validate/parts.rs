//! Splits a trace larger than memory on disk by member and resource, and validates it part by part.
//!
//! Invariants:
//!
//! 1. Memory use stays below the bound, unless the records of a single member or resource exceed it.
//! 2. Parts are traces themselves, with checksums: corruption on disk causes an error, not a different result.
//! 3. A part that cannot be written ends validation with an error. The folder of parts is removed in any case.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use larder_validate::record::{Encoder, Record};
use larder_validate::report::Report;
use larder_validate::trace::{Initial, Options, judge, part};

use super::Records;
use super::files::{self, path_error};
use crate::verdict::scratch::Scratch;

/// Bytes of memory per record while its part is validated: the record, its position in the order of items, and its
/// share of an item's structures.
const RECORD_COST: u64 = 256;

/// Memory of a part, in bytes. Larger parts take longer: they exceed the processor caches, and the kernel must zero
/// their pages.
const PART_MEMORY: u64 = 32 << 20;

/// Maximum number of files open for writing at the same time.
const PARTS_MAX: u64 = 512;

/// The memory limit of validation and the location of the parts.
#[derive(Clone, Debug)]
pub struct Bound {
    pub memory_bytes: u64,
    /// The folder in which the temporary folder of parts is created.
    pub scratch: PathBuf,
    /// Creates a file.
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

/// Validates all records, in memory if they fit the bound.
///
/// # Errors
///
/// The trace is incomplete, the disk is full, or the bound is too small for the trace.
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
            "{expected} records do not fit into {} bytes of memory in {PARTS_MAX} parts; use at least --memory {}M",
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

/// A folder of parts being written. Dropping this value removes it.
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
        fs::create_dir(&folder).map_err(|why| path_error(&folder, &why))?;
        let mut made = Parts {
            folder: Scratch::new(folder),
            parts: Vec::with_capacity(count),
        };
        // A quarter of the memory is for write buffers. Larger writes take the kernel longer.
        let buffer = (bound.memory_bytes as usize / 4 / count).clamp(1 << 12, 1 << 17);
        for number in 0..count {
            let path = made.folder.path().join(format!("part-{number:03}.trace"));
            let file = (bound.create)(&path).map_err(|why| write_error(&path, &why))?;
            let mut file = BufWriter::with_capacity(buffer, file);
            let header = file.write_all(&Encoder::header());
            header.map_err(|why| write_error(&path, &why))?;
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
        written.map_err(|why| write_error(&part.path, &why))
    }

    fn finish(&mut self) -> Result<Vec<PathBuf>, String> {
        let parts = std::mem::take(&mut self.parts);
        let finished = parts.into_iter().map(|mut part| {
            let footer = part.file.write_all(&part.encoder.footer());
            let done = footer.and_then(|()| part.file.flush());
            done.map_err(|why| write_error(&part.path, &why))?;
            Ok(part.path)
        });
        finished.collect()
    }
}

fn write_error(path: &Path, why: &io::Error) -> String {
    format!(
        "cannot write {}: {why}; choose another folder with --scratch, or increase --memory",
        path.display()
    )
}
