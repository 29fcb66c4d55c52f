//! What a connection has yet to send: gathered small replies, and large values in between.
//!
//! Invariants:
//! 1. Bytes leave in the order in which they were appended.
//! 2. Values of [`LARGE_VALUE_BYTES`] and more are not copied into the buffer, unless it waits for other cores' replies.
//! 3. A connection with nothing to send holds no buffer.
//! 4. The bytes behind such a value leave only after it was found intact when it had been sent: a client that has the whole
//!    of a reply has the value as it was checked. Otherwise the connection ends.
//! 5. What has gathered is not copied to make room for more: a long buffer is left as it is, and another goes on.
//! 6. What was sent is not kept: at most as much as is yet to be sent, and a buffer's worth.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use larder_protocol::resp::{Encoder, Proto};
use tokio::io::AsyncWrite;

use crate::pinned_value::PinnedValue;

/// From this size on, a value is sent from where it lies.
pub(super) const LARGE_VALUE_BYTES: usize = 64 << 10;
/// From this size on, a buffer is left as it is.
pub(super) const LONG_BYTES: usize = 64 << 10;
/// The most that one system call is given, so that one connection does not hold up its core.
const WRITE_BYTES_MAX: usize = 1 << 20;
const WRITE_PIECES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Output {
    /// Before `tail`, oldest first.
    pieces: VecDeque<Piece>,
    pub tail: Vec<u8>,
    /// Bytes of the first piece, or of the tail if there is none, that have been sent.
    sent: usize,
    /// Bytes in `pieces`.
    pieces_len: usize,
    /// Replies of other cores are to be put into the tail: it must stay whole.
    pub has_holes: bool,
    /// Buffers that were sent, to be used again.
    pub spent: Vec<Vec<u8>>,
}

enum Piece {
    Bytes(Vec<u8>),
    Value(PinnedValue),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Value(value) => value,
        }
    }

    fn is_value(&self) -> bool {
        matches!(self, Piece::Value(_))
    }

    fn is_intact(&self) -> bool {
        match self {
            Piece::Bytes(_) => true,
            Piece::Value(value) => value.is_intact(),
        }
    }
}

/// How much had been appended at some moment, to go back to.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    pieces: usize,
    tail: usize,
}

impl Output {
    #[inline]
    pub fn len(&self) -> usize {
        self.pieces_len + self.tail.len() - self.sent
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty() && self.tail.len() == self.sent
    }

    #[inline]
    pub fn encoder(&mut self, proto: Proto) -> Encoder<'_> {
        Encoder {
            out: &mut self.tail,
            proto,
        }
    }

    /// Appends a bulk string: a copy if it is small, else the value itself.
    pub fn pinned(&mut self, proto: Proto, value: PinnedValue) {
        if value.len() < LARGE_VALUE_BYTES || self.has_holes {
            self.encoder(proto).bulk(&value);
            return;
        }
        self.encoder(proto).bulk_header(value.len());
        self.pieces_len += self.tail.len() + value.len();
        self.pieces
            .push_back(Piece::Bytes(std::mem::take(&mut self.tail)));
        self.pieces.push_back(Piece::Value(value));
        self.tail.extend_from_slice(b"\r\n");
    }

    /// Whether what has gathered is so much that another buffer should go on. Not while there are holes.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.tail.len() >= LONG_BYTES && !self.has_holes
    }

    /// Goes on with the empty buffer `next`.
    pub fn turn_over(&mut self, next: Vec<u8>) {
        debug_assert!(!self.has_holes);
        let before = std::mem::replace(&mut self.tail, next);
        self.pieces_len += before.len();
        self.pieces.push_back(Piece::Bytes(before));
    }

    /// What it keeps in memory: values that are read where a version's file is mapped take none.
    pub fn memory_bytes(&self) -> usize {
        if self.pieces.is_empty() {
            return self.tail.len();
        }
        let own = |piece: &Piece| match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Value(value) => value.memory_bytes(),
        };
        self.pieces.iter().map(own).sum::<usize>() + self.tail.len()
    }

    pub fn mark(&self) -> Mark {
        Mark {
            pieces: self.pieces.len(),
            tail: self.tail.len(),
        }
    }

    /// Takes back what was appended since `mark`. Nothing may have been sent in between.
    pub fn rewind(&mut self, mark: Mark) {
        if self.pieces.len() > mark.pieces {
            let dropped: Vec<Piece> = self.pieces.drain(mark.pieces..).collect();
            self.pieces_len -= dropped
                .iter()
                .map(|piece| piece.bytes().len())
                .sum::<usize>();
            if let Some(Piece::Bytes(tail)) = dropped.into_iter().next() {
                self.tail = tail;
            }
        }
        self.tail.truncate(mark.tail);
    }

    /// Sends until all is sent or the socket takes no more. Returns the bytes sent in this call.
    pub fn poll_send(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = if self.pieces.is_empty() {
            let bytes = &self.tail[self.sent..];
            ready!(Pin::new(stream).poll_write(cx, &bytes[..bytes.len().min(WRITE_BYTES_MAX)]))?
        } else {
            let mut slices = [IoSlice::new(&[]); WRITE_PIECES_MAX];
            let (mut count, mut room, mut skip) = (0, WRITE_BYTES_MAX, self.sent);
            // Up to the first value, and not what is behind it.
            let value = self.pieces.iter().position(Piece::is_value);
            let end = value.map_or(self.pieces.len(), |value| value + 1);
            let tail = value.is_none().then_some(&self.tail[..]);
            let all = self.pieces.range(..end).map(Piece::bytes).chain(tail);
            for (slice, bytes) in slices.iter_mut().zip(all) {
                let bytes = &bytes[skip..];
                let bytes = &bytes[..bytes.len().min(room)];
                *slice = IoSlice::new(bytes);
                room -= bytes.len();
                count += 1;
                skip = 0;
                if room == 0 {
                    break;
                }
            }
            let written = ready!(Pin::new(stream).poll_write_vectored(cx, &slices[..count]))?;
            if !self.pieces.range(..count.min(end)).all(Piece::is_intact) {
                return Poll::Ready(Err(io::Error::other("a value was lost while it was sent")));
            }
            written
        };
        if written == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, written: usize) {
        self.sent += written;
        while let Some(first) = self.pieces.front() {
            let len = first.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.pieces_len -= len;
            if let Some(Piece::Bytes(buffer)) = self.pieces.pop_front() {
                self.spent.push(buffer);
            }
        }
        if self.sent == self.tail.len() {
            self.tail.clear();
            self.sent = 0;
        } else if self.sent >= LONG_BYTES.max(self.tail.len() / 2) && !self.has_holes {
            // Who reads while more is appended never empties it: what was sent is not kept.
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }
}
