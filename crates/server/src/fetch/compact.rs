//! Compaction on the server: merges the layers of the live version into one complete version, which replaces it.
//!
//! A compaction runs like a pull, on a low-priority thread and in the store's single pull slot. A crash leaves the same kind of
//! state:
//!
//! | crash | state on disk |
//! |---|---|
//! | while it writes | `<v>.pull`, which the store's next pull or compaction removes |
//! | between publishing and going live | the version, not live; the next compaction removes it and starts again |
//!
//! Until `go_live`, the layered version serves reads. If another version went live meanwhile, the compacted one is discarded. A
//! pull of the store has priority: the compaction is stopped, and the pull starts as soon as it has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use larder_batch::{Compaction, Version};
use larder_protocol::http::PullState;
use larder_types::{VersionId, fault_point};

use super::{Pull, Stop, space, warm};
use crate::Shared;
use crate::clock::unix_seconds;
use crate::descriptors::ensure_room;
use crate::error::Error;
use crate::stores::{PullRecord, Store, gates, unchecked};

/// The prefix of the source in a compacted version's record.
pub const SOURCE: &str = "compaction of version ";

/// The points at which a test may kill a compaction, in execution order. The layered version is live up to `compact.before_live`.
pub const FAULT_POINTS: &[&str] = &[
    "compact.begun",
    "compact.segment",
    "compact.manifest",
    "compact.written",
    "publish.synced",
    "compact.published",
    "compact.verified",
    "compact.before_live",
    "pull.live",
    "compact.live",
];

/// Runs the compaction to its end.
pub fn run(shared: &Arc<Shared>, pull: &Pull) -> Result<(), Error> {
    tracing::info!(pull = pull.id, store = %pull.store, "compaction started");
    let result = match compact(shared, pull) {
        Err(Error::Cancelled) if pull.stopped() == Some(Stop::Displaced) => {
            Err(displaced_error(pull))
        }
        result => result,
    };
    match &result {
        Ok(()) => tracing::info!(pull = pull.id, store = %pull.store, "compaction done"),
        Err(error) => {
            tracing::warn!(pull = pull.id, store = %pull.store, %error, "compaction ended; the live version is unchanged");
        }
    }
    result
}

/// The error of a compaction that a pull displaced.
pub(super) fn displaced_error(pull: &Pull) -> Error {
    Error::Displaced(format!(
        "a pull of store {} was requested and takes precedence over the compaction; compact again after it if the live version still has layers",
        pull.store
    ))
}

/// Returns the store's live version, if it can be compacted.
///
/// # Errors
/// [`Error::Refused`] with the reason why it cannot.
pub fn candidate(shared: &Shared, store: &Store) -> Result<(VersionId, Arc<Version>), Error> {
    let (id, version) = store.version(None)?;
    let refused = |why: &str| {
        Err(Error::Refused(format!(
            "version {id} of store {}: {why}",
            store.name
        )))
    };
    if !version.manifest().is_delta() {
        return refused("it has one layer, there is nothing to compact");
    }
    if shared.stores.needs_signature() {
        return refused(
            "only signed versions go live here (stores.signed_by), and a server signs nothing; compact it with `larder compact --sign` and push that",
        );
    }
    Ok((id, version))
}

fn compact(shared: &Shared, pull: &Pull) -> Result<(), Error> {
    let store = shared.stores.get(pull.store.as_str())?;
    let (base_id, version) = candidate(shared, &store)?;
    let source = format!("{SOURCE}{base_id}");
    remove_leftovers(&store)?;
    let manifest = version.manifest();
    ensure_room(manifest.segments.len(), &shared.config)?;
    let data_bytes = manifest.key_bytes + manifest.value_bytes;
    pull.bytes_total.store(2 * data_bytes, Relaxed);
    let id = store.dir.next_version()?;
    pull.version.store(id.0, Relaxed);
    let folder = store.dir.begin_pull(id)?;
    let written = (|| {
        space::check(&folder, data_bytes)?;
        let record = PullRecord {
            source,
            pulled_at: unix_seconds(),
        };
        record.write(&folder)?;
        // The compacted version has the records of the live one, so no gate is checked again.
        unchecked::mark(&folder, &gates::accept_all())?;
        fault_point("compact.begun");
        let should_continue = || pull.stopped().is_none();
        let pace = shared.pulls.throttle.pace();
        let compaction = Compaction {
            version: &version,
            by: format!("larder {}", env!("CARGO_PKG_VERSION")),
            at: unix_seconds(),
            sign: None,
            pace: &|bytes| {
                pace.step(bytes, &should_continue);
                pull.count_resumed(bytes);
                should_continue()
            },
        };
        compaction.write(&folder)?;
        fault_point("compact.written");
        Ok::<_, Error>(())
    })();
    if let Err(error) = written {
        store.dir.remove_pull(id)?;
        return Err(error);
    }
    store.dir.publish(id)?;
    fault_point("compact.published");
    let ready = prepare(shared, pull, &store, id).and_then(|()| {
        pull.enter(PullState::Swapping);
        fault_point("compact.before_live");
        shared.stores.replace_live(&store, id, base_id)
    });
    if let Err(error) = ready {
        if pull.stopped() != Some(Stop::Shutdown) {
            store.forget(id)?;
        }
        return Err(error);
    }
    fault_point("compact.live");
    if let Err(error) = store.retain(shared.settings.retention()) {
        tracing::warn!(store = %store.name, %error, "old versions were not removed");
    }
    Ok(())
}

/// Removes leftovers of earlier compactions.
fn remove_leftovers(store: &Store) -> Result<(), Error> {
    for (id, folder) in store.dir.pulls()? {
        let is_ours = |record: PullRecord| record.source.starts_with(SOURCE);
        if PullRecord::read(&folder).is_some_and(is_ours) {
            store.dir.remove_pull(id)?;
        }
    }
    for id in store.newer_than_live_from(SOURCE)? {
        store.forget(id)?;
    }
    Ok(())
}

fn prepare(shared: &Shared, pull: &Pull, store: &Store, id: VersionId) -> Result<(), Error> {
    pull.enter(PullState::Verifying);
    let path = store.dir.version_path(id);
    let version = Version::open(&path)?;
    let should_continue = || pull.stopped().is_none();
    let pace = shared.pulls.throttle.pace();
    version.verify(&|done| pace.advance_to(done, &should_continue))?;
    pull.check_cancelled()?;
    fault_point("compact.verified");
    pull.enter(PullState::Warming);
    warm::warm_new(shared, &version, &should_continue);
    warm::warm_hot_keys(shared, &store.name, &version, &should_continue);
    pull.check_cancelled()?;
    unchecked::clear(&path)?;
    let record = PullRecord::read(&path).unwrap_or_default();
    store.add(id, Arc::new(version), record)
}
