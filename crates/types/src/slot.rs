//! Redis Cluster slots: `CRC16(key) mod 16384`, with support for hash tags.
//!
//! Source: the Redis Cluster specification, "Key distribution model" and appendix A (CRC16, XMODEM: polynomial
//! 0x1021, initial value 0, no reflection).

use crate::object_row::{NAMELESS, OBJECT_MARK, row_key};

/// The number of slots.
pub const SLOTS: u16 = 16_384;

/// Returns the slot of a complete Redis key. If the key has a `{`, a later `}` and at least one byte between the two,
/// only those bytes determine the slot.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(0, hash_tag(key)) % SLOTS
}

/// A key prefix with its precomputed CRC, for computing the slots of many keys that begin with it.
#[derive(Debug, Clone)]
pub struct SlotPrefix {
    crc: u16,
}

impl SlotPrefix {
    /// Creates a prefix. It must not contain braces: it is the name of a store and a colon.
    pub fn new(prefix: &[u8]) -> SlotPrefix {
        SlotPrefix {
            crc: crc16(0, prefix),
        }
    }

    /// Returns the slot of the key `<prefix><rest>`.
    #[inline]
    pub fn slot(&self, rest: &[u8]) -> u16 {
        const LOW: u64 = u64::from_le_bytes([1; 8]);
        let (mut crc, mut braces) = (self.crc, 0);
        let (words, tail) = rest.as_chunks::<8>();
        for word in words {
            let word = u64::from_le_bytes(*word);
            let different = word ^ (LOW * b'{' as u64);
            // Sets the high bit of a byte that is a brace. Bytes after it may yield false positives.
            braces |= different.wrapping_sub(LOW) & !different & (LOW << 7);
            crc = crc16_of_8(crc, word);
        }
        for &byte in tail {
            braces |= u64::from(byte == b'{');
            crc = crc16_of_1(crc, byte);
        }
        if braces == 0 {
            return crc % SLOTS;
        }
        let tag = hash_tag(rest);
        if tag.len() == rest.len() {
            return crc % SLOTS;
        }
        crc16(0, tag) % SLOTS
    }
}

/// Returns the slot of a row or of a client's key: the slot of its leading column, or of the hash tag in it. Both
/// rows of a key have the slot of the key, and a key whose bytes are those of a row has the slot of that row.
pub fn row_slot(key: &[u8]) -> u16 {
    slot_of(leading_column(key).0)
}

/// Returns a key's leading column (the text between its first two separators), and whether a separator ends it. A key
/// that begins with a separator or has none belongs to no table: the complete key is its leading column, as in Redis
/// Cluster.
pub fn leading_column(key: &[u8]) -> (&[u8], bool) {
    let is_separator = |byte: &u8| matches!(byte, b'|' | b':');
    let Some(name) = key.iter().position(is_separator) else {
        return (key, false);
    };
    if name <= NAMELESS.len()
        && let Some(plain_key) = without_table(key, name)
    {
        return match plain_key.first() {
            Some(&OBJECT_MARK) => (column_of_marked(plain_key), false),
            _ => (plain_key, false),
        };
    }
    let rest = &key[name + 1..];
    match rest.iter().position(is_separator) {
        Some(end) => (&rest[..end], true),
        None => (rest, false),
    }
}

/// Returns the key of a row whose first separator is at `name`, if the key belongs to no table.
#[inline]
fn without_table(row: &[u8], name: usize) -> Option<&[u8]> {
    let key = row_key(row);
    let is_nameless =
        name == 0 || matches!(&row[..name], [OBJECT_MARK] | [OBJECT_MARK, OBJECT_MARK]);
    is_nameless.then_some(key)
}

/// The leading column of a plain key that begins with the mark, which may itself look like a row of such a key.
#[cold]
fn column_of_marked(mut key: &[u8]) -> &[u8] {
    while let [OBJECT_MARK, OBJECT_MARK, b':' | b'|', inner @ ..] = key {
        if inner.first() != Some(&OBJECT_MARK) {
            return inner;
        }
        key = inner;
    }
    leading_column(key).0
}

fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|&b| b == b'{') else {
        return key;
    };
    match key[open + 1..].iter().position(|&b| b == b'}') {
        Some(length) if length > 0 => &key[open + 1..open + 1 + length],
        _ => key,
    }
}

fn crc16(mut crc: u16, bytes: &[u8]) -> u16 {
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        crc = crc16_of_8(crc, u64::from_le_bytes(*word));
    }
    tail.iter().fold(crc, |crc, &byte| crc16_of_1(crc, byte))
}

/// Folds the CRC into the first two bytes, then looks up each byte's contribution in the table for its distance from
/// the end (Kounavis and Berry, "Novel Table Lookup-Based Algorithms for High-Performance CRC Generation", 2008).
#[inline(always)]
fn crc16_of_8(crc: u16, word: u64) -> u16 {
    let word = word ^ u64::from(crc.swap_bytes());
    let part = |at: usize| TABLES[7 - at][usize::from((word >> (at * 8)) as u8)];
    (part(0) ^ part(1) ^ part(2) ^ part(3)) ^ (part(4) ^ part(5) ^ part(6) ^ part(7))
}

#[inline(always)]
fn crc16_of_1(crc: u16, byte: u8) -> u16 {
    (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)]
}

/// The contribution of a byte to the CRC, by the number of bytes that follow it.
static TABLES: [[u16; 256]; 8] = {
    let mut tables = [[0u16; 256]; 8];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut following = 0;
        while following < 8 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 0x8000 != 0 {
                    (crc << 1) ^ 0x1021
                } else {
                    crc << 1
                };
                bit += 1;
            }
            tables[following][index] = crc;
            following += 1;
        }
        index += 1;
    }
    tables
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_value_of_the_specification() {
        assert_eq!(crc16(0, b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
    }

    #[test]
    fn hash_tags_are_honoured() {
        assert_eq!(
            slot_of(b"{user1000}.following"),
            slot_of(b"{user1000}.followers")
        );
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(0, b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), crc16(0, b"{bar") % SLOTS);
        assert_eq!(slot_of(b"foo{bar"), crc16(0, b"foo{bar") % SLOTS);
    }

    #[test]
    fn a_key_without_a_table_is_hashed_completely() {
        for key in ["hotel", ":shop.Hotel:01", "|x", ":", ":{rome}:1", ""] {
            assert_eq!(leading_column(key.as_bytes()), (key.as_bytes(), false));
            assert_eq!(row_slot(key.as_bytes()), slot_of(key.as_bytes()));
        }
        assert_eq!(leading_column(b"a:b:c"), (&b"b"[..], true));
    }

    #[test]
    fn a_key_in_two_parts_has_the_slot_of_the_complete_key() {
        for rest in [
            &b"42"[..],
            b"0123456789abcdefghi",
            b"12345678",
            b"a{b}c",
            b"{}x",
            b"{",
            b"}{",
        ] {
            let plain_key = [b"pymk:", rest].concat();
            assert_eq!(SlotPrefix::new(b"pymk:").slot(rest), slot_of(&plain_key));
        }
    }
}
