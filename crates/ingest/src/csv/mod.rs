//! CSV and TSV: converts a stream of bytes to rows, on all threads.
//!
//! `CsvFile` (used by one worker at a time) cuts chunks of complete records, see `cut` and `scan`. `CsvTask` (outside
//! the lock) parses one: [`parse::parse_plain`] for chunks without a quote, which is nearly all data, and
//! [`parse::parse_quoted`] for the rest.
//!
//! The dialect is that of RFC 4180:
//!
//! - Records end with LF or CRLF. Empty lines are skipped. Every record has as many fields as the first.
//! - A field that begins with `"` ends at its closing quote, and `""` in it is one quote. If an escape character is
//!   set, that character before a quote, or before itself, represents the following character, and `""` has no
//!   special meaning.
//! - Text between a closing quote and the end of the field is an error: most likely the file uses an escape
//!   character.
//! - A quote in an unquoted field is an ordinary character.
//! - A CR in the first record without a following LF is an error: most likely all lines of the file end with CR.
//! - Lines that begin with the comment character, if one is set, are skipped.
//!
//! Values are text, unless the user specifies column types (`types`).

pub(crate) mod parse;
pub(crate) mod scan;
pub(crate) mod types;

use std::sync::Arc;

use crate::chunk::{Boundary, Cutter, LongChunkGuard};
use crate::csv::parse::{Cells, parse_plain, parse_quoted};
use crate::csv::scan::outside_quotes;
use crate::csv::types::{CellType, EmitJson};
use crate::emit::{Json, MessagePack};
use crate::error::{At, Fault, FaultKind, one_line};
use crate::key::end_part;
use crate::options::InputOptions;
use crate::plan::{FolderColumns, Plan, PlanValue};
use crate::rows::{AssembledRow, Rows};
use crate::run::{Task, Tasks};

/// The number of bits of the sequence number for a line within its chunk, which limits a chunk to this many lines.
pub(crate) const CHUNK_BITS: u32 = 24;

pub(crate) struct CsvFile {
    cutter: Cutter,
    delimiter: Option<u8>,
    has_header: bool,
    options: Arc<InputOptions>,
    folder: Arc<FolderColumns>,
    plan: Option<Arc<Dialect>>,
}

/// The parameters for parsing every chunk of a file.
pub(crate) struct Dialect {
    pub plan: Plan,
    pub syntax: Syntax,
    /// The number of columns in the file: the plan may have more.
    pub width: usize,
    separator: u8,
    /// The type of every column of the plan.
    types: Vec<CellType>,
}

/// The special bytes of CSV, in addition to quotes and line ends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Syntax {
    pub delimiter: u8,
    /// Never the quote.
    pub escape: Option<u8>,
    pub comment: Option<u8>,
}

impl CsvFile {
    /// Creates the file's state. `delimiter` is that of the user or of the file's name; `None` means that the first
    /// line determines it.
    pub fn new(
        cutter: Cutter,
        delimiter: Option<u8>,
        options: Arc<InputOptions>,
        folder: Arc<FolderColumns>,
    ) -> CsvFile {
        CsvFile {
            cutter,
            delimiter,
            has_header: options.header.unwrap_or(options.columns.is_none()),
            options,
            folder,
            plan: None,
        }
    }

    /// Reads the first record: the column names, or only their number. Returns the offset of the rows; `None` for a
    /// file without records.
    fn read_head(&mut self) -> Result<Option<usize>, Fault> {
        check_encoding(self.cutter.peek()?)?;
        let (comment, escape) = (self.options.comment, self.options.csv_escape());
        let delimiter = self.delimiter;
        let syntax = |head: &[u8]| Syntax {
            delimiter: delimiter.unwrap_or_else(|| sniff_delimiter(head, escape)),
            escape,
            comment,
        };
        let head = self.cutter.peek_record(|head| {
            let head = head.strip_prefix(BOM).unwrap_or(head);
            let head = &head[lines_before_records(head, comment)..];
            // If there are only empty lines and comments, no further reading is necessary.
            head.is_empty() || parse::has_complete_record(head, syntax(head))
        })?;
        let begin = if head.starts_with(BOM) { BOM.len() } else { 0 };
        head.drain(..begin);
        let blank = lines_before_records(head, comment);
        if blank == head.len() {
            if comment.is_some() && has_lone_cr(head) {
                return Err(lone_cr(At::File));
            }
            let bytes = blank + begin;
            if !self.cutter.has_ended() {
                return Err(Fault::file(format!(
                    "its first {bytes} bytes are empty lines and comments; omit them with a number of lines to skip"
                )));
            }
            return Ok(None);
        }
        let blank_lines = count_lines(&head[..blank]);
        let head = &head[blank..];
        let first_line = At::Line(blank_lines + 1);
        let syntax = syntax(head);
        if escape == Some(syntax.delimiter) {
            return Err(Fault::file(
                "its delimiter and the escape character are the same; name another one",
            ));
        }
        let first_record = parse::first_record(head, syntax);
        let (fields, end) = first_record.map_err(|fault| fault.after_lines(blank_lines))?;
        if has_lone_cr_outside_quotes(&head[..end], escape) {
            return Err(lone_cr(first_line));
        }
        let width = fields.len();
        let names = match (&self.options.columns, self.has_header) {
            (Some(names), _) if names.len() != width => {
                return Err(Fault::file(format!(
                    "{} columns are named for it, and its first line has {width} fields; is the delimiter right?",
                    names.len()
                )));
            }
            (Some(names), _) => names.clone(),
            (None, true) => fields
                .into_iter()
                .map(|name| String::from_utf8(name).map_err(|_| not_utf8_header(first_line)))
                .collect::<Result<Vec<_>, _>>()?,
            (None, false) => (1..=width).map(|number| number.to_string()).collect(),
        };
        let plan = Plan::new(names, &self.folder, &self.options)?;
        self.plan = Some(Arc::new(Dialect {
            types: types_of(&plan.names, &self.options)?,
            plan,
            syntax,
            width,
            separator: self.options.key_separator,
        }));
        Ok(Some(if self.has_header { blank + end } else { blank }))
    }
}

/// Returns the length of the empty lines and comments at the start of a text.
fn lines_before_records(text: &[u8], comment: Option<u8>) -> usize {
    let mut at = 0;
    while let Some(first) = text.get(at) {
        if b"\r\n".contains(first) {
            at += 1;
        } else if Some(*first) == comment {
            at = memchr::memchr(b'\n', &text[at..]).map_or(text.len(), |end| at + end + 1);
        } else {
            break;
        }
    }
    at
}

fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

/// Returns whether a CR is followed by anything but LF. At the end of the input an LF may still follow.
pub(crate) fn has_lone_cr(text: &[u8]) -> bool {
    memchr::memchr_iter(b'\r', text).any(|at| text.get(at + 1).is_some_and(|next| *next != b'\n'))
}

fn has_lone_cr_outside_quotes(record: &[u8], escape: Option<u8>) -> bool {
    outside_quotes(record, escape).any(|at| {
        let next = record.get(at + 1);
        record[at] == b'\r' && next.is_some_and(|next| *next != b'\n')
    })
}

pub(crate) fn lone_cr(at: At) -> Fault {
    Fault::data(at, format!("it {LONE_CR}"))
}

/// The message for text whose lines may end as on classic Mac OS.
pub(crate) const LONE_CR: &str = "holds a carriage return (CR) that no line feed (LF) follows, and lines end with LF or CRLF; \
     if CR ends the lines of this file, convert it (tr '\\r' '\\n' < FILE > NEW)";

/// Returns the type of each column, text if none was specified.
fn types_of(names: &[String], options: &InputOptions) -> Result<Vec<CellType>, Fault> {
    let untyped = if options.whole_rows {
        CellType::TextOrNull
    } else {
        CellType::Text
    };
    let mut types = vec![untyped; names.len()];
    for (wanted, cell_type) in &options.types {
        let place = names.iter().position(|name| name == wanted);
        let place = place.ok_or_else(|| Fault {
            at: At::File,
            kind: FaultKind::Column {
                wanted: wanted.clone(),
                have: names.to_vec(),
            },
        })?;
        types[place] = *cell_type;
    }
    Ok(types)
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Rejects anything that is not text in UTF-8 or an ASCII-compatible encoding.
pub(crate) fn check_encoding(head: &[u8]) -> Result<(), Fault> {
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(Fault::file(
            "it is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
        ));
    }
    if head.iter().take(1024).any(|byte| *byte == 0) {
        return Err(Fault::file(
            "it contains zero bytes near its beginning, so it is not text; specify its format if it is another one",
        ));
    }
    Ok(())
}

fn not_utf8_header(at: At) -> Fault {
    Fault::data(
        at,
        "the columns' names are not UTF-8; convert the file (iconv -t UTF-8)",
    )
}

/// Returns the first of `,` tab `;` `|` that occurs in the first line outside quotes.
fn sniff_delimiter(head: &[u8], escape: Option<u8>) -> u8 {
    let mut seen = [false; 4];
    const CANDIDATES: [u8; 4] = *b",\t;|";
    for at in outside_quotes(head, escape) {
        if head[at] == b'\n' {
            break;
        }
        if let Some(index) = CANDIDATES.iter().position(|c| *c == head[at]) {
            seen[index] = true;
        }
    }
    seen.iter()
        .position(|seen| *seen)
        .map_or(b',', |index| CANDIDATES[index])
}

impl Tasks for CsvFile {
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<(u64, Box<dyn Task>)>, Fault> {
        let mut begin = 0;
        if self.plan.is_none() {
            match self.read_head()? {
                Some(rows_begin) => begin = rows_begin,
                None => return Ok(None),
            }
        }
        let Some(dialect) = self.plan.clone() else {
            return Ok(None);
        };
        let boundary = Boundary::Csv(dialect.syntax);
        let Some(cut) = self.cutter.cut(boundary, buffer)? else {
            return Ok(None);
        };
        let task = CsvTask {
            dialect,
            begin: begin.min(buffer.len()),
            has_quotes: cut.has_quotes,
            chunk: cut.chunk,
            _turn: cut.turn,
        };
        Ok(Some((cut.chunk, Box::new(task))))
    }

    fn failed_at(&self) -> u64 {
        self.cutter.next_chunk
    }
}

struct CsvTask {
    dialect: Arc<Dialect>,
    begin: usize,
    has_quotes: bool,
    chunk: u64,
    _turn: Option<LongChunkGuard>,
}

impl Task for CsvTask {
    fn run(self: Box<Self>, file: u64, data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let lines = count_lines(data);
        rows.lines = Some(lines);
        if lines >= 1 << CHUNK_BITS {
            return Err(Fault::data(
                At::Line(1),
                "too many short lines follow a very long record",
            ));
        }
        let head_lines = count_lines(&data[..self.begin]);
        let rows_text = &data[self.begin..];
        let seq = ((file << 44) | (self.chunk << CHUNK_BITS)) + head_lines;
        let parsed = if self.has_quotes {
            parse_quoted(&self.dialect, rows_text, seq, rows)
        } else {
            parse_plain(&self.dialect, rows_text, seq, rows)
        };
        parsed.map_err(|fault| fault.after_lines(head_lines))
    }
}

/// Passes on one row: its joined key columns and its value.
#[inline]
pub(crate) fn push_row<'d, C: Cells<'d>>(
    dialect: &Dialect,
    cells: &C,
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    if let ([key], PlanValue::Column(value)) = (dialect.plan.key.as_slice(), &dialect.plan.value)
        && dialect.plan.constants.is_empty()
    {
        return rows.push(seq, cells.cell(*key), cells.cell(*value));
    }
    rows.assemble(seq, |key, value, bytes_max| {
        assemble_row(dialect, cells, key, value, bytes_max)
    })
}

/// Returns the text of a column, from the record or from the folder's name; `None` for a null in a folder's name.
fn text_of<'c, 'd>(
    dialect: &'c Dialect,
    cells: &'c impl Cells<'d>,
    column: usize,
) -> Option<&'c [u8]> {
    match dialect.plan.constants.get(&column) {
        Some(constant) => constant.as_deref().map(str::as_bytes),
        None => Some(cells.cell(column)),
    }
}

fn assemble_row<'d, C: Cells<'d>>(
    dialect: &Dialect,
    cells: &C,
    key: &mut Vec<u8>,
    value: &mut Vec<u8>,
    bytes_max: usize,
) -> Result<AssembledRow<'static>, Fault> {
    let plan = &dialect.plan;
    let is_null = |column: &&usize| text_of(dialect, cells, **column).is_none();
    if let Some(column) = plan.key.iter().find(is_null) {
        return Ok(AssembledRow::NullKey(format!(
            "key column {:?} is null",
            plan.names[*column]
        )));
    }
    let parts = plan
        .key
        .iter()
        .map(|column| text_of(dialect, cells, *column).unwrap_or_default());
    if parts.clone().any(|part| !part.is_empty()) {
        for (index, part) in parts.enumerate() {
            let begin = key.len();
            key.extend_from_slice(part);
            if index + 1 < plan.key.len() {
                end_part(key, begin, dialect.separator);
            }
        }
    }
    match &plan.value {
        PlanValue::Column(column) => {
            value.extend_from_slice(text_of(dialect, cells, *column).unwrap_or_default());
        }
        PlanValue::Json(others) => {
            emit_cells(dialect, others, cells, &mut Json::new(value, bytes_max))?;
        }
        PlanValue::MessagePack(others) => {
            let mut out = MessagePack::new(value, bytes_max);
            emit_cells(dialect, others, cells, &mut out)?;
        }
    }
    Ok(AssembledRow::Row)
}

fn emit_cells<'d, C: Cells<'d>>(
    dialect: &Dialect,
    columns: &[usize],
    cells: &C,
    out: &mut impl EmitJson,
) -> Result<(), Fault> {
    out.map(columns.len());
    for (index, &column) in columns.iter().enumerate() {
        let name = &dialect.plan.names[column];
        out.name(index, name);
        let Some(bytes) = text_of(dialect, cells, column) else {
            out.null();
            continue;
        };
        let text = std::str::from_utf8(bytes).map_err(|e| {
            Fault::file(format!(
                "column {name:?} is not UTF-8 ({}); convert the file (iconv -t UTF-8), or load that column raw",
                one_line(&e)
            ))
        })?;
        dialect.types[column]
            .emit(text, out)
            .map_err(|reason| Fault::file(format!("column {name:?}: {reason}")))?;
        if out.is_full() {
            return Ok(());
        }
    }
    out.map_end();
    Ok(())
}
