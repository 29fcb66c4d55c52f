//! What people read: aligned tables, numbers with separators, sizes, durations and times.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::failure::Failure;

/// Writes a line to standard output. A reader that went away (`| head`) ends the program quietly.
pub fn print_line(text: &str) -> Result<(), Failure> {
    print_bytes(format!("{text}\n").as_bytes())
}

/// As [`print_line`], for exact bytes.
pub fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => other.map_err(Failure::io("write to standard output")),
    }
}

/// Prints a value as indented JSON: what `--json` means everywhere.
pub fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
    print_line(&text)
}

/// Columns as wide as their widest cell; numbers to the right, text to the left.
pub struct Table {
    headers: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column's title and which side its cells keep to.
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

    /// Adds a row: one cell per column.
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

/// `1234567` as `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes with one decimal, in powers of 1024: `1.5 MiB`.
pub fn bytes(number: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if number < 1024 {
        return format!("{number} B");
    }
    let mut value = number as f64;
    let mut unit = "";
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = name;
    }
    format!("{value:.1} {unit}")
}

/// A duration with three figures: `850 µs`, `12.3 ms`, `4.56 s`, `3 min 20 s`.
pub fn duration(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        m if m < 1_000.0 => format!("{m:.0} µs"),
        m if m < 100_000.0 => format!("{:.1} ms", m / 1e3),
        m if m < 1_000_000.0 => format!("{:.0} ms", m / 1e3),
        m if m < 60_000_000.0 => format!("{:.2} s", m / 1e6),
        _ => format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60),
    }
}

/// So many in such a time, as a rate per second.
pub fn rate(number: u64, time: Duration) -> f64 {
    number as f64 / time.as_secs_f64().max(1e-6)
}

/// Seconds since 1970 as `2026-03-01 09:30:00Z`.
pub fn time(unix_seconds: u64) -> String {
    let (year, month, day) = larder_types::civil_date((unix_seconds / 86_400) as i64);
    let second = unix_seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}Z",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_as_people_write_them() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!([5, 1536, 3 << 20].map(bytes), ["5 B", "1.5 KiB", "3.0 MiB"]);
        let micros = |n| duration(Duration::from_micros(n));
        assert_eq!(micros(850), "850 µs");
        assert_eq!(micros(12_340), "12.3 ms");
        assert_eq!(micros(4_560_000), "4.56 s");
        assert_eq!(micros(200_000_000), "3 min 20 s");
        assert_eq!(time(0), "1970-01-01 00:00:00Z");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00Z");
        assert_eq!(time(1_735_689_599), "2024-12-31 23:59:59Z");
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
