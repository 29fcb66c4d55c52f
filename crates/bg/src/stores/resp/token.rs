//! Replies, read piece by piece from the bytes that have arrived.
//!
//! Invariants:
//! 1. A length that the peer announces is never taken for bytes that are there.
//! 2. Nesting is bounded.

/// Deeper than any reply of a data store.
const DEPTH_MAX: usize = 8;
/// Longer than any line of a reply: errors, counts and lengths.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest value that a server may send.
const BULK_BYTES_MAX: i64 = 1 << 30;

/// A piece of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// So many replies follow that belong to this one.
    Array(usize),
    /// A value or an array that is not there.
    Nil,
    Bulk(&'a [u8]),
    Simple(&'a [u8]),
    Integer(i64),
    Error(&'a [u8]),
}

/// What bytes begin with.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A token of so many bytes.
    Token(Token<'a>, usize),
    /// At least so many bytes in all are needed.
    Incomplete(usize),
}

/// The bytes are no reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// Reads the token that `bytes` begin with.
///
/// # Errors
/// They begin with none.
#[inline]
pub fn read(bytes: &[u8]) -> Result<Step<'_>, Malformed> {
    let Some(&kind) = bytes.first() else {
        return Ok(Step::Incomplete(1));
    };
    if !matches!(kind, b'$' | b'*' | b':' | b'+' | b'-') {
        return Err(Malformed);
    }
    let limit = bytes.len().min(LINE_BYTES_MAX);
    let Some(end) = bytes[..limit].iter().position(|&byte| byte == b'\r') else {
        return if limit == LINE_BYTES_MAX {
            Err(Malformed)
        } else {
            Ok(Step::Incomplete(bytes.len() + 1))
        };
    };
    let after = end + 2;
    if bytes.len() < after {
        return Ok(Step::Incomplete(after));
    }
    if bytes[end + 1] != b'\n' {
        return Err(Malformed);
    }
    let line = &bytes[1..end];
    let token = match kind {
        b'+' => Token::Simple(line),
        b'-' => Token::Error(line),
        b':' => Token::Integer(integer(line)?),
        b'*' => match integer(line)? {
            -1 => Token::Nil,
            count => Token::Array(usize::try_from(count).map_err(|_| Malformed)?),
        },
        _ => match integer(line)? {
            -1 => Token::Nil,
            length @ 0..=BULK_BYTES_MAX => {
                let until = after + length as usize;
                if bytes.len() < until + 2 {
                    return Ok(Step::Incomplete(until + 2));
                }
                if bytes[until..until + 2] != *b"\r\n" {
                    return Err(Malformed);
                }
                return Ok(Step::Token(Token::Bulk(&bytes[after..until]), until + 2));
            }
            _ => return Err(Malformed),
        },
    };
    Ok(Step::Token(token, after))
}

fn integer(line: &[u8]) -> Result<i64, Malformed> {
    let (negative, digits) = match line {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || digits.len() > 19 {
        return Err(Malformed);
    }
    let mut number = 0_i64;
    for &digit in digits {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        if digit > 9 {
            return Err(Malformed);
        }
        number = number
            .checked_mul(10)
            .and_then(|number| number.checked_add(digit))
            .ok_or(Malformed)?;
    }
    Ok(if negative { -number } else { number })
}

/// How far one is in a reply.
#[derive(Debug, Default)]
pub struct Nesting {
    left: [usize; DEPTH_MAX],
    depth: usize,
}

impl Nesting {
    /// How many arrays the next token is in.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Goes on by a token; says whether the reply is complete.
    #[inline]
    pub fn after(&mut self, token: Token<'_>) -> Result<bool, Malformed> {
        if let Token::Array(count @ 1..) = token {
            *self.left.get_mut(self.depth).ok_or(Malformed)? = count;
            self.depth += 1;
            return Ok(false);
        }
        while self.depth > 0 {
            let left = &mut self.left[self.depth - 1];
            *left -= 1;
            if *left > 0 {
                return Ok(false);
            }
            self.depth -= 1;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_read_and_any_part_of_it_is_incomplete() {
        for (bytes, expected) in [
            (&b"+OK\r\n"[..], Token::Simple(b"OK")),
            (b"-ERR no\r\n", Token::Error(b"ERR no")),
            (b":-7\r\n", Token::Integer(-7)),
            (b"$-1\r\n", Token::Nil),
            (b"*-1\r\n", Token::Nil),
            (b"*3\r\n", Token::Array(3)),
            (b"$0\r\n\r\n", Token::Bulk(b"")),
            (b"$4\r\na\r\nb\r\n", Token::Bulk(b"a\r\nb")),
        ] {
            let mut more = bytes.to_vec();
            more.extend_from_slice(b"$1");
            assert_eq!(read(&more), Ok(Step::Token(expected, bytes.len())));
            for part in 0..bytes.len() {
                let Ok(Step::Incomplete(needed)) = read(&bytes[..part]) else {
                    panic!("{part} bytes of {bytes:?}")
                };
                assert!(needed > part && needed <= bytes.len());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused() {
        for bad in [
            &b"HTTP/1.1 400\r\n"[..],
            b"$3\r\nabcde",
            b"$99999999999\r\n",
            b"$-2\r\n",
            b"*-2\r\n",
            b":x\r\n",
            b":\r\n",
            b"+OK\rx",
            &[b'+'; LINE_BYTES_MAX],
        ] {
            assert_eq!(
                read(bad),
                Err(Malformed),
                "{:?}",
                String::from_utf8_lossy(bad)
            );
        }
    }

    #[test]
    fn a_reply_is_complete_with_its_last_token() {
        let mut nesting = Nesting::default();
        let tokens = [
            Token::Array(2),
            Token::Array(1),
            Token::Nil,
            Token::Array(2),
            Token::Integer(1),
            Token::Array(0),
        ];
        let (last, before) = tokens.split_last().unwrap();
        for &token in before {
            assert_eq!(nesting.after(token), Ok(false), "{token:?}");
        }
        assert_eq!(nesting.after(*last), Ok(true));
        assert_eq!(nesting.depth(), 0);
        assert_eq!(nesting.after(Token::Nil), Ok(true));
        for _ in 0..DEPTH_MAX {
            assert_eq!(nesting.after(Token::Array(1)), Ok(false));
        }
        assert_eq!(nesting.after(Token::Array(1)), Err(Malformed));
    }
}
