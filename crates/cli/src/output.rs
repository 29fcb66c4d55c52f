//! Text output: aligned tables and lines. `figures` formats the numbers.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

pub use larder_types::figures::{bytes, count, duration, moment};
use serde::Serialize;

use crate::failure::Failure;

/// Writes a line to standard output. If the reader has closed the pipe (`| head`), the program ends quietly.
pub fn print_line(text: &str) -> Result<(), Failure> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// Escapes the control characters of a text, except those in `kept`, so that foreign text cannot control the terminal
/// or forge a line.
pub fn without_controls(text: &str, kept: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && !kept.contains(c) {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

/// Like [`print_line`], for exact bytes.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Failure::io("write to standard output")),
    }
}

/// Prints a value as indented JSON, for `--json`.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
    print_line(&text)
}

/// A table. Columns are as wide as their widest cell; numbers are right-aligned, text left-aligned.
pub struct Table {
    headers: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column's title and alignment.
pub enum Column {
    Text(&'static str),
    Number(&'static str),
}

impl Table {
    pub fn new(headers: impl Into<Vec<Column>>) -> Table {
        Table {
            headers: headers.into(),
            rows: Vec::new(),
        }
    }

    /// Adds a row, with one cell per column.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.headers.len(), "one cell per column");
        self.rows.push(cells);
    }

    pub fn render(&self) -> String {
        let title = |column: &Column| match column {
            Column::Text(title) | Column::Number(title) => (*title).to_owned(),
        };
        let titles: Vec<String> = self.headers.iter().map(title).collect();
        let lines: Vec<&Vec<String>> = std::iter::once(&titles).chain(&self.rows).collect();
        let width = |index: usize| lines.iter().map(|line| line[index].chars().count()).max();
        let widths: Vec<usize> = (0..titles.len())
            .map(|index| width(index).unwrap_or(0))
            .collect();
        let mut out = String::new();
        for line in lines {
            let mut text = String::new();
            for ((cell, width), column) in line.iter().zip(&widths).zip(&self.headers) {
                let pad = " ".repeat(width - cell.chars().count());
                match column {
                    Column::Text(_) => text.push_str(&format!("{cell}{pad}  ")),
                    Column::Number(_) => text.push_str(&format!("{pad}{cell}  ")),
                }
            }
            let _ = writeln!(out, "{}", text.trim_end());
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// Returns the rate per second of `number` events in `time`.
pub fn rate(number: u64, time: Duration) -> f64 {
    number as f64 / time.as_secs_f64().max(1e-6)
}

/// Prints numbered steps: a title, then the result.
#[derive(Default)]
pub struct StepPrinter {
    step: u32,
}

impl StepPrinter {
    pub fn print_step(&mut self, title: &str, lines: &[String]) -> Result<(), Failure> {
        self.step += 1;
        print_line(&format!("{}. {title}", self.step))?;
        for line in lines {
            print_line(&format!("   {line}"))?;
        }
        print_line("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_control_characters_are_escaped() {
        let shown = without_controls("a\nb\x1b[2J\u{9b}c\té", "\t");
        assert_eq!(shown, "a\\nb\\u{1b}[2J\\u{9b}c\té");
    }

    #[test]
    fn columns_align_and_lines_end_without_spaces() {
        let mut table = Table::new([Column::Text("name"), Column::Number("records")]);
        table.row(["a".to_owned(), "1".to_owned()]);
        table.row(["longer".to_owned(), "1,000".to_owned()]);
        assert_eq!(
            table.render(),
            "name    records\na             1\nlonger    1,000"
        );
    }
}
