//! `larder push`: builds a version and makes it live on a server.
//!
//! ```text
//!  files ── build ──► folder ──┬─ server on this machine ──────────────► it pulls file://
//!                              └─ elsewhere ── copied to --via URL ────► it pulls that URL
//!  a built version (folder or URL with manifest.json) ── no build ─────► as above
//! ```
//!
//! In a cluster, one server receives the request and all nodes pull; a progress bar shows each node.
//!
//! Servers pull; the client sends them no data. A push is therefore not limited by the client's connection, and a
//! version that was built to a URL can be pulled by any number of servers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use larder_batch::{Manifest, StoreDir};
use larder_client::AdminClient;
use larder_protocol::http::{Gates, PullRequest, PullState, PullStatus};
use larder_types::{StoreName, VersionSelector};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::build::{self, BuildArgs};
use crate::clock;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, bytes, count, duration};
use crate::progress::{NodeBars, Progress, Unit};
use crate::quality::{ComparedVersion, GateArgs, RequestedGates};

const EXAMPLES: &str = "\
Examples:
    larder push recs.parquet --store pymk --key member
    larder push 'day/*.csv' --store prices --key sku --value price --on-duplicate last
    larder push recs.parquet --store pymk --key member --min-records 1000000 --max-shrink 20%
    larder push s3://bucket/built/pymk --store pymk
    larder push hdfs://namenode:8020/built/pymk --store pymk
    larder push recs.parquet --store pymk --key member --server http://larder-1:7070 --via s3://bucket/staging

Exits with 4 if a gate rejects the version; the live version is then unchanged.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PushArgs {
    /// Files, globs or URLs to build from, or one built version: a folder or URL with manifest.json
    #[arg(required_unless_present = "deleted", value_name = "INPUT")]
    inputs: Vec<String>,
    /// The store; its first push creates it
    #[arg(long, value_name = "NAME")]
    store: StoreName,
    #[command(flatten)]
    build: BuildArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// The location to which the version is copied for a server on another machine, such as
    /// s3://bucket/staging; the copy is removed after the pull
    #[arg(long, value_name = "URL", help_heading = "Pull")]
    via: Option<String>,
    #[command(flatten)]
    gates: GateArgs,
    /// Do not make the version live; `larder store swap` makes it live later
    #[arg(long, help_heading = "Pull")]
    no_activate: bool,
    /// In a cluster: make the version live even if up to this number of nodes lack it, provided that other nodes have their
    /// slots; the nodes fetch it later
    #[arg(long, value_name = "N", value_parser = parse_count::<u32>, default_value = "0", hide_default_value = true, help_heading = "Pull")]
    allow_missing_replicas: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: PushArgs) -> Result<(), Failure> {
    interrupt::listen()?;
    let admin = args.server.admin()?;
    // Before minutes of building, check that the server is there and can reach the version.
    admin.stores()?;
    let requested = args.gates.read(args.build.allow_empty)?;
    let started = Instant::now();
    let source = Source::resolve(&args, &admin)?;
    if requested.needs_local_check() {
        check_locally(&requested, &source, &args, &admin)?;
    }
    let staged = stage(&source, &args, &admin)?;
    let request = PullRequest {
        source: staged.url.clone(),
        gates: (requested.gates != Gates::default()).then_some(requested.gates),
        activate: !args.no_activate,
        allow_missing_replicas: args.allow_missing_replicas,
    };
    let pull = pull_to_end(&admin, &args.store, &request, args.json).map_err(|mut failure| {
        if staged.copy.is_some() {
            failure.message += &format!(
                "; the copy at {} remains; remove it when no server needs it",
                staged.url
            );
        }
        failure
    })?;
    staged.remove();
    let skipped_rows = match &source {
        Source::Folder { skipped_rows, .. } => *skipped_rows,
        Source::Url => None,
    };
    report(&args, &admin, &pull, skipped_rows, started.elapsed())
}

/// Makes the server pull `source`, and waits until the version is live.
///
/// # Errors
/// The pull fails or is rejected, with the reason; or it was interrupted and cancelled.
pub fn pull_to_end(
    admin: &AdminClient,
    store: &StoreName,
    request: &PullRequest,
    quiet: bool,
) -> Result<PullStatus, Failure> {
    let pull = admin.pull(store, request)?;
    follow(admin, store, pull, "pulling", quiet)
}

/// Waits until a pull has made its version live. `fetching` is the name of its first phase.
///
/// # Errors
/// As for [`pull_to_end`].
pub fn follow(
    admin: &AdminClient,
    store: &StoreName,
    mut pull: PullStatus,
    fetching: &'static str,
    quiet: bool,
) -> Result<PullStatus, Failure> {
    const POLLS: [u64; 4] = [10, 20, 50, 150];
    let progress = Progress::new(Unit::Bytes, fetching, quiet);
    let mut nodes = NodeBars::new(quiet);
    let mut polls = POLLS.into_iter();
    let mut pause = POLLS[0];
    let mut cancelled = false;
    while !pull.state.has_ended() {
        if interrupt::is_interrupted() && !cancelled {
            cancelled = true;
            admin.cancel_pull(&pull)?;
        }
        if pull.nodes.is_empty() {
            progress.set(
                label(pull.state, fetching),
                pull.bytes_done,
                pull.bytes_total,
            )
        } else {
            nodes.set(&pull.nodes)
        }
        pause = polls.next().unwrap_or(pause);
        if cancelled {
            // After an interrupt, `interrupt::wait` returns immediately.
            std::thread::sleep(Duration::from_millis(pause));
        } else {
            interrupt::wait(Duration::from_millis(pause));
        }
        pull = admin.pull_status(&pull)?;
    }
    drop((progress, nodes));
    match (pull.state, &pull.error) {
        (PullState::Done, _) => Ok(pull),
        // The message describes the other push and its version.
        (_, Some(error)) if error.code == "CONFLICT" => Err(Failure::with_code(
            &error.code,
            format!(
                "the new version of {store} did not go live: {}",
                error.message
            ),
        )),
        (PullState::Cancelled, _) => Err(Failure::interrupted(format!(
            "the pull of {} was cancelled; the live version is as it was",
            describe_pull(store, &pull)
        ))),
        (_, Some(error)) => Err(Failure::with_code(
            &error.code,
            format!(
                "{} did not go live: {}",
                describe_pull(store, &pull),
                error.message
            ),
        )),
        (_, None) => Err(Failure::new(format!(
            "{} did not go live; the server gave no reason, its log may",
            describe_pull(store, &pull)
        ))),
    }
}

/// Runs the local checks of a version, compared with the live one, before the server pulls it.
fn check_locally(
    requested: &RequestedGates,
    source: &Source,
    args: &PushArgs,
    admin: &AdminClient,
) -> Result<(), Failure> {
    let live = match admin.manifest(&args.store, VersionSelector::Live) {
        Ok(bytes) => Some(ComparedVersion {
            name: "the live version".to_owned(),
            manifest: Manifest::decode("of the live version", &bytes)?,
        }),
        Err(error) if matches!(error.code(), Some("NO_SUCH_STORE" | "NO_LIVE_VERSION")) => None,
        Err(error) => return Err(error.into()),
    };
    match source {
        Source::Folder { path, .. } => {
            let manifest = build::read_manifest(path)?;
            requested.check_before_push(&manifest, Some(path), live.as_ref())
        }
        Source::Url => {
            let new = ComparedVersion::read(&args.inputs[0])?;
            requested.check_before_push(&new.manifest, None, live.as_ref())
        }
    }
}

/// Describes what is pulled. The version has no number before its manifest is read.
fn describe_pull(store: &StoreName, pull: &PullStatus) -> String {
    match pull.version {
        0 => format!("the new version of {store}"),
        number => format!("{store} version {number}"),
    }
}

fn label(state: PullState, fetching: &'static str) -> &'static str {
    match state {
        PullState::Fetching => fetching,
        other => other.name(),
    }
}

/// The version to pull: a local folder, or a URL that the server can reach.
enum Source {
    Folder {
        path: PathBuf,
        /// Rows that the build skipped, if there was a build.
        skipped_rows: Option<u64>,
        _temp: Option<tempfile::TempDir>,
    },
    /// The input itself, which the server can reach.
    Url,
}

impl Source {
    fn resolve(args: &PushArgs, admin: &AdminClient) -> Result<Source, Failure> {
        if let [input] = args.inputs.as_slice()
            && let Some(built) = built_version(input)?
        {
            if let Source::Folder { path, .. } = &built {
                check_built(path, input, &args.store)?;
            }
            if let Some(options) = args.build.given.list_build_options() {
                return Err(Failure::usage(format!(
                    "{input} is a built version, but {options} apply only to a build; omit them, or push the original files"
                )));
            }
            return Ok(built);
        }
        if let ([input], true) = (args.inputs.as_slice(), args.build.key.is_empty())
            && build::rows::find_columns(&args.inputs, &args.build).is_none()
        {
            // The input was probably meant as a built version.
            reject_absent(input)?;
        }
        if !admin.is_local() && args.via.is_none() {
            return Err(missing_via(admin));
        }
        let temp = build::temp_folder(args.build.temp.as_deref())?;
        let out = temp.path().join("version");
        let place = args
            .via
            .clone()
            .unwrap_or_else(|| out.display().to_string());
        let (inputs, build) = (&args.inputs, &args.build);
        let built = build::build_into(inputs, build, &args.store, &out, &place, args.json)?;
        if !args.json {
            eprintln!("{}", built.summary());
        }
        Ok(Source::Folder {
            path: out,
            skipped_rows: Some(built.skipped_rows),
            _temp: Some(temp),
        })
    }
}

/// Returns the input as a built version, if it has a manifest.
fn built_version(input: &str) -> Result<Option<Source>, Failure> {
    let path = Path::new(input);
    if path.is_dir() {
        if path.join(Manifest::FILE).is_file() {
            let path = path
                .canonicalize()
                .map_err(Failure::io(format!("open {input}")))?;
            return Ok(Some(Source::Folder {
                path,
                skipped_rows: None,
                _temp: None,
            }));
        }
        let kept = StoreDir::at(path).versions().unwrap_or_default();
        if let Some(newest) = kept.last() {
            return Err(Failure::usage(format!(
                "{input} is the folder of a server's store; push one of its versions, such as {}",
                StoreDir::at(path).version_path(*newest).display()
            )));
        }
        return Ok(None);
    }
    if !input.contains("://") || input.contains(['*', '?']) {
        return Ok(None);
    }
    let location = build::parse_location(input)?;
    if let Some(path) = location.as_local() {
        let path = path.display().to_string();
        return if Path::new(&path).is_dir() {
            built_version(&path)
        } else {
            Ok(None)
        };
    }
    let has_manifest = location
        .join(Manifest::FILE)
        .is_ok_and(|manifest| manifest.size_blocking().is_ok());
    Ok(has_manifest.then_some(Source::Url))
}

/// Rejects an input that does not exist, or whose location does not respond.
fn reject_absent(input: &str) -> Result<(), Failure> {
    if input == "-" || input.contains(['*', '?']) {
        return Ok(());
    }
    let location = build::parse_location(input)?;
    let is_there = match location.as_local() {
        Some(path) => path.exists(),
        None => location.join(Manifest::FILE)?.exists_blocking()? || location.exists_blocking()?,
    };
    if is_there {
        Ok(())
    } else {
        Err(Failure::not_found(format!(
            "there is nothing at {location}; give a built version (a folder or URL with {}), or files to build from",
            Manifest::FILE
        )))
    }
}

/// Rejects a built version that every server would reject, before a server is contacted: it belongs to another store,
/// or a part of it is missing.
fn check_built(folder: &Path, input: &str, store: &StoreName) -> Result<(), Failure> {
    let manifest = build::read_manifest(folder)?;
    if manifest.store != *store {
        let own = &manifest.store;
        return Err(Failure::usage(format!(
            "{input} is a version of store {own}, so it cannot be pushed to another store: push it with --store {own}, or build a version for {store} from the original files"
        )));
    }
    let is_missing = |file: &&str| !folder.join(file).exists();
    let mut files = manifest
        .segments
        .iter()
        .map(|segment| segment.file.as_str());
    match files.find(is_missing) {
        None => Ok(()),
        Some(file) => Err(Failure::with_code(
            "CORRUPTED",
            format!("{input} is damaged: its file {file} is missing; build this version again"),
        )),
    }
}

fn missing_via(admin: &AdminClient) -> Failure {
    Failure::usage(format!(
        "the server at {} is on another machine and cannot read files of this one; \
         give --via URL, a place that both reach, such as s3://bucket/staging",
        admin.url()
    ))
}

/// The location from which the server pulls.
struct Staged {
    url: String,
    /// The copied folder and the location of the copy, if one was made.
    copy: Option<(PathBuf, larder_remote::Location)>,
}

impl Staged {
    /// Removes the copy, which is not needed after the pull.
    fn remove(self) {
        let Some((folder, place)) = self.copy else {
            return;
        };
        // The version is live, so a leftover copy does not make the push fail.
        if let Err(failure) = build::remove_version(&folder, &place) {
            eprintln!("larder: the staged copy at {place} was not removed: {failure}");
        }
    }
}

/// Puts the version where the server can pull it. Returns the location.
fn stage(source: &Source, args: &PushArgs, admin: &AdminClient) -> Result<Staged, Failure> {
    let in_place = |url| Ok(Staged { url, copy: None });
    let folder = match source {
        Source::Url => return in_place(args.inputs[0].clone()),
        Source::Folder { path, .. } => path,
    };
    let Some(via) = &args.via else {
        if !admin.is_local() {
            return Err(missing_via(admin));
        }
        return in_place(file_url(folder)?);
    };
    let unique = format!("{}-{}", clock::unix_seconds(), std::process::id());
    let target = format!("{}/{}/{unique}", via.trim_end_matches('/'), args.store);
    let place = build::parse_location(&target)?;
    build::upload_version(folder, &place, args.json)?;
    let url = match place.as_local() {
        Some(path) => file_url(path)?,
        None => target,
    };
    Ok(Staged {
        url,
        copy: Some((folder.clone(), place)),
    })
}

/// The characters that are escaped in a path: all but the unreserved ones and the slash.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Returns an absolute `file://` URL of a folder.
fn file_url(folder: &Path) -> Result<String, Failure> {
    let path = folder
        .canonicalize()
        .map_err(Failure::io(format!("open {}", folder.display())))?;
    let text = path.to_str().ok_or_else(|| {
        Failure::usage(format!(
            "{} is not UTF-8; rename the folder",
            folder.display()
        ))
    })?;
    Ok(format!("file://{}", utf8_percent_encode(text, ESCAPED)))
}

/// Creates the request to pull a folder on this machine.
pub fn request_for_folder(folder: &Path) -> Result<PullRequest, Failure> {
    Ok(PullRequest {
        source: file_url(folder)?,
        gates: None,
        activate: true,
        allow_missing_replicas: 0,
    })
}

fn report(
    args: &PushArgs,
    admin: &AdminClient,
    pull: &PullStatus,
    skipped_rows: Option<u64>,
    took: Duration,
) -> Result<(), Failure> {
    let store = admin.store(&args.store)?;
    let version = store
        .versions
        .iter()
        .find(|version| version.version == pull.version);
    if args.json {
        return output::print_json(&serde_json::json!({
            "store": args.store,
            "version": pull.version,
            "live": !args.no_activate,
            "record_count": version.map(|version| version.record_count),
            "size_bytes": version.map(|version| version.size_bytes),
            "skipped_rows": skipped_rows,
            "linked_bytes": pull.bytes_linked,
            "bytes_per_second": pull.bytes_per_second,
            "took_ms": took.as_millis() as u64,
        }));
    }
    let held = version.map_or(String::new(), |version| {
        format!(
            "{} records, {}, ",
            count(version.record_count),
            bytes(version.size_bytes)
        )
    });
    let state = if args.no_activate {
        "kept, not live"
    } else {
        "live"
    };
    let linked = match pull.bytes_linked {
        0 => String::new(),
        linked => format!("{} of it were there already, ", bytes(linked)),
    };
    output::print_line(&format!(
        "{} version {} is {state} ({held}{linked}after {})",
        args.store,
        pull.version,
        duration(took)
    ))?;
    if args.no_activate {
        let (store, version) = (&args.store, pull.version);
        output::print_line(&format!(
            "make it live with `larder store swap {store} {version}`"
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pull_that_ended_before_it_had_a_number_is_described_without_one() {
        let store = "s".parse().unwrap();
        let pull = |version: u64| -> PullStatus {
            serde_json::from_value(serde_json::json!({
                "id": "1", "store": "s", "version": version, "source": "s3://b/v", "state": "failed",
                "bytes_done": 0, "bytes_total": 0, "bytes_per_second": 0, "started_at": 0,
            }))
            .unwrap()
        };
        assert_eq!(describe_pull(&store, &pull(0)), "the new version of s");
        assert_eq!(describe_pull(&store, &pull(7)), "s version 7");
    }

    #[test]
    fn a_folder_with_odd_characters_is_a_url() {
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("a b%c#d");
        std::fs::create_dir(&odd).unwrap();
        assert!(file_url(&odd).unwrap().ends_with("/a%20b%25c%23d"));
    }
}
