//! Redis Cluster slots: `CRC16(key) mod 16384`, hash tags honoured.
//!
//! Source: the Redis Cluster specification, "Key distribution model" and appendix A (CRC16,
//! XMODEM: polynomial 0x1021, initial value 0, no reflection).

/// How many slots there are.
pub const SLOTS: u16 = 16_384;

/// The slot of a whole Redis key. When the key has a `{`, a later `}` and at least one byte
/// between the two, only the bytes between them count.
pub fn slot_of(key: &[u8]) -> u16 {
    crc16(0, hash_tag(key)) % SLOTS
}

/// The keys that begin with one prefix, which is hashed once.
#[derive(Debug, Clone)]
pub struct SlotPrefix {
    crc: u16,
}

impl SlotPrefix {
    /// `prefix` holds no brace: the name of a store and a colon.
    pub fn new(prefix: &[u8]) -> SlotPrefix {
        SlotPrefix {
            crc: crc16(0, prefix),
        }
    }

    /// The slot of the key `<prefix><rest>`.
    #[inline]
    pub fn slot(&self, rest: &[u8]) -> u16 {
        if has_brace(rest) {
            let tag = hash_tag(rest);
            if tag.len() < rest.len() {
                return crc16(0, tag) % SLOTS;
            }
        }
        crc16(self.crc, rest) % SLOTS
    }
}

/// Whether a `{` is among the bytes: eight at a time, and without a branch on what they are.
#[inline]
fn has_brace(bytes: &[u8]) -> bool {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut found = 0;
    for word in words {
        let different = u64::from_le_bytes(*word) ^ (LOW * b'{' as u64);
        found |= different.wrapping_sub(LOW) & !different & (LOW << 7);
    }
    rest.iter()
        .fold(found != 0, |found, &byte| found | (byte == b'{'))
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

/// Eight bytes at a time: the checksum's two bytes meet the first two, and each byte's part comes
/// from the table for its distance from the end (Kounavis and Berry, "Novel Table Lookup-Based
/// Algorithms for High-Performance CRC Generation", 2008).
#[inline]
fn crc16(mut crc: u16, bytes: &[u8]) -> u16 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let [high, low] = crc.to_be_bytes();
        crc = TABLES[7][usize::from(word[0] ^ high)]
            ^ TABLES[6][usize::from(word[1] ^ low)]
            ^ TABLES[5][usize::from(word[2])]
            ^ TABLES[4][usize::from(word[3])]
            ^ TABLES[3][usize::from(word[4])]
            ^ TABLES[2][usize::from(word[5])]
            ^ TABLES[1][usize::from(word[6])]
            ^ TABLES[0][usize::from(word[7])];
    }
    for &byte in rest {
        crc = (crc << 8) ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)];
    }
    crc
}

/// What a byte adds to the checksum when as many bytes follow it as the table's index says.
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
    fn a_key_in_two_parts_has_the_slot_of_the_whole() {
        for rest in [
            &b"42"[..],
            b"0123456789abcdefghi",
            b"12345678",
            b"a{b}c",
            b"{}x",
            b"{",
            b"}{",
        ] {
            let whole = [b"pymk:", rest].concat();
            assert_eq!(SlotPrefix::new(b"pymk:").slot(rest), slot_of(&whole));
        }
    }
}
