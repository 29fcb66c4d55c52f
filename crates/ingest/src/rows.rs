//! The last step for a row: it is assembled, checked against the limits, and passed to the sink.
//!
//! Invariants:
//! 1. Only one thread at a time assembles and passes on a value longer than [`SHORT_VALUE_BYTES_MAX`], and its memory
//!    is freed afterwards. The longest value is therefore in memory once, however many threads there are.
//! 2. The sink's `check` is called at least once per [`CHECK_ROWS`] units of work; each row and each kilobyte of
//!    values is a unit, including skipped rows.

use std::sync::{MutexGuard, PoisonError};

use larder_types::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

use crate::error::{At, Fault, FaultKind};
use crate::options::{InputOptions, NullPolicy, RowSink};
use crate::run::Budget;

/// Every thread may have a value of up to this length.
const SHORT_VALUE_BYTES_MAX: usize = 4 << 20;
/// A larger buffer is freed after the value that needed it.
const ROOM_KEPT_MAX: usize = 1 << 20;
/// The number of rows between two checks whether to end the run.
const CHECK_ROWS: usize = 4096;

/// One thread's access to its sink, and the buffers that formats need.
pub(crate) struct Rows<'a> {
    pub options: &'a InputOptions,
    pub budget: &'a Budget,
    pub sink: Box<dyn RowSink + 'a>,
    /// Rows that reached the sink.
    pub count: u64,
    pub skipped: u64,
    /// The part of them that lacks the field.
    pub skipped_missing: u64,
    /// Lines of the last text chunk, set by its task even when it fails.
    pub lines: Option<u64>,
    /// Buffers for the current key and value.
    key: Vec<u8>,
    value: Vec<u8>,
    /// Rows, and kilobytes of values, since the last call of the sink's `check`.
    unchecked: usize,
}

/// The result of assembling a row.
pub(crate) enum AssembledRow<'v> {
    /// Key and value are in the provided buffers. A value that was cut off at its limit is longer than the limit.
    Row,
    /// The key is in the provided buffer, the value is here.
    Borrowed(&'v [u8]),
    /// There is no key, for this reason.
    NullKey(String),
    /// The value's only column is null.
    NullValue(&'v str),
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
            lines: None,
            key: Vec::new(),
            value: Vec::new(),
            unchecked: 0,
        }
    }

    /// Calls `make` to write a key and a value of limited size, and passes them on. A value that turns out to be long
    /// is written again when this thread may hold a long value.
    pub fn assemble<'v>(
        &mut self,
        seq: u64,
        make: impl Fn(&mut Vec<u8>, &mut Vec<u8>, usize) -> Result<AssembledRow<'v>, Fault>,
    ) -> Result<(), Fault> {
        let (mut key, mut value) = (
            std::mem::take(&mut self.key),
            std::mem::take(&mut self.value),
        );
        let limit = usize::try_from(self.options.value_bytes_max).unwrap_or(usize::MAX);
        let mut bytes_max = limit.min(SHORT_VALUE_BYTES_MAX);
        let mut turn = None;
        let made = loop {
            key.clear();
            value.clear();
            let made = make(&mut key, &mut value, bytes_max);
            if matches!(made, Ok(AssembledRow::Row)) && value.len() > bytes_max && bytes_max < limit
            {
                turn = Some(self.budget.lock_long_value());
                bytes_max = limit;
                continue;
            }
            break made;
        };
        let sent = match made {
            Ok(AssembledRow::Row) if value.len() > limit => Err(self.too_long(&key, None)),
            Ok(AssembledRow::Row) => self.send(seq, &key, &value, turn),
            Ok(AssembledRow::Borrowed(value)) => self.send(seq, &key, value, turn),
            Ok(AssembledRow::NullKey(what)) => self.null_key(&what),
            Ok(AssembledRow::NullValue(name)) => self.null_value(name),
            Err(fault) => Err(fault),
        };
        if value.capacity() > ROOM_KEPT_MAX {
            value = Vec::new();
        }
        (self.key, self.value) = (key, value);
        sent
    }

    /// Skips a record that could not be parsed, if the options permit it.
    ///
    /// # Errors
    /// The fault, if malformed records must not be skipped, or if the fault is not the record's own.
    #[cold]
    pub fn malformed(&mut self, seq: u64, fault: Fault) -> Result<(), Fault> {
        match fault.kind {
            FaultKind::Data(reason) if self.options.skip_malformed => {
                self.sink.malformed(seq, reason).map_err(sink_fault)?;
                self.count_work(0)
            }
            kind => Err(Fault { at: fault.at, kind }),
        }
    }

    /// Passes on a row whose key and value are available.
    #[inline]
    pub fn push(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        self.send(seq, key, value, None)
    }

    #[inline]
    fn send(
        &mut self,
        seq: u64,
        key: &[u8],
        value: &[u8],
        turn: Option<MutexGuard<'a, ()>>,
    ) -> Result<(), Fault> {
        if (key.is_empty() && !self.options.whole_rows)
            || key.len() > KEY_BYTES_MAX
            || value.len() as u64 > self.options.value_bytes_max
        {
            return self.check_row(key, value);
        }
        let is_long = value.len() > SHORT_VALUE_BYTES_MAX;
        let _turn = match turn {
            None if is_long => Some(self.budget.lock_long_value()),
            turn => turn,
        };
        self.count += 1;
        self.sink.row(seq, key, value).map_err(sink_fault)?;
        self.count_work(value.len())
    }

    /// Counts work, and periodically calls the sink's `check`.
    #[inline]
    fn count_work(&mut self, value_bytes: usize) -> Result<(), Fault> {
        self.unchecked += 1 + value_bytes / 1024;
        if self.unchecked < CHECK_ROWS {
            return Ok(());
        }
        self.unchecked = 0;
        self.sink.check().map_err(sink_fault)
    }

    #[cold]
    fn check_row(&mut self, key: &[u8], value: &[u8]) -> Result<(), Fault> {
        if key.is_empty() {
            return Err(Fault::file(format!(
                "the key ({}) is empty; a key has at least one byte: give the row a key, or remove the row from the input",
                self.options.key.join(", ")
            )));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(Fault::file(format!(
                "the key has {} bytes, at most {KEY_BYTES_MAX} are allowed; choose shorter key columns",
                key.len()
            )));
        }
        Err(self.too_long(key, Some(value.len() as u64)))
    }

    #[cold]
    fn too_long(&self, key: &[u8], value_bytes: Option<u64>) -> Fault {
        let limit = self.options.value_bytes_max;
        let shown: String = String::from_utf8_lossy(key).chars().take(80).collect();
        let has = match value_bytes {
            Some(bytes) => format!("has {bytes} bytes"),
            None => format!("has more than {limit} bytes"),
        };
        if value_bytes.unwrap_or(limit) > VALUE_BYTES_MAX || limit >= VALUE_BYTES_MAX {
            return Fault::file(format!(
                "the value {has} (key {shown:?}), at most {} are allowed; split it, or choose fewer columns",
                limit.min(VALUE_BYTES_MAX)
            ));
        }
        Fault::memory(
            format!("the value of key {shown:?} {has}"),
            value_bytes,
            limit,
        )
    }

    /// Skips a row without a key, or returns a fault.
    pub fn null_key(&mut self, what: &str) -> Result<(), Fault> {
        if self.options.null_key == NullPolicy::Skip {
            self.skipped += 1;
            return self.count_work(0);
        }
        Err(Fault::file(format!(
            "{what}; every row needs a key: fix the row, or skip rows without a key"
        )))
    }

    /// Skips a row without its value, or returns a fault.
    pub fn null_value(&mut self, column: &str) -> Result<(), Fault> {
        if self.options.null_value == NullPolicy::Skip {
            self.skipped += 1;
            return self.count_work(0);
        }
        Err(Fault::file(format!(
            "column {column:?} is null and a value must not be; skip such rows, or keep nulls with a JSON value"
        )))
    }
}

fn sink_fault(source: crate::options::SinkError) -> Fault {
    Fault {
        at: At::File,
        kind: FaultKind::Sink(source),
    }
}

impl Budget {
    /// Locks the right to hold a long value.
    fn lock_long_value(&self) -> MutexGuard<'_, ()> {
        self.long_value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
