//! The pending output of a connection: buffered small replies, interleaved with large values.
//!
//! Invariants:
//! 1. Bytes are sent in the order in which they were appended.
//! 2. A value of at least [`LARGE_VALUE_BYTES`] is not copied into the buffer, unless the buffer has holes for replies
//!    of other cores.
//! 3. A connection without pending output holds no buffer.
//! 4. The bytes after a large value are sent only once the value, already sent, has been found intact. A client that
//!    receives a complete reply therefore has the value as it was verified. If the value is damaged, the connection is
//!    closed.
//! 5. Buffered bytes are not copied to grow a buffer: a long buffer is set aside, and a new one is started.
//! 6. Sent bytes are released: the memory held is at most that of the unsent bytes plus one buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use larder_protocol::resp::{Encoder, Proto};
use tokio::io::AsyncWrite;

use crate::pinned_value::PinnedValue;

/// Values of at least this size are sent from the mapped file instead of being copied.
pub(super) const LARGE_VALUE_BYTES: usize = 64 << 10;
/// A buffer of at least this size is set aside instead of being grown.
pub(super) const LONG_BYTES: usize = 64 << 10;
/// Maximum size of one write system call, so that one connection does not delay the others of its core.
const WRITE_BYTES_MAX: usize = 1 << 20;
const WRITE_PIECES_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Output {
    /// Output before `tail`, oldest first.
    pieces: VecDeque<Piece>,
    pub tail: Vec<u8>,
    /// Number of bytes already sent of the first piece, or of `tail` if there are no pieces.
    sent: usize,
    /// Bytes in `pieces`.
    pieces_len: usize,
    /// `tail` has holes that replies of other cores will fill, so it must stay contiguous.
    pub has_holes: bool,
    /// Buffers that have been sent, for reuse.
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

/// A position in the output, for [`Output::rewind`].
#[derive(Clone, Copy)]
pub(super) struct OutputMark {
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

    /// Appends a bulk string. A small value is copied; a large one is appended as a reference to its file.
    pub fn push_pinned(&mut self, proto: Proto, value: PinnedValue) {
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

    /// Returns whether the tail is long enough to be set aside. False while it has holes.
    #[inline]
    pub fn is_long(&self) -> bool {
        self.tail.len() >= LONG_BYTES && !self.has_holes
    }

    /// Sets the tail aside and continues with the empty buffer `next`.
    pub fn rotate_tail(&mut self, next: Vec<u8>) {
        debug_assert!(!self.has_holes);
        let before = std::mem::replace(&mut self.tail, next);
        self.pieces_len += before.len();
        self.pieces.push_back(Piece::Bytes(before));
    }

    /// Returns the memory held. Values in a mapped file of a version count as zero.
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

    pub fn mark(&self) -> OutputMark {
        OutputMark {
            pieces: self.pieces.len(),
            tail: self.tail.len(),
        }
    }

    /// Discards everything appended since `mark`. Nothing may have been sent in between.
    pub fn rewind(&mut self, mark: OutputMark) {
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

    /// Sends until the output is empty or the socket is full. Returns the number of bytes sent by this call.
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
            // Up to and including the first value: the bytes after it must wait (invariant 4).
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
                return Poll::Ready(Err(io::Error::other(
                    "the file of a value was truncated while the value was sent",
                )));
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
            // A client that reads while more is appended never empties the buffer, so the sent prefix is released here.
            self.tail.drain(..self.sent);
            self.sent = 0;
        }
    }
}
