//! Parses one chunk of CSV, which consists of complete records.

use memchr::{memchr, memchr2, memchr2_iter};

use crate::csv::scan::closing_quote;
use crate::csv::{Dialect, LONE_CR, Syntax, count_lines, has_lone_cr, push_row};
use crate::error::{At, Fault};
use crate::rows::Rows;

/// The fields of one record.
pub(crate) trait Cells<'d> {
    fn cell(&self, column: usize) -> &[u8];
}

/// Fields that are slices of the chunk.
struct PlainCells<'d, 'f> {
    data: &'d [u8],
    ends: &'f [(usize, usize)],
}

impl<'d> Cells<'d> for PlainCells<'d, '_> {
    #[inline]
    fn cell(&self, column: usize) -> &[u8] {
        let (begin, end) = self.ends[column];
        &self.data[begin..end]
    }
}

/// Parses a chunk without quotes: one pass over delimiters and newlines, without copying. `seq` is that of the
/// chunk's first line.
pub(crate) fn parse_plain(
    dialect: &Dialect,
    data: &[u8],
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    let width = dialect.width;
    let mut ends = vec![(0, 0); width];
    let (mut begin, mut field, mut line) = (0, 0, 1);
    let mut record_begin = 0;
    let mut finish = |ends: &mut [(usize, usize)],
                      record_begin: usize,
                      field: usize,
                      begin: usize,
                      at: usize,
                      line: u64| {
        let end = if at > begin && data[at - 1] == b'\r' {
            at - 1
        } else {
            at
        };
        if field == 0 && end == begin {
            return Ok(());
        }
        if field + 1 != width {
            let fault = wrong_width(width, field + 1, line, &data[record_begin..at]);
            return rows.malformed(seq + line - 1, fault);
        }
        ends[field] = (begin, end);
        let pushed = push_row(dialect, &PlainCells { data, ends }, seq + line - 1, rows);
        pushed.or_else(|fault| rows.malformed(seq + line - 1, fault.or_at(At::Line(line))))
    };
    let is_comment = |record_begin: usize| is_comment(dialect, data, record_begin);
    for at in memchr2_iter(dialect.syntax.delimiter, b'\n', data) {
        if data[at] == b'\n' {
            if !is_comment(record_begin) {
                finish(&mut ends, record_begin, field, begin, at, line)?;
            }
            line += 1;
            field = 0;
            record_begin = at + 1;
        } else {
            if field < width {
                ends[field] = (begin, at);
            }
            field += 1;
        }
        begin = at + 1;
    }
    if (begin < data.len() || field > 0) && !is_comment(record_begin) {
        finish(&mut ends, record_begin, field, begin, data.len(), line)?;
    }
    Ok(())
}

#[inline]
fn is_comment(dialect: &Dialect, data: &[u8], record_begin: usize) -> bool {
    let comment = dialect.syntax.comment;
    comment.is_some() && data.get(record_begin).copied() == comment
}

/// The position of a field's text: in the chunk, or unescaped in the scratch buffer.
#[derive(Clone, Copy)]
struct FieldPosition {
    in_scratch: bool,
    begin: usize,
    end: usize,
}

struct QuotedCells<'d, 'f> {
    data: &'d [u8],
    scratch: &'f [u8],
    places: &'f [FieldPosition],
}

impl<'d> Cells<'d> for QuotedCells<'d, '_> {
    fn cell(&self, column: usize) -> &[u8] {
        let place = self.places[column];
        let from = if place.in_scratch {
            self.scratch
        } else {
            self.data
        };
        &from[place.begin..place.end]
    }
}

/// Parses a chunk with quotes, field by field. `seq` is that of the chunk's first line.
pub(crate) fn parse_quoted(
    dialect: &Dialect,
    data: &[u8],
    seq: u64,
    rows: &mut Rows<'_>,
) -> Result<(), Fault> {
    let width = dialect.width;
    let mut record = Record::default();
    let (mut at, mut line) = (0, 1);
    while at < data.len() {
        let begin = at;
        if is_comment(dialect, data, at) {
            at = memchr(b'\n', &data[at..]).map_or(data.len(), |end| at + end + 1);
            line += 1;
            continue;
        }
        at = record.read(data, at, dialect.syntax)?;
        let found = record.places.len();
        if let Some((fault_at, why)) = record.fault.take() {
            let line = line + count_lines(&data[begin..fault_at]);
            rows.malformed(seq + line - 1, Fault::data(At::Line(line), why))?;
        } else if !record.is_blank() && found != width {
            let fault = wrong_width(width, found, line, &data[begin..at]);
            rows.malformed(seq + line - 1, fault)?;
        } else if !record.is_blank() {
            let cells = QuotedCells {
                data,
                scratch: &record.scratch,
                places: &record.places,
            };
            push_row(dialect, &cells, seq + line - 1, rows)
                .or_else(|fault| rows.malformed(seq + line - 1, fault.or_at(At::Line(line))))?;
        }
        line += count_lines(&data[begin..at]);
    }
    Ok(())
}

/// Returns whether the first record ends in `data`.
pub(crate) fn has_complete_record(data: &[u8], syntax: Syntax) -> bool {
    // An open quote may be closed later.
    let end = Record::default().read(data, 0, syntax);
    end.is_ok_and(|end| data[..end].ends_with(b"\n"))
}

/// Returns the fields of the first record and the position of the next one.
pub(crate) fn first_record(data: &[u8], syntax: Syntax) -> Result<(Vec<Vec<u8>>, usize), Fault> {
    let mut record = Record::default();
    let end = record.read(data, 0, syntax)?;
    if let Some((fault_at, why)) = record.fault {
        return Err(Fault::data(At::Line(line_of(data, fault_at)), why));
    }
    let cells = QuotedCells {
        data,
        scratch: &record.scratch,
        places: &record.places,
    };
    let fields = (0..record.places.len()).map(|column| cells.cell(column).to_vec());
    Ok((fields.collect(), end))
}

#[derive(Default)]
struct Record {
    places: Vec<FieldPosition>,
    scratch: Vec<u8>,
    has_quotes: bool,
    /// The first malformed field: its position in the chunk, and the reason.
    fault: Option<(usize, String)>,
}

impl Record {
    /// Reads the record at `at` and returns the position of the next one.
    ///
    /// # Errors
    /// If a quote is never closed, so that the record has no end.
    fn read(&mut self, data: &[u8], mut at: usize, syntax: Syntax) -> Result<usize, Fault> {
        let delimiter = syntax.delimiter;
        self.places.clear();
        self.scratch.clear();
        self.has_quotes = false;
        self.fault = None;
        loop {
            let (place, end) = if data.get(at) == Some(&b'"') {
                self.has_quotes = true;
                self.quoted(data, at, syntax)?
            } else {
                let end = field_end(data, at, delimiter);
                let text_end = without_cr(data, at, end);
                (
                    FieldPosition {
                        in_scratch: false,
                        begin: at,
                        end: text_end,
                    },
                    end,
                )
            };
            self.places.push(place);
            match data.get(end) {
                Some(byte) if *byte == delimiter => at = end + 1,
                Some(_) => return Ok(end + 1),
                None => return Ok(data.len()),
            }
        }
    }

    /// Reads the field that begins with a quote at `at`.
    fn quoted(
        &mut self,
        data: &[u8],
        at: usize,
        syntax: Syntax,
    ) -> Result<(FieldPosition, usize), Fault> {
        let Some(closing) = closing_quote(data, at + 1, syntax.escape) else {
            let line = line_of(data, at);
            return Err(Fault::data(At::Line(line), unclosed_quote(&data[at..])));
        };
        let end = field_end(data, closing + 1, syntax.delimiter);
        let rest = &data[closing + 1..without_cr(data, closing + 1, end)];
        if !rest.is_empty() && self.fault.is_none() {
            let field = self.places.len() + 1;
            let why = match rest {
                [b'\r', ..] => format!("it {LONE_CR}"),
                _ => text_after_quote(data, closing, field),
            };
            self.fault = Some((closing, why));
        }
        let mut text = &data[at + 1..closing];
        let escape = syntax.escape.unwrap_or(b'"');
        if memchr(escape, text).is_none() {
            return Ok((
                FieldPosition {
                    in_scratch: false,
                    begin: at + 1,
                    end: closing,
                },
                end,
            ));
        }
        let begin = self.scratch.len();
        while let Some(found) = memchr(escape, text) {
            let (before, after) = text.split_at(found);
            self.scratch.extend_from_slice(before);
            let escaped = after.get(1).filter(|it| [b'"', escape].contains(it));
            self.scratch.push(*escaped.unwrap_or(&escape));
            text = &after[1 + usize::from(escaped.is_some())..];
        }
        self.scratch.extend_from_slice(text);
        Ok((
            FieldPosition {
                in_scratch: true,
                begin,
                end: self.scratch.len(),
            },
            end,
        ))
    }

    fn is_blank(&self) -> bool {
        !self.has_quotes && self.places.len() == 1 && self.places[0].begin == self.places[0].end
    }
}

fn field_end(data: &[u8], from: usize, delimiter: u8) -> usize {
    memchr2(delimiter, b'\n', &data[from..]).map_or(data.len(), |found| from + found)
}

/// Returns the end of a field's text: before the CR of a CRLF, or before a CR at the end of the file.
fn without_cr(data: &[u8], begin: usize, end: usize) -> usize {
    let at_record_end = end == data.len() || data[end] == b'\n';
    if at_record_end && end > begin && data[end - 1] == b'\r' {
        end - 1
    } else {
        end
    }
}

/// Returns the line, from 1, of the byte at `at`.
fn line_of(data: &[u8], at: usize) -> u64 {
    1 + count_lines(&data[..at])
}

/// Returns the message for text between a closing quote and the field's end. `field` counts from 1.
#[cold]
fn text_after_quote(data: &[u8], closing: usize, field: usize) -> String {
    let before = &data[..closing];
    let line_begin = memchr::memrchr(b'\n', before).map_or(0, |newline| newline + 1);
    let byte = closing - line_begin + 1;
    let advice = if before.ends_with(b"\\") {
        BACKSLASH
    } else {
        "; write a quote inside a quoted field twice"
    };
    format!(
        "column {field}: text follows the closing quote, which is byte {byte} of the line{advice}"
    )
}

const BACKSLASH: &str = "; if the file escapes quotes with a backslash, as Spark does, read it with the escape character \\";

/// Returns the message for the unclosed quote with which `text` begins.
#[cold]
pub(crate) fn unclosed_quote(text: &[u8]) -> String {
    let advice = match memchr::memmem::find(text, b"\\\"") {
        Some(_) => BACKSLASH,
        None => "; close it, or double it if it is part of the text",
    };
    format!(
        "a quote opens here and is never closed: the rest of the file is part of its field, so later rows cannot be recognized or skipped{advice}"
    )
}

#[cold]
fn wrong_width(expected: usize, found: usize, line: u64, record: &[u8]) -> Fault {
    let fields = |n| {
        if n == 1 {
            "1 field".to_owned()
        } else {
            format!("{n} fields")
        }
    };
    let why = if has_lone_cr(record) {
        format!("it {LONE_CR}")
    } else {
        "is the delimiter right, or a quote missing?".to_owned()
    };
    Fault::data(
        At::Line(line),
        format!(
            "it has {} where the first line has {expected}; {why}",
            fields(found)
        ),
    )
}
