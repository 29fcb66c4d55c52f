//! What a new version must satisfy before it may go live.

use larder_batch::Version;
use larder_protocol::http::Gates;
use larder_types::VersionId;

use crate::error::Error;

/// # Errors
/// [`Error::Refused`] says which gate, its limit, and what the version holds instead.
pub fn check(
    gates: &Gates,
    version: &Version,
    live: Option<(VersionId, &Version)>,
) -> Result<(), Error> {
    let records = version.manifest().record_count;
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
        && live.manifest().record_count > 0
    {
        return Err(Error::Refused(format!(
            "the new version holds no records and live version {id} has {}; if that is meant, push with --allow-empty \
             (allow_empty among the pull's gates); the live version is unchanged",
            live.manifest().record_count
        )));
    }
    if let (Some(percent), Some((id, live))) = (gates.max_shrink_percent, live) {
        let before = live.manifest().record_count;
        let least = before as f64 * (1.0 - percent / 100.0);
        if (records as f64) < least {
            let shrink = 100.0 * (before - records) as f64 / before as f64;
            return Err(Error::Refused(format!(
                "the new version holds {records} records, {shrink:.1} % fewer than live version {id} with {before}, \
                 and max_shrink_percent allows {percent}; the live version is unchanged"
            )));
        }
    }
    for canary in &gates.canary {
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
