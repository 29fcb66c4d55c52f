//! The options of a run: the inputs, the columns, and the receiver of the rows.

use std::fmt;
use std::str::FromStr;

use larder_types::{ByteSize, VALUE_BYTES_MAX};

use crate::csv::types::CellType;
use crate::positions::RowPositions;

/// A file format. The compression of text (gzip, zstd) is detected by its magic bytes and is not part of it.
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

/// The contents of a row's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSpec {
    /// One column: text and bytes unchanged, numbers as text, nested values as JSON.
    Column(String),
    /// The columns that are not in the key, as a JSON object.
    Json,
    /// The columns that are not in the key, as a MessagePack map.
    MessagePack,
}

/// The policy for rows whose key (or single value column) is null. A missing field of a JSON object is null too; an
/// empty text is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NullPolicy {
    /// The run ends with an error that names the row.
    #[default]
    Error,
    /// The row is skipped and counted in [`Summary::skipped`].
    Skip,
}

/// The inputs and the options for reading them. `InputOptions::default()` reads nothing; set `inputs` and `key`.
#[derive(Debug, Clone)]
pub struct InputOptions {
    /// Paths, folders, globs, URLs, or `-` for standard input.
    pub inputs: Vec<String>,
    /// `None`: determined by the file's name, or else by its first bytes.
    pub format: Option<Format>,
    /// The columns whose texts, joined by `key_separator`, are the key.
    pub key: Vec<String>,
    /// Rows have no key: the value consists of all columns, an empty cell of CSV is null, and `key` is empty.
    pub whole_rows: bool,
    /// Neither `%` nor a letter or digit. In a part of the key it is encoded as `%` and two hexadecimal digits.
    pub key_separator: u8,
    pub value: ValueSpec,
    /// The delimiter of CSV; `None`: a tab for `.tsv` and `.tab`, otherwise the first of `,` tab `;` `|` that occurs
    /// in the first line.
    pub delimiter: Option<u8>,
    /// The character that escapes a quote, or itself, in a quoted field of CSV. `None`, or the quote: quotes are
    /// doubled.
    pub escape: Option<u8>,
    /// True if the first record of CSV has the column names; `None` means yes. Without names, columns are named 1, 2,
    /// 3...
    pub header: Option<bool>,
    /// The names of all columns of a CSV file; the first line is then data, unless `header` is set.
    pub columns: Option<Vec<String>>,
    /// The number of lines to skip at the start of a CSV file, before anything is parsed.
    pub skip_lines: u64,
    /// Lines of CSV that begin with this byte are skipped.
    pub comment: Option<u8>,
    /// The types of CSV columns by name; others are text.
    pub types: Vec<(String, CellType)>,
    /// The number of parsing threads; at least one.
    pub threads: usize,
    /// Maximum memory for parsing, over all threads.
    pub memory: ByteSize,
    /// Passes a record that cannot be parsed to [`RowSink::malformed`] instead of ending the run. Only CSV and JSON
    /// lines have such records: in other formats, the next record cannot be located.
    pub skip_malformed: bool,
    pub null_key: NullPolicy,
    pub null_value: NullPolicy,
    /// Longer values are rejected.
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
    /// Returns the escape character of CSV, if it is not the quote.
    pub(crate) fn csv_escape(&self) -> Option<u8> {
        self.escape.filter(|escape| *escape != b'"')
    }
}

/// An error of the receiver of the rows.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// A receiver's error for a row that it accepted earlier: the run's error names the position of that row.
#[derive(Debug)]
pub struct RowError {
    /// The argument of [`RowSink::row`].
    pub seq: u64,
    pub reason: String,
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for RowError {}

/// The receiver of rows; each thread has its own.
pub trait RowSink: Send {
    /// Receives a row. `seq` orders the rows of all inputs and does not depend on the threads: it is
    /// `file << 44 | chunk << 24 | line in the chunk` for text, and `file << 44 | row in the file` otherwise.
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError>;

    /// Receives a record that could not be parsed, and the reason. Called only if [`InputOptions::skip_malformed`] is
    /// set. `seq` is as in [`RowSink::row`].
    fn malformed(&mut self, seq: u64, reason: String) -> Result<(), SinkError> {
        Err(Box::new(RowError { seq, reason }))
    }

    /// Called periodically, also while rows are skipped: at least once in some thousand rows or some megabytes of
    /// values. An error ends the run.
    fn check(&mut self) -> Result<(), SinkError> {
        Ok(())
    }

    /// All rows of this thread have been received. Not called if the run fails.
    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(())
    }
}

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of the inputs as stored, that is, compressed if they are.
    pub bytes_read: u64,
    /// `None` if the size of an input is unknown.
    pub bytes_total: Option<u64>,
    pub rows: u64,
}

/// The results of a successful run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    pub files: u64,
    pub rows: u64,
    /// Rows skipped by [`NullPolicy::Skip`].
    pub skipped: u64,
    /// The part of them whose object lacks the key's or value's field.
    pub skipped_missing: u64,
    pub bytes_read: u64,
    pub positions: RowPositions,
}
