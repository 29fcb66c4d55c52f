//! `larder build`: builds a version from files. `larder push` and the demo use it too.
//!
//! ```text
//!  inputs ── larder-ingest: parse in parallel ── rows ──► one RowWriter per thread ──► Builder::finish
//! ```
//!
//! `rows` passes rows from files to the builder, and divides the memory.

mod delta;
mod given_options;
pub mod rows;
mod staged_folder;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use larder_batch::{BuildOptions, Builder, CollectAs, Compression, Manifest, OnDuplicate};
use larder_remote::Location;
use larder_types::{ByteSize, StoreName};

use crate::clock;
use crate::command_line::parse_count;
use crate::failure::Failure;
use crate::interrupt;
use crate::keygen;
use crate::output::{self, bytes, count, duration, rate};
use crate::progress::{Progress, Unit};
use crate::quality::{ComparedVersion, GateArgs};
use delta::DeltaArgs;
use given_options::GivenOptions;
use staged_folder::StagedFolder;

const EXAMPLES: &str = "\
Examples:
    larder build recs.parquet --store pymk --key member --out built/pymk
    larder build 'day/*.csv' --store prices --key sku --value price --out built/prices --on-duplicate last
    larder build s3://lake/recs/*.parquet --store pymk --key country,member --out s3://bucket/built/pymk
    larder build songs.csv --store songs --key artist --value title --out built/songs --on-duplicate collect
    larder build recs.parquet --store pymk --key member --out built/pymk --sign release.key
    larder build changes.csv --store pymk --key member --on built/monday --deleted gone.csv --out built/tuesday
    larder build all.parquet --store pymk --key member --on built/monday --full --out built/tuesday
    larder build recs.parquet --store pymk --key member --out built/pymk --against built/before \
        --max-nulls 5% --max-shift score:0.25 --report report.html

A built version can be pushed to any number of servers with `larder push`.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct BuildCommand {
    /// Files, globs or URLs: Parquet, Arrow IPC, Avro, CSV, TSV or JSON lines, also .gz and .zst
    #[arg(required_unless_present = "deleted", value_name = "INPUT")]
    inputs: Vec<String>,
    /// The store to which the version belongs
    #[arg(long, value_name = "NAME")]
    store: StoreName,
    /// The output: a folder that is empty or does not exist, or a URL
    #[arg(long, value_name = "PATH|URL")]
    out: String,
    #[command(flatten)]
    build: BuildArgs,
    #[command(flatten)]
    gates: GateArgs,
    /// The version with which gates and the report compare, such as the live version:
    /// http://larder-1:7070/v1/stores/pymk/versions/live/files
    #[arg(long, value_name = "PATH|URL", help_heading = "Gates")]
    against: Option<String>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// The conversion of rows to a version; shared by `larder build` and `larder push`.
#[derive(Args, Clone)]
pub struct BuildArgs {
    #[command(flatten)]
    pub given: GivenOptions,
    #[command(flatten)]
    pub on: DeltaArgs,
    /// The key column, or several columns whose texts are joined with ":"
    #[arg(
        long,
        value_name = "COL[,COL]",
        value_delimiter = ',',
        help_heading = "Rows"
    )]
    pub key: Vec<String>,
    /// The column that contains the value
    #[arg(
        long,
        value_name = "COL",
        conflicts_with = "values",
        help_heading = "Rows"
    )]
    pub value: Option<String>,
    /// Create the value from all columns except the key, as JSON or MessagePack [default: json]
    #[arg(long, value_name = "FORMAT", help_heading = "Rows")]
    pub values: Option<Values>,
    /// The format of the inputs, if their names do not show it: parquet, arrow, avro, csv, tsv, jsonl
    #[arg(long, value_name = "FORMAT", help_heading = "Rows")]
    pub format: Option<String>,
    /// The field separator of a CSV file, one byte such as ';' or '\t'
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    pub delimiter: Option<String>,
    /// The character that escapes a quote inside a quoted field of a CSV file, such as '\' for Spark's [default: quotes are doubled]
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    pub escape: Option<String>,
    /// The first line of a CSV file is data; the columns are named 1, 2, 3 and so on
    #[arg(long, help_heading = "Rows")]
    pub no_header: bool,
    /// The column names of a CSV file without a header
    #[arg(
        long,
        value_name = "COL[,COL]",
        value_delimiter = ',',
        help_heading = "Rows"
    )]
    pub columns: Vec<String>,
    /// Skip this number of lines at the beginning of a CSV file, before its header
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = parse_count::<u64>,
        help_heading = "Rows"
    )]
    pub skip_lines: u64,
    /// Skip the lines of a CSV file that begin with this character, such as '#'
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    pub comment: Option<String>,
    /// Types of CSV columns in JSON or MessagePack values: text, int, float, bool or json; all other columns are text
    #[arg(
        long,
        value_name = "COL:TYPE[,COL:TYPE]",
        value_delimiter = ',',
        value_parser = rows::parse_type,
        help_heading = "Rows"
    )]
    pub schema: Vec<(String, larder_ingest::CellType)>,
    /// Skip rows whose key or value column is null, or missing from a JSON object, instead of
    /// rejecting the input; the summary shows their number
    #[arg(long, help_heading = "Rows")]
    pub skip_nulls: bool,
    /// Build a version even if there are no rows; when pushed, it can replace a version with records
    #[arg(long, help_heading = "Rows")]
    pub allow_empty: bool,
    /// Handling of rows with the same key: error, first, last or collect (an array of all values)
    #[arg(
        long,
        value_name = "HOW",
        default_value = "error",
        help_heading = "Rows"
    )]
    pub on_duplicate: OnDuplicate,
    /// The format in which `collect` writes the values of --value: text (JSON strings), json (each value must be JSON,
    /// and is not changed) or bytes (a MessagePack array of bin) [default: text]; values created from columns
    /// are collected in an array of their own format
    #[arg(long, value_name = "FORMAT", help_heading = "Rows")]
    pub collect_as: Option<CollectAs>,
    /// The number of partitions, each of which is one segment file
    #[arg(
        long,
        value_name = "N",
        default_value_t = 8,
        value_parser = parse_count::<u32>,
        help_heading = "Version"
    )]
    pub partitions: u32,
    /// The compression of blocks: none, lz4, zstd or zstd:LEVEL
    #[arg(
        long,
        value_name = "HOW",
        default_value = "none",
        help_heading = "Version"
    )]
    pub compress: Compression,
    /// Omit the filter, which answers reads of absent keys without a disk read
    #[arg(long, help_heading = "Version")]
    pub no_filter: bool,
    /// Omit the profile: statistics of the columns, which gates and reports use
    #[arg(long, help_heading = "Version")]
    pub no_profile: bool,
    /// Sign the version with the key in this file, created by `larder keygen`
    #[arg(long, value_name = "KEYFILE", help_heading = "Version")]
    pub sign: Option<PathBuf>,
    /// Memory for parsing and sorting together; more data is spilled to disk. A single row can take at most
    /// a fifth of it, and the values that `collect` puts under one key at most a tenth
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1GiB",
        help_heading = "Resources"
    )]
    pub memory: ByteSize,
    /// The number of threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = parse_count::<usize>, help_heading = "Resources")]
    pub threads: Option<usize>,
    /// The folder for temporary files [default: the system's]
    #[arg(long, value_name = "DIR", help_heading = "Resources")]
    pub temp: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Values {
    Json,
    Msgpack,
}

impl BuildArgs {
    /// The options for JSON lines with one key field and defaults otherwise, which the demo builds.
    pub fn json_lines(key: &str) -> BuildArgs {
        BuildArgs {
            given: GivenOptions::default(),
            on: DeltaArgs::default(),
            key: vec![key.to_owned()],
            value: None,
            values: None,
            format: None,
            delimiter: None,
            escape: None,
            no_header: false,
            columns: Vec::new(),
            skip_lines: 0,
            comment: None,
            schema: Vec::new(),
            skip_nulls: false,
            allow_empty: false,
            on_duplicate: OnDuplicate::Error,
            collect_as: None,
            partitions: 8,
            compress: Compression::None,
            no_filter: false,
            no_profile: false,
            sign: None,
            memory: ByteSize(256 << 20),
            threads: None,
            temp: None,
        }
    }

    /// Returns how the values of one key are collected. This depends only on the options, never on the data.
    ///
    /// # Errors
    /// The options contradict each other.
    fn collect_as(&self) -> Result<CollectAs, Failure> {
        let own = match (&self.value, self.values) {
            (Some(_), _) => CollectAs::Text,
            (None, Some(Values::Msgpack)) => CollectAs::MessagePack,
            (None, _) => CollectAs::Json,
        };
        let Some(requested) = self.collect_as else {
            return Ok(own);
        };
        if self.on_duplicate != OnDuplicate::Collect {
            return Err(Failure::usage(
                "--collect-as is of --on-duplicate collect, which is not given",
            ));
        }
        let fits = match self.value {
            Some(_) => requested != CollectAs::MessagePack,
            None => requested == own,
        };
        if fits {
            return Ok(requested);
        }
        Err(Failure::usage(match self.value {
            Some(_) => "--collect-as msgpack requires --values msgpack; to collect a MessagePack column unchanged, use --collect-as bytes".to_owned(),
            None => format!("values made of columns are encoded as {own}: omit --collect-as, or use --value COLUMN with --collect-as {requested}"),
        }))
    }

    /// Describes a build of these inputs, for the manifest.
    fn provenance(&self, inputs: &[String]) -> Result<larder_batch::Built, Failure> {
        let (value, value_column) = match (&self.value, self.values) {
            (Some(column), _) => ("column", Some(column.clone())),
            (None, Some(Values::Msgpack)) => ("msgpack", None),
            (None, _) => ("json", None),
        };
        let collect_as = self.collect_as()?;
        Ok(larder_batch::Built {
            by: format!("larder {}", env!("CARGO_PKG_VERSION")),
            at: build_time()?,
            inputs: inputs
                .iter()
                .take(larder_batch::Built::INPUTS_MAX)
                .map(|input| format_input(input))
                .collect(),
            more_inputs: inputs.len().saturating_sub(larder_batch::Built::INPUTS_MAX) as u64,
            key: self.key.clone(),
            value: value.to_owned(),
            value_column,
            collect_as: (self.on_duplicate == OnDuplicate::Collect).then_some(collect_as),
            on: Vec::new(),
            options: self.given.version_options(),
            profile: None,
            digest: String::new(),
        })
    }

    fn threads(&self) -> usize {
        self.threads
            .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
            .max(1)
    }
}

pub fn run(command: BuildCommand) -> Result<(), Failure> {
    interrupt::listen()?;
    let BuildCommand {
        inputs,
        store,
        out,
        build,
        gates,
        against,
        json,
    } = command;
    let place = parse_location(&out)?;
    let gates = gates.read(build.allow_empty)?;
    if place.as_local().is_none() && build.on.on.is_some() && gates.opens_version() {
        return Err(Failure::usage(
            "--canary and --check open the version, but a delta at a URL cannot be opened before it is uploaded; build it into a folder",
        ));
    }
    let before = against.as_deref().map(ComparedVersion::read).transpose()?;
    let judge = |folder: &Path| {
        if gates.is_any() {
            gates.evaluate(folder, before.as_ref())
        } else {
            Ok(())
        }
    };
    let built = match place.as_local() {
        Some(folder) if gates.is_any() => {
            let aside = StagedFolder::create(folder)?;
            let built = build_into(&inputs, &build, &store, aside.version(), &out, json)?;
            judge(aside.version())?;
            aside.move_to_place()?;
            built
        }
        Some(folder) => build_into(&inputs, &build, &store, folder, &out, json)?,
        None => {
            let temp = temp_folder(build.temp.as_deref())?;
            let folder = temp.path().join("version");
            let built = build_into(&inputs, &build, &store, &folder, &out, json)?;
            judge(&folder)?;
            upload_version(&folder, &place, json)?;
            built
        }
    };
    if json {
        return output::print_json(&built.to_json(&place));
    }
    output::print_line(&built.summary())?;
    output::print_line(&format!(
        "version of {store} is at {place}; `larder push {place} --store {store}` makes it live"
    ))
}

/// The result of a build.
pub struct BuildResult {
    pub manifest: Manifest,
    /// Rows that were skipped because their key or value was null.
    pub skipped_rows: u64,
    took: Duration,
}

impl BuildResult {
    /// Returns one line: records, sizes, the overhead of the format, and the speed.
    pub fn summary(&self) -> String {
        if self.manifest.is_delta() {
            return self.delta_summary();
        }
        let Manifest {
            record_count,
            key_bytes,
            value_bytes,
            size_bytes,
            partitions,
            ..
        } = self.manifest;
        let data_bytes = key_bytes + value_bytes;
        // With so few records, the fixed size of segments would dominate the overhead.
        const TELLING: u64 = 1 << 20;
        let share = match data_bytes {
            0..TELLING => String::new(),
            _ => {
                let beyond = size_bytes as f64 - data_bytes as f64;
                format!(
                    " ({:+.1}% over keys and values)",
                    100.0 * beyond / data_bytes as f64
                )
            }
        };
        let skipped = match self.skipped_rows {
            0 => String::new(),
            1 => "; 1 row with a null key or value was left out".to_owned(),
            rows => format!(
                "; {} rows with a null key or value were left out",
                count(rows)
            ),
        };
        format!(
            "built {} records, {} in {partitions} partitions{share}, in {} ({} records/s){skipped}",
            count(record_count),
            bytes(size_bytes),
            duration(self.took),
            count(rate(record_count, self.took) as u64)
        )
    }

    fn delta_summary(&self) -> String {
        let manifest = &self.manifest;
        let changes = manifest.segments.iter().map(|it| it.record_count).sum();
        format!(
            "built {} changes, {}, in {}: layer {} of a version of {} records",
            count(changes),
            bytes(manifest.own_bytes()),
            duration(self.took),
            manifest.layer_count(),
            count(manifest.record_count)
        )
    }

    fn to_json(&self, place: &Location) -> serde_json::Value {
        let manifest = &self.manifest;
        serde_json::json!({
            "layers": manifest.layer_count(),
            "own_bytes": manifest.own_bytes(),
            "store": manifest.store,
            "out": place.to_string(),
            "record_count": manifest.record_count,
            "key_bytes": manifest.key_bytes,
            "value_bytes": manifest.value_bytes,
            "size_bytes": manifest.size_bytes,
            "partitions": manifest.partitions,
            "digest": manifest.digest,
            "skipped_rows": self.skipped_rows,
            "took_ms": self.took.as_millis() as u64,
        })
    }
}

/// Builds the inputs into the folder `out`; `place` is the version's final location. On any failure, including ctrl-c,
/// `out` is removed.
pub fn build_into(
    inputs: &[String],
    args: &BuildArgs,
    store: &StoreName,
    out: &Path,
    place: &str,
    quiet: bool,
) -> Result<BuildResult, Failure> {
    if args.key.is_empty() {
        let columns = rows::find_columns(inputs, args).map_or_else(
            || "such as --key member".to_owned(),
            |all| format!("of {all}"),
        );
        return Err(Failure::usage(format!(
            "--key is missing: name the column, or columns, that make the key, {columns}"
        )));
    }
    let is_built = |input: &&String| Path::new(input).join(Manifest::FILE).is_file();
    if let Some(built) = inputs.iter().find(is_built) {
        return Err(Failure::usage(format!(
            "{built} is a built version and not an input of rows; push it alone: larder push {built} --store {store}"
        )));
    }
    let started = Instant::now();
    let memory = rows::Memory::share(args.memory)?;
    let on = args
        .on
        .open(&args.given, store, place, args.temp.as_deref())?;
    let mut built = args.provenance(inputs)?;
    if let Some(base) = on.as_ref().and_then(|on| on.base.manifest().built.as_ref()) {
        if inputs.is_empty() {
            built.copy_value_format(base);
        }
        if let Some(why) = built.find_mismatch(base) {
            return Err(Failure::usage(why));
        }
    }
    let options = BuildOptions {
        delta_base: on,
        partitions: args.partitions,
        memory: memory.sorting,
        threads: args.threads(),
        temp_dir: args.temp.clone(),
        compression: args.compress,
        filter: !args.no_filter,
        on_duplicate: args.on_duplicate,
        collect_as: args.collect_as()?,
        built: Some(built),
        profile: !args.no_profile,
        sign: args.sign.as_deref().map(keygen::read).transpose()?,
        is_cancelled: interrupt::is_interrupted,
        ..BuildOptions::new(store.clone())
    };
    let builder = Builder::new(options, out)?;
    let fed = rows::feed(inputs, args, &memory, &builder, quiet)?;
    interrupt::check()?;
    let progress = Progress::new(Unit::Records, "writing", quiet);
    let manifest = builder
        .finish_checked(
            &|done| progress.set("writing", done.records_done, done.records_total),
            &|manifest| match manifest.reject_empty_delta("--allow-empty") {
                Some(why) if !args.allow_empty => Err(larder_batch::Error::Refused(why)),
                _ => Ok(()),
            },
        )
        .map_err(|error| rows::builder_failure(error, &fed.positions, args.memory))?;
    drop(progress);
    if let Err(interrupted) = interrupt::check() {
        std::fs::remove_dir_all(out).map_err(Failure::io(format!("remove {}", out.display())))?;
        return Err(interrupted);
    }
    Ok(BuildResult {
        manifest,
        skipped_rows: fed.skipped,
        took: started.elapsed(),
    })
}

/// Copies a built version to a location from which servers can pull it. The manifest is copied last, so that an
/// incomplete version is never visible.
pub fn upload_version(folder: &Path, target: &Location, quiet: bool) -> Result<(), Failure> {
    let manifest = read_manifest(folder)?;
    let files: Vec<&str> = files_in(folder, &manifest).collect();
    let sizes = files.iter().map(|file| folder.join(file).metadata());
    let total = sizes.map(|it| it.map_or(0, |it| it.len())).sum();
    let progress = Progress::new(Unit::Bytes, "copying", quiet);
    let runtime = copying_runtime()?;
    let mut done_before = 0;
    for file in files.into_iter().chain([Manifest::FILE]) {
        interrupt::check()?;
        let local = folder.join(file);
        let place = target.join(file)?;
        let report = |done| progress.set("copying", done_before + done, total);
        runtime.block_on(place.put_file(&local, &report))?;
        done_before += local.metadata().map_or(0, |metadata| metadata.len());
    }
    Ok(())
}

/// Removes a version that [`upload_version`] copied. The manifest is removed first, so that no pull starts.
pub fn remove_version(folder: &Path, target: &Location) -> Result<(), Failure> {
    if let Some(path) = target.as_local() {
        return std::fs::remove_dir_all(path)
            .map_err(Failure::io(format!("remove {}", path.display())));
    }
    let manifest = read_manifest(folder)?;
    let runtime = copying_runtime()?;
    let segments = files_in(folder, &manifest);
    for file in [Manifest::FILE].into_iter().chain(segments) {
        let place = target.join(file)?;
        runtime.block_on(place.remove())?;
    }
    Ok(())
}

/// Lists the segments that belong into a version's folder: its own, and those of its base versions that are in the same
/// folder.
fn files_in<'a>(folder: &'a Path, manifest: &'a Manifest) -> impl Iterator<Item = &'a str> {
    let below = manifest.layers.iter().flat_map(|layer| &layer.segments);
    let below = below.filter(|entry| folder.join(&entry.file).exists());
    let all = below.chain(&manifest.segments);
    all.map(|entry| entry.file.as_str())
}

pub fn read_manifest(folder: &Path) -> Result<Manifest, Failure> {
    let bytes = std::fs::read(folder.join(Manifest::FILE)).map_err(Failure::io(format!(
        "read the manifest in {}",
        folder.display()
    )))?;
    Ok(Manifest::decode(&folder.display().to_string(), &bytes)?)
}

fn copying_runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start copying"))
}

/// Creates a temporary folder, in `parent` or the system's default. It is removed on drop.
pub fn temp_folder(parent: Option<&Path>) -> Result<tempfile::TempDir, Failure> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("larder-");
    match parent {
        Some(parent) => builder.tempdir_in(parent),
        None => builder.tempdir(),
    }
    .map_err(Failure::io(
        "make a temporary folder; choose another place with --temp",
    ))
}

/// Formats an input for messages: a URL without credentials and query, or a path as given.
fn format_input(input: &str) -> String {
    if input.contains("://") {
        Location::parse(input).map_or_else(|_| "a URL".to_owned(), |place| place.to_string())
    } else {
        input.to_owned()
    }
}

/// Returns the build time in seconds since 1970. `SOURCE_DATE_EPOCH` overrides the clock, for reproducible builds.
pub fn build_time() -> Result<u64, Failure> {
    const FIXED: &str = "SOURCE_DATE_EPOCH";
    match std::env::var(FIXED) {
        Err(_) => Ok(clock::unix_seconds()),
        Ok(text) => text.parse().map_err(|_| {
            Failure::usage(format!(
                "{FIXED} is {text:?}; set it to a number of seconds since 1970"
            ))
        }),
    }
}

/// Parses a path or URL from the command line.
pub fn parse_location(text: &str) -> Result<Location, Failure> {
    Location::parse(text).map_err(|error| Failure::usage(error.to_string()))
}
