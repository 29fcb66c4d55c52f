//! Rows from files into the builder, and how the memory is shared between parsing and sorting.

use larder_batch::{Builder, RowWriter};
use larder_ingest::{Format, InputOptions, NullPolicy, RowSink, SinkError, Summary, ValueSpec};
use larder_types::ByteSize;

use super::{BuildArgs, Values};
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::{Progress, Unit};

/// A builder takes so many writers at a time, one for each parsing thread.
const WRITERS_MAX: usize = 16;

/// The shares of `--memory`.
pub struct Memory {
    pub parsing: ByteSize,
    pub sorting: ByteSize,
}

impl Memory {
    /// Up to a gigabyte, a quarter is for parsing, but no more than threads can use; sorting, which
    /// spills to disk what does not fit, takes the rest. Who gives more may have long rows: a fifth is
    /// for parsing then, so that the longest row fits there as well as in a quarter of the rest.
    pub fn share(memory: ByteSize, threads: usize) -> Result<Memory, Failure> {
        const MEMORY_MIN: ByteSize = ByteSize(64 << 20);
        const PARSING_PER_THREAD_MAX: u64 = 64 << 20;
        if memory < MEMORY_MIN {
            return Err(Failure::usage(format!(
                "--memory {memory} is too little; give at least {MEMORY_MIN}"
            )));
        }
        let used_by_threads = PARSING_PER_THREAD_MAX * threads as u64;
        let parsing = match memory.0.saturating_sub(1 << 30) {
            0 => (memory.0 / 4).min(used_by_threads),
            beyond => (memory.0 / 5).min(used_by_threads + beyond / 2),
        };
        Ok(Memory {
            parsing: ByteSize(parsing),
            sorting: ByteSize(memory.0 - parsing),
        })
    }
}

/// Parses all inputs and hands their rows to the builder; says how many rows were left out.
///
/// # Errors
/// When an input cannot be read, or holds no rows and that was not allowed.
pub fn feed(
    inputs: &[String],
    args: &BuildArgs,
    memory: &Memory,
    builder: &Builder,
    quiet: bool,
) -> Result<u64, Failure> {
    let options = input_options(inputs, args, memory)?;
    let progress = Progress::new(Unit::Bytes, "reading", quiet);
    let report = |done: larder_ingest::Progress| {
        progress.set("reading", done.bytes_read, done.bytes_total.unwrap_or(0));
    };
    let sink = || -> Result<Box<dyn RowSink + '_>, SinkError> {
        Ok(Box::new(Sink {
            value_bytes_max: memory.sorting.0 / 4,
            writer: builder.writer(),
            until_check: 0,
        }))
    };
    let done = larder_ingest::ingest(&options, &sink, &report).map_err(|error| {
        if interrupt::is_interrupted() {
            return Failure::interrupted("interrupted; nothing was left behind");
        }
        failure(error)
    })?;
    refuse_empty(args, &done)?;
    Ok(done.skipped)
}

/// A version of nothing is most often a fault before it: a job that wrote a header and no rows, a key of another name.
fn refuse_empty(args: &BuildArgs, done: &Summary) -> Result<(), Failure> {
    if done.rows > 0 {
        return Ok(());
    }
    if done.skipped > 0 && done.skipped_missing == done.skipped {
        let columns: Vec<&str> = args
            .key
            .iter()
            .chain(&args.value)
            .map(String::as_str)
            .collect();
        return Err(Failure::usage(format!(
            "none of the {} rows has the fields that make a record ({}); correct --key, or --value",
            done.skipped,
            columns.join(", ")
        )));
    }
    if args.allow_empty {
        return Ok(());
    }
    let found = match done.skipped {
        0 => "the input holds no rows".to_owned(),
        skipped => format!("--skip-nulls left out all {skipped} rows of the input"),
    };
    Err(Failure::with_code(
        "REFUSED",
        format!("{found}; a version without records is built only with --allow-empty"),
    ))
}

fn failure(error: larder_ingest::Error) -> Failure {
    let exit_code = match &error {
        larder_ingest::Error::Options { .. } | larder_ingest::Error::Column { .. } => 2,
        larder_ingest::Error::Input { .. } => 3,
        _ => 1,
    };
    Failure {
        exit_code,
        message: error.to_string(),
    }
}

struct Sink<'a> {
    /// What the builder takes of one value; it does not know of `--memory` as a whole.
    value_bytes_max: u64,
    writer: RowWriter<'a>,
    until_check: u32,
}

impl RowSink for Sink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        // Looking at the flag for every row would cost more than a row is worth.
        if self.until_check == 0 {
            self.until_check = 4096;
            if interrupt::is_interrupted() {
                return Err("interrupted".into());
            }
        }
        self.until_check -= 1;
        if value.len() as u64 > self.value_bytes_max {
            return Err(too_long(key, value.len() as u64).into());
        }
        Ok(self.writer.push(seq, key, value)?)
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(self.writer.close()?)
    }
}

#[cold]
fn too_long(key: &[u8], size: u64) -> String {
    let shown: String = String::from_utf8_lossy(key).chars().take(80).collect();
    let enough = ByteSize((size * 5).next_multiple_of(1 << 20));
    format!(
        "the value of key {shown:?} has {size} bytes, and a fifth of --memory is less; give --memory {enough} or more"
    )
}

fn input_options(
    inputs: &[String],
    args: &BuildArgs,
    memory: &Memory,
) -> Result<InputOptions, Failure> {
    let format: Option<Format> = match &args.format {
        Some(text) => Some(text.parse().map_err(Failure::usage)?),
        None => None,
    };
    let is_tsv = args
        .format
        .as_deref()
        .is_some_and(|text| text.eq_ignore_ascii_case("tsv"));
    let delimiter = match &args.delimiter {
        Some(text) => Some(delimiter(text)?),
        None => is_tsv.then_some(b'\t'),
    };
    let value = match (&args.value, args.values) {
        (Some(column), _) => ValueSpec::Column(column.clone()),
        (None, Some(Values::Msgpack)) => ValueSpec::MessagePack,
        (None, _) => ValueSpec::Json,
    };
    let nulls = if args.skip_nulls {
        NullPolicy::Skip
    } else {
        NullPolicy::Error
    };
    Ok(InputOptions {
        inputs: inputs.to_vec(),
        format,
        key: args.key.clone(),
        value,
        delimiter,
        header: args.no_header.then_some(false),
        threads: args.threads().min(WRITERS_MAX),
        memory: memory.parsing,
        null_key: nulls,
        null_value: nulls,
        ..InputOptions::default()
    })
}

fn delimiter(text: &str) -> Result<u8, Failure> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        b"\\t" => Ok(b'\t'),
        _ => Err(Failure::usage(format!(
            "--delimiter {text:?} is not one byte; write a single character, or \\t for a tab"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_memory_never_exceed_it() {
        for (mib, threads) in [(64, 1), (256, 2), (1024, 2), (65_536, 64)] {
            let memory = ByteSize(mib << 20);
            let shares = Memory::share(memory, threads).unwrap();
            assert_eq!(shares.parsing.0 + shares.sorting.0, memory.0);
            assert!(shares.parsing.0 >= 16 << 20 && shares.sorting >= shares.parsing);
        }
        let parsing = |mib: u64| Memory::share(ByteSize(mib << 20), 2).unwrap().parsing.0 >> 20;
        assert_eq!([256, 1024, 1088, 5120].map(parsing), [64, 128, 160, 1024]);
        let error = Memory::share(ByteSize(1 << 20), 1).map(drop).unwrap_err();
        assert_eq!(
            error.message,
            "--memory 1MiB is too little; give at least 64MiB"
        );
    }

    #[test]
    fn a_delimiter_is_one_byte() {
        assert_eq!(delimiter(";").unwrap(), b';');
        assert_eq!(delimiter("\\t").unwrap(), b'\t');
        assert!(delimiter("ab").is_err() && delimiter("").is_err());
    }
}
