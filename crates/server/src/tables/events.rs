//! Keyspace events, as Redis has them: a change of a base row or an object is published under the name of what happened.
//!
//! | channel | message | selected by |
//! |---|---|---|
//! | `__keyspace@0__:<key>` | the event | `K` |
//! | `__keyevent@0__:<event>` | the key | `E` |
//!
//! `CONFIG SET notify-keyspace-events` selects the classes of events; as long as it selects none, nothing here costs anything. Events
//! are published by the core that has the row, when the change is in the log's buffer.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use larder_join::LogEntry;
use larder_protocol::commands::{Id, spec};
use larder_types::{object_key, row_key};

use super::executing::Executing;
use super::{KEY_CHANNEL, Tables};

const EVENT_CHANNEL: &[u8] = b"__keyevent@0__:";

/// The classes, in the order in which Redis shows them, each with its bit.
const CLASSES: [(char, u32); 12] = [
    ('g', GENERIC),
    ('$', STRING),
    ('l', 1 << 4),
    ('s', 1 << 5),
    ('h', HASH),
    ('z', 1 << 7),
    ('x', EXPIRED),
    ('e', 1 << 9),
    ('t', 1 << 10),
    ('d', MODULE),
    ('n', 1 << 12),
    ('m', 1 << 13),
];
const KEYSPACE: u32 = 1;
const KEYEVENT: u32 = 1 << 1;
const GENERIC: u32 = 1 << 2;
const STRING: u32 = 1 << 3;
const HASH: u32 = 1 << 6;
const EXPIRED: u32 = 1 << 8;
const MODULE: u32 = 1 << 11;
/// The classes that `A` stands for: all but `n` and `m`.
const ALL: u32 = 0b1111_1111_1100;

/// Which events are published.
#[derive(Default)]
pub struct SelectedEvents(AtomicU32);

impl SelectedEvents {
    #[inline]
    pub fn are_any(&self) -> bool {
        self.0.load(Relaxed) & (KEYSPACE | KEYEVENT) != 0
    }

    /// Whether the channels of keys carry these events.
    pub fn have_keyspace(&self) -> bool {
        self.0.load(Relaxed) & KEYSPACE != 0
    }

    /// Selects the classes that letters stand for. `None`: one of them stands for none, and nothing changes.
    pub fn select(&self, letters: &[u8]) -> Option<()> {
        let mut bits = 0;
        for &letter in letters {
            bits |= match letter {
                b'K' => KEYSPACE,
                b'E' => KEYEVENT,
                b'A' => ALL,
                _ => {
                    CLASSES
                        .iter()
                        .find(|class| class.0 == char::from(letter))?
                        .1
                }
            };
        }
        self.0.store(bits, Relaxed);
        Some(())
    }

    /// The letters, as Redis shows them.
    pub fn letters(&self) -> String {
        let bits = self.0.load(Relaxed);
        let mut letters = String::new();
        let is_shown = |bit: u32| bits & bit != 0 && (bits & ALL != ALL || bit & ALL == 0);
        if bits & ALL == ALL {
            letters.push('A');
        }
        let shown = CLASSES
            .iter()
            .filter(|class| is_shown(class.1) && class.0 != 'm');
        letters.extend(shown.map(|class| class.0));
        let last = [('K', KEYSPACE), ('E', KEYEVENT), ('m', 1 << 13)];
        letters.extend(last.iter().filter(|it| bits & it.1 != 0).map(|it| it.0));
        letters
    }

    fn has(&self, class: u32) -> bool {
        self.0.load(Relaxed) & class != 0
    }
}

/// The events of one change: their classes and names.
fn events(change: &LogEntry, by: Option<&Executing>) -> Vec<(u32, String)> {
    let one = |class: u32, name: &str| vec![(class, name.to_owned())];
    match change {
        LogEntry::Put { key, .. } => vec![put_event(key, by)],
        LogEntry::Expire { at: Some(_), .. } => match by {
            Some(by) if by.sets_deadline => one(GENERIC, "expire"),
            // The deadline stays, or moves with the value.
            _ => Vec::new(),
        },
        LogEntry::Expire { at: None, .. } => match by.map(|by| by.id) {
            Some(Id::Persist | Id::GetEx) => one(GENERIC, "persist"),
            _ => Vec::new(),
        },
        LogEntry::Remove { key } => removed(row_key(key), by),
        LogEntry::RemoveRange { .. } | LogEntry::Create { .. } | LogEntry::Drop { .. } => {
            Vec::new()
        }
    }
}

fn put_event(row: &[u8], by: Option<&Executing>) -> (u32, String) {
    let is_object = object_key(row).is_some();
    let by = by.filter(|by| by.writes && (by.has_key(row_key(row)) || !by.has_keys()));
    let Some(by) = by else {
        return match is_object {
            // Fields whose time has come.
            true => (HASH, "hexpired".to_owned()),
            false => (STRING, "set".to_owned()),
        };
    };
    let (class, name) = match by.id {
        Id::Incr | Id::IncrBy | Id::Decr | Id::DecrBy => (STRING, "incrby"),
        Id::IncrByFloat => (STRING, "incrbyfloat"),
        Id::Append => (STRING, "append"),
        Id::SetRange => (STRING, "setrange"),
        Id::Rename | Id::RenameNx => (GENERIC, "rename_to"),
        Id::Copy => (GENERIC, "copy_to"),
        Id::HDel | Id::HGetDel => (HASH, "hdel"),
        Id::HIncrBy => (HASH, "hincrby"),
        Id::HIncrByFloat => (HASH, "hincrbyfloat"),
        Id::HExpire | Id::HExpireAt | Id::HPExpire | Id::HPExpireAt | Id::HGetEx => {
            (HASH, "hexpire")
        }
        Id::HPersist => (HASH, "hpersist"),
        id if spec(id).name.starts_with("JSON.") => {
            return (MODULE, spec(id).name.to_ascii_lowercase());
        }
        _ if is_object => (HASH, "hset"),
        _ => (STRING, "set"),
    };
    (class, name.to_owned())
}

fn removed(key: &[u8], by: Option<&Executing>) -> Vec<(u32, String)> {
    let deleted = (GENERIC, "del".to_owned());
    let by = by.filter(|by| by.writes && (by.has_key(key) || !by.has_keys()));
    let Some(by) = by else {
        return vec![(EXPIRED, "expired".to_owned())];
    };
    match by.id {
        Id::Rename | Id::RenameNx => vec![(GENERIC, "rename_from".to_owned())],
        Id::HDel | Id::HGetDel => vec![(HASH, "hdel".to_owned()), deleted],
        id if spec(id).name.starts_with("JSON.") => {
            let name = spec(id).name.to_ascii_lowercase();
            vec![(MODULE, name), deleted]
        }
        // What the key had goes for what it has now.
        Id::Set
        | Id::SetEx
        | Id::PSetEx
        | Id::GetSet
        | Id::MSet
        | Id::MSetEx
        | Id::Restore
        | Id::Copy => Vec::new(),
        _ => vec![deleted],
    }
}

impl Tables {
    /// Publishes the events of changes.
    pub(super) fn publish_events(&self, changes: &[LogEntry]) {
        let (selected, channels) = (&self.handle.events, &self.handle.channels);
        if !selected.are_any() || channels.is_empty() {
            return;
        }
        let by = self.executing.borrow();
        for change in changes {
            let (LogEntry::Put { key, .. }
            | LogEntry::Remove { key }
            | LogEntry::Expire { key, .. }) = change
            else {
                continue;
            };
            let key = row_key(key);
            for (class, event) in events(change, by.as_ref()) {
                if !selected.has(class) {
                    continue;
                }
                let event = event.as_bytes();
                if selected.has(KEYSPACE) {
                    channels.publish(&[KEY_CHANNEL, key].concat(), event);
                }
                if selected.has(KEYEVENT) {
                    channels.publish(&[EVENT_CHANNEL, event].concat(), key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(letters: &str, shown: &str) {
        let events = SelectedEvents::default();
        events.select(letters.as_bytes()).unwrap();
        assert_eq!(events.letters(), shown);
    }

    #[test]
    fn letters_are_shown_as_redis_shows_them() {
        check("", "");
        check("KEA", "AKE");
        check("Ex", "xE");
        check("hK$g", "g$hK");
        check("Kg$lshzxetd", "AK");
        check("KEAmn", "AnKEm");
        assert!(SelectedEvents::default().select(b"KQ").is_none());
    }
}
