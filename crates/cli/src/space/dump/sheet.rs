//! Writes rows of optional texts to a file: Parquet, CSV or JSON lines.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::str::FromStr;

use larder_ingest::ParquetWriter;

use crate::failure::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Parquet,
    Csv,
    JsonLines,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Format, String> {
        Ok(match text.to_ascii_lowercase().as_str() {
            "parquet" => Format::Parquet,
            "csv" => Format::Csv,
            "jsonl" | "ndjson" | "json" => Format::JsonLines,
            _ => {
                return Err(format!(
                    "format {text:?} cannot be written; use parquet, csv or jsonl"
                ));
            }
        })
    }
}

impl Format {
    /// Derives the format from the file's name.
    ///
    /// # Errors
    /// The name does not show the format.
    pub fn of(file: &Path) -> Result<Format, Failure> {
        let extension = file.extension().and_then(|it| it.to_str());
        let format = extension.and_then(|it| it.parse().ok());
        format.ok_or_else(|| {
            Failure::usage(format!(
                "{}: use the suffix .parquet, .csv or .jsonl, or specify --format",
                file.display()
            ))
        })
    }
}

/// A file being written.
pub struct Sheet {
    file: String,
    columns: Vec<String>,
    out: SheetWriter,
}

enum SheetWriter {
    Parquet(Box<ParquetWriter<BufWriter<File>>>),
    Csv(BufWriter<File>),
    JsonLines(BufWriter<File>),
}

impl Sheet {
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, format: Format, columns: &[String]) -> Result<Sheet, Failure> {
        let file = path.display().to_string();
        let out = File::create(path).map_err(Failure::io(format!("make {file}")))?;
        let mut out = BufWriter::new(out);
        let out = match format {
            Format::Parquet => {
                let writer = ParquetWriter::new(out, columns);
                SheetWriter::Parquet(Box::new(writer.map_err(|why| write_failure(&file, &why))?))
            }
            Format::Csv => {
                let header = columns.iter().map(|it| Some(it.as_str()));
                write_csv(&mut out, header).map_err(|error| write_failure(&file, &error))?;
                SheetWriter::Csv(out)
            }
            Format::JsonLines => SheetWriter::JsonLines(out),
        };
        Ok(Sheet {
            file,
            columns: columns.to_vec(),
            out,
        })
    }

    /// Writes a row, with one cell for each column.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn row(&mut self, cells: &[Option<String>]) -> Result<(), Failure> {
        let file = &self.file;
        let texts = cells.iter().map(Option::as_deref);
        match &mut self.out {
            SheetWriter::Parquet(writer) => {
                writer.row(texts).map_err(|why| write_failure(file, &why))
            }
            SheetWriter::Csv(out) => {
                write_csv(out, texts).map_err(|error| write_failure(file, &error))
            }
            SheetWriter::JsonLines(out) => {
                let named = self.columns.iter().map(String::as_str).zip(texts);
                write_json(out, named).map_err(|error| write_failure(file, &error))
            }
        }
    }

    /// # Errors
    /// The file cannot be written.
    pub fn finish(self) -> Result<(), Failure> {
        let file = self.file;
        let out = match self.out {
            SheetWriter::Parquet(writer) => {
                writer.finish().map_err(|why| write_failure(&file, &why))?
            }
            SheetWriter::Csv(out) | SheetWriter::JsonLines(out) => out,
        };
        let out = out
            .into_inner()
            .map_err(|error| write_failure(&file, &error))?;
        out.sync_all().map_err(|error| write_failure(&file, &error))
    }
}

fn write_failure(file: &str, why: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot write {file}: {why}"))
}

fn write_csv<'a>(
    out: &mut impl Write,
    cells: impl Iterator<Item = Option<&'a str>>,
) -> std::io::Result<()> {
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        let text = cell.unwrap_or_default();
        if text.contains([',', '"', '\n', '\r']) {
            write!(out, "\"{}\"", text.replace('"', "\"\""))?
        } else {
            out.write_all(text.as_bytes())?
        }
    }
    out.write_all(b"\n")
}

fn write_json<'a>(
    out: &mut impl Write,
    cells: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> std::io::Result<()> {
    // Every row has a cell, at least its key.
    let mut before = b"{";
    for (name, cell) in cells {
        if let Some(text) = cell {
            out.write_all(before)?;
            serde_json::to_writer(&mut *out, name)?;
            out.write_all(b":")?;
            serde_json::to_writer(&mut *out, text)?;
            before = b",";
        }
    }
    out.write_all(b"}\n")
}
