//! Reads CSV and JSON lines from memory on the caller's thread, for callers without a file, such as tests and fuzz
//! targets.
//!
//! Cutting and parsing are the same as for files, with two differences: the caller chooses the chunk size, and a
//! panic of a decoder is not caught.

use std::io::Cursor;
use std::sync::Arc;

use crate::chunk::Cutter;
use crate::csv::CsvFile;
use crate::error::{Error, Fault};
use crate::json_lines::JsonLinesFile;
use crate::options::{Format, InputOptions, RowSink};
use crate::rows::Rows;
use crate::run::{Budget, Tasks};

/// The name in error messages, in place of a file.
const NAME: &str = "the text";

/// Reads `text` in chunks of about `chunk_bytes` and passes its rows to `sink`. Returns the number of rows. Uses only
/// the options about columns.
///
/// # Errors
/// Like [`crate::ingest`]; also for formats that are not text.
pub fn ingest_text(
    text: Vec<u8>,
    format: Format,
    options: &InputOptions,
    chunk_bytes: usize,
    sink: Box<dyn RowSink + '_>,
) -> Result<u64, Error> {
    let options = Arc::new(options.clone());
    let record_bytes_max = text.len() + 1;
    let cutter = Cutter::new(
        Box::new(Cursor::new(text)),
        chunk_bytes.max(1),
        record_bytes_max,
        &Arc::default(),
    );
    let no_folder = Arc::default();
    let mut tasks: Box<dyn Tasks> = match format {
        Format::Csv => Box::new(CsvFile::new(
            cutter,
            options.delimiter,
            Arc::clone(&options),
            no_folder,
        )),
        Format::JsonLines => Box::new(JsonLinesFile::new(cutter, &no_folder)),
        _ => {
            return Err(Error::Options {
                reason: format!("{format} is not text; read it from a file"),
            });
        }
    };
    let budget = Budget::new(options.memory.0);
    let mut rows = Rows::new(&options, &budget, sink);
    let mut lines = 0;
    let mut buffer = Vec::new();
    loop {
        let to_error = |fault: Fault| fault.after_lines(lines).into_error(NAME);
        let Some((_, task)) = tasks.next(&mut buffer).map_err(to_error)? else {
            break;
        };
        task.run(0, &buffer, &mut rows).map_err(to_error)?;
        lines += rows.lines.take().unwrap_or(0);
    }
    let count = rows.count;
    rows.sink
        .finish()
        .map_err(|source| crate::run::sink_fault(source).into_error(NAME))?;
    Ok(count)
}
