//! Chooses the old versions to remove. The choice is pure; `Store::retain` removes them.
//!
//! Never chosen: the live version, the target of a rollback, and any version newer than the live one (it waits for a swap, or was
//! rolled back and may be examined).

use std::sync::Arc;

use larder_types::VersionId;
use serde::{Deserialize, Serialize};

use super::{Store, Stores};
use crate::clock::unix_seconds;
use crate::error::Error;

/// The number, age and size of versions to keep. 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Including the live version.
    pub versions: u32,
    pub age_hours: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    id: VersionId,
    pulled_at: u64,
    size_bytes: u64,
}

impl Stores {
    /// Applies `retention` to every store. In a cluster, the map determines what is kept.
    pub fn retain_all(&self, retention: Retention) {
        if self.follows_cluster {
            return;
        }
        for store in self.list() {
            if let Err(error) = store.retain(retention) {
                tracing::warn!(store = %store.name, %error, "old versions were not removed");
            }
        }
    }
}

impl Store {
    /// Removes the versions that `retention` does not keep, and returns them.
    pub fn retain(self: &Arc<Self>, retention: Retention) -> Result<Vec<VersionId>, Error> {
        let mut state = self.lock()?;
        let Some(live) = state.live else {
            return Ok(Vec::new());
        };
        let previous = state.previous();
        let kept: Vec<Candidate> = state
            .kept
            .iter()
            .map(|(id, kept)| Candidate {
                id: *id,
                // A version of unknown age counts as new.
                pulled_at: kept
                    .record
                    .as_ref()
                    .map_or(u64::MAX, |record| record.pulled_at),
                size_bytes: kept.size_bytes(),
            })
            .collect();
        let doomed = choose(&kept, live, previous, retention, unix_seconds());
        let unlisted: Vec<_> = doomed
            .iter()
            .map(|id| (*id, state.kept.remove(id)))
            .collect();
        drop(state);
        for (id, kept) in unlisted {
            self.unlink(id, kept)?;
        }
        Ok(doomed)
    }
}

/// Returns the versions to remove, oldest first. `kept` is sorted by version.
fn choose(
    kept: &[Candidate],
    live: VersionId,
    previous: Option<VersionId>,
    retention: Retention,
    now: u64,
) -> Vec<VersionId> {
    let mut count = kept.len();
    let mut bytes: u64 = kept.iter().map(|version| version.size_bytes).sum();
    let mut doomed = Vec::new();
    for version in kept {
        if version.id >= live || Some(version.id) == previous {
            continue;
        }
        let too_many = retention.versions > 0 && count > retention.versions as usize;
        let too_large = retention.bytes > 0 && bytes > retention.bytes;
        let age_hours = now.saturating_sub(version.pulled_at) / 3600;
        let too_old = retention.age_hours > 0 && age_hours >= retention.age_hours;
        if too_many || too_large || too_old {
            count -= 1;
            bytes -= version.size_bytes;
            doomed.push(version.id);
        }
    }
    doomed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Versions 1..=6, each of 10 bytes and one hour younger than the previous one; 5 is live, and 4 was live before it.
    fn check(retention: Retention, expected: &[u64]) {
        let now = 1_000_000;
        let kept: Vec<Candidate> = (1..=6)
            .map(|id| Candidate {
                id: VersionId(id),
                pulled_at: now - (6 - id) * 3600,
                size_bytes: 10,
            })
            .collect();
        let doomed = choose(&kept, VersionId(5), Some(VersionId(4)), retention, now);
        let expected: Vec<VersionId> = expected.iter().map(|id| VersionId(*id)).collect();
        assert_eq!(doomed, expected, "{retention:?}");
    }

    #[test]
    fn retention_removes_by_count_age_and_bytes_but_keeps_live_and_previous() {
        let none = Retention::default();
        check(none, &[]);
        check(
            Retention {
                versions: 4,
                ..none
            },
            &[1, 2],
        );
        check(
            Retention {
                versions: 1,
                ..none
            },
            &[1, 2, 3],
        );
        check(Retention { bytes: 50, ..none }, &[1]);
        check(Retention { bytes: 1, ..none }, &[1, 2, 3]);
        check(
            Retention {
                age_hours: 4,
                ..none
            },
            &[1, 2],
        );
        check(
            Retention {
                age_hours: 1,
                ..none
            },
            &[1, 2, 3],
        );
    }
}
