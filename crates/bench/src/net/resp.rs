//! The Redis protocol as a benchmark needs it: requests without allocation, replies by their size.

use crate::Result;

/// Appends the head of a request with so many parts.
pub fn parts(out: &mut Vec<u8>, count: usize) {
    out.push(b'*');
    decimal(out, count);
    out.extend_from_slice(b"\r\n");
}

/// Appends one part, which `write` puts and which has `size` bytes.
pub fn part(out: &mut Vec<u8>, size: usize, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'$');
    decimal(out, size);
    out.extend_from_slice(b"\r\n");
    let start = out.len();
    write(out);
    debug_assert_eq!(out.len() - start, size, "a part's size");
    out.extend_from_slice(b"\r\n");
}

pub fn word(out: &mut Vec<u8>, word: &[u8]) {
    part(out, word.len(), |out| out.extend_from_slice(word));
}

fn decimal(out: &mut Vec<u8>, number: usize) {
    let mut buffer = [0; 20];
    let mut at = buffer.len();
    let mut left = number;
    loop {
        at -= 1;
        buffer[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(&buffer[at..]);
}

/// How many bytes the first reply takes; `None` if it is not whole.
///
/// # Errors
/// The server answered an error.
pub fn reply_len(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(line) = line_len(bytes) else {
        return Ok(None);
    };
    match bytes[0] {
        b'+' | b':' => Ok(Some(line)),
        b'$' => Ok(bulk_len(bytes, line)),
        b'*' => {
            let mut at = line;
            for _ in 0..count(&bytes[1..line]).max(0) {
                match reply_len(&bytes[at..])? {
                    Some(size) => at += size,
                    None => return Ok(None),
                }
            }
            Ok(Some(at))
        }
        _ => Err(format!(
            "the server answered {:?}",
            String::from_utf8_lossy(&bytes[..line])
        )
        .into()),
    }
}

fn bulk_len(bytes: &[u8], line: usize) -> Option<usize> {
    let size = count(&bytes[1..line]);
    let size = if size < 0 {
        line
    } else {
        line + size as usize + 2
    };
    (bytes.len() >= size).then_some(size)
}

fn line_len(bytes: &[u8]) -> Option<usize> {
    bytes
        .iter()
        .position(|&byte| byte == b'\n')
        .map(|at| at + 1)
}

/// The number of a line's digits; what follows them does not count.
fn count(line: &[u8]) -> i64 {
    if line.first() == Some(&b'-') {
        return -1;
    }
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// The string of a whole bulk reply; `None` for nil.
pub fn bulk(reply: &[u8]) -> Option<&[u8]> {
    let line = line_len(reply)?;
    reply.get(line..bulk_len(reply, line)? - 2)
}

/// The bulk strings of a whole array, in order; nil is an empty one.
pub fn bulks(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut at = line_len(reply).unwrap_or(reply.len());
    std::iter::from_fn(move || {
        let bytes = &reply[at..];
        let line = line_len(bytes)?;
        let size = bulk_len(bytes, line)?;
        at += size;
        Some(bytes.get(line..size - 2).unwrap_or_default())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_their_sizes_and_cut_ones_have_none() {
        let whole = b"*4\r\n$1\r\na\r\n$-1\r\n:42\r\n$2\r\n\r\n\r\n";
        assert_eq!(reply_len(whole).unwrap(), Some(whole.len()));
        for end in 0..whole.len() {
            assert_eq!(reply_len(&whole[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(reply_len(b"+OK\r\n+OK\r\n").unwrap(), Some(5));
        assert_eq!(reply_len(b"*0\r\n").unwrap(), Some(4));
        assert!(reply_len(b"-ERR no\r\n").is_err());
    }

    #[test]
    fn requests_and_arrays_are_read_back() {
        let mut out = Vec::new();
        parts(&mut out, 2);
        word(&mut out, b"GET");
        word(&mut out, b"a key of eleven");
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$15\r\na key of eleven\r\n");
        assert_eq!(
            bulks(&out).collect::<Vec<_>>(),
            [&b"GET"[..], b"a key of eleven"]
        );
    }
}
