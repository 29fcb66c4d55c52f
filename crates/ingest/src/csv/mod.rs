//! CSV and TSV: from a stream of bytes to rows, on all threads.
//!
//! `CsvFile` (a worker at a time) cuts chunks of whole records, see `cut` and `scan`; `CsvTask` (outside the lock)
//! parses one: [`parse::parse_plain`] for chunks without a quote, which is nearly all data, and
//! [`parse::parse_quoted`] for the rest.
//!
//! The dialect: records end with LF or CRLF, empty lines are skipped, a field that begins with `"` runs to its
//! closing quote, `""` inside it is a quote, and any other quote is an ordinary character. Every
//! record has as many fields as the first. All values are text.

pub(crate) mod parse;
pub(crate) mod scan;

use std::sync::Arc;

use crate::csv::parse::{Cells, parse_plain, parse_quoted};
use crate::cut::{Boundary, Cutter, Turn};
use crate::emit::{Emit, Json, MessagePack};
use crate::error::{At, Fault, one_line};
use crate::options::InputOptions;
use crate::plan::{Plan, PlanValue};
use crate::rows::Rows;
use crate::run::{Task, Tasks};

/// A row within its chunk takes 24 bits of the sequence number, so a chunk may hold this many.
pub(crate) const CHUNK_BITS: u32 = 24;

pub(crate) struct CsvFile {
    cutter: Cutter,
    delimiter: Option<u8>,
    has_header: bool,
    options: Arc<InputOptions>,
    plan: Option<Arc<Dialect>>,
}

/// What every chunk of a file is parsed by.
pub(crate) struct Dialect {
    pub plan: Plan,
    pub delimiter: u8,
    pub separator: Vec<u8>,
}

impl CsvFile {
    /// `delimiter`: given by the user or the file's name; else the first line tells.
    pub fn new(cutter: Cutter, delimiter: Option<u8>, options: Arc<InputOptions>) -> CsvFile {
        CsvFile {
            cutter,
            delimiter,
            has_header: options.header.unwrap_or(true),
            options,
            plan: None,
        }
    }

    /// Reads the first record: the columns' names, or only their number. Returns the plan and where
    /// rows begin; `None` for a file without any record.
    fn read_head(&mut self) -> Result<Option<usize>, Fault> {
        let head = self.cutter.peek()?;
        check_encoding(head)?;
        let begin = if head.starts_with(BOM) { BOM.len() } else { 0 };
        head.drain(..begin);
        let blank = head
            .iter()
            .take_while(|byte| b"\r\n".contains(byte))
            .count();
        if blank == head.len() {
            return Ok(None);
        }
        let delimiter = self
            .delimiter
            .unwrap_or_else(|| sniff_delimiter(&head[blank..]));
        let (fields, end) = parse::first_record(&head[blank..], delimiter)?;
        let names = match self.has_header {
            true => fields
                .into_iter()
                .map(|name| String::from_utf8(name).map_err(|_| not_utf8_header()))
                .collect::<Result<Vec<_>, _>>()?,
            false => (1..=fields.len())
                .map(|number| number.to_string())
                .collect(),
        };
        self.plan = Some(Arc::new(Dialect {
            plan: Plan::new(names, &self.options)?,
            delimiter,
            separator: self.options.key_separator.clone().into_bytes(),
        }));
        Ok(Some(if self.has_header { blank + end } else { blank }))
    }
}

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Refuses what is not text in UTF-8 or a relative of it.
pub(crate) fn check_encoding(head: &[u8]) -> Result<(), Fault> {
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(Fault::file(
            "it is UTF-16 text; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8)",
        ));
    }
    if head.iter().take(1024).any(|byte| *byte == 0) {
        return Err(Fault::file(
            "it holds zero bytes near its begin, so it is not text; name its format if it is another",
        ));
    }
    Ok(())
}

fn not_utf8_header() -> Fault {
    Fault::data(
        At::Line(1),
        "the columns' names are not UTF-8; convert the file (iconv -t UTF-8)",
    )
}

/// The first of `,` tab `;` `|` that the first line holds outside quotes.
fn sniff_delimiter(head: &[u8]) -> u8 {
    let mut in_quotes = false;
    let mut seen = [false; 4];
    const CANDIDATES: [u8; 4] = *b",\t;|";
    for &byte in head {
        match byte {
            b'"' => in_quotes = !in_quotes,
            b'\n' if !in_quotes => break,
            _ if !in_quotes => {
                if let Some(index) = CANDIDATES.iter().position(|c| *c == byte) {
                    seen[index] = true;
                }
            }
            _ => {}
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
        let boundary = Boundary::Csv {
            delimiter: dialect.delimiter,
        };
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
    _turn: Option<Turn>,
}

impl Task for CsvTask {
    fn run(self: Box<Self>, file: u64, data: &[u8], rows: &mut Rows<'_>) -> Result<(), Fault> {
        let head_lines = memchr::memchr_iter(b'\n', &data[..self.begin]).count() as u64;
        let rows_text = &data[self.begin..];
        let seq = (file << 44) | (self.chunk << CHUNK_BITS);
        if rows_text.len() >= 1 << CHUNK_BITS
            && memchr::memchr_iter(b'\n', rows_text).count() >= 1 << CHUNK_BITS
        {
            return Err(Fault::data(
                At::Line(1),
                "too many short lines follow a very long record",
            ));
        }
        let result = if self.has_quotes {
            parse_quoted(&self.dialect, rows_text, seq, rows)
        } else {
            parse_plain(&self.dialect, rows_text, seq, rows)
        };
        rows.lines = memchr::memchr_iter(b'\n', data).count() as u64;
        result.map_err(|fault| match fault.at {
            At::Line(line) => Fault {
                at: At::Line(line + head_lines),
                ..fault
            },
            _ => fault,
        })
    }
}

/// Sends one row on: its key's columns joined, and its value.
#[inline]
pub(crate) fn push_row<'d, C: Cells<'d>>(
    dialect: &Dialect,
    cells: &C,
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    if let ([key], PlanValue::Column(value)) = (dialect.plan.key.as_slice(), &dialect.plan.value) {
        return rows.push(seq, cells.cell(*key), cells.cell(*value));
    }
    push_assembled(dialect, cells, seq, rows)
}

fn push_assembled<'d, C: Cells<'d>>(
    dialect: &Dialect,
    cells: &C,
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    let plan = &dialect.plan;
    let (mut key, mut value) = (
        std::mem::take(&mut rows.key),
        std::mem::take(&mut rows.value),
    );
    key.clear();
    value.clear();
    if plan
        .key
        .iter()
        .any(|column| !cells.cell(*column).is_empty())
    {
        for (index, column) in plan.key.iter().enumerate() {
            if index > 0 {
                key.extend_from_slice(&dialect.separator);
            }
            key.extend_from_slice(cells.cell(*column));
        }
    }
    let made = match &plan.value {
        PlanValue::Column(column) => {
            value.extend_from_slice(cells.cell(*column));
            Ok(())
        }
        PlanValue::Json(others) => emit_cells(plan, others, cells, &mut Json(&mut value)),
        PlanValue::MessagePack(others) => {
            emit_cells(plan, others, cells, &mut MessagePack(&mut value))
        }
    };
    let pushed = made.and_then(|()| rows.push(seq, &key, &value));
    (rows.key, rows.value) = (key, value);
    pushed
}

fn emit_cells<'d, C: Cells<'d>>(
    plan: &Plan,
    columns: &[usize],
    cells: &C,
    out: &mut impl Emit,
) -> Result<(), Fault> {
    out.map(columns.len());
    for (index, &column) in columns.iter().enumerate() {
        let text = std::str::from_utf8(cells.cell(column)).map_err(|e| {
            Fault::file(format!(
                "column {:?} is not UTF-8 ({}); convert the file (iconv -t UTF-8), or load that column raw",
                plan.names[column],
                one_line(&e)
            ))
        })?;
        out.name(index, &plan.names[column]);
        out.str(text);
    }
    out.map_end();
    Ok(())
}
