//! Passes rows from files to the builder, and divides the memory between parsing and sorting.

use larder_batch::{Builder, RowWriter};
use larder_ingest::{
    CellType, Format, InputOptions, NullPolicy, RowPositions, RowSink, SinkError, Summary,
    ValueSpec,
};
use larder_types::{ByteSize, VALUE_BYTES_MAX};

use super::{BuildArgs, Values};
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::{Progress, Unit};

/// Maximum number of writers of a builder, one for each parsing thread.
const WRITERS_MAX: usize = 16;

/// The division of `--memory`.
pub struct Memory {
    pub parsing: ByteSize,
    pub sorting: ByteSize,
}

impl Memory {
    /// Divides the memory. Up to 1 GiB, parsing has a quarter, and sorting, which spills to disk, has the rest. Beyond
    /// that, parsing has a fifth of the total, because rows may be long: the longest row that fits there also fits into
    /// a quarter of the rest. The shares do not depend on the number of threads, so neither does the set of inputs that
    /// can be built.
    pub fn share(memory: ByteSize) -> Result<Memory, Failure> {
        const MEMORY_MIN: ByteSize = ByteSize(64 << 20);
        const QUARTER_UP_TO: u64 = 1 << 30;
        if memory < MEMORY_MIN {
            return Err(Failure::usage(format!(
                "--memory {memory} is too little; give at least {MEMORY_MIN}"
            )));
        }
        let parsing = (memory.0.min(QUARTER_UP_TO) / 4).max(memory.0 / 5);
        Ok(Memory {
            parsing: ByteSize(parsing),
            sorting: ByteSize(memory.0 - parsing),
        })
    }
}

/// Parses all inputs and passes their rows to the builder. Returns the number of skipped rows.
///
/// # Errors
/// An input cannot be read, or has no rows although that is not allowed.
pub fn feed(
    inputs: &[String],
    args: &BuildArgs,
    memory: &Memory,
    builder: &Builder,
    quiet: bool,
) -> Result<Summary, Failure> {
    let mut done = Summary::default();
    if !inputs.is_empty() {
        let options = input_options(inputs, args, memory)?;
        done = feed_files(&options, args, builder, quiet, RowMeaning::Record)?;
    }
    if args.on.deleted.is_empty() {
        reject_empty(args, &done)?;
        return Ok(done);
    }
    let mut options = input_options(&args.on.deleted, args, memory)?;
    // The column must exist; its values are not used.
    options.value = ValueSpec::Column(args.key[0].clone());
    let says = RowMeaning::Removed {
        files_before: done.files,
    };
    let removed = feed_files(&options, args, builder, quiet, says)?;
    done.files += removed.files;
    done.rows += removed.rows;
    done.skipped += removed.skipped;
    done.skipped_missing += removed.skipped_missing;
    done.positions.append(removed.positions);
    reject_empty(args, &done)?;
    Ok(done)
}

/// The meaning of rows for their keys.
#[derive(Clone, Copy)]
enum RowMeaning {
    Record,
    /// The keys are removed. `files_before` files of other rows precede them.
    Removed {
        files_before: u64,
    },
}

fn feed_files(
    options: &InputOptions,
    args: &BuildArgs,
    builder: &Builder,
    quiet: bool,
    says: RowMeaning,
) -> Result<Summary, Failure> {
    let progress = Progress::new(Unit::Bytes, "reading", quiet);
    let report = |done: larder_ingest::Progress| {
        progress.set("reading", done.bytes_read, done.bytes_total.unwrap_or(0));
    };
    let sink = || -> Result<Box<dyn RowSink + '_>, SinkError> {
        Ok(Box::new(Sink {
            writer: builder.writer(),
            says,
        }))
    };
    larder_ingest::ingest(options, &sink, &report).map_err(|error| {
        if interrupt::is_interrupted() {
            return Failure::interrupted("interrupted; no partial output was left");
        }
        ingest_failure(error, args.memory)
    })
}

/// Returns the columns of the first input that names them, for an error without `--key`. Standard input is not read.
pub fn find_columns(inputs: &[String], args: &BuildArgs) -> Option<String> {
    /// A name that no column has.
    const NONE: &str = "\0";
    struct NullSink;
    impl RowSink for NullSink {
        fn row(&mut self, _: u64, _: &[u8], _: &[u8]) -> Result<(), SinkError> {
            Err("no row has such a key".into())
        }
    }
    let input = inputs.first().filter(|input| *input != "-")?;
    let memory = Memory::share(args.memory).ok()?;
    let mut options = input_options(std::slice::from_ref(input), args, &memory).ok()?;
    (options.key, options.value, options.threads) = (vec![NONE.to_owned()], ValueSpec::Json, 1);
    let sink = || -> Result<Box<dyn RowSink>, SinkError> { Ok(Box::new(NullSink)) };
    match larder_ingest::ingest(&options, &sink, &|_| {}) {
        Err(larder_ingest::Error::Column { have, .. }) if !have.is_empty() => Some(have.join(", ")),
        _ => None,
    }
}

/// Rejects a version without rows. It usually results from an earlier error: a job that wrote only a header, or a wrong
/// key name.
fn reject_empty(args: &BuildArgs, done: &Summary) -> Result<(), Failure> {
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
    // There may be no changes.
    let is_of_changes = args.on.on.is_some() && !args.on.full;
    if args.allow_empty || (is_of_changes && done.skipped == 0) {
        return Ok(());
    }
    let found = match done.skipped {
        0 => "the input has no rows".to_owned(),
        skipped => format!("--skip-nulls left out all {skipped} rows of the input"),
    };
    Err(Failure::with_code(
        "REFUSED",
        format!("{found}; a version without records is built only with --allow-empty"),
    ))
}

/// Converts an error of the ingest into the command's failure.
pub fn ingest_failure(error: larder_ingest::Error, memory: ByteSize) -> Failure {
    let exit_code = match &error {
        larder_ingest::Error::Options { .. } | larder_ingest::Error::Column { .. } => 2,
        larder_ingest::Error::Input { .. } => 3,
        _ => 1,
    };
    let mut message = error.to_string();
    if let larder_ingest::Error::Memory { needed_bytes, .. } = &error {
        message += &match needed_bytes {
            Some(bytes) => {
                let enough_mib = bytes.saturating_mul(ROW_MEMORY_DIVISOR).div_ceil(1 << 20);
                format!(" (--memory is {memory}); give --memory {enough_mib}MiB or more")
            }
            None => format!(
                " (--memory is {memory}); give more --memory, of which a fifth may be taken by one row"
            ),
        };
    }
    Failure { exit_code, message }
}

/// Divisor of `--memory` for the memory that one row, page or batch may take at least.
const ROW_MEMORY_DIVISOR: u64 = 5;

/// Divisor of `--memory` for the memory that collecting the values of one key may take at least. It is an eighth of the
/// memory for sorting.
const KEY_MEMORY_DIVISOR: u64 = 11;

struct Sink<'a> {
    writer: RowWriter<'a>,
    says: RowMeaning,
}

impl RowSink for Sink<'_> {
    fn row(&mut self, seq: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let pushed = match self.says {
            RowMeaning::Record => self.writer.push(seq, key, value),
            RowMeaning::Removed { files_before } => {
                let seq = larder_ingest::seq_after(files_before, seq);
                self.writer.push_removed(seq, key)
            }
        };
        Ok(pushed?)
    }

    fn check(&mut self) -> Result<(), SinkError> {
        if interrupt::is_interrupted() {
            Err("interrupted".into())
        } else {
            Ok(())
        }
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        Ok(self.writer.close()?)
    }
}

/// Converts an error of the builder into the command's failure. For two rows with the same key, it adds their places;
/// for too little memory, the sufficient amount.
pub fn builder_failure(
    error: larder_batch::Error,
    places: &RowPositions,
    memory: ByteSize,
) -> Failure {
    if matches!(error, larder_batch::Error::Cancelled) {
        return Failure::interrupted("interrupted; no partial output was left");
    }
    if let larder_batch::Error::Refused(why) = error {
        return Failure::refused(why);
    }
    let shown = |seq: u64| places.locate(seq).map(|(file, at)| format!("{file}{at}"));
    let more = match &error {
        larder_batch::Error::DuplicateKey {
            rows: [first, second],
            ..
        } => {
            let both = shown(*first).zip(shown(*second));
            both.map(|(first, second)| format!(" (the first are {first} and {second})"))
        }
        larder_batch::Error::KeyMemory { needed_bytes, .. } => Some(match needed_bytes {
            Some(bytes) => {
                let enough_mib = bytes.saturating_mul(KEY_MEMORY_DIVISOR).div_ceil(1 << 20);
                format!("; or give --memory {enough_mib}MiB or more (it is {memory})")
            }
            None => format!("; or give more --memory (it is {memory})"),
        }),
        _ => None,
    };
    let mut failure = Failure::from(error);
    failure.message += &more.unwrap_or_default();
    failure
}

/// Returns the options of the inputs.
///
/// # Errors
/// An option is invalid.
pub fn input_options(
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
    let optional = |option, text: &Option<String>| -> Result<Option<u8>, Failure> {
        text.as_deref()
            .map(|text| one_byte(option, text))
            .transpose()
    };
    Ok(InputOptions {
        inputs: inputs.to_vec(),
        format,
        key: args.key.clone(),
        value,
        delimiter,
        header: args.no_header.then_some(false),
        threads: args.threads().min(WRITERS_MAX),
        columns: (!args.columns.is_empty()).then(|| args.columns.clone()),
        skip_lines: args.skip_lines,
        escape: optional("--escape", &args.escape)?,
        comment: optional("--comment", &args.comment)?,
        types: args.schema.clone(),
        memory: memory.parsing,
        // The builder's limit for one value. The ingest does not know `--memory`.
        value_bytes_max: VALUE_BYTES_MAX.min(memory.sorting.0 / 4),
        null_key: nulls,
        null_value: nulls,
        ..InputOptions::default()
    })
}

fn delimiter(text: &str) -> Result<u8, Failure> {
    match text {
        "\\t" => Ok(b'\t'),
        _ => one_byte("--delimiter", text),
    }
}

/// Parses a column and its type from `--schema`. The column's name may contain colons.
pub fn parse_type(text: &str) -> Result<(String, CellType), String> {
    match text.rsplit_once(':') {
        Some((column, cell_type)) if !column.is_empty() => {
            Ok((column.to_owned(), cell_type.parse()?))
        }
        _ => Err(format!("{text:?} is not COLUMN:TYPE, such as price:float")),
    }
}

fn one_byte(option: &str, text: &str) -> Result<u8, Failure> {
    match text.as_bytes() {
        [byte] => Ok(*byte),
        _ => Err(Failure::usage(format!(
            "{option} {text:?} is not one byte; write a single character (\\t is a tab as a delimiter)"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_memory_never_exceed_it() {
        for mib in [64, 256, 1024, 65_536] {
            let memory = ByteSize(mib << 20);
            let shares = Memory::share(memory).unwrap();
            assert_eq!(shares.parsing.0 + shares.sorting.0, memory.0);
            assert!(shares.parsing.0 >= 16 << 20 && shares.sorting >= shares.parsing);
            assert!(memory.0 / KEY_MEMORY_DIVISOR <= shares.sorting.0 / 8);
        }
        let parsing = |mib: u64| Memory::share(ByteSize(mib << 20)).unwrap().parsing.0 >> 20;
        assert_eq!([256, 1024, 1088, 5120].map(parsing), [64, 256, 256, 1024]);
        let error = Memory::share(ByteSize(1 << 20)).map(drop).unwrap_err();
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
