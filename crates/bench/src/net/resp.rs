//! Replies of the Redis protocol: their sizes, and the values in them.

use larder_protocol::resp::client::{Reader, Step, Token};

use crate::Result;

/// Finds the ends of the replies of one connection.
#[derive(Default)]
pub struct Replies {
    reader: Reader,
    /// The number of bytes of the current reply that were processed.
    at: usize,
}

impl Replies {
    /// Returns the size of the reply at the start of `bytes`, or `None` if it is incomplete. The next call must pass
    /// the same bytes, followed by more.
    ///
    /// # Errors
    /// The server returned an error, or an invalid reply.
    pub fn size(&mut self, bytes: &[u8]) -> Result<Option<usize>> {
        while let Step::Piece(piece) = self.reader.next(&bytes[self.at..])? {
            if let Token::Error(text) = piece.token {
                let text = String::from_utf8_lossy(text);
                return Err(format!("the server answered {text:?}").into());
            }
            self.at += piece.size;
            if piece.is_last {
                return Ok(Some(std::mem::take(&mut self.at)));
            }
        }
        Ok(None)
    }
}

/// Returns the string of a complete bulk reply, or `None` for nil.
pub fn bulk(reply: &[u8]) -> Option<&[u8]> {
    match Token::first(reply)?.0 {
        Token::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

/// Returns the bulk strings of a complete array, in order. Nil yields an empty string.
pub fn bulks(reply: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = match Token::first(reply) {
        Some((Token::Array(_), size)) => &reply[size..],
        _ => &[],
    };
    std::iter::from_fn(move || {
        let (token, size) = Token::first(rest)?;
        rest = &rest[size..];
        match token {
            Token::Bulk(bytes) => Some(bytes),
            Token::Null => Some(&[][..]),
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_replies_have_sizes_and_truncated_ones_have_none() {
        let complete = b"*4\r\n$1\r\na\r\n$-1\r\n:42\r\n$2\r\n\r\n\r\n";
        let mut replies = Replies::default();
        for end in 0..complete.len() {
            assert_eq!(replies.size(&complete[..end]).unwrap(), None, "{end}");
        }
        assert_eq!(replies.size(complete).unwrap(), Some(complete.len()));
        assert_eq!(replies.size(b"+OK\r\n+OK\r\n").unwrap(), Some(5));
        assert_eq!(replies.size(b"*0\r\n").unwrap(), Some(4));
        assert!(replies.size(b"-ERR no\r\n").is_err());
    }

    #[test]
    fn the_strings_of_an_array_are_read_in_order() {
        let reply = b"*3\r\n$3\r\nGET\r\n$-1\r\n$15\r\na key of eleven\r\n";
        assert_eq!(
            bulks(reply).collect::<Vec<_>>(),
            [&b"GET"[..], b"", b"a key of eleven"]
        );
        assert_eq!(bulks(b"*0\r\n").count(), 0);
        assert_eq!(bulk(b"$2\r\nhi\r\n"), Some(&b"hi"[..]));
        assert_eq!(bulk(b"$-1\r\n"), None);
    }
}
