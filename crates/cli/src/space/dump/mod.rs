//! `larder space dump`: writes all objects of a space to a file that `larder space load` reads.
//!
//! ```text
//!  FT.AGGREGATE .. LOAD 1 @__key WITHCURSOR ─► keys, a page at a time ─► HGETALL and PEXPIRETIME of each ─► sheet: rows ─► FILE.part ─► FILE
//! ```
//!
//! The cursor returns the keys in order and continues after the last one. An object that exists throughout is therefore
//! read exactly once, whatever is written meanwhile, and in a state that it had at some moment of the dump. Memory is
//! limited to a page.
//!
//! | column | contents |
//! |---|---|
//! | `__key` | the key |
//! | a field's name | for each attribute, the field that it reads |
//! | `__fields` | other fields, as a JSON object |
//! | `__bytes` | fields (and a `__key`) that are not UTF-8, in base64, as a JSON object; a field name that is not UTF-8 is written as `base64:` and the name in base64 |
//! | `__json` | for spaces of documents: the document |
//! | `__expires_at` | the object's expiry time, in milliseconds since 1970 |

mod sheet;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use base64::prelude::{BASE64_STANDARD, Engine};
use clap::Args;
use larder_client::{Error, Reply};
use larder_space::object::ObjectKind;
use larder_space::schema::Definition;

use super::info::{SpaceInfo, bytes as raw, items, value};
use super::load::{BYTES, EXPIRES_AT, FIELDS, JSON, KEY, NAME_IN_BASE64};
use super::nodes::Nodes;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, bytes, count, duration, rate};
use crate::progress::{Progress, Unit};
use sheet::{Format, Sheet};

const EXAMPLES: &str = "\
Examples:
    larder space dump --space hotels -o hotels.parquet
    larder space dump --space hotels -o hotels.jsonl
    larder space load hotels.parquet --space hotels --create      restores the objects and the space's definition

Writes may continue during the dump. The file contains every object that exists throughout the dump exactly once, as it was at some instant of the dump. Objects that
are created or deleted during the dump may be missing. The file appears when it is complete; FILE.create beside it contains the space's definition. The dump keeps
the expiry of objects, but not of single fields (HEXPIRE).";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SpaceDumpArgs {
    /// The space
    #[arg(long, value_name = "NAME")]
    space: String,
    /// The file to write: .parquet, .csv or .jsonl
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The format of the file, if its name does not show it: parquet, csv or jsonl
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Keys per page, and objects per request.
const PAGE: &str = "1000";
const OBJECTS_PER_REQUEST: usize = 100;
/// Polling interval while the servers are still indexing objects.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time in milliseconds for which the server keeps the cursor between two pages.
const CURSOR_IDLE_MS: &str = "300000";

/// Returns the name of the file with the space's definition, next to a dump.
pub fn definition_path(file: &str) -> String {
    format!("{file}.create")
}

pub fn run(args: SpaceDumpArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let format = match args.format {
        Some(format) => format,
        None => Format::of(&args.output)?,
    };
    let nodes = Nodes::connect(&args.server)?;
    let started = Instant::now();
    let space = wait_until_indexed(&nodes, &args.space, args.json)?;
    let part = PathBuf::from(format!("{}.part", args.output.display()));
    let dumped = dump(&nodes, &space, format, &part, args.json);
    let done = dumped.and_then(|objects| {
        let size = std::fs::metadata(&part).map_or(0, |it| it.len());
        write_definition(&space.definition, &args.output)?;
        std::fs::rename(&part, &args.output)
            .map_err(Failure::io(format!("write {}", args.output.display())))?;
        Ok((objects, size))
    });
    let (objects, size) = done.inspect_err(|_| {
        // The file may not exist.
        let _ = std::fs::remove_file(&part);
    })?;
    report(&args, objects, size, started.elapsed())
}

/// Waits until the servers have indexed all objects that existed before the space, because the cursor would miss the
/// others. Returns the space.
fn wait_until_indexed(nodes: &Nodes, name: &str, quiet: bool) -> Result<SpaceInfo, Failure> {
    let progress = Progress::new(Unit::Records, "indexing", quiet);
    loop {
        let space = SpaceInfo::fetch(nodes, name)?;
        if !space.is_indexing {
            return Ok(space);
        }
        interrupt::check()?;
        progress.set("indexing", space.objects, 0);
        interrupt::wait(POLL_INTERVAL);
    }
}

fn report(args: &SpaceDumpArgs, objects: u64, size: u64, took: Duration) -> Result<(), Failure> {
    let file = args.output.display();
    if args.json {
        return output::print_json(&serde_json::json!({
            "space": args.space,
            "file": file.to_string(),
            "objects": objects,
            "size_bytes": size,
            "took_ms": took.as_millis() as u64,
        }));
    }
    output::print_line(&format!(
        "dumped {} objects of {} to {file} ({}), in {} ({} objects/s)",
        count(objects),
        args.space,
        bytes(size),
        duration(took),
        count(rate(objects, took) as u64)
    ))
}

/// Writes the definition next to the file.
fn write_definition(definition: &Definition, file: &Path) -> Result<(), Failure> {
    let path = definition_path(&file.display().to_string());
    let arguments = definition.to_arguments();
    let arguments: Vec<_> = arguments
        .iter()
        .map(|it| String::from_utf8_lossy(it))
        .collect();
    let text = serde_json::to_string(&arguments);
    let text = text.map_err(|error| Failure::new(error.to_string()))?;
    std::fs::write(&path, text + "\n").map_err(Failure::io(format!("write {path}")))
}

fn dump(
    nodes: &Nodes,
    space: &SpaceInfo,
    format: Format,
    part: &Path,
    quiet: bool,
) -> Result<u64, Failure> {
    let columns = Columns::from_definition(&space.definition);
    let mut sheet = Sheet::create(part, format, &columns.names)?;
    let progress = Progress::new(Unit::Records, "dumping", quiet);
    let mut cursor = Cursor::open(nodes, &space.definition.name)?;
    let (mut read, mut objects) = (0, 0);
    while let Some(keys) = cursor.page(nodes)? {
        for keys in keys.chunks(OBJECTS_PER_REQUEST) {
            if interrupt::is_interrupted() {
                return Err(Failure::interrupted(
                    "interrupted; no partial output was left",
                ));
            }
            for row in columns.rows(nodes, keys, format)? {
                sheet.row(&row)?;
                objects += 1;
            }
            read += keys.len() as u64;
            progress.set("dumping", read, space.objects);
        }
    }
    sheet.finish()?;
    Ok(objects)
}

/// The keys of a space, in order.
struct Cursor {
    space: String,
    /// A page that was received and not returned yet.
    page: Option<Vec<Vec<u8>>>,
    /// 0: there are no more pages.
    number: i64,
}

impl Cursor {
    fn open(nodes: &Nodes, space: &str) -> Result<Cursor, Failure> {
        let words = [
            "FT.AGGREGATE",
            space,
            "*",
            "LOAD",
            "1",
            "@__key",
            "WITHCURSOR",
            "COUNT",
            PAGE,
            "MAXIDLE",
            CURSOR_IDLE_MS,
        ];
        let words = words.map(str::as_bytes);
        let reply = nodes.single_node().command(&words)?;
        let mut cursor = Cursor {
            space: space.to_owned(),
            page: None,
            number: 0,
        };
        cursor.take(&reply)?;
        Ok(cursor)
    }

    fn page(&mut self, nodes: &Nodes) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        if self.page.is_none() && self.number != 0 {
            let number = self.number.to_string();
            let words = ["FT.CURSOR", "READ", &self.space, &number, "COUNT", PAGE];
            let words = words.map(str::as_bytes);
            let reply = nodes.single_node().command(&words).map_err(|error| {
                Failure::new(format!(
                    "the dump is not complete, and was removed: {error}; run it again"
                ))
            })?;
            self.take(&reply)?;
        }
        Ok(self.page.take())
    }

    fn take(&mut self, reply: &Reply) -> Result<(), Failure> {
        let [rows, Reply::Integer(number)] = items(reply) else {
            return Err(Failure::new(
                "the server returned no cursor; use the same version of larder on both sides",
            ));
        };
        let keys = items(rows).iter().skip(1);
        let keys = keys.filter_map(|row| value(row, KEY));
        self.page = Some(keys.map(|key| raw(key).to_vec()).collect());
        self.number = *number;
        Ok(())
    }
}

struct Columns {
    names: Vec<String>,
    /// Number of fields with their own column. These columns follow the key's.
    fields: usize,
    on: ObjectKind,
}

/// Parts of a row without their own column, or that are not UTF-8.
#[derive(Default)]
struct ExtraFields {
    others: BTreeMap<String, String>,
    no_texts: BTreeMap<String, String>,
}

impl Columns {
    fn from_definition(definition: &Definition) -> Columns {
        let mut names = vec![KEY.to_owned()];
        if definition.on == ObjectKind::Hash {
            for attribute in &definition.attributes {
                let name = &attribute.identifier;
                if !names.contains(name) && !name.starts_with("__") {
                    names.push(name.clone());
                }
            }
        }
        let fields = names.len() - 1;
        let more = match definition.on {
            ObjectKind::Hash => [FIELDS, BYTES, EXPIRES_AT].as_slice(),
            ObjectKind::Json => &[JSON, BYTES, EXPIRES_AT],
        };
        names.extend(more.iter().map(|it| (*it).to_owned()));
        Columns {
            names,
            fields,
            on: definition.on,
        }
    }

    /// Returns the rows of the objects that still exist.
    fn rows(
        &self,
        nodes: &Nodes,
        keys: &[Vec<u8>],
        format: Format,
    ) -> Result<Vec<Vec<Option<String>>>, Failure> {
        let read: &[u8] = match self.on {
            ObjectKind::Hash => b"HGETALL",
            ObjectKind::Json => b"JSON.GET",
        };
        let commands: Vec<Vec<&[u8]>> = keys
            .iter()
            .flat_map(|key| [vec![read, key], vec![b"PEXPIRETIME", key]])
            .collect();
        let mut replies = nodes.client().pipeline(&commands)?.into_iter();
        let mut rows = Vec::new();
        for key in keys {
            let (Some(object), Some(expires)) = (replies.next(), replies.next()) else {
                break;
            };
            let object = match object {
                Ok(object) => object,
                // The key has another type now.
                Err(Error::Refused { code, .. }) if code == "WRONGTYPE" => continue,
                Err(error) => return Err(error.into()),
            };
            let expires_at = match expires? {
                Reply::Integer(at @ 0..) => Some(at.to_string()),
                _ => None,
            };
            rows.extend(self.row(key, &object, expires_at, format));
        }
        Ok(rows)
    }

    /// Returns `None` if the object no longer exists.
    fn row(
        &self,
        key: &[u8],
        object: &Reply,
        expires_at: Option<String>,
        format: Format,
    ) -> Option<Vec<Option<String>>> {
        let mut row = vec![None; self.names.len()];
        let mut rest = ExtraFields::default();
        match std::str::from_utf8(key) {
            Ok(key) => row[0] = Some(key.to_owned()),
            Err(_) => drop(
                rest.no_texts
                    .insert(KEY.to_owned(), BASE64_STANDARD.encode(key)),
            ),
        }
        match (self.on, object) {
            (ObjectKind::Json, Reply::Bulk(document)) => {
                row[1] = Some(String::from_utf8_lossy(document).into_owned());
            }
            (ObjectKind::Json, _) => return None,
            (ObjectKind::Hash, object) => {
                let pairs = pairs(object);
                if pairs.is_empty() {
                    return None;
                }
                for (name, value) in pairs {
                    self.field(name, value, format, &mut row, &mut rest);
                }
            }
        }
        let last = self.names.len() - 1;
        let json = |fields: &BTreeMap<String, String>| {
            let is_any = !fields.is_empty();
            is_any.then(|| serde_json::to_string(fields).unwrap_or_default())
        };
        if self.on == ObjectKind::Hash {
            row[last - 2] = json(&rest.others);
        }
        row[last - 1] = json(&rest.no_texts);
        row[last] = expires_at;
        Some(row)
    }

    fn field(
        &self,
        name: &[u8],
        value: &[u8],
        format: Format,
        row: &mut [Option<String>],
        rest: &mut ExtraFields,
    ) {
        let (name, text) = match (std::str::from_utf8(name), std::str::from_utf8(value)) {
            (Ok(name), Ok(text)) => (name, text),
            (name_text, _) => {
                // The name `__key` in this column is reserved for the key.
                let plain = name_text
                    .ok()
                    .filter(|it| *it != KEY && !it.starts_with(NAME_IN_BASE64));
                let column = match plain {
                    Some(name) => name.to_owned(),
                    None => NAME_IN_BASE64.to_owned() + &BASE64_STANDARD.encode(name),
                };
                rest.no_texts.insert(column, BASE64_STANDARD.encode(value));
                return;
            }
        };
        let mut fields = self.names[1..=self.fields].iter();
        match fields.position(|own| own == name) {
            // In CSV, an empty cell means that there is no value.
            Some(at) if !(text.is_empty() && format == Format::Csv) => {
                row[at + 1] = Some(text.to_owned());
            }
            _ => drop(rest.others.insert(name.to_owned(), text.to_owned())),
        }
    }
}

/// Returns the fields of a hash with their values.
fn pairs(object: &Reply) -> Vec<(&[u8], &[u8])> {
    match object {
        Reply::Map(pairs) => pairs.iter().map(|(n, v)| (raw(n), raw(v))).collect(),
        other => {
            let pairs = items(other).chunks_exact(2);
            pairs.map(|pair| (raw(&pair[0]), raw(&pair[1]))).collect()
        }
    }
}
