//! Cursors of SCAN over tables: a cursor is a number that stands for the next key. The most recent cursors are stored.

use std::collections::BTreeMap;

const CURSORS_MAX: usize = 10_000;
/// Total length of their keys, in bytes.
const KEY_BYTES_MAX: usize = 16 << 20;

/// The most recent cursors, with the key at which each continues.
#[derive(Default)]
pub struct Cursors {
    next: u64,
    keys: BTreeMap<u64, Vec<u8>>,
    key_bytes: usize,
    /// True if this is a node of a cluster. Each node issues its own cursors.
    is_of_node: bool,
}

impl Cursors {
    /// Creates the cursors of a cluster node, whose numbers differ from those of other nodes. They have 53 bits, which
    /// every client's number type can hold.
    pub fn for_node(name: &str) -> Cursors {
        Cursors {
            next: (larder_types::key_hash(name.as_bytes()) >> 43) << 32,
            is_of_node: true,
            ..Cursors::default()
        }
    }

    /// Returns the remedy for an unknown cursor.
    pub fn unknown_cursor_hint(&self) -> &'static str {
        if self.is_of_node {
            "is unknown to this node; continue at the node that returned it, or start again with cursor 0"
        } else {
            "has expired; start again with cursor 0"
        }
    }

    /// Issues a cursor that continues at a key.
    pub fn store(&mut self, key: Vec<u8>) -> u64 {
        self.next += 1;
        self.key_bytes += key.len();
        self.keys.insert(self.next, key);
        // The newest cursor is kept, however long its key is.
        while self.keys.len() > CURSORS_MAX
            || (self.key_bytes > KEY_BYTES_MAX && self.keys.len() > 1)
        {
            let Some((_, key)) = self.keys.pop_first() else {
                break;
            };
            self.key_bytes -= key.len();
        }
        self.next
    }

    /// Returns the key at which a cursor continues, or `None` if it is no longer stored.
    pub fn get(&self, cursor: u64) -> Option<Vec<u8>> {
        self.keys.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_with_long_keys_displace_older_cursors() {
        let mut cursors = Cursors::default();
        let issued: Vec<u64> = (0..40)
            .map(|_| cursors.store(vec![b'k'; 1 << 20]))
            .collect();
        let stored = issued.iter().filter(|it| cursors.get(**it).is_some());
        assert_eq!(stored.count(), KEY_BYTES_MAX >> 20);
        let longest = cursors.store(vec![b'k'; 2 * KEY_BYTES_MAX]);
        assert!(cursors.get(longest).is_some() && cursors.get(issued[39]).is_none());
    }

    #[test]
    fn another_nodes_cursor_is_unknown() {
        let mut one = Cursors::for_node("node-1");
        let mut other = Cursors::for_node("node-2");
        let cursor = one.store(b"k".to_vec());
        other.store(b"l".to_vec());
        assert_eq!(one.get(cursor).as_deref(), Some(&b"k"[..]));
        assert_eq!(other.get(cursor), None);
        assert!(cursor < 1 << 53, "{cursor}");
        assert!(
            other
                .unknown_cursor_hint()
                .contains("the node that returned it")
        );
    }
}
