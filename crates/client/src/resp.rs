//! The Redis protocol, version 2, from the client's side: commands out, replies in.
//!
//! Invariants:
//! 1. A length that the peer announces never makes us allocate more than has arrived.
//! 2. Nesting is bounded, so no reply can exhaust the stack.
//!
//! What it leaves out: RESP3's types. This client never sends `HELLO 3`.

use std::io::{self, BufRead, Read};

use larder_types::VALUE_BYTES_MAX;

/// Deeper than any reply of a server.
const DEPTH_MAX: u32 = 16;
/// Longer than any line a server sends: errors, counts and lengths.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Replies in one array. More is not an answer but an accident.
const ITEMS_MAX: i64 = 1 << 24;

/// One reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR unknown command`
    Error(ErrorReply),
    /// `:42`
    Integer(i64),
    /// `$5`; `None` is Redis's nil: the key is absent.
    Bulk(Option<Vec<u8>>),
    /// `*2`; `None` is a nil array.
    Array(Option<Vec<Reply>>),
}

/// An error as the server spelled it: `code` is the first word, such as `ERR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorReply {
    pub code: String,
    pub message: String,
}

/// Appends the command to `out`: an array of bulk strings, the name first.
pub fn encode_command(parts: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        out.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

/// Reads one reply.
///
/// # Errors
/// `InvalidData` when the bytes are not RESP2; `UnexpectedEof` when they end early; otherwise the
/// reader's own. After any of these the connection is of no further use.
pub fn decode_reply(input: &mut impl BufRead) -> io::Result<Reply> {
    decode_nested(input, 0)
}

fn decode_nested(input: &mut impl BufRead, depth: u32) -> io::Result<Reply> {
    if depth > DEPTH_MAX {
        return Err(invalid(format!(
            "a reply is nested deeper than {DEPTH_MAX}"
        )));
    }
    let line = read_line(input)?;
    let (&kind, rest) = line
        .split_first()
        .ok_or_else(|| invalid("an empty line".into()))?;
    match kind {
        b'+' => Ok(Reply::Simple(text(rest))),
        b'-' => {
            let whole = text(rest);
            let (code, message) = whole.split_once(' ').unwrap_or((&whole, ""));
            Ok(Reply::Error(ErrorReply {
                code: code.to_owned(),
                message: message.to_owned(),
            }))
        }
        b':' => Ok(Reply::Integer(number(rest)?)),
        b'$' => decode_bulk(input, number(rest)?).map(Reply::Bulk),
        b'*' => decode_array(input, number(rest)?, depth).map(Reply::Array),
        other => Err(invalid(format!("a reply begins with byte 0x{other:02x}"))),
    }
}

fn decode_bulk(input: &mut impl BufRead, length: i64) -> io::Result<Option<Vec<u8>>> {
    let Ok(length) = u64::try_from(length) else {
        return Ok(None);
    };
    if length > VALUE_BYTES_MAX {
        return Err(invalid(format!(
            "a value of {length} bytes; the longest is {VALUE_BYTES_MAX}"
        )));
    }
    let mut bytes = Vec::new();
    input.by_ref().take(length + 2).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length + 2 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if !bytes.ends_with(b"\r\n") {
        return Err(invalid("a value is not followed by CR LF".into()));
    }
    bytes.truncate(bytes.len() - 2);
    Ok(Some(bytes))
}

fn decode_array(
    input: &mut impl BufRead,
    count: i64,
    depth: u32,
) -> io::Result<Option<Vec<Reply>>> {
    if count < 0 {
        return Ok(None);
    }
    if count > ITEMS_MAX {
        return Err(invalid(format!(
            "an array of {count} replies; the most is {ITEMS_MAX}"
        )));
    }
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(decode_nested(input, depth + 1)?);
    }
    Ok(Some(items))
}

fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input
        .by_ref()
        .take(LINE_BYTES_MAX)
        .read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match line.strip_suffix(b"\r\n") {
        Some(stripped) => Ok(stripped.to_vec()),
        None => Err(invalid("a line does not end with CR LF".into())),
    }
}

fn number(digits: &[u8]) -> io::Result<i64> {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| invalid(format!("{:?} is not a number", text(digits))))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn invalid(detail: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(bytes: &[u8]) -> io::Result<Reply> {
        decode_reply(&mut io::Cursor::new(bytes))
    }

    #[test]
    fn every_kind_of_reply_is_read() {
        let bulk = |text: &[u8]| Reply::Bulk(Some(text.to_vec()));
        assert_eq!(decode(b"+OK\r\n").unwrap(), Reply::Simple("OK".into()));
        assert_eq!(decode(b":-7\r\n").unwrap(), Reply::Integer(-7));
        assert_eq!(decode(b"$-1\r\n").unwrap(), Reply::Bulk(None));
        assert_eq!(decode(b"$4\r\na\r\nb\r\n").unwrap(), bulk(b"a\r\nb"));
        assert_eq!(decode(b"*-1\r\n").unwrap(), Reply::Array(None));
        assert_eq!(
            decode(b"*2\r\n$0\r\n\r\n:1\r\n").unwrap(),
            Reply::Array(Some(vec![bulk(b""), Reply::Integer(1)]))
        );
        let Reply::Error(error) = decode(b"-ERR no such thing\r\n").unwrap() else {
            panic!("an error reply")
        };
        assert_eq!(
            (error.code.as_str(), error.message.as_str()),
            ("ERR", "no such thing")
        );
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused() {
        let deep = b"*1\r\n".repeat(40);
        for bad in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"$5\r\nabc\r\n",
            b"$3\r\nabcde",
            b"$99999999999\r\n",
            b"*99999999999\r\n",
            b":x\r\n",
            b"+OK\n",
            b"",
            &deep,
        ] {
            assert!(decode(bad).is_err(), "{:?}", String::from_utf8_lossy(bad));
        }
    }

    #[test]
    fn a_command_is_an_array_of_bulk_strings() {
        let mut out = Vec::new();
        encode_command(&[b"GET", b"pymk:42"], &mut out);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$7\r\npymk:42\r\n");
    }
}
