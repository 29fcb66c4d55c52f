//! The buffer of bytes that were received from a server and not consumed yet.
//!
//! ```text
//!  room ── a read of a socket ──► filled ──► bytes ── decoded bytes ──► take
//! ```
//!
//! Invariant: the buffer grows to at most twice the received bytes, whatever a server announces.

/// A buffer that has grown to at most this many times its usual size stays so. Beyond it, an empty buffer shrinks again.
const BUFFERS_MAX: usize = 8;

/// A buffer of received bytes.
#[derive(Debug)]
pub struct Input {
    bytes: Vec<u8>,
    begin: usize,
    end: usize,
    usual: usize,
}

impl Input {
    /// Creates a buffer of `usual` bytes. If it grows to more than `BUFFERS_MAX` times that size, it shrinks when it is empty.
    pub fn new(usual: usize) -> Input {
        Input {
            bytes: vec![0; usual],
            begin: 0,
            end: 0,
            usual,
        }
    }

    /// Returns the bytes that were received and not consumed.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.begin..self.end]
    }

    /// Returns the free space for the next bytes, which is never empty. After [`filled`](Input::filled), the bytes follow
    /// [`Input::bytes`].
    #[inline]
    pub fn spare(&mut self) -> &mut [u8] {
        if self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        if self.end == 0 && self.bytes.len() > BUFFERS_MAX * self.usual {
            self.bytes = vec![0; self.usual];
        }
        if self.end == self.bytes.len() {
            self.bytes.resize((2 * self.end).max(self.usual).max(1), 0);
        }
        &mut self.bytes[self.end..]
    }

    /// Marks the first `count` bytes of the room as received.
    #[inline]
    pub fn commit(&mut self, count: usize) {
        self.end += count;
        assert!(
            self.end <= self.bytes.len(),
            "no more bytes than the spare capacity"
        );
    }

    /// Consumes the first `count` bytes.
    #[inline]
    pub fn consume(&mut self, count: usize) {
        self.begin += count;
        assert!(self.begin <= self.end, "no more bytes than were received");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(input: &mut Input, bytes: &[u8]) {
        for byte in bytes {
            input.spare()[0] = *byte;
            input.commit(1);
        }
    }

    #[test]
    fn bytes_stay_in_order_while_it_grows_and_are_moved_only_to_make_room() {
        let mut input = Input::new(4);
        add(&mut input, b"abcd");
        assert_eq!(input.bytes.len(), 4);
        input.consume(3);
        add(&mut input, b"efg");
        assert_eq!((input.bytes(), input.bytes.len()), (&b"defg"[..], 4));
        add(&mut input, b"h");
        assert_eq!((input.bytes(), input.bytes.len()), (&b"defgh"[..], 8));
        input.consume(5);
        assert_eq!(input.spare().len(), 8, "it has not grown by much");
        add(&mut input, &[0; 40]);
        input.consume(40);
        assert_eq!(input.spare().len(), 4, "the added capacity is released");
    }
}
