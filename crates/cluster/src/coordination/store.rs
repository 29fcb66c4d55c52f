//! An in-memory store of keys with revisions: the data of the embedded service, and the replicated state of the simulated one.

use std::collections::BTreeMap;

use super::{
    Change, Entry, KeyEvent, Keys, LeaseId, Outcome, Put, RecentWrites, Revision, Snapshot,
};

#[derive(Clone, Debug, Default)]
pub struct Store {
    entries: BTreeMap<String, Entry>,
    revision: Revision,
}

impl Store {
    pub fn new(revision: Revision, entries: Vec<Entry>) -> Store {
        Store {
            entries: entries
                .into_iter()
                .map(|entry| (entry.key.clone(), entry))
                .collect(),
            revision,
        }
    }

    pub fn revision(&self) -> Revision {
        self.revision
    }

    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    pub fn read(&self, keys: &Keys) -> Snapshot {
        Snapshot {
            revision: self.revision,
            entries: self.among(keys).cloned().collect(),
        }
    }

    pub fn recent_writes(&self, keys: &Keys, after: Revision) -> RecentWrites {
        let written = self.among(keys).filter(|entry| entry.modified > after);
        RecentWrites {
            revision: self.revision,
            count: self.among(keys).count() as u64,
            written: written
                .map(|entry| (entry.key.clone(), entry.modified))
                .collect(),
        }
    }

    fn among(&self, keys: &Keys) -> impl Iterator<Item = &Entry> {
        let from = self.entries.range(keys.text().to_owned()..);
        from.map(|(_, entry)| entry)
            .take_while(|entry| keys.contains(&entry.key))
    }

    /// Applies a change as one revision, or returns the conflict. Returns the events as well. The caller has checked the change
    /// and that its leases are valid.
    pub fn change(&mut self, change: &Change) -> (Outcome, Vec<KeyEvent>) {
        if let Some(mark) = self.entries.get(&change.mark.key)
            && mark.value == change.mark.id.as_bytes()
        {
            return (Outcome::Done(mark.modified), Vec::new());
        }
        let compared = change
            .compares
            .iter()
            .map(|compare| self.entries.get(compare.key()));
        let compared: Vec<Option<Entry>> = compared.map(Option::<&Entry>::cloned).collect();
        let holds = change.compares.iter().zip(&compared);
        if !holds
            .clone()
            .all(|(compare, now)| compare.holds(now.as_ref()))
        {
            return (Outcome::Conflict(compared), Vec::new());
        }
        let revision = Revision(self.revision.0 + 1);
        let mark = Put {
            key: change.mark.key.clone(),
            value: change.mark.id.clone().into(),
            lease: None,
        };
        let mut events = Vec::with_capacity(change.puts.len() + change.deletes.len() + 1);
        for put in change.puts.iter().chain([&mark]) {
            events.push(self.put(put, revision));
        }
        for key in change
            .deletes
            .iter()
            .filter(|key| self.entries.contains_key(*key))
        {
            events.push(deleted(key, revision));
        }
        self.apply_events(&events);
        (Outcome::Done(revision), events)
    }

    fn put(&self, put: &Put, revision: Revision) -> KeyEvent {
        let before = self.entries.get(&put.key);
        KeyEvent {
            key: put.key.clone(),
            revision,
            entry: Some(Entry {
                key: put.key.clone(),
                value: put.value.clone(),
                created: before.map_or(revision, |before| before.created),
                modified: revision,
                lease: put.lease,
            }),
        }
    }

    /// Deletes the keys bound to a lease, as one revision if there are any.
    pub fn end_lease(&mut self, lease: LeaseId) -> Vec<KeyEvent> {
        let revision = Revision(self.revision.0 + 1);
        let bound = self
            .entries
            .values()
            .filter(|entry| entry.lease == Some(lease));
        let events: Vec<KeyEvent> = bound.map(|entry| deleted(&entry.key, revision)).collect();
        self.apply_events(&events);
        events
    }

    /// Applies events of the store that this one replicates.
    pub fn apply_events(&mut self, events: &[KeyEvent]) {
        for event in events {
            match &event.entry {
                Some(entry) => self.entries.insert(event.key.clone(), entry.clone()),
                None => self.entries.remove(&event.key),
            };
            self.revision = self.revision.max(event.revision);
        }
    }
}

fn deleted(key: &str, revision: Revision) -> KeyEvent {
    KeyEvent {
        key: key.to_owned(),
        revision,
        entry: None,
    }
}
