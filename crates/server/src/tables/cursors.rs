//! Positions of SCAN in tables: a cursor is a number that stands for the next key, and the latest of them are remembered.

use std::collections::BTreeMap;

const CURSORS_MAX: usize = 10_000;

/// The cursors that were given out of late, with the key that each begins at.
#[derive(Default)]
pub struct Cursors {
    next: u64,
    keys: BTreeMap<u64, Vec<u8>>,
    /// Other nodes give out others.
    is_of_node: bool,
}

impl Cursors {
    /// Those of a node of a cluster: another node's are not mistaken for them. They have 53 bits, as many as every client's numbers hold.
    pub fn of_node(name: &str) -> Cursors {
        Cursors {
            next: (larder_types::key_hash(name.as_bytes()) >> 43) << 32,
            is_of_node: true,
            ..Cursors::default()
        }
    }

    /// What to do about a cursor that is not remembered.
    pub fn advice(&self) -> &'static str {
        match self.is_of_node {
            true => {
                "is not remembered by this node; go on at the node that gave it, or begin again with cursor 0"
            }
            false => "is not remembered any more; begin again with cursor 0",
        }
    }

    /// Gives out a cursor that begins at a key.
    pub fn keep(&mut self, key: Vec<u8>) -> u64 {
        self.next += 1;
        self.keys.insert(self.next, key);
        if self.keys.len() > CURSORS_MAX {
            self.keys.pop_first();
        }
        self.next
    }

    /// The key at which a cursor begins; `None` if it is not remembered any more.
    pub fn get(&self, cursor: u64) -> Option<Vec<u8>> {
        self.keys.get(&cursor).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_nodes_cursor_is_unknown() {
        let mut one = Cursors::of_node("node-1");
        let mut other = Cursors::of_node("node-2");
        let cursor = one.keep(b"k".to_vec());
        other.keep(b"l".to_vec());
        assert_eq!(one.get(cursor).as_deref(), Some(&b"k"[..]));
        assert_eq!(other.get(cursor), None);
        assert!(cursor < 1 << 53, "{cursor}");
        assert!(other.advice().contains("the node that gave it"));
    }
}
