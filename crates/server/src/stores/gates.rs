//! What a new version must satisfy before it may go live.

use larder_batch::{Manifest, PublicKey, Version};
use larder_protocol::config::ServerConfig;
use larder_protocol::http::{Canary, Gates};
use larder_types::VersionId;

use crate::Shared;
use crate::error::Error;

/// What was asked for, with the configuration's gates where nothing was.
pub fn configured(shared: &Shared, asked: Option<Gates>) -> Gates {
    let configured = &shared.config.stores;
    let asked = asked.unwrap_or_default();
    Gates {
        min_records: asked.min_records.or(Some(configured.min_records)),
        max_shrink_percent: asked
            .max_shrink_percent
            .or(Some(configured.max_shrink_percent)),
        allow_empty: asked.allow_empty,
        canary: asked.canary,
    }
}

/// Whose signatures the configuration asks for.
///
/// # Errors
/// [`Error::BadRequest`] for what is no key.
pub fn signers(config: &ServerConfig) -> Result<Vec<PublicKey>, Error> {
    let keys = config.stores.signed_by.iter();
    let keys = keys.map(|key| {
        key.parse()
            .map_err(|why| format!("stores.signed_by: {why}"))
    });
    keys.collect::<Result<_, String>>()
        .map_err(Error::BadRequest)
}

/// Judges a version by its manifest, and by those of its records that are here: keys whose partition is on another node of the
/// cluster are judged there.
///
/// # Errors
/// [`Error::Refused`] says which gate, its limit, and what the version holds instead.
pub fn check(
    gates: &Gates,
    version: &Version,
    live: Option<(VersionId, &Version)>,
) -> Result<(), Error> {
    let live = live.map(|(id, live)| (id, live.manifest()));
    check_counts(gates, version.manifest(), live)?;
    check_canaries(gates, version)
}

/// The gates that the manifests alone decide.
///
/// # Errors
/// As [`check`].
pub fn check_counts(
    gates: &Gates,
    manifest: &Manifest,
    live: Option<(VersionId, &Manifest)>,
) -> Result<(), Error> {
    let records = manifest.record_count;
    if let Some(min) = gates.min_records
        && records < min
    {
        return Err(Error::Refused(format!(
            "the new version holds {records} records and min_records asks for {min}; the live version is unchanged"
        )));
    }
    if let Some((id, live)) = live
        && records == 0
        && !gates.allow_empty
        && live.record_count > 0
    {
        return Err(Error::Refused(format!(
            "the new version holds no records and live version {id} has {}; if that is meant, push with --allow-empty \
             (allow_empty among the pull's gates); the live version is unchanged",
            live.record_count
        )));
    }
    if let (Some(percent), Some((id, live))) = (gates.max_shrink_percent, live) {
        let before = live.record_count;
        let least = before as f64 * (1.0 - percent / 100.0);
        if (records as f64) < least {
            let shrink = 100.0 * (before - records) as f64 / before as f64;
            return Err(Error::Refused(format!(
                "the new version holds {records} records, {shrink:.1} % fewer than live version {id} with {before}, \
                 and max_shrink_percent allows {percent}; the live version is unchanged"
            )));
        }
    }
    Ok(())
}

fn check_canaries(gates: &Gates, version: &Version) -> Result<(), Error> {
    let here = |canary: &&Canary| version.holds(canary.key.as_bytes());
    for canary in gates.canary.iter().filter(here) {
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
        if !version.is_whole() {
            return Err(version.lost().into());
        }
        if let Some(what) = refused {
            return Err(Error::Refused(format!(
                "canary key {:?} {what}; the live version is unchanged",
                shorten(&canary.key)
            )));
        }
    }
    Ok(())
}

fn shorten(text: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 80;
    let mut shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}
