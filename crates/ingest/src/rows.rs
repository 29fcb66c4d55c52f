//! The last step of a row: its limits are checked and it goes to the sink.

use larder_types::KEY_BYTES_MAX;

use crate::error::{At, Fault, FaultKind};
use crate::options::{InputOptions, NullPolicy, RowSink};
use crate::run::Budget;

/// One thread's way to its sink, with what formats need on the way.
pub(crate) struct Rows<'a> {
    pub options: &'a InputOptions,
    pub budget: &'a Budget,
    pub sink: Box<dyn RowSink + 'a>,
    /// Rows that reached the sink.
    pub count: u64,
    pub skipped: u64,
    /// Of these, for want of a field of the name.
    pub skipped_missing: u64,
    /// Lines of the last text chunk, set by its task even when it fails.
    pub lines: u64,
    /// Room for a key or a value in the making; taken and put back by formats.
    pub key: Vec<u8>,
    pub value: Vec<u8>,
}

impl<'a> Rows<'a> {
    pub fn new(options: &'a InputOptions, budget: &'a Budget, sink: Box<dyn RowSink + 'a>) -> Self {
        Rows {
            options,
            budget,
            sink,
            count: 0,
            skipped: 0,
            skipped_missing: 0,
            lines: 0,
            key: Vec::new(),
            value: Vec::new(),
        }
    }

    #[inline]
    pub fn push(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        if key.is_empty()
            || key.len() > KEY_BYTES_MAX
            || value.len() as u64 > self.options.value_bytes_max
        {
            return self.refuse(key, value);
        }
        self.count += 1;
        self.sink.row(seq, key, value).map_err(|source| Fault {
            at: At::File,
            kind: FaultKind::Sink(source),
        })
    }

    #[cold]
    fn refuse(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        if key.is_empty() {
            return Err(Fault::file(format!(
                "the key ({}) is empty; a key has at least one byte: give the row a key, or leave it out of the input",
                self.options.key.join(", ")
            )));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Fault::file(format!(
                "the key has {} bytes, at most {KEY_BYTES_MAX} are allowed; choose shorter key columns",
                key.len()
            )));
        }
        Err(Fault::file(format!(
            "the value has {} bytes, at most {} are allowed; split it, or choose fewer columns",
            value.len(),
            self.options.value_bytes_max
        )))
    }

    /// A row without a key: skipped or a fault.
    pub fn null_key(&mut self, what: &str) -> Result<(), Fault> {
        if self.options.null_key == NullPolicy::Skip {
            self.skipped += 1;
            return Ok(());
        }
        Err(Fault::file(format!(
            "{what}; every row needs a key: fix the row, or skip rows without a key"
        )))
    }

    /// A row without its one value: skipped or a fault.
    pub fn null_value(&mut self, column: &str) -> Result<(), Fault> {
        if self.options.null_value == NullPolicy::Skip {
            self.skipped += 1;
            return Ok(());
        }
        Err(Fault::file(format!(
            "column {column:?} is null and a value must not be; skip such rows, or keep nulls with a JSON value"
        )))
    }
}
