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

/// The slot of the key `<prefix><rest>` without joining the two, for a prefix that holds no brace.
pub fn slot_of_parts(prefix: &[u8], rest: &[u8]) -> u16 {
    let tag = hash_tag(rest);
    if tag.len() == rest.len() {
        crc16(crc16(0, prefix), rest) % SLOTS
    } else {
        crc16(0, tag) % SLOTS
    }
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
    for &byte in bytes {
        crc = (crc << 8) ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)];
    }
    crc
}

const TABLE: [u16; 256] = {
    let mut table = [0u16; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = (index as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 {
                (crc << 1) ^ 0x1021
            } else {
                crc << 1
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
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
        for rest in [&b"42"[..], b"a{b}c", b"{}x", b"{", b"}{"] {
            let whole = [b"pymk:", rest].concat();
            assert_eq!(slot_of_parts(b"pymk:", rest), slot_of(&whole));
        }
    }
}
