//! A copy of some keys, made of reads and of what a watch tells. It never goes back, whatever comes late or twice.
//!
//! Invariants:
//!
//! 1. `revision` never falls. What is at or below it is ignored when it comes again.
//! 2. If the watch lost nothing, the copy is what the service held at `revision`.
//! 3. Up to `checked` that is known: a read or a comparison said so.

use std::collections::BTreeMap;

use super::{Entry, Event, Keys, Recent, Revision, Snapshot};

#[derive(Clone, Debug)]
pub struct Mirror {
    keys: Keys,
    entries: BTreeMap<String, Entry>,
    revision: Revision,
    checked: Revision,
}

impl Mirror {
    /// Nothing yet, at revision zero.
    pub fn new(keys: Keys) -> Mirror {
        Mirror {
            keys,
            entries: BTreeMap::new(),
            revision: Revision(0),
            checked: Revision(0),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// In the order of their keys.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// From where to watch on.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Up to where it is known that nothing was lost: what [`super::Request::Recent`] asks about.
    pub fn checked(&self) -> Revision {
        self.checked
    }

    /// Takes all keys anew; gives what that changed. Ignored when it is older than the copy.
    pub fn take_all(&mut self, snapshot: Snapshot) -> Vec<Event> {
        if snapshot.revision < self.revision {
            return Vec::new();
        }
        let revision = snapshot.revision;
        let mut gone = std::mem::take(&mut self.entries);
        let mut events = Vec::new();
        for entry in snapshot.entries {
            let before = gone.remove(&entry.key);
            if before.is_none_or(|before| before.modified != entry.modified) {
                events.push(Event {
                    key: entry.key.clone(),
                    revision: entry.modified,
                    entry: Some(entry.clone()),
                });
            }
            self.entries.insert(entry.key.clone(), entry);
        }
        events.extend(gone.into_keys().map(|key| Event {
            key,
            revision,
            entry: None,
        }));
        self.revision = revision;
        self.checked = revision;
        events
    }

    /// Takes what a watch told; gives what was news.
    pub fn take(&mut self, events: Vec<Event>) -> Vec<Event> {
        let known = self.revision;
        let mut news = Vec::with_capacity(events.len());
        for event in events {
            if event.revision <= known || !self.keys.contain(&event.key) {
                continue;
            }
            self.revision = self.revision.max(event.revision);
            match &event.entry {
                Some(entry) => self.entries.insert(event.key.clone(), entry.clone()),
                None => self.entries.remove(&event.key),
            };
            news.push(event);
        }
        news
    }

    /// Whether the copy is what the service holds, by what it says was written since [`Mirror::checked`]. `false`: the watch is late or has
    /// lost something, read everything.
    ///
    /// That is exact, without any value: a key that was written since and lost is among the written with another revision; one that was
    /// deleted and lost makes the copy have more keys.
    ///
    /// The answer must not have been asked for before what [`Mirror::take`] took last.
    pub fn agrees(&mut self, recent: &Recent) -> bool {
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
            self.checked = recent.revision;
        }
        agrees
    }
}
