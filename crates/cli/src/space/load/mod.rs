//! `larder space load`: loads rows of files into a space as objects.
//!
//! ```text
//!  files ── larder-ingest, one thread: rows in order ──► row ──► object: fields, checked ──► writer: batches, over several connections
//!                                                         │
//!                                    --create: first rows └─► propose ──► FT.CREATE
//! ```
//!
//! An object depends only on its row and the space, and a row overwrites the object with its key. A second run
//! therefore changes nothing, and an interrupted run can be repeated.

mod keys;
mod object;
mod propose;
mod row;
mod writer;

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use larder_client::Error;
use larder_ingest::{RowError, RowSink, SinkError};
use larder_space::object::ObjectKind;
use larder_space::schema::{AttributeKind, Definition};
use larder_types::ByteSize;

use super::info::{SpaceInfo, quote_arguments};
use super::nodes::Nodes;
use crate::build::{BuildArgs, rows};
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, count, duration, rate};
use crate::progress::{Progress, Unit};
use keys::KeyTemplate;
use object::{GeoSource, ObjectShape};
use propose::{AttributeType, propose};
use row::{Cell, Row};
use writer::{ObjectWrite, WriteOutcome, Writer};

pub use row::{BYTES, EXPIRES_AT, FIELDS, JSON, KEY, NAME_IN_BASE64};

const EXAMPLES: &str = "\
Examples:
    larder space load hotels.csv --space hotels --key id --prefix hotel: --create
    larder space load 'day/*.parquet' --space hotels --key '{city}-{id}'
    larder space load places.csv --space places --key '{#}' --create --geo at=lat,lon --type phone:none
    larder space load hotels.parquet --space hotels --create      restores a dump and its space

Each row becomes an object, whose key is the prefix followed by the row's key, with one field for each column that is not empty. If the object exists, these fields
are overwritten, and the fields of empty columns are removed. A load is therefore idempotent: repeat it to complete an interrupted run. Rows with the same key are
written in their order. Types are checked before a row is sent: for example, a word in a numeric attribute is an error that names the file and the line.

With --create, a space that does not exist is declared from the columns, and the FT.CREATE command is printed. Numbers are NUMERIC (including $1,200.00 and 85%),
dates TIMESTAMP, truth values BOOLEAN and long texts TEXT. A latitude and a longitude form a field `location` (GEO). Other columns are TAG. --type overrides a type.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArgs {
    /// Files, globs or URLs: Parquet, Arrow IPC, Avro, CSV, TSV or JSON lines, also .gz and .zst
    #[arg(required = true, value_name = "FILE")]
    inputs: Vec<String>,
    /// The space
    #[arg(long, value_name = "NAME")]
    space: String,
    #[command(flatten)]
    server: ServerArgs,
    /// The key column, or a template such as '{country}:{id}'; {#} is the row number [default: the column __key or id,
    /// if it exists]
    #[arg(long, value_name = "COL|TEMPLATE", help_heading = "Rows")]
    key: Option<String>,
    /// The prefix of the keys [default: the space's prefix; with --create NAME:]
    #[arg(long, value_name = "TEXT", help_heading = "Rows")]
    prefix: Option<String>,
    /// Declare the space from the columns if it does not exist
    #[arg(long, help_heading = "Space")]
    create: bool,
    /// The attribute type of a column, instead of the type detected from its first rows: tag, numeric, text, geo,
    /// timestamp, boolean or none
    #[arg(
        long = "type",
        value_name = "COL:TYPE[,COL:TYPE]",
        value_delimiter = ',',
        value_parser = parse_type,
        requires = "create",
        help_heading = "Space"
    )]
    types: Vec<(String, AttributeType)>,
    /// Form points from two columns (at=latitude,longitude creates a field `at`), or declare the order of coordinates in a column
    /// (COL=lat,lon)
    #[arg(long, value_name = "NAME=A,B", help_heading = "Rows")]
    geo: Vec<GeoSource>,
    /// Handling of a row that cannot be parsed, has a wrong type or is rejected: stop, or skip it and report it at the end
    #[arg(
        long,
        value_name = "HOW",
        default_value = "stop",
        help_heading = "Rows"
    )]
    on_error: OnError,
    /// The format of the inputs, if their names do not show it: parquet, arrow, avro, csv, tsv, jsonl
    #[arg(long, value_name = "FORMAT", help_heading = "Rows")]
    format: Option<String>,
    /// The field separator of a CSV file, one byte such as ';' or '\t' [default: the first of , tab ; | in the first line]
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    delimiter: Option<String>,
    /// The character that escapes a quote inside a quoted field of a CSV file, such as '\' for Spark's [default: quotes are doubled]
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    escape: Option<String>,
    /// The first line of a CSV file is data; the columns are named 1, 2, 3 and so on
    #[arg(long, help_heading = "Rows")]
    no_header: bool,
    /// The column names of a CSV file without a header
    #[arg(
        long,
        value_name = "COL[,COL]",
        value_delimiter = ',',
        help_heading = "Rows"
    )]
    columns: Vec<String>,
    /// Skip this number of lines at the beginning of a CSV file, before its header
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = parse_count::<u64>, help_heading = "Rows")]
    skip_lines: u64,
    /// Skip the lines of a CSV file that begin with this character, such as '#'
    #[arg(long, value_name = "CHAR", help_heading = "Rows")]
    comment: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OnError {
    Stop,
    Skip,
}

fn parse_type(text: &str) -> Result<(String, AttributeType), String> {
    match text.rsplit_once(':') {
        Some((column, kind)) if !column.is_empty() => Ok((column.to_owned(), kind.parse()?)),
        _ => Err(format!(
            "{text:?} is not COLUMN:TYPE, such as price:numeric"
        )),
    }
}

/// Maximum number and total size of the rows from which a space is proposed.
const SAMPLE_ROWS: usize = 5_000;
const SAMPLE_BYTES: usize = 16 << 20;
/// Maximum number of skipped rows that are reported individually.
const REPORTED_MAX: usize = 20;
/// Memory for parsing; one row takes at most a fifth.
const MEMORY: ByteSize = ByteSize(256 << 20);
/// Maximum number of changes in one `OBJ.CHANGE` command.
const CHANGES_MAX: usize = 128;

pub fn run(args: LoadArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let nodes = Nodes::connect(&args.server)?;
    let started = Instant::now();
    let shape = match SpaceInfo::find(&nodes, &args.space)? {
        Some(space) => Some(args.shape(space.definition)?),
        None if args.create => None,
        None => {
            return Err(Failure::not_found(format!(
                "there is no space {}; with --create it is declared for the columns of the input",
                args.space
            )));
        }
    };
    let key = args.key.as_deref().map(KeyTemplate::parse).transpose();
    let key = key.map_err(Failure::usage)?;
    let options = args.input_options()?;
    let written = WriteOutcome::default();
    let progress = Progress::new(Unit::Bytes, "loading", args.json);
    let loaded = std::thread::scope(|scope| {
        let loader = Mutex::new(Loader {
            args: &args,
            nodes: &nodes,
            written: &written,
            writer: Some(Writer::start(scope, &nodes, &written)),
            shape,
            key,
            sample: Vec::new(),
            sample_bytes: 0,
            rows: 0,
            skipped: Skipped::default(),
            created: None,
        });
        let sink = || -> Result<Box<dyn RowSink>, SinkError> { Ok(Box::new(Sink(&loader))) };
        let report = |done: larder_ingest::Progress| {
            progress.set("loading", done.bytes_read, done.bytes_total.unwrap_or(0));
        };
        let done = ingest(&options, &sink, &report);
        let mut loader = loader.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = loader.writer.take() {
            writer.finish();
        }
        let done = done.map_err(|error| loader.failure(error))?;
        Ok::<_, Failure>((loader.skipped, loader.created, loader.rows, done.positions))
    });
    drop(progress);
    let (mut skipped, created, rows, places) = loaded?;
    let objects = written.objects.into_inner();
    skipped.reasons.sort_by_key(|(seq, _)| *seq);
    let failed = skipped
        .reasons
        .iter()
        .map(|(seq, why)| match places.locate(*seq) {
            Some((file, at)) => format!("{file}{at}: {why}"),
            None => why.clone(),
        });
    let failed: Vec<String> = failed.collect();
    if args.json {
        return output::print_json(&serde_json::json!({
            "space": args.space,
            "rows": rows,
            "objects": objects,
            "skipped": skipped.count,
            "errors": failed,
            "created": created,
            "took_ms": started.elapsed().as_millis() as u64,
        }));
    }
    for line in &failed {
        eprintln!("skipped {line}");
    }
    if skipped.count > failed.len() as u64 {
        eprintln!("and {} more", count(skipped.count - failed.len() as u64));
    }
    output::print_line(&summary(
        &args.space,
        objects,
        skipped.count,
        started.elapsed(),
    ))
}

fn summary(space: &str, objects: u64, skipped: u64, took: Duration) -> String {
    let skipped = match skipped {
        0 => String::new(),
        1 => "; 1 row was skipped".to_owned(),
        rows => format!("; {} rows were skipped", count(rows)),
    };
    format!(
        "loaded {} objects into {space}, in {} ({} objects/s){skipped}",
        count(objects),
        duration(took),
        count(rate(objects, took) as u64)
    )
}

fn ingest<'s>(
    options: &larder_ingest::InputOptions,
    sink: &(dyn Fn() -> Result<Box<dyn RowSink + 's>, SinkError> + Sync),
    report: &(dyn Fn(larder_ingest::Progress) + Sync),
) -> Result<larder_ingest::Summary, larder_ingest::Error> {
    larder_ingest::ingest(options, sink, report)
}

impl LoadArgs {
    fn input_options(&self) -> Result<larder_ingest::InputOptions, Failure> {
        let build = BuildArgs {
            format: self.format.clone(),
            delimiter: self.delimiter.clone(),
            escape: self.escape.clone(),
            no_header: self.no_header,
            columns: self.columns.clone(),
            skip_lines: self.skip_lines,
            comment: self.comment.clone(),
            memory: MEMORY,
            // Rows must arrive in order, and the server is the bottleneck.
            threads: Some(1),
            ..BuildArgs::json_lines("")
        };
        let memory = rows::Memory::share(MEMORY)?;
        let options = rows::input_options(&self.inputs, &build, &memory)?;
        Ok(larder_ingest::InputOptions {
            key: Vec::new(),
            whole_rows: true,
            skip_malformed: self.on_error == OnError::Skip,
            ..options
        })
    }

    fn shape(&self, definition: Definition) -> Result<ObjectShape, Failure> {
        let prefix = match (&self.prefix, definition.prefixes.as_slice()) {
            (Some(prefix), _) => prefix.clone(),
            (None, [prefix]) => String::from_utf8_lossy(prefix).into_owned(),
            (None, _) => {
                return Err(Failure::usage(format!(
                    "space {} does not have exactly one prefix; choose the prefix of the new keys with --prefix",
                    self.space
                )));
            }
        };
        Ok(ObjectShape {
            definition,
            prefix,
            geo: self.geo.clone(),
        })
    }
}

/// Rows that were skipped.
#[derive(Default)]
struct Skipped {
    count: u64,
    reasons: Vec<(u64, String)>,
}

impl Skipped {
    fn add(&mut self, seq: u64, why: String) {
        self.count += 1;
        if self.reasons.len() < REPORTED_MAX {
            self.reasons.push((seq, why));
        }
    }
}

struct Loader<'scope> {
    args: &'scope LoadArgs,
    nodes: &'scope Nodes,
    written: &'scope WriteOutcome,
    writer: Option<Writer<'scope>>,
    /// `None` until the space is declared.
    shape: Option<ObjectShape>,
    key: Option<KeyTemplate>,
    /// The rows from which the space is proposed.
    sample: Vec<(u64, Row)>,
    sample_bytes: usize,
    rows: u64,
    skipped: Skipped,
    /// The FT.CREATE command, if the space was declared.
    created: Option<String>,
}

struct Sink<'a, 'scope>(&'a Mutex<Loader<'scope>>);

impl RowSink for Sink<'_, '_> {
    fn row(&mut self, seq: u64, _key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let mut loader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loader.row(seq, value)
    }

    fn malformed(&mut self, seq: u64, reason: String) -> Result<(), SinkError> {
        let mut loader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loader.skipped.add(seq, reason);
        Ok(())
    }

    fn check(&mut self) -> Result<(), SinkError> {
        if interrupt::is_interrupted() {
            Err("interrupted".into())
        } else {
            Ok(())
        }
    }

    fn finish(self: Box<Self>) -> Result<(), SinkError> {
        let mut loader = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loader.finish_sampling()?;
        if let Some(writer) = loader.writer.take() {
            writer.finish();
        }
        loader.handle_rejected()
    }
}

impl Loader<'_> {
    fn row(&mut self, seq: u64, json: &[u8]) -> Result<(), SinkError> {
        self.handle_rejected()?;
        let row = Row::parse(json)?;
        if self.shape.is_some() {
            return self.put(seq, row);
        }
        self.sample_bytes += json.len();
        self.sample.push((seq, row));
        if self.sample.len() >= SAMPLE_ROWS || self.sample_bytes >= SAMPLE_BYTES {
            self.finish_sampling()
        } else {
            Ok(())
        }
    }

    /// Declares the space if necessary, and loads the sampled rows.
    fn finish_sampling(&mut self) -> Result<(), SinkError> {
        if self.shape.is_some() {
            return Ok(());
        }
        let sample = std::mem::take(&mut self.sample);
        let arguments = match self.args.read_definition()? {
            Some(arguments) => arguments,
            None => self.propose_space(&sample)?,
        };
        let shown = format!("FT.CREATE {}", quote_arguments(&arguments));
        let parts: Vec<&[u8]> = [&b"FT.CREATE"[..]]
            .into_iter()
            .chain(arguments.iter().map(Vec::as_slice))
            .collect();
        let definition = Definition::parse_create(&parts[1..]);
        let definition = definition.map_err(|refused| format!("{shown}: {refused}"))?;
        let shape = self.args.shape(definition);
        let shape = shape.map_err(|failure| failure.message)?;
        if self.args.on_error == OnError::Stop {
            // Report errors in these rows before anything is changed.
            for ((seq, row), number) in sample.iter().zip(1..) {
                let made = build_object(&shape, self.key.as_ref(), *seq, row.clone(), number);
                made.map_err(|reason| RowError { seq: *seq, reason })?;
            }
        }
        self.shape = Some(shape);
        let declared = self.nodes.command(&parts);
        declared.map_err(|failure| format!("{shown}: {failure}"))?;
        if !self.args.json {
            output::print_line(&shown).map_err(|failure| failure.message)?;
        }
        self.created = Some(shown);
        for (seq, row) in sample {
            self.put(seq, row)?;
        }
        Ok(())
    }

    fn propose_space(&self, sample: &[(u64, Row)]) -> Result<Vec<Vec<u8>>, SinkError> {
        if sample.is_empty() {
            return Err("the input has no rows from which to propose a space".into());
        }
        let prefix = match &self.args.prefix {
            Some(prefix) => prefix.clone(),
            None => format!("{}:", self.args.space),
        };
        let sample: Vec<Row> = sample.iter().map(|(_, row)| row.clone()).collect();
        let keys = match &self.key {
            // A single key column needs no attribute; each of several columns may be worth searching.
            Some(key) if key.columns().count() == 1 => key.columns().collect(),
            Some(_) => Vec::new(),
            None => vec!["id"],
        };
        let geo: Vec<String> = self.args.geo.iter().map(|it| it.name.clone()).collect();
        let proposal = propose(
            &self.args.space,
            &prefix,
            &sample,
            &keys,
            &self.args.types,
            &geo,
        )?;
        for note in &proposal.notes {
            eprintln!("larder: {note}");
        }
        Ok(proposal.arguments)
    }

    fn put(&mut self, seq: u64, row: Row) -> Result<(), SinkError> {
        self.rows += 1;
        let shape = self.shape.as_ref().ok_or("the space is not declared yet")?;
        match build_object(shape, self.key.as_ref(), seq, row, self.rows) {
            Ok((key, object)) => {
                if let Some(writer) = &mut self.writer {
                    writer.put(&key, object);
                }
                Ok(())
            }
            Err(why) if self.args.on_error == OnError::Skip => {
                self.skipped.add(seq, why);
                Ok(())
            }
            Err(reason) => Err(Box::new(RowError { seq, reason })),
        }
    }

    /// Handles the objects that the server rejected.
    fn handle_rejected(&mut self) -> Result<(), SinkError> {
        if !self.written.has_failed() {
            return Ok(());
        }
        for (seq, error) in self.written.take_failed() {
            let is_of_row = matches!(error, Error::Refused { retry: false, .. });
            match self.args.on_error {
                OnError::Skip if is_of_row => self.skipped.add(seq, error.to_string()),
                _ => {
                    let reason = error.to_string();
                    return Err(Box::new(RowError { seq, reason }));
                }
            }
        }
        Ok(())
    }

    fn failure(&self, error: larder_ingest::Error) -> Failure {
        let objects = self
            .written
            .objects
            .load(std::sync::atomic::Ordering::Relaxed);
        let done = format!(
            "; {} objects were written, and another run finishes it",
            count(objects)
        );
        if interrupt::is_interrupted() {
            return Failure::interrupted(format!("interrupted{done}"));
        }
        let mut failure = rows::ingest_failure(error, MEMORY);
        if objects > 0 {
            failure.message += &done;
        }
        failure
    }
}

/// Converts a row to its key and the commands that write its object.
fn build_object(
    shape: &ObjectShape,
    template: Option<&KeyTemplate>,
    seq: u64,
    mut row: Row,
    number: u64,
) -> Result<(Vec<u8>, ObjectWrite), String> {
    let extra = row.take_extra().map_err(|error| error.to_string())?;
    let key = match (template, &extra.key) {
        (None, Some(key)) => key.clone(),
        (Some(template), _) => template.key(&shape.prefix, &row, number)?,
        (None, None) if row.get("id").is_some() => {
            let id = KeyTemplate::parse("id")?;
            id.key(&shape.prefix, &row, number)?
        }
        (None, None) => {
            let have: Vec<&str> = row.0.iter().map(|(name, _)| &**name).collect();
            return Err(format!(
                "the key is not specified; pass --key COLUMN, a template such as --key '{{a}}-{{b}}', or --key '{{#}}' for the number of the row; the columns are {}",
                have.join(", ")
            ));
        }
    };
    if !shape.definition.covers_key(&key) {
        let prefixes = shape.definition.prefixes.iter();
        let prefixes: Vec<_> = prefixes.map(|it| String::from_utf8_lossy(it)).collect();
        return Err(format!(
            "the key {} is not of space {}, whose keys begin with {}",
            String::from_utf8_lossy(&key),
            shape.definition.name,
            prefixes.join(" or ")
        ));
    }
    // A dumped object is restored as it was, even if fields do not fit their attributes.
    let is_dumped = template.is_none() && extra.key.is_some();
    let mut commands = match (shape.definition.on, is_dumped) {
        (ObjectKind::Json, _) => vec![document(shape, &key, &row, extra.json)?],
        (ObjectKind::Hash, true) => hash_commands(&key, row.fields(), extra.fields)?,
        (ObjectKind::Hash, false) => hash_commands(&key, shape.fields(&row)?, extra.fields)?,
    };
    if let Some(at) = extra.expires_at {
        commands.push(vec![
            b"PEXPIREAT".to_vec(),
            key.clone(),
            at.to_string().into_bytes(),
        ]);
    }
    Ok((key, ObjectWrite::new(seq, commands)))
}

fn hash_commands(
    key: &[u8],
    fields: Vec<(String, Option<String>)>,
    more: Vec<(Vec<u8>, Vec<u8>)>,
) -> Result<Vec<Vec<Vec<u8>>>, String> {
    let fields = fields
        .into_iter()
        .map(|(name, value)| (name.into_bytes(), value.map(String::into_bytes)));
    let more = more.into_iter().map(|(name, value)| (name, Some(value)));
    let (mut set, mut gone) = (Vec::new(), Vec::new());
    for (name, value) in fields.chain(more) {
        match value {
            Some(value) => set.push((name, value)),
            None => gone.push(name),
        }
    }
    // In a dump, the column of a field that is not UTF-8 is empty.
    gone.retain(|name| set.iter().all(|(own, _)| own != name));
    if set.is_empty() {
        return Err("every column is empty; an object has one field at least".to_owned());
    }
    let is_path = |name: &[u8]| name.windows(2).any(|two| two == b"->");
    let names = set.iter().map(|(name, _)| name).chain(&gone);
    let is_one = set.len() + gone.len() <= CHANGES_MAX && !names.clone().any(|it| is_path(it));
    if !gone.is_empty() && is_one {
        let mut change = vec![b"OBJ.CHANGE".to_vec(), key.to_vec(), b"DO".to_vec()];
        for (name, value) in set {
            change.extend([b"PUT".to_vec(), name, value]);
        }
        for name in gone {
            change.extend([b"UNSET".to_vec(), name]);
        }
        return Ok(vec![change]);
    }
    let mut put = vec![b"HSET".to_vec(), key.to_vec()];
    for (name, value) in set {
        put.extend([name, value]);
    }
    let mut commands = vec![put];
    if !gone.is_empty() {
        let head = [b"HDEL".to_vec(), key.to_vec()];
        commands.push(head.into_iter().chain(gone).collect());
    }
    Ok(commands)
}

/// Returns the document of a dump, or one with a member for each column that is not empty.
fn document(
    shape: &ObjectShape,
    key: &[u8],
    row: &Row,
    complete: Option<String>,
) -> Result<Vec<Vec<u8>>, String> {
    let text = match complete {
        Some(text) => text,
        None => {
            let mut document = serde_json::Map::new();
            for (name, cell) in &row.0 {
                let value = match cell {
                    Cell::Null => continue,
                    Cell::Nested(json) => {
                        serde_json::from_str(json).map_err(|error| error.to_string())?
                    }
                    Cell::Text(text) => {
                        let path = format!("$.{name}");
                        let mut attributes = shape.definition.attributes.iter();
                        let attribute = attributes.find(|it| it.identifier == path);
                        json_member(attribute.map(|it| &it.kind), text)
                    }
                };
                document.insert(name.clone(), value);
            }
            serde_json::Value::Object(document).to_string()
        }
    };
    Ok(vec![
        b"JSON.SET".to_vec(),
        key.to_vec(),
        b"$".to_vec(),
        text.into_bytes(),
    ])
}

fn json_member(kind: Option<&AttributeKind>, text: &str) -> serde_json::Value {
    let parsed = match kind {
        Some(AttributeKind::Numeric) => {
            let plain = object::normalize_number(text).unwrap_or_else(|| text.to_owned());
            serde_json::from_str(&plain).ok()
        }
        Some(AttributeKind::Boolean) => {
            object::parse_boolean(text).and_then(|it| serde_json::from_str(it).ok())
        }
        _ => None,
    };
    let parsed = parsed.filter(|it: &serde_json::Value| it.is_number() || it.is_boolean());
    parsed.unwrap_or_else(|| text.into())
}

impl LoadArgs {
    /// Returns the arguments of FT.CREATE from the file next to a dump of this space.
    fn read_definition(&self) -> Result<Option<Vec<Vec<u8>>>, SinkError> {
        let [input] = self.inputs.as_slice() else {
            return Ok(None);
        };
        let path = super::dump::definition_path(input);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) if self.types.is_empty() => text,
            _ => return Ok(None),
        };
        let bad = |why: &dyn std::fmt::Display| {
            SinkError::from(format!(
                "{path} is not in the format of `larder space dump` ({why}); remove it to propose the space from the columns"
            ))
        };
        let arguments: Vec<String> = serde_json::from_str(&text).map_err(|error| bad(&error))?;
        let mut arguments: Vec<Vec<u8>> = arguments.into_iter().map(String::into_bytes).collect();
        match arguments.first_mut() {
            Some(name) => *name = self.space.clone().into_bytes(),
            None => return Err(bad(&"it is empty")),
        }
        Ok(Some(arguments))
    }
}
