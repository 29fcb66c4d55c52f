//! Commands, and the construction of keys and values.

use larder_protocol::resp::client::request;
use larder_protocol::resp::digits::{DIGITS_MAX, decimal};

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// A short text that is built in place: a key, or a part of a value.
#[derive(Clone, Copy)]
pub struct Text {
    bytes: [u8; Text::BYTES_MAX],
    len: u8,
}

impl Text {
    pub const BYTES_MAX: usize = 96;

    pub fn new(begin: &str) -> Text {
        let text = Text {
            bytes: [0; Text::BYTES_MAX],
            len: 0,
        };
        text.then(begin)
    }

    /// Appends a part. The complete text may have at most [`Text::BYTES_MAX`] bytes.
    #[inline]
    pub fn then(mut self, part: &str) -> Text {
        let at = usize::from(self.len);
        self.bytes[at..at + part.len()].copy_from_slice(part.as_bytes());
        self.len += part.len() as u8;
        self
    }

    /// Appends a number in decimal digits.
    #[inline]
    pub fn decimal(mut self, number: u64) -> Text {
        let mut room = [0; DIGITS_MAX];
        let digits = decimal(number, &mut room);
        let at = usize::from(self.len);
        self.bytes[at..at + digits.len()].copy_from_slice(digits);
        self.len += digits.len() as u8;
        self
    }

    /// Appends a member as eight hexadecimal digits.
    #[inline]
    pub fn member(mut self, member: u32) -> Text {
        let at = usize::from(self.len);
        self.bytes[at..at + 8].copy_from_slice(&hex::<8>(member.into()));
        self.len += 8;
        self
    }

    /// Appends a number as sixteen hexadecimal digits.
    #[inline]
    pub fn number(mut self, number: u64) -> Text {
        let at = usize::from(self.len);
        self.bytes[at..at + 16].copy_from_slice(&hex::<16>(number));
        self.len += 16;
        self
    }
}

impl AsRef<[u8]> for Text {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Appends a command: its name and its arguments, of any types.
#[inline]
pub fn command(out: &mut Vec<u8>, parts: &[&dyn AsRef<[u8]>]) {
    request(out, parts);
}

/// Returns the last `N` hexadecimal digits of a number, which sort like the numbers.
#[inline]
pub fn hex<const N: usize>(number: u64) -> [u8; N] {
    let mut digits = [0; N];
    let mut left = number;
    for digit in digits.iter_mut().rev() {
        *digit = DIGITS[(left & 15) as usize];
        left >>= 4;
    }
    digits
}

/// Parses the digits that [`hex`] returns. `None` for any other text.
#[inline]
pub fn hex_of(digits: &[u8]) -> Option<u64> {
    if digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

/// Parses decimal digits. `None` for any other text.
pub fn number_of(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        let key = Text::new("k|").member(0x2a).then("|").number(255);
        command(&mut out, &[&"SET", &key, &vec![7_u8; 12]]);
        let expected = "*3\r\n$3\r\nSET\r\n$27\r\nk|0000002a|00000000000000ff\r\n$12\r\n";
        assert_eq!(&out[..expected.len()], expected.as_bytes());
        assert_eq!(out.len(), expected.len() + 14);
    }

    #[test]
    fn hex_numbers_round_trip_and_keep_their_order() {
        let numbers = [0, 9, 10, 255, 256, u64::from(u32::MAX), 1 << 55, u64::MAX];
        for pair in numbers.windows(2) {
            assert!(hex::<16>(pair[0]) < hex::<16>(pair[1]));
            assert_eq!(hex_of(&hex::<16>(pair[0])), Some(pair[0]));
        }
        for bad in [&b"g"[..], b"A", b"-1", b"00000000000000000"] {
            assert_eq!(hex_of(bad), None);
        }
        for number in numbers {
            assert_eq!(
                number_of(Text::new("").decimal(number).as_ref()),
                Some(number)
            );
        }
        assert_eq!(number_of(b"x"), None);
    }
}
