//! Opens the inputs that the user names: expands globs and folders, detects formats, and decompresses text.

use std::fs::File;
use std::io::{Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use larder_remote::Location;

use crate::avro::AvroFile;
use crate::chunk::{Cutter, LongChunk};
use crate::csv::{CsvFile, has_lone_cr, lone_cr};
use crate::error::{At, Error, Fault, FaultKind, one_line};
use crate::folder::columns_of;
use crate::ipc::IpcFile;
use crate::json_lines::JsonLinesFile;
use crate::options::{Format, InputOptions};
use crate::parquet::{FileReader, ParquetFile};
use crate::plan::FolderColumns;
use crate::run::Tasks;
use crate::unpack::Compression;

/// One file, not opened yet.
pub(crate) struct Input {
    /// The name in messages, without credentials and query string.
    pub name: String,
    /// The stored size; `None` if it is unknown before reading.
    pub size: Option<u64>,
    /// The columns in the names of its folders.
    folder: Arc<FolderColumns>,
    source: Source,
}

enum Source {
    Stdin,
    Location(Location),
}

/// Returns all files that the inputs name, in the given order, and by name within a glob or folder.
pub(crate) fn expand(options: &InputOptions) -> Result<Vec<Input>, Error> {
    let mut inputs = Vec::new();
    for text in &options.inputs {
        if text == "-" {
            inputs.push(Input {
                name: "standard input".into(),
                size: None,
                folder: Arc::default(),
                source: Source::Stdin,
            });
            continue;
        }
        let refused = |input: String, e: larder_remote::Error| Error::Input {
            input,
            reason: without_name(&e),
        };
        let location = Location::parse(text).map_err(|e| Error::Input {
            input: "location".into(),
            reason: e.to_string(),
        })?;
        let shown = location.to_string();
        let files = location.list_blocking().map_err(|e| refused(shown, e))?;
        let before = inputs.len();
        inputs.extend(files.into_iter().map(|file| {
            let size = file.location.as_local();
            Input {
                name: file.location.to_string(),
                size: size
                    .and_then(|path| std::fs::metadata(path).ok())
                    .map(|m| m.len()),
                folder: Arc::new(columns_of(&file.folders)),
                source: Source::Location(file.location),
            }
        }));
        check_folders(text, &inputs[before..])?;
    }
    Ok(inputs)
}

/// Checks that the files of one table are in folders with the same columns.
fn check_folders(named: &str, files: &[Input]) -> Result<(), Error> {
    let names = |file: &Input| -> Vec<String> {
        file.folder.iter().map(|(name, _)| name.clone()).collect()
    };
    let Some(first) = files.first() else {
        return Ok(());
    };
    let expected = names(first);
    match files.iter().find(|file| names(file) != expected) {
        None => Ok(()),
        Some(other) => Err(Error::Input {
            input: named.to_owned(),
            reason: format!(
                "the folders of {} name the columns [{}], but those of {} name [{}]; pass inputs with the same folder columns",
                first.name,
                expected.join(", "),
                other.name,
                names(other).join(", ")
            ),
        }),
    }
}

/// Returns only the reason, if the message begins with the location, which the caller adds.
pub(crate) fn without_name(error: &larder_remote::Error) -> String {
    use larder_remote::Error as Remote;
    match error {
        Remote::NotFound { .. } => "there is nothing here; check the path or URL".into(),
        Remote::Failed { reason, .. } | Remote::Unsupported { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

const MAGIC_BYTES: usize = 512;

impl Input {
    /// Opens the file and detects its format.
    pub fn open(
        &self,
        options: &Arc<InputOptions>,
        bytes_read: &Arc<AtomicU64>,
        long_chunk: &Arc<LongChunk>,
    ) -> Result<Box<dyn Tasks>, Fault> {
        if let Source::Location(location) = &self.source
            && location.has_ranges()
            && self.is_parquet(options)
        {
            check_csv_options(options, Format::Parquet)?;
            let file = ParquetFile::open_remote(location, bytes_read, &self.folder, options)?;
            return Ok(Box::new(file));
        }
        let mut reader: Box<dyn Read + Send> = match &self.source {
            Source::Stdin => Box::new(
                larder_remote::stdin()
                    .map_err(|e| Fault::file(format!("it cannot be read: {e}")))?,
            ),
            Source::Location(location) => location.reader().map_err(|e| Fault {
                at: At::File,
                kind: FaultKind::Input(format!("it cannot be opened: {}", without_name(&e))),
            })?,
        };
        let head = read_head(&mut reader)?;
        let counted = CountingReader {
            inner: reader,
            bytes: Arc::clone(bytes_read),
        };
        let complete = Cursor::new(head.clone()).chain(counted);
        bytes_read.fetch_add(head.len() as u64, Ordering::Relaxed);
        let (stem, named_compression) = split_compression(&self.name);
        let found = Compression::of(&head);
        if let (Some(named), None) = (named_compression, found)
            && !head.is_empty()
        {
            return Err(Fault::file(format!(
                "it is named .{named} but does not begin as {named} data does; is it cut off or misnamed?"
            )));
        }
        let (mut text, text_head): (Box<dyn Read + Send>, Vec<u8>) = match found {
            None => (Box::new(complete), head),
            Some(compression) => {
                let mut unpacked = compression.unpack(Box::new(complete))?;
                let head = read_head(&mut unpacked)?;
                let rest = Cursor::new(head.clone()).chain(unpacked);
                (Box::new(rest), head)
            }
        };
        let format = match options.format {
            Some(format) => format,
            None => detect(&stem, &text_head)?,
        };
        if found.is_some() && !matches!(format, Format::Csv | Format::JsonLines) {
            return Err(Fault::file(format!(
                "a {format} file inside gzip or zstd cannot be read; unpack it first ({format} compresses by itself)"
            )));
        }
        check_csv_options(options, format)?;
        let folder = Arc::clone(&self.folder);
        Ok(match format {
            Format::Csv => {
                let is_tsv = [".tsv", ".tab"].iter().any(|end| stem.ends_with(end));
                let delimiter = options.delimiter.or(is_tsv.then_some(b'\t'));
                let text = skip_lines(text, options.skip_lines)?;
                Box::new(CsvFile::new(
                    cutter(text, options, long_chunk),
                    delimiter,
                    Arc::clone(options),
                    folder,
                ))
            }
            Format::JsonLines => Box::new(JsonLinesFile::new(
                cutter(text, options, long_chunk),
                &folder,
            )),
            Format::Avro => Box::new(AvroFile::new(text, folder)),
            Format::Arrow if text_head.starts_with(b"FEA1") => {
                return Err(Fault::file(
                    "it is a Feather file of version 1, which is not supported; write it again as version 2, which is Arrow IPC",
                ));
            }
            Format::Arrow if IpcFile::is_file(&text_head) => {
                let file = self.local_file(&mut text, bytes_read)?;
                Box::new(IpcFile::of_file(file, folder))
            }
            Format::Arrow => Box::new(IpcFile::of_stream(text, folder)),
            Format::Parquet => {
                if text_head.is_empty() {
                    return Err(Fault::file(
                        "it is empty; a Parquet file has at least a footer",
                    ));
                }
                let file = self.local_file(&mut text, bytes_read)?;
                Box::new(ParquetFile::open(file, &folder, options)?)
            }
        })
    }
}

impl Input {
    /// Decides by the name; other formats are detected when they are read.
    fn is_parquet(&self, options: &InputOptions) -> bool {
        options.format.map_or_else(
            || self.name.ends_with(".parquet"),
            |format| format == Format::Parquet,
        )
    }

    /// Returns the input as a file with random access, for formats that are read from their end. Anything but a local
    /// file is copied to a temporary one; `reader` counts its bytes.
    fn local_file(
        &self,
        reader: &mut dyn Read,
        bytes_read: &Arc<AtomicU64>,
    ) -> Result<FileReader, Fault> {
        let path = match &self.source {
            Source::Location(location) => location.as_local(),
            Source::Stdin => None,
        };
        let io = |e: std::io::Error| Fault::file(format!("it cannot be read: {e}"));
        if let Some(path) = path.filter(|path| path.is_file()) {
            let file = File::open(path).map_err(io)?;
            return Ok(FileReader::new(file)?.counted(bytes_read));
        }
        let mut file = larder_remote::temp_file().map_err(io)?;
        std::io::copy(reader, &mut file).map_err(io)?;
        FileReader::new(file)
    }
}

/// Rejects options that apply only to CSV for other formats.
fn check_csv_options(options: &InputOptions, format: Format) -> Result<(), Fault> {
    let options_given = [
        (options.columns.is_some(), "names of columns"),
        (options.skip_lines > 0, "lines to skip"),
        (options.comment.is_some(), "a comment's character"),
        (options.escape.is_some(), "an escape character"),
        (!options.types.is_empty(), "types of columns"),
    ];
    match options_given.iter().find(|(is_asked, _)| *is_asked) {
        Some((_, what)) if format != Format::Csv => Err(Fault::file(format!(
            "{what} apply only to CSV, and this file is {format}; omit them"
        ))),
        _ => Ok(()),
    }
}

/// Skips a number of lines. If there are fewer, and another line ending seems to be in use, the file is rejected.
fn skip_lines(mut text: Box<dyn Read + Send>, lines: u64) -> Result<Box<dyn Read + Send>, Fault> {
    let mut left = lines;
    let mut is_odd = false;
    let mut buffer = vec![0; 64 << 10];
    while left > 0 {
        let count = text
            .read(&mut buffer)
            .map_err(|e| Fault::file(format!("it cannot be read: {}", one_line(&e))))?;
        if count == 0 && is_odd {
            return Err(lone_cr(At::File));
        }
        if count == 0 {
            break;
        }
        is_odd |= has_lone_cr(&buffer[..count]);
        for at in memchr::memchr_iter(b'\n', &buffer[..count]) {
            left -= 1;
            if left == 0 {
                let rest = Cursor::new(buffer[at + 1..count].to_vec());
                return Ok(Box::new(rest.chain(text)));
            }
        }
    }
    Ok(text)
}

fn cutter(
    text: Box<dyn Read + Send>,
    options: &InputOptions,
    long_chunk: &Arc<LongChunk>,
) -> Cutter {
    // Each thread has a chunk and each open file a carry, which together take half of the memory. The one record at a
    // time that may be longer may take all of it, and a little for its key.
    let share = options.memory.0 / (4 * options.threads.max(1) as u64);
    let chunk_bytes = share.clamp(64 << 10, 4 << 20) as usize;
    let record_bytes_max = (options.memory.0.max(1 << 20) + (1 << 20)).min(1 << 31) as usize;
    Cutter::new(text, chunk_bytes, record_bytes_max, long_chunk)
}

fn read_head(reader: &mut dyn Read) -> Result<Vec<u8>, Fault> {
    let mut head = Vec::with_capacity(MAGIC_BYTES);
    reader
        .take(MAGIC_BYTES as u64)
        .read_to_end(&mut head)
        .map_err(|e| Fault::file(format!("it cannot be read: {}", one_line(&e))))?;
    Ok(head)
}

struct CountingReader {
    inner: Box<dyn Read + Send>,
    bytes: Arc<AtomicU64>,
}

impl Read for CountingReader {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(out)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Returns the lower-case name without the suffix of a compression, and that suffix.
fn split_compression(name: &str) -> (String, Option<&'static str>) {
    let name = name.to_ascii_lowercase();
    for (ending, compression) in [
        (".gz", "gzip"),
        (".gzip", "gzip"),
        (".zst", "zstd"),
        (".zstd", "zstd"),
    ] {
        if let Some(stem) = name.strip_suffix(ending) {
            return (stem.to_owned(), Some(compression));
        }
    }
    (name, None)
}

/// Determines the format from the name's suffix, or else from the first bytes.
fn detect(stem: &str, head: &[u8]) -> Result<Format, Fault> {
    let ending = stem.rsplit_once('.').map_or("", |(_, ending)| ending);
    match ending {
        "parquet" | "pq" => return Ok(Format::Parquet),
        "arrow" | "arrows" | "ipc" | "feather" => return Ok(Format::Arrow),
        "csv" | "tsv" | "tab" => return Ok(Format::Csv),
        "jsonl" | "ndjson" | "json" => return Ok(Format::JsonLines),
        "avro" => return Ok(Format::Avro),
        _ => {}
    }
    for (magic, format) in [
        (&b"PAR1"[..], Format::Parquet),
        (b"PARE", Format::Parquet),
        (b"ARROW1", Format::Arrow),
        (b"\xff\xff\xff\xff", Format::Arrow),
        (b"Obj\x01", Format::Avro),
    ] {
        if head.starts_with(magic) {
            return Ok(format);
        }
    }
    if head.contains(&0) && !head.starts_with(b"\xff\xfe") && !head.starts_with(b"\xfe\xff") {
        return Err(Fault::file(
            "its format is unknown; specify it: parquet, arrow, csv, tsv, jsonl or avro",
        ));
    }
    Ok(match head.trim_ascii_start().first() {
        Some(b'{' | b'[') => Format::JsonLines,
        _ => Format::Csv,
    })
}
