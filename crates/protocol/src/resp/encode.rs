//! Appends replies to a byte buffer, in the protocol version of the client.
//!
//! RESP3 has types that RESP2 lacks. As in Redis, RESP2 encodes a map as a flat array, a set as an
//! array, a double and a verbatim text as a bulk string, and a boolean as 0 or 1.

use super::digits::{push_decimal, push_head};
use crate::errors::Code;

/// The protocol version of a connection. `HELLO` changes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Proto {
    #[default]
    Resp2,
    Resp3,
}

impl Proto {
    pub fn number(self) -> i64 {
        match self {
            Proto::Resp2 => 2,
            Proto::Resp3 => 3,
        }
    }
}

/// An encoder that appends to `out`. Nested replies are written in order: `array(2)`, then its two elements.
pub struct Encoder<'a> {
    pub out: &'a mut Vec<u8>,
    pub proto: Proto,
}

impl Encoder<'_> {
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Appends a status line. If `text` contains a line break, it is truncated there.
    pub fn simple(&mut self, text: &str) {
        self.out.push(b'+');
        self.line(text);
    }

    /// Appends an error reply: the code's prefix, a space and the message.
    pub fn error(&mut self, code: Code, message: &str) {
        self.out.push(b'-');
        self.out.extend_from_slice(code.resp_prefix().as_bytes());
        self.out.push(b' ');
        self.line(message);
    }

    fn line(&mut self, text: &str) {
        let is_break = |byte: &u8| *byte == b'\r' || *byte == b'\n';
        if text.bytes().any(|byte| is_break(&byte)) {
            let flat = text
                .bytes()
                .map(|byte| if is_break(&byte) { b' ' } else { byte });
            self.out.extend(flat);
        } else {
            self.out.extend_from_slice(text.as_bytes());
        }
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.out.push(b':');
        if value < 0 {
            self.out.push(b'-');
        }
        push_decimal(self.out, value.unsigned_abs());
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends a count, which is an integer in Redis.
    #[inline]
    pub fn count(&mut self, value: u64) {
        self.integer(i64::try_from(value).unwrap_or(i64::MAX));
    }

    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 24);
        self.bulk_header(bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Appends the head of a bulk string. The caller sends its `len` bytes and the final `\r\n`.
    #[inline]
    pub fn bulk_header(&mut self, len: usize) {
        push_head(self.out, b'$', len);
    }

    pub fn text(&mut self, text: &str) {
        self.bulk(text.as_bytes());
    }

    /// Appends a text for people: a verbatim text for RESP3 clients, a bulk string for others.
    pub fn verbatim(&mut self, text: &str) {
        match self.proto {
            Proto::Resp2 => self.text(text),
            Proto::Resp3 => {
                push_head(self.out, b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.proto {
            Proto::Resp2 => b"$-1\r\n",
            Proto::Resp3 => b"_\r\n",
        });
    }

    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.proto {
            Proto::Resp2 => b"*-1\r\n",
            Proto::Resp3 => b"_\r\n",
        });
    }

    pub fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.proto, value) {
            (Proto::Resp2, false) => b":0\r\n",
            (Proto::Resp2, true) => b":1\r\n",
            (Proto::Resp3, false) => b"#f\r\n",
            (Proto::Resp3, true) => b"#t\r\n",
        });
    }

    pub fn double(&mut self, value: f64) {
        let text = value.to_string();
        match self.proto {
            Proto::Resp2 => self.text(&text),
            Proto::Resp3 => {
                self.out.push(b',');
                self.line(&text);
            }
        }
    }

    /// Appends the head of an array. `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        push_head(self.out, b'*', len);
    }

    /// Appends the head of a map. `len` pairs of replies follow.
    pub fn map(&mut self, len: usize) {
        match self.proto {
            Proto::Resp2 => push_head(self.out, b'*', len * 2),
            Proto::Resp3 => push_head(self.out, b'%', len),
        }
    }

    /// Appends the head of a push message. `len` replies follow.
    pub fn push(&mut self, len: usize) {
        match self.proto {
            Proto::Resp2 => push_head(self.out, b'*', len),
            Proto::Resp3 => push_head(self.out, b'>', len),
        }
    }

    /// Appends the head of a set. `len` replies follow.
    pub fn set(&mut self, len: usize) {
        match self.proto {
            Proto::Resp2 => push_head(self.out, b'*', len),
            Proto::Resp3 => push_head(self.out, b'~', len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(write: impl Fn(&mut Encoder<'_>), resp2: &str, resp3: &str) {
        for (proto, expected) in [(Proto::Resp2, resp2), (Proto::Resp3, resp3)] {
            let mut out = Vec::new();
            write(&mut Encoder {
                out: &mut out,
                proto,
            });
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn each_version_encodes_its_own_types() {
        check(|r| r.null(), "$-1\r\n", "_\r\n");
        check(|r| r.null_array(), "*-1\r\n", "_\r\n");
        check(|r| r.map(1), "*2\r\n", "%1\r\n");
        check(|r| r.set(12), "*12\r\n", "~12\r\n");
        check(|r| r.boolean(true), ":1\r\n", "#t\r\n");
        check(|r| r.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n");
        check(|r| r.verbatim("hi"), "$2\r\nhi\r\n", "=6\r\ntxt:hi\r\n");
    }

    #[test]
    fn common_types_are_encoded_alike() {
        let same = |write: fn(&mut Encoder<'_>), text: &str| check(write, text, text);
        same(|r| r.ok(), "+OK\r\n");
        same(|r| r.bulk(b"0123456789ab"), "$12\r\n0123456789ab\r\n");
        same(|r| r.bulk(b""), "$0\r\n\r\n");
        same(|r| r.integer(i64::MIN), ":-9223372036854775808\r\n");
        same(|r| r.count(u64::MAX), ":9223372036854775807\r\n");
        same(
            |r| r.error(Code::NoSuchStore, "a\r\nb"),
            "-NOSTORE a  b\r\n",
        );
    }
}
