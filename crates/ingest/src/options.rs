//! The options of a run: what to read, which columns, and where rows go.

use std::fmt;
use std::str::FromStr;

use larder_types::{ByteSize, VALUE_BYTES_MAX};

use crate::csv::types::CellType;
use crate::places::Places;

/// A file format. Compression of text (gzip, zstd) is found by its magic and is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Parquet,
    /// Arrow IPC, file or stream.
    Arrow,
    /// Text with a delimiter; TSV is CSV with a tab.
    Csv,
    /// One JSON object per line.
    JsonLines,
    Avro,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "parquet" => Format::Parquet,
            "arrow" | "ipc" | "feather" => Format::Arrow,
            "csv" | "tsv" => Format::Csv,
            "jsonl" | "ndjson" | "json" | "json-lines" => Format::JsonLines,
            "avro" => Format::Avro,
            _ => {
                return Err(format!(
                    "format {text:?} is unknown; use parquet, arrow, csv, tsv, jsonl or avro"
                ));
            }
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
            Format::Csv => "csv",
            Format::JsonLines => "jsonl",
            Format::Avro => "avro",
        })
    }
}

/// What a row's value is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSpec {
    /// One column: text and bytes as they are, numbers as text, nested values as JSON.
    Column(String),
    /// The columns that are not in the key, as a JSON object.
    Json,
    /// The columns that are not in the key, as a MessagePack map.
    MessagePack,
}

/// What happens to a row whose key (or single value column) is null. A field that a JSON object does not have
/// is null too; an empty text is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NullPolicy {
    /// The run ends with an error that names the row.
    #[default]
    Error,
    /// The row is left out and counted in [`Summary::skipped`].
    Skip,
}

/// What to read and how. `InputOptions::default()` reads nothing; set `inputs` and `key`.
#[derive(Debug, Clone)]
pub struct InputOptions {
    /// Paths, folders, globs, URLs, or `-` for the standard input.
    pub inputs: Vec<String>,
    /// `None`: by the file's name, then by its first bytes.
    pub format: Option<Format>,
    /// The columns whose texts, joined by `key_separator`, are the key.
    pub key: Vec<String>,
    /// Rows have no key: the value is made of all columns, an empty cell of CSV is null, and `key` is empty.
    pub whole_rows: bool,
    /// Neither `%` nor a letter or digit: where a part of the key holds it, it stands there as `%` and two hexadecimal digits.
    pub key_separator: u8,
    pub value: ValueSpec,
    /// CSV's delimiter; `None`: a tab for `.tsv` and `.tab`, else the first of `,` tab `;` `|` that the first line holds.
    pub delimiter: Option<u8>,
    /// The character that stands before a quote, or before itself, inside a quoted field of CSV. `None`, or the quote: quotes are doubled.
    pub escape: Option<u8>,
    /// Whether CSV begins with the columns' names; `None` means yes. Without, columns are named 1, 2, 3...
    pub header: Option<bool>,
    /// The names of a CSV file's columns, one for each; the first line is data then, unless `header` says otherwise.
    pub columns: Option<Vec<String>>,
    /// So many lines at a CSV file's begin are left out, before anything is looked at.
    pub skip_lines: u64,
    /// A line of CSV that begins with this byte is left out.
    pub comment: Option<u8>,
    /// The types of CSV columns by their names; others are text.
    pub types: Vec<(String, CellType)>,
    /// Rows are parsed on this many threads; at least one.
    pub threads: usize,
    /// The bound for what parsing holds at once, over all threads.
    pub memory: ByteSize,
    /// A record that cannot be parsed goes to [`RowSink::malformed`] instead of ending the run. Only CSV and JSON lines have such records: the
    /// other formats have no way to find the next one.
    pub skip_malformed: bool,
    pub null_key: NullPolicy,
    pub null_value: NullPolicy,
    /// Longer values are refused.
    pub value_bytes_max: u64,
}

impl Default for InputOptions {
    fn default() -> Self {
        InputOptions {
            inputs: Vec::new(),
            format: None,
            key: Vec::new(),
            whole_rows: false,
            key_separator: b':',
            value: ValueSpec::Json,
            delimiter: None,
            escape: None,
            header: None,
            columns: None,
            skip_lines: 0,
            comment: None,
            types: Vec::new(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory: ByteSize(256 << 20),
            skip_malformed: false,
            null_key: NullPolicy::Error,
            null_value: NullPolicy::Error,
            value_bytes_max: VALUE_BYTES_MAX,
        }
    }
}

impl InputOptions {
    /// The escape character of CSV, where it is not the quote.
    pub(crate) fn csv_escape(&self) -> Option<u8> {
        self.escape.filter(|escape| *escape != b'"')
    }
}

/// Whatever the receiver of the rows has to say.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// What a receiver has to say of a row that it took before: the run's error is told of that row's place.
#[derive(Debug)]
pub struct AtRow {
    /// As [`RowSink::row`] was given it.
    pub seq: u64,
    pub reason: String,
}

impl fmt::Display for AtRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for AtRow {}

/// Where rows go; each thread has its own.
pub trait RowSink: Send {
    /// Takes a row. `seq` orders the rows of all inputs and does not depend on the threads: it is
    /// `file << 44 | chunk << 24 | line in the chunk` for text, and `file << 44 | row in the file` otherwise.
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError>;

    /// Takes a record that could not be parsed, and why. Called only where [`InputOptions::skip_malformed`] is set. `seq` is as in
    /// [`RowSink::row`].
    fn malformed(&mut self, seq: u64, reason: String) -> Result<(), SinkError> {
        Err(Box::new(AtRow { seq, reason }))
    }

    /// Asked now and then, also where rows are left out: at least once in some thousand rows or some megabytes of values.
    /// An error ends the run.
    fn check(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// All rows of this thread have come. Not called when the run fails.
    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of the inputs as they are stored, so compressed where they are.
    pub bytes_read: u64,
    /// `None` when an input does not say how long it is.
    pub bytes_total: Option<u64>,
    pub rows: u64,
}

/// What a run that went well has done.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    pub files: u64,
    pub rows: u64,
    /// Rows left out by [`NullPolicy::Skip`].
    pub skipped: u64,
    /// Those of them whose object has no field of the key's, or value's, name at all.
    pub skipped_missing: u64,
    pub bytes_read: u64,
    pub places: Places,
}
