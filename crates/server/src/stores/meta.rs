//! Metadata files of a store and its versions that only the server writes.
//!
//! | file | contents | after a crash |
//! |---|---|---|
//! | `<version>/pull.json` | the version's source, and when it was pulled | may be lost: the version shows no source |
//! | `<version>/unchecked.json` | the gates that the version has not passed yet | never lost: it is published with the version |
//! | `<version>/damaged.json` | the damage that a verification or a dump found | never lost: it is synced |
//! | `history.json` | the versions that were live, oldest first | may be lost: `previous` is the newest version below the live one |
//!
//! None of them determines which version is served; `LIVE`, which `larder_batch::StoreDir` writes, does. A file that cannot be
//! read therefore counts as absent, except for `unchecked.json` and `damaged.json`, which the modules of these names read and
//! write.

use std::fs;
use std::path::Path;

use larder_batch::version::files;
use larder_types::VersionId;
use serde::{Deserialize, Serialize};

use crate::error::Error;

pub const PULL_FILE: &str = "pull.json";
const HISTORY_FILE: &str = "history.json";
/// More than the number of versions that anyone keeps; older entries are dropped.
const HISTORY_LEN_MAX: usize = 100;

/// The origin of a version.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct PullRecord {
    /// As requested, without credentials and query.
    pub source: String,
    /// Seconds since 1970.
    pub pulled_at: u64,
}

impl PullRecord {
    pub fn read(version_dir: &Path) -> Option<PullRecord> {
        serde_json::from_slice(&files::read_regular(&version_dir.join(PULL_FILE)).ok()?).ok()
    }

    pub fn write(&self, version_dir: &Path) -> Result<(), Error> {
        write_atomically(&version_dir.join(PULL_FILE), self)
    }
}

/// The versions that were live, as a stack: a swap pushes, a rollback pops down to its target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveHistory {
    live: Vec<VersionId>,
}

impl LiveHistory {
    pub fn read(store_dir: &Path) -> LiveHistory {
        files::read_regular(&store_dir.join(HISTORY_FILE))
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    }

    pub fn write(&self, store_dir: &Path) -> Result<(), Error> {
        write_atomically(&store_dir.join(HISTORY_FILE), self)
    }

    /// Records that `version` went live. A return to an earlier version drops the entries after it.
    pub fn record_live(&mut self, version: VersionId) {
        match self.live.iter().rposition(|past| *past == version) {
            Some(at) => self.live.truncate(at + 1),
            None => self.live.push(version),
        }
        let excess = self.live.len().saturating_sub(HISTORY_LEN_MAX);
        self.live.drain(..excess);
    }

    /// Returns the target of a rollback from `live`, among the `kept` versions (in order) that are `is_usable`: the previously live
    /// version or, if that is unknown, the newest below it.
    pub fn previous(
        &self,
        live: VersionId,
        kept: &[VersionId],
        is_usable: impl Fn(VersionId) -> bool,
    ) -> Option<VersionId> {
        let is_candidate = |id: &VersionId| *id != live && kept.contains(id) && is_usable(*id);
        let end = self
            .live
            .iter()
            .rposition(|past| *past == live)
            .unwrap_or(self.live.len());
        let was_live = self.live[..end].iter().rev();
        let older = kept.iter().rev().filter(|id| **id < live);
        was_live.chain(older).find(|id| is_candidate(id)).copied()
    }
}

/// Replaces a file atomically for readers. Not synced: see the table above.
fn write_atomically(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let bytes = serde_json::to_vec_pretty(value).expect("plain structs become JSON");
    let fresh = path.with_extension("json.new");
    fs::write(&fresh, bytes).map_err(Error::io("write", &fresh))?;
    fs::rename(&fresh, path).map_err(Error::io("replace", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_back_twice_goes_two_versions_down() {
        let mut history = LiveHistory::default();
        for id in [3, 4, 5] {
            history.record_live(VersionId(id));
        }
        let kept = [3, 4, 5, 6].map(VersionId);
        let previous = |history: &LiveHistory, live| {
            let found = history.previous(VersionId(live), &kept, |_| true);
            found.map(|id| id.0)
        };
        assert_eq!(previous(&history, 5), Some(4));
        history.record_live(VersionId(4));
        assert_eq!(previous(&history, 4), Some(3));
        history.record_live(VersionId(3));
        assert_eq!(previous(&history, 3), None);
        history.record_live(VersionId(6));
        assert_eq!(previous(&history, 6), Some(3));
    }

    #[test]
    fn without_history_the_next_older_version_is_the_previous_one() {
        let mut history = LiveHistory::default();
        history.record_live(VersionId(3));
        history.record_live(VersionId(6));
        let kept = [3, 4, 5, 6, 7].map(VersionId);
        let is_usable = |unfit: u64| move |id: VersionId| id.0 != unfit;
        let previous =
            |kept: &[VersionId], unfit| history.previous(VersionId(6), kept, is_usable(unfit));
        assert_eq!(previous(&kept, 0), Some(VersionId(3)));
        assert_eq!(previous(&kept, 3), Some(VersionId(5)), "it is passed over");
        assert_eq!(
            previous(&kept[1..], 5),
            Some(VersionId(4)),
            "it is not kept"
        );
        assert_eq!(previous(&kept[3..], 0), None);
    }
}
