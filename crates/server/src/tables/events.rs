//! Keyspace events, as in Redis: the change of a base row or an object is published under the name of the event.
//!
//! | channel | message | selected by |
//! |---|---|---|
//! | `__keyspace@0__:<key>` | the event | `K` |
//! | `__keyevent@0__:<event>` | the key | `E` |
//!
//! `CONFIG SET notify-keyspace-events` selects the classes of events; while none is selected, this module has no cost.
//! The core that owns the row publishes the events, after the change is in the log's buffer.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use larder_join::LogEntry;
use larder_protocol::commands::{Id, spec};
use larder_types::{object_key, row_key};

use super::executing_command::ExecutingCommand;
use super::{KEY_CHANNEL, Tables};

const EVENT_CHANNEL: &[u8] = b"__keyevent@0__:";

/// The classes in the order in which Redis shows them, with their bits.
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

/// The classes of events that are published.
#[derive(Default)]
pub struct SelectedEvents(AtomicU32);

impl SelectedEvents {
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.0.load(Relaxed) & (KEYSPACE | KEYEVENT) != 0
    }

    /// Returns whether events are published on the channels of keys.
    pub fn have_keyspace(&self) -> bool {
        self.0.load(Relaxed) & KEYSPACE != 0
    }

    /// Selects the classes of these letters. Returns `None`, without a change, if a letter is invalid.
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

    /// Returns the selected classes as letters, as Redis shows them.
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

/// The class and the name of an event.
type Event = (u32, Cow<'static, str>);

/// Returns the events of one change of a key's row, in order.
fn change_events(
    change: &LogEntry,
    key: &[u8],
    by: Option<&ExecutingCommand>,
) -> [Option<Event>; 2] {
    let by_this = by.filter(|by| by.changes_key(key));
    match change {
        LogEntry::Put { key: row, .. } => {
            [Some(put_event(object_key(row).is_some(), by_this)), None]
        }
        LogEntry::Remove { .. } => removal_events(by_this),
        LogEntry::Expire { at: Some(_), .. } => match by {
            Some(by) if by.sets_deadline => [Some((GENERIC, "expire".into())), None],
            // The expiry time stays, or is set together with the value.
            _ => [None, None],
        },
        LogEntry::Expire { at: None, .. } => match by.map(|by| by.id) {
            Some(Id::Persist | Id::GetEx) => [Some((GENERIC, "persist".into())), None],
            _ => [None, None],
        },
        LogEntry::RemoveRange { .. } | LogEntry::Create { .. } | LogEntry::Drop { .. } => {
            [None, None]
        }
    }
}

/// Returns the event of a command on JSON documents: its name in lower case.
fn json_event(id: Id) -> Option<Event> {
    let name = spec(id).name;
    let is_json = name.starts_with("JSON.");
    is_json.then(|| (MODULE, name.to_ascii_lowercase().into()))
}

/// Returns the event of a value that the command `by` has put. An object put without a command has lost expired fields.
fn put_event(is_object: bool, by: Option<&ExecutingCommand>) -> Event {
    let Some(by) = by else {
        return if is_object {
            // Fields have expired.
            (HASH, "hexpired".into())
        } else {
            (STRING, "set".into())
        };
    };
    let (class, name) = match by.id {
        Id::Incr | Id::IncrBy | Id::Decr | Id::DecrBy => (STRING, "incrby"),
        Id::IncrByFloat => (STRING, "incrbyfloat"),
        Id::Append => (STRING, "append"),
        Id::SetRange => (STRING, "setrange"),
        Id::Rename | Id::RenameNx => (GENERIC, "rename_to"),
        Id::Copy => (GENERIC, "copy_to"),
        Id::Restore => (GENERIC, "restore"),
        Id::HDel | Id::HGetDel => (HASH, "hdel"),
        Id::HIncrBy => (HASH, "hincrby"),
        Id::HIncrByFloat => (HASH, "hincrbyfloat"),
        Id::HExpire | Id::HExpireAt | Id::HPExpire | Id::HPExpireAt | Id::HGetEx => {
            (HASH, "hexpire")
        }
        Id::HPersist => (HASH, "hpersist"),
        id => match json_event(id) {
            Some(event) => return event,
            None if is_object => (HASH, "hset"),
            None => (STRING, "set"),
        },
    };
    (class, name.into())
}

/// Returns the events of a value that the command `by` has removed. Without a command, the value has expired.
fn removal_events(by: Option<&ExecutingCommand>) -> [Option<Event>; 2] {
    let deleted = Some((GENERIC, "del".into()));
    let Some(by) = by else {
        return [Some((EXPIRED, "expired".into())), None];
    };
    match by.id {
        Id::Rename | Id::RenameNx => [Some((GENERIC, "rename_from".into())), None],
        Id::HDel | Id::HGetDel => [Some((HASH, "hdel".into())), deleted],
        // The key's new value replaces the old one.
        Id::Set
        | Id::SetEx
        | Id::PSetEx
        | Id::GetSet
        | Id::MSet
        | Id::MSetEx
        | Id::Restore
        | Id::Copy => [None, None],
        id => [json_event(id), deleted],
    }
}

impl Tables {
    /// Publishes the events of changes.
    pub(super) fn publish_events(&self, changes: &[LogEntry]) {
        let (selected, channels) = (&self.handle.events, &self.handle.channels);
        if !selected.is_enabled() || channels.is_empty() {
            return;
        }
        let by = self.executing.borrow();
        // A buffer for the names of all channels, reused.
        let mut channel = Vec::new();
        for change in changes {
            let Some(key) = change.row().map(row_key) else {
                continue;
            };
            let events = change_events(change, key, by.as_ref())
                .into_iter()
                .flatten();
            for (_, event) in events.filter(|(class, _)| selected.has(*class)) {
                let event = event.as_bytes();
                let mut publish = |of: &[u8], name: &[u8], payload: &[u8]| {
                    channel.clear();
                    channel.extend_from_slice(of);
                    channel.extend_from_slice(name);
                    channels.publish(&channel, payload);
                };
                if selected.has(KEYSPACE) {
                    publish(KEY_CHANNEL, key, event);
                }
                if selected.has(KEYEVENT) {
                    publish(EVENT_CHANNEL, event, key);
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
    fn letters_are_formatted_as_in_redis() {
        check("", "");
        check("KEA", "AKE");
        check("Ex", "xE");
        check("hK$g", "g$hK");
        check("Kg$lshzxetd", "AK");
        check("KEAmn", "AnKEm");
        assert!(SelectedEvents::default().select(b"KQ").is_none());
    }
}
