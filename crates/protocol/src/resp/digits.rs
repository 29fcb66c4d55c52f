//! Encodes decimal numbers, and the heads of strings and arrays, for requests and replies.

/// Number of digits of the largest number.
pub const DIGITS_MAX: usize = 20;

/// Writes the decimal digits of a number to the end of `room`, and returns them.
#[inline]
pub fn decimal(mut number: u64, room: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}

#[inline]
pub(super) fn push_decimal(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(decimal(number, &mut [0; DIGITS_MAX]));
}

/// Appends a head such as `$5\r\n`.
#[inline]
pub(super) fn push_head(out: &mut Vec<u8>, kind: u8, count: usize) {
    if count < 10 {
        out.extend_from_slice(&[kind, b'0' + count as u8, b'\r', b'\n']);
        return;
    }
    out.push(kind);
    push_decimal(out, count as u64);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_that_a_number_prints_as() {
        for number in [0, 9, 10, 99, 100, u64::from(u32::MAX), u64::MAX] {
            let mut room = [0; DIGITS_MAX];
            assert_eq!(decimal(number, &mut room), number.to_string().as_bytes());
        }
        for count in [0, 9, 10, 123] {
            let mut out = Vec::new();
            push_head(&mut out, b'*', count);
            assert_eq!(out, format!("*{count}\r\n").as_bytes());
        }
    }
}
