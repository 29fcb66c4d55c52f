//! Reads the replies of one connection, token by token as their bytes arrive.
//!
//! Invariants:
//! 1. The tokens and the error do not depend on how the bytes are split.
//! 2. No byte is searched twice for the end of a line. A value is not searched at all.
//! 3. Nesting and sizes are limited. A reply that exceeds a limit is rejected before all of it is received.

use std::fmt;

use super::token::{Fault, Found, ReplyLimits, Token, read};

/// Maximum nesting depth. No server sends a deeper reply.
const DEPTH_MAX: usize = 16;

/// The result of [`Reader::next`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step<'a> {
    Piece(Piece<'a>),
    /// The input is incomplete. Call again with the same bytes and more, in total at least this many.
    Incomplete(usize),
}

/// A token, and its position in its reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'a> {
    pub token: Token<'a>,
    /// Number of bytes of the token.
    pub size: usize,
    /// Number of replies that contain the token. The reply that an attribute describes counts as inside the attribute.
    pub depth: usize,
    /// The token is the last of the reply.
    pub is_last: bool,
}

/// An error in the bytes of a reply. The following bytes cannot be decoded, so the caller must close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyError {
    fault: Fault,
    /// The offset of the byte among all bytes that the reader was given.
    pub at: u64,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of the replies: {}", self.at, self.fault)
    }
}

impl std::error::Error for ReplyError {}

/// A reader of the replies of one connection, from its beginning.
#[derive(Debug, Default)]
pub struct Reader {
    limits: ReplyLimits,
    /// Number of outstanding elements of each open reply.
    left: [usize; DEPTH_MAX],
    depth: usize,
    /// Number of elements that the current reply has announced.
    elements: usize,
    /// Number of bytes of all previous tokens (in `began`, of those before the current reply).
    at: u64,
    began: u64,
    /// Number of bytes of the next token that were searched and contain no line end.
    searched: usize,
}

impl Reader {
    pub fn new(limits: ReplyLimits) -> Reader {
        Reader {
            limits,
            ..Reader::default()
        }
    }

    /// Reads the piece at the start of `input`. After [`Step::Piece`], the next call needs the bytes after the piece.
    ///
    /// # Errors
    /// The bytes are not a reply, or exceed the limits.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Step<'a>, ReplyError> {
        let (token, size) = match read(input, self.searched, &self.limits) {
            Found::Token(token, size) => (token, size),
            Found::Incomplete(needed) => {
                // The last byte may be the first one of a line end.
                self.searched = input.len().saturating_sub(1);
                return Ok(Step::Incomplete(needed));
            }
            Found::Bad(fault, at) => return Err(self.error(fault, at)),
        };
        let (end, max) = (self.at + size as u64, self.limits.reply_bytes_max);
        if end - self.began > max {
            return Err(self.error(Fault::Reply { max }, 0));
        }
        let depth = self.depth;
        let is_last = self.count(token)?;
        self.searched = 0;
        self.at = end;
        if is_last {
            self.began = self.at;
            self.elements = 0;
        }
        Ok(Step::Piece(Piece {
            token,
            size,
            depth,
            is_last,
        }))
    }

    /// Counts a token. Returns whether the reply ends with it.
    #[inline]
    fn count(&mut self, token: Token<'_>) -> Result<bool, ReplyError> {
        let children = token.children();
        if children > 0 {
            self.elements = self.elements.saturating_add(children);
            if self.elements > self.limits.elements_max {
                let max = self.limits.elements_max;
                return Err(self.error(Fault::Elements { max }, 0));
            }
            let Some(left) = self.left.get_mut(self.depth) else {
                return Err(self.error(Fault::Depth { max: DEPTH_MAX }, 0));
            };
            *left = children;
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

    #[cold]
    fn error(&self, fault: Fault, at: usize) -> ReplyError {
        ReplyError {
            fault,
            at: self.at + at as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_received_in_parts_is_searched_once() {
        let line = [b"+", &b"x".repeat(1000)[..], b"\r\n"].concat();
        let mut reader = Reader::default();
        for end in 1..line.len() {
            let step = reader.next(&line[..end]);
            assert!(matches!(step, Ok(Step::Incomplete(needed)) if needed > end));
            assert_eq!(reader.searched, end - 1);
        }
        let Ok(Step::Piece(piece)) = reader.next(&line) else {
            panic!("it is whole")
        };
        assert_eq!((piece.size, piece.is_last), (line.len(), true));
        assert_eq!(reader.searched, 0);
    }

    #[test]
    fn a_reply_ends_with_its_last_token() {
        let bytes =
            b"*2\r\n*1\r\n$-1\r\n*2\r\n:1\r\n*0\r\n_\r\n|1\r\n+a\r\n+b\r\n%1\r\n+c\r\n+d\r\n";
        let (mut reader, mut at, mut seen) = (Reader::default(), 0, Vec::new());
        while let Ok(Step::Piece(piece)) = reader.next(&bytes[at..]) {
            at += piece.size;
            seen.push((piece.depth, piece.is_last));
        }
        let array = [
            (0, false),
            (1, false),
            (2, false),
            (1, false),
            (2, false),
            (2, true),
        ];
        let remark = [
            (0, false),
            (1, false),
            (1, false),
            (1, false),
            (2, false),
            (2, true),
        ];
        assert_eq!(seen, [&array[..], &[(0, true)], &remark].concat());
        assert_eq!(at, bytes.len());
    }
}
