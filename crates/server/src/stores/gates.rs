//! Gates: conditions that a new version must satisfy before it becomes live.

use std::sync::Arc;
use std::time::Duration;

use larder_batch::profile::{self, Limits, PreviousVersion, evaluate_gates};
use larder_batch::{Manifest, PublicKey, Version};
use larder_protocol::config::ServerConfig;
use larder_protocol::http::{Canary, ColumnLimit, Gates, StoreLimit};
use larder_types::{StoreName, VersionId};

use super::program::{Program, description};
use crate::Shared;
use crate::error::Error;

/// Returns gates that every version passes, for one whose records have passed their own before.
pub fn accept_all() -> Gates {
    Gates {
        allow_empty: true,
        ..Gates::default()
    }
}

/// Returns the requested gates, completed with the configured ones.
pub fn merge_with_config(shared: &Shared, store: &StoreName, requested: Option<Gates>) -> Gates {
    let configured = &shared.config.stores;
    let requested = requested.unwrap_or_default();
    let columns = |requested, entries: &[String]| {
        ColumnLimit::merge(requested, &StoreLimit::for_store(entries, store.as_str()))
    };
    let growth = configured.max_growth_percent;
    Gates {
        min_records: requested.min_records.or(Some(configured.min_records)),
        max_shrink_percent: requested
            .max_shrink_percent
            .or(Some(configured.max_shrink_percent)),
        max_growth_percent: requested
            .max_growth_percent
            .or((growth > 0.0).then_some(growth)),
        allow_empty: requested.allow_empty,
        canary: requested.canary,
        max_nulls: columns(requested.max_nulls, &configured.max_nulls),
        max_empty: columns(requested.max_empty, &configured.max_empty),
        max_shift: columns(requested.max_shift, &configured.max_shift),
    }
}

/// The program that checks every version, if one is configured.
pub fn program(config: &ServerConfig) -> Option<Arc<Program>> {
    let limit = Duration::from_secs(config.stores.gate_program_seconds);
    Program::new(&config.stores.gate_program, limit).map(Arc::new)
}

/// Converts gates to the limits of `larder_batch`.
pub fn to_limits(gates: &Gates) -> Limits {
    let columns = |limits: &[ColumnLimit]| {
        let each = limits.iter().map(|it| profile::ColumnLimit {
            column: it.column.clone(),
            limit: it.limit,
        });
        each.collect()
    };
    Limits {
        min_records: gates.min_records,
        max_shrink_percent: gates.max_shrink_percent,
        max_growth_percent: gates.max_growth_percent,
        allow_empty: gates.allow_empty,
        max_nulls: columns(&gates.max_nulls),
        max_empty: columns(&gates.max_empty),
        max_shift: columns(&gates.max_shift),
    }
}

/// Returns the public keys whose signatures the configuration accepts.
///
/// # Errors
/// [`Error::BadRequest`] for an invalid key.
pub fn signers(config: &ServerConfig) -> Result<Vec<PublicKey>, Error> {
    let keys = config.stores.signed_by.iter();
    let keys = keys.map(|key| {
        key.parse()
            .map_err(|why| format!("stores.signed_by: {why}"))
    });
    keys.collect::<Result<_, String>>()
        .map_err(Error::BadRequest)
}

/// Checks a version by its manifest, by its records on this node (keys of other nodes' partitions are checked there), and by the
/// configured program. `should_continue` is checked while the program runs.
///
/// # Errors
/// [`Error::Refused`] with the gate, its limit, and the version's value.
pub fn check(
    gates: &Gates,
    program: Option<&Program>,
    version: &Version,
    live: Option<(VersionId, &Version)>,
    should_continue: &dyn Fn() -> bool,
) -> Result<(), Error> {
    let live = live.map(|(id, live)| (id, live.manifest()));
    check_manifest(gates, version.manifest(), live)?;
    check_canaries(gates, version)?;
    let Some(program) = program else {
        return Ok(());
    };
    let description = description(version.manifest(), live.map(|it| it.1));
    let verdict = program.judge(version.path(), &description, should_continue);
    verdict.map_err(|message| Error::Refused(format!("{message}; {UNCHANGED}")))
}

const UNCHANGED: &str = "the live version is unchanged";

/// Checks the gates that depend only on the manifests.
///
/// # Errors
/// Like [`check`].
pub fn check_manifest(
    gates: &Gates,
    manifest: &Manifest,
    live: Option<(VersionId, &Manifest)>,
) -> Result<(), Error> {
    let name = live.map(|(id, _)| format!("live version {id}"));
    let before = live
        .zip(name.as_deref())
        .map(|((_, manifest), name)| PreviousVersion { name, manifest });
    let mut verdicts = evaluate_gates(&to_limits(gates), manifest, before).into_iter();
    match verdicts.find(|verdict| !verdict.is_passed) {
        None => Ok(()),
        Some(verdict) => Err(Error::Refused(format!("{}; {UNCHANGED}", verdict.message))),
    }
}

fn check_canaries(gates: &Gates, version: &Version) -> Result<(), Error> {
    match find_canary_fault(gates, version)? {
        None => Ok(()),
        Some(message) => Err(Error::Refused(format!("{message}; {UNCHANGED}"))),
    }
}

/// Returns a description of the first canary key that fails.
///
/// # Errors
/// Errors of reading the version.
pub fn find_canary_fault(gates: &Gates, version: &Version) -> Result<Option<String>, Error> {
    let is_local = |canary: &&Canary| version.has_partition_of(canary.key.as_bytes());
    for canary in gates.canary.iter().filter(is_local) {
        let found = version.get(canary.key.as_bytes())?;
        let refused = match (&found, &canary.value) {
            (None, _) => Some("is absent".to_owned()),
            (Some(value), Some(expected)) if **value != *expected.as_bytes() => Some(format!(
                "is {:?} and should be {:?}",
                shorten(&String::from_utf8_lossy(value)),
                shorten(expected)
            )),
            _ => None,
        };
        if !version.is_intact() {
            return Err(version.lost_pages_error().into());
        }
        if let Some(what) = refused {
            return Ok(Some(format!(
                "canary key {:?} {what}",
                shorten(&canary.key)
            )));
        }
    }
    Ok(None)
}

fn shorten(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 80;
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
