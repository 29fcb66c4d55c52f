//! `larder get` and `larder dump`: read records of a version from its files, without a server.
//!
//! A path is a folder that `larder build` created, or a store's folder of a server (`<data>/stores/<name>`), whose live
//! version is read by default. Nothing is locked or written, so a server may run on the same folder. Output and exit
//! codes are those of `larder store get` and `larder store dump`.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use larder_batch::{Manifest, StoreDir, Version};
use larder_protocol::http::Record;
use larder_types::{StoreName, VersionId, VersionSelector};

use crate::failure::Failure;
use crate::interrupt;
use crate::output;
use crate::progress::{Progress, Unit};
use crate::store::records::key_hint;

const EXIT_CODES: &str =
    "Exits with 3 if the key, version or folder does not exist, and with 6 if the data is damaged.";

#[derive(Args)]
#[command(
    after_help = format!("Examples:\n    larder get built/pymk 42\n    larder get larder-data/stores/pymk 42 43 --json\n    larder get larder-data/stores/pymk 42 --version 3\n\n{EXIT_CODES}")
)]
pub struct InPlaceGetArgs {
    /// A built version's folder, or a store's folder in a server's data folder
    path: PathBuf,
    /// The keys, without the store's name
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
    /// For a store's folder: a number such as 3 or v3, or previous [default: live]
    #[arg(long, value_name = "VERSION")]
    version: Option<VersionSelector>,
    /// Print a JSON array of keys and values; the value of an absent key is null
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = format!("Examples:\n    larder dump built/pymk | head\n    larder dump larder-data/stores/pymk --version 3 | gzip > pymk-3.jsonl.gz\n\n{EXIT_CODES}")
)]
pub struct InPlaceDumpArgs {
    /// A built version's folder, or a store's folder in a server's data folder
    path: PathBuf,
    /// For a store's folder: a number such as 3 or v3, or previous [default: live]
    #[arg(long, value_name = "VERSION")]
    version: Option<VersionSelector>,
    /// Accepted without effect: a dump always consists of JSON lines
    #[arg(long)]
    json: bool,
}

pub fn get(args: InPlaceGetArgs) -> Result<(), Failure> {
    let version = open(&args.path, args.version)?;
    let mut records = Vec::new();
    let mut absent = Vec::new();
    let mut hint = String::new();
    for key in &args.keys {
        let key = key.as_bytes();
        // No store contains the empty key.
        let found = match key {
            [] => None,
            key => version.get(key)?,
        };
        match &found {
            Some(value) if !args.json => {
                output::print_bytes(value)?;
                output::print_bytes(b"\n")?;
            }
            Some(value) => records.push(serde_json::json!(Record::from_bytes(key, value))),
            None => {
                let shown = String::from_utf8_lossy(key).into_owned();
                hint = key_hint(&version.manifest().store, key);
                records.push(serde_json::json!({ "key": shown, "value": null }));
                absent.push(format!("{shown:?}"));
            }
        }
    }
    if args.json {
        output::print_json(&records)?;
    }
    if absent.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the version of {} in {} has no key {}{hint}",
        version.manifest().store,
        version.path().display(),
        absent.join(", ")
    );
    Err(Failure::with_code("ABSENT_KEY", message))
}

pub fn dump(args: InPlaceDumpArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let version = open(&args.path, args.version)?;
    let total = version.manifest().record_count;
    // On a terminal, the records themselves show the progress.
    let progress = Progress::new(Unit::Records, "dumping", std::io::stdout().is_terminal());
    const CHUNK_BYTES: usize = 64 << 10;
    let mut lines = Vec::with_capacity(2 * CHUNK_BYTES);
    for (done, record) in (1..).zip(version.iter()) {
        let (key, value) = record.map_err(|error| {
            let mut failure = Failure::from(error);
            failure.message += "; the printed output is incomplete";
            failure
        })?;
        serde_json::to_writer(&mut lines, &Record::from_bytes(&key, &value))
            .expect("a record is always JSON");
        lines.push(b'\n');
        if lines.len() >= CHUNK_BYTES {
            output::print_bytes(&lines)?;
            lines.clear();
            progress.set("dumping", done, total);
            if interrupt::is_interrupted() {
                return Err(Failure::interrupted(
                    "interrupted; the printed output is incomplete",
                ));
            }
        }
    }
    output::print_bytes(&lines)
}

/// Opens the version at a path, or one version of a store's folder.
fn open(path: &Path, which: Option<VersionSelector>) -> Result<Version, Failure> {
    let shown = path.display();
    let not_found = |message: String| Failure::with_code("NO_SUCH_VERSION", message);
    if !path.exists() {
        let is_url = path.to_str().is_some_and(|text| text.contains("://"));
        return Err(if is_url {
            Failure::usage(format!(
                "{shown} is a URL; versions are read in place from folders of this machine: copy it here, or push it"
            ))
        } else {
            not_found(format!("there is no folder {shown}{}", hint(path)))
        });
    }
    if path.join(Manifest::FILE).is_file() {
        if which.is_some() {
            return Err(Failure::usage(format!(
                "{shown} is one version; use --version only with a store's folder, which has several"
            )));
        }
        return Ok(Version::open(path)?);
    }
    let dir = StoreDir::at(path);
    let kept = if path.is_dir() {
        dir.versions()?
    } else {
        Vec::new()
    };
    if kept.is_empty() {
        return Err(not_found(format!(
            "{shown} contains no version; pass a folder written by `larder build`, or the folder of a store, such as {}",
            find_store_in(path).unwrap_or_else(|| "larder-data/stores/pymk".to_owned())
        )));
    }
    let id = match which.unwrap_or(VersionSelector::Live) {
        VersionSelector::Number(id) if kept.contains(&id) => id,
        VersionSelector::Number(id) => {
            return Err(not_found(format!(
                "{shown} does not contain version {id}; it contains {}",
                format_versions(&kept)
            )));
        }
        VersionSelector::Live => dir.live()?.ok_or_else(|| {
            not_found(format!(
                "no version in {shown} is live; name one with --version: {}",
                format_versions(&kept)
            ))
        })?,
        VersionSelector::Previous => {
            let previous = larder_server::previous_version(&dir);
            let previous = previous
                .map_err(|error| Failure::with_code(&error.info().code, error.to_string()))?;
            previous.ok_or_else(|| {
                not_found(format!(
                    "{shown} has no previous version; it contains {}",
                    format_versions(&kept)
                ))
            })?
        }
    };
    Ok(Version::open(&dir.version_path(id))?)
}

/// Returns the folder of the first store in a server's data folder, for an error message.
fn find_store_in(path: &Path) -> Option<String> {
    let data = if path.join("stores").is_dir() {
        path
    } else {
        path.parent()?
    };
    let name = StoreDir::list(data).ok()?.into_iter().next()?;
    let folder = data.join("stores").join(name.as_str());
    Some(folder.display().to_string())
}

/// Returns a hint for a path that looks like a store of a server.
fn hint(path: &Path) -> String {
    let name = path.to_str().unwrap_or_default();
    let store = name.split(':').next().unwrap_or_default();
    match store.parse::<StoreName>() {
        Ok(store) => format!(
            "; of a store that a server has, `larder store get {store} KEY` and `larder store dump {store}` read"
        ),
        Err(_) => String::new(),
    }
}

fn format_versions(ids: &[VersionId]) -> String {
    let shown: Vec<String> = ids.iter().map(VersionId::to_string).collect();
    shown.join(", ")
}
