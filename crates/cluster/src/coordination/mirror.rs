//! A copy of a set of keys, built from reads and watch events. Late and duplicate input never moves it back.
//!
//! Invariants:
//!
//! 1. `revision` never decreases, except by [`Mirror::reset`]. Input at or below it is ignored.
//! 2. If the watch lost no event, the copy equals the service's data at `revision`.
//! 3. A read or a comparison has confirmed invariant 2 up to `checked`.

use std::collections::BTreeMap;

use super::{Entry, KeyEvent, Keys, RecentWrites, Revision, Snapshot};

#[derive(Clone, Debug)]
pub struct Mirror {
    keys: Keys,
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    checked_revision: Revision,
}

impl Mirror {
    /// Creates an empty copy at revision zero.
    pub fn new(keys: Keys) -> Mirror {
        Mirror {
            keys,
            entries: BTreeMap::new(),
            revision: Revision(0),
            checked_revision: Revision(0),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Sorted by key.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The revision after which to watch.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The revision up to which no event was lost: the argument of [`super::Request::RecentWrites`].
    pub fn checked_revision(&self) -> Revision {
        self.checked_revision
    }

    /// Makes the next complete read replace the copy, whatever its revision, because the service now holds different data.
    pub fn reset(&mut self) {
        self.revision = Revision(0);
        self.checked_revision = Revision(0);
        // Revisions of different data may coincide, so every entry must count as changed.
        for entry in self.entries.values_mut() {
            entry.modified = Revision(0);
        }
    }

    /// Replaces the copy with a complete read, and returns the changes. Ignored if the read is older than the copy.
    pub fn apply_snapshot(&mut self, snapshot: Snapshot) -> Vec<KeyEvent> {
        if snapshot.revision < self.revision {
            return Vec::new();
        }
        let revision = snapshot.revision;
        let mut gone = std::mem::take(&mut self.entries);
        let mut events = Vec::new();
        for entry in snapshot.entries {
            let before = gone.remove(&entry.key);
            if before.is_none_or(|before| before.modified != entry.modified) {
                events.push(KeyEvent {
                    key: entry.key.clone(),
                    revision: entry.modified,
                    entry: Some(entry.clone()),
                });
            }
            self.entries.insert(entry.key.clone(), entry);
        }
        events.extend(gone.into_keys().map(|key| KeyEvent {
            key,
            revision,
            entry: None,
        }));
        self.revision = revision;
        self.checked_revision = revision;
        events
    }

    /// Applies watch events, and returns those that are new.
    pub fn apply_events(&mut self, events: Vec<KeyEvent>) -> Vec<KeyEvent> {
        let known = self.revision;
        let mut new_events = Vec::with_capacity(events.len());
        for event in events {
            if event.revision <= known || !self.keys.contains(&event.key) {
                continue;
            }
            self.revision = self.revision.max(event.revision);
            match &event.entry {
                Some(entry) => self.entries.insert(event.key.clone(), entry.clone()),
                None => self.entries.remove(&event.key),
            };
            new_events.push(event);
        }
        new_events
    }

    /// Returns whether the copy equals the service's data, according to the keys written since [`Mirror::checked`]. If `false`, the watch
    /// is late or has lost an event, and everything must be read.
    ///
    /// The comparison is exact without values. A lost write appears among the written keys with a different revision. A lost
    /// deletion leaves the copy with more keys.
    ///
    /// `recent` must have been requested after the last call of [`Mirror::take`].
    pub fn matches(&mut self, recent: &RecentWrites) -> bool {
        let same = |(key, modified): &(String, Revision)| {
            self.entries
                .get(key)
                .is_some_and(|entry| entry.modified == *modified)
        };
        let agrees = recent.revision >= self.revision
            && recent.count == self.entries.len() as u64
            && recent.written.iter().all(same);
        if agrees {
            self.revision = recent.revision;
            self.checked_revision = recent.revision;
        }
        agrees
    }
}

#[cfg(test)]
mod tests {
    use larder_types::Random;

    use super::super::store::Store;
    use super::super::{LeaseId, Writer};
    use super::*;

    /// Makes one random change of a few keys, and returns its events below `a/`.
    fn change(store: &mut Store, writer: &mut Writer, random: &mut Random) -> Vec<KeyEvent> {
        let key = format!("{}/{}", ["a", "b"][random.index(2)], random.below(4));
        let now = store.read(&Keys::one(&key)).entries.into_iter().next();
        let at = now.as_ref().map_or(Revision(0), |entry| entry.modified);
        let change = writer.change().if_unchanged(&key, at);
        let lease = (random.below(3) == 0).then_some(LeaseId(1));
        let (_, events) = match now {
            Some(_) if random.below(2) == 0 => store.change(&change.delete(&key)),
            _ if random.below(10) == 0 => (
                super::super::Outcome::Conflict(Vec::new()),
                store.end_lease(LeaseId(1)),
            ),
            _ => store.change(&change.put_bound(&key, random.word().to_string(), lease)),
        };
        events
            .into_iter()
            .filter(|event| event.key.starts_with("a/"))
            .collect()
    }

    /// Batches of events arrive late, twice or never, and reads arrive late. The comparison determines exactly whether the copy
    /// is correct.
    #[test]
    fn the_comparison_detects_exactly_the_lost_events() {
        let keys = Keys::with_prefix("a/");
        let (mut right, mut wrong, mut stale) = (0, 0, 0);
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut writer = Writer::new("w", seed);
            let mut store = Store::default();
            let mut mirror = Mirror::new(keys.clone());
            let mut late_read = store.read(&keys);
            for _ in 0..60 {
                let events = change(&mut store, &mut writer, &mut random);
                if random.below(12) != 0 {
                    mirror.apply_events(events.clone());
                    assert_eq!(
                        mirror.apply_events(events),
                        [],
                        "known events are not returned again"
                    );
                }
                if random.below(10) == 0 {
                    stale += u64::from(late_read.revision < mirror.revision());
                    let before = mirror.clone();
                    mirror.apply_snapshot(late_read);
                    assert!(mirror.revision() >= before.revision());
                    late_read = store.read(&keys);
                }
                if random.below(4) == 0 {
                    let is_right = mirror.entries().eq(&store.read(&keys).entries);
                    let recent = store.recent_writes(&keys, mirror.checked_revision());
                    assert_eq!(mirror.matches(&recent), is_right, "seed {seed}");
                    if is_right {
                        right += 1
                    } else {
                        wrong += 1
                    }
                    if !is_right {
                        mirror.apply_snapshot(store.read(&keys));
                        assert!(mirror.entries().eq(&store.read(&keys).entries));
                    }
                }
            }
        }
        assert!(
            right > 1000 && wrong > 300 && stale > 300,
            "{right} {wrong} {stale}"
        );
    }

    #[test]
    fn applying_a_snapshot_returns_the_changed_keys() {
        let mut store = Store::default();
        let mut writer = Writer::new("w", 1);
        let keys = Keys::with_prefix("a/");
        let put = |writer: &mut Writer, key: &str| {
            writer.change().if_unchanged(key, Revision(0)).put(key, "x")
        };
        store.change(&put(&mut writer, "a/1"));
        store.change(&put(&mut writer, "a/2"));
        let mut mirror = Mirror::new(keys.clone());
        assert_eq!(mirror.apply_snapshot(store.read(&keys)).len(), 2);
        store.change(&put(&mut writer, "a/3"));
        let delete = writer
            .change()
            .if_unchanged("a/1", Revision(1))
            .delete("a/1");
        store.change(&delete);
        let changes = mirror.apply_snapshot(store.read(&keys));
        let changes: Vec<_> = changes
            .iter()
            .map(|event| (event.key.as_str(), event.entry.is_some()))
            .collect();
        assert_eq!(changes, [("a/3", true), ("a/1", false)]);
    }
}
