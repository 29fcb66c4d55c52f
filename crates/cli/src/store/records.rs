//! `larder store get`, `sample`, `dump` and `diff`: show records.

use std::io::{IsTerminal, Read};

use clap::Args;
use larder_client::AdminClient;
use larder_protocol::http::{ChangeKind, DiffChange, Record, StoreStatus, VersionStatus};
use larder_types::{StoreName, VersionSelector};

use super::VersionArgs;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, count};
use crate::progress::{Progress, Unit};

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder store get pymk 42\n    larder store get pymk:42\n    larder store get pymk 42 --version previous\n\nExits with 3 if the store does not contain the key."
)]
pub struct StoreGetArgs {
    /// The store, or STORE:KEY as in Redis clients
    store: String,
    /// The key, without the store's name
    key: Option<String>,
    /// A number such as 3 or v3, or previous [default: live]
    #[arg(long, value_name = "VERSION")]
    version: Option<VersionSelector>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print key, value and version as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n    larder store sample pymk --count 5")]
pub struct SampleArgs {
    /// The store
    store: StoreName,
    /// The number of records
    #[arg(long, short = 'n', default_value_t = 10, value_parser = parse_count::<u64>)]
    count: u64,
    #[command(flatten)]
    version: VersionArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n    larder store dump pymk 2 | gzip > pymk-2.jsonl.gz")]
pub struct StoreDumpArgs {
    /// The store
    store: StoreName,
    #[command(flatten)]
    version: VersionArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// Accepted without effect: a dump always consists of JSON lines
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Example:\n    larder store diff pymk 1 2 --limit 5\n    larder store diff pymk previous"
)]
pub struct DiffArgs {
    /// The store
    store: StoreName,
    /// The older version, such as 1 or previous
    from: VersionSelector,
    /// The newer version, such as 2 or live
    #[arg(default_value = "live")]
    to: VersionSelector,
    /// The maximum number of differing keys to show
    #[arg(long, default_value_t = 20, value_parser = parse_count::<u64>)]
    limit: u64,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn get(args: StoreGetArgs) -> Result<(), Failure> {
    let (store, key) = store_and_key(&args.store, args.key.as_deref())?;
    let admin = args.server.admin()?;
    let fetched = admin.key(&store, key.as_bytes(), args.version);
    let fetched = fetched.map_err(|error| {
        let mut failure = Failure::from(error);
        if failure.exit_code == 3 {
            failure.message += &key_hint(&store, key.as_bytes());
        }
        failure
    })?;
    if !args.json {
        output::print_bytes(&fetched.value)?;
        return output::print_bytes(b"\n");
    }
    let record = Record::from_bytes(key.as_bytes(), &fetched.value);
    let mut object = serde_json::json!({ "version": fetched.version });
    if let (Some(object), Ok(serde_json::Value::Object(record))) =
        (object.as_object_mut(), serde_json::to_value(record))
    {
        object.extend(record);
    }
    output::print_json(&object)
}

/// Parses `STORE KEY` or `STORE:KEY`.
fn store_and_key<'a>(
    store: &'a str,
    key: Option<&'a str>,
) -> Result<(StoreName, &'a str), Failure> {
    let (name, key) = match (key, store.split_once(':')) {
        (Some(key), _) => (store, key),
        (None, Some(parts)) => parts,
        (None, None) => {
            return Err(Failure::usage(format!(
                "the key is missing: larder store get {store} KEY"
            )));
        }
    };
    let name = name.parse();
    let name = name.map_err(|error: larder_types::NameError| Failure::usage(error.to_string()))?;
    Ok((name, key))
}

/// Returns a hint if the key has the form of a Redis client's key.
pub fn key_hint(store: &StoreName, key: &[u8]) -> String {
    let prefix = format!("{store}:");
    match key.strip_prefix(prefix.as_bytes()) {
        Some(rest) => format!(
            "; a key is given without the store's name: {}",
            String::from_utf8_lossy(rest)
        ),
        None => String::new(),
    }
}

pub fn sample(args: SampleArgs) -> Result<(), Failure> {
    let sample = args
        .server
        .admin()?
        .sample(&args.store, args.count, args.version.named())?;
    if sample.is_cut {
        eprintln!("some records were omitted: a sample has at most 4 MiB");
    }
    let records = sample.records;
    if args.json {
        return output::print_json(&records);
    }
    let key_width = records
        .iter()
        .map(|record| record.key.chars().count())
        .max()
        .unwrap_or(0);
    for record in &records {
        let pad = " ".repeat(key_width - record.key.chars().count());
        output::print_line(&format!("{}{pad}  {}", record.key, shorten(&record.value)))?;
    }
    Ok(())
}

pub fn dump(args: StoreDumpArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    // On a terminal, the records themselves show the progress.
    let quiet = std::io::stdout().is_terminal();
    let progress = Progress::new(Unit::Records, "dumping", quiet);
    let which = args.version.named();
    let total = record_count(&admin.store(&args.store)?, which);
    let mut records = admin.dump(&args.store, which)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut done = 0;
    loop {
        let part = match records.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => &buffer[..length],
            Err(error) => return Err(dump_failure(&admin, &args.store, records.version, &error)),
        };
        output::print_bytes(part)?;
        done += part.iter().filter(|byte| **byte == b'\n').count() as u64;
        progress.set("dumping", done, total);
    }
}

/// Returns the reason why a dump was incomplete. The server has recorded damage that it found.
fn dump_failure(
    admin: &AdminClient,
    store: &StoreName,
    version: Option<u64>,
    error: &std::io::Error,
) -> Failure {
    let status = admin.store(store).ok();
    let kept = status.and_then(|it| {
        it.versions
            .into_iter()
            .find(|it| Some(it.version) == version)
    });
    let number = version.map_or(String::new(), |number| format!(" {number}"));
    match kept.and_then(|kept| kept.damaged) {
        Some(found) => Failure::with_code(
            "CORRUPTED",
            format!("the printed output of {store} version{number} is incomplete: {found}"),
        ),
        None => Failure::new(format!(
            "the server ended the dump early ({error}), so the printed output is incomplete; see the server's log, and check the version with `larder store verify {store}{number}`"
        )),
    }
}

/// Returns the number of records of the given or the live version. Returns 0 if it does not exist; the dump then
/// reports that.
fn record_count(store: &StoreStatus, which: Option<VersionSelector>) -> u64 {
    let selected = |kept: &&VersionStatus| match which {
        Some(VersionSelector::Number(id)) => kept.version == id.0,
        Some(VersionSelector::Previous) => Some(kept.version) == store.previous,
        Some(VersionSelector::Live) | None => kept.live,
    };
    let found = store.versions.iter().find(selected);
    found.map_or(0, |kept| kept.record_count)
}

pub fn diff(args: DiffArgs) -> Result<(), Failure> {
    let diff = args
        .server
        .admin()?
        .diff(&args.store, args.from, args.to, args.limit)?;
    if args.json {
        return output::print_json(&diff);
    }
    let number = |named: VersionSelector, found: Option<u64>| {
        found.map_or_else(|| named.to_string(), |number| number.to_string())
    };
    output::print_line(&format!(
        "{} from version {} to {}: {} added, {} removed, {} changed, {} the same",
        args.store,
        number(args.from, diff.from),
        number(args.to, diff.to),
        count(diff.added),
        count(diff.removed),
        count(diff.changed),
        count(diff.unchanged)
    ))?;
    for change in &diff.changes {
        output::print_line(&change_line(change))?;
    }
    let more = (diff.added + diff.removed + diff.changed).saturating_sub(diff.changes.len() as u64);
    if more > 0 {
        output::print_line(&format!("... and {} more; --limit shows them", count(more)))?;
    }
    Ok(())
}

fn change_line(change: &DiffChange) -> String {
    let sign = match change.kind {
        ChangeKind::Added => '+',
        ChangeKind::Removed => '-',
        ChangeKind::Changed => '~',
    };
    format!("{sign} {}", change.key)
}

/// Shortens a value to one line of limited length.
fn shorten(value: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 120;
    let mut shown: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    shown = shown.replace(['\n', '\r'], " ");
    if shown.chars().count() < value.chars().count() {
        shown.push_str(&format!("... ({} bytes)", count(value.len() as u64)));
    }
    shown
}
