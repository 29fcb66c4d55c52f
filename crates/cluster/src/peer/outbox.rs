//! Queue of bytes to write: small frames share one buffer, large payloads are not copied, and both go into one vectored write.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::frame::Frame;

/// Larger payloads are not copied.
const COPIED_BYTES_MAX: usize = 4 << 10;
/// Written bytes of the buffer are discarded once there are this many.
const WRITTEN_BYTES_MAX: usize = 64 << 10;

/// The output queue of a connection. Positions are offsets from the first byte of the connection.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Precede the tail.
    chunks: VecDeque<Bytes>,
    tail: Vec<u8>,
    tail_written: usize,
    written: u64,
    pushed: u64,
    /// Until the peer's greeting, only bytes before this position may be written.
    held_from: Option<u64>,
}

impl Outbox {
    /// Adds a frame, and returns the position of its end.
    pub fn push(&mut self, frame: &Frame) -> u64 {
        if self.tail_written > WRITTEN_BYTES_MAX {
            self.tail.drain(..self.tail_written);
            self.tail_written = 0;
        }
        let before = self.tail.len();
        let payload = frame.encode_head(&mut self.tail);
        self.pushed += (self.tail.len() - before + payload.len()) as u64;
        if payload.len() <= COPIED_BYTES_MAX {
            self.tail.extend_from_slice(&payload);
        } else {
            let mut head = Bytes::from(std::mem::take(&mut self.tail));
            head.advance(std::mem::take(&mut self.tail_written));
            self.chunks.push_back(head);
            self.chunks.push_back(payload);
        }
        self.pushed
    }

    /// Withholds frames that are pushed from now on until [`Outbox::release`].
    pub fn hold(&mut self) {
        self.held_from = Some(self.pushed);
    }

    pub fn release(&mut self) {
        self.held_from = None;
    }

    /// The number of bytes that were pushed and not written.
    pub fn queued_bytes(&self) -> usize {
        (self.pushed - self.written) as usize
    }

    /// The position up to which everything is written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Fills `out` with the bytes that may be written now, in order, and returns the number of slices.
    pub fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let mut left = self.writable();
        let tail = &self.tail[self.tail_written..];
        let all = self.chunks.iter().map(|chunk| &chunk[..]).chain([tail]);
        let mut count = 0;
        for (place, bytes) in out.iter_mut().zip(all) {
            let size = bytes.len().min(left);
            if size == 0 {
                break;
            }
            *place = IoSlice::new(&bytes[..size]);
            left -= size;
            count += 1;
        }
        count
    }

    fn writable(&self) -> usize {
        let end = self.held_from.unwrap_or(self.pushed);
        (end - self.written) as usize
    }

    /// Records that this many of these bytes were written.
    ///
    /// # Panics
    /// There were fewer bytes.
    pub fn wrote(&mut self, mut size: usize) {
        assert!(
            size <= self.writable(),
            "the socket accepted more bytes than were queued"
        );
        self.written += size as u64;
        while size > 0
            && let Some(first) = self.chunks.front_mut()
        {
            let part = size.min(first.len());
            first.advance(part);
            size -= part;
            if first.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.tail_written += size;
        if self.tail_written == self.tail.len() {
            self.tail.clear();
            self.tail_written = 0;
        }
    }

    /// Discards all unwritten bytes. Returns whether the last frame that was started is complete.
    pub fn clear(&mut self) -> bool {
        let is_complete = self.queued_bytes() == 0;
        self.chunks.clear();
        self.tail.clear();
        self.tail_written = 0;
        self.pushed = self.written;
        self.held_from = None;
        is_complete
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::Exchange;
    use super::*;

    fn frame(size: usize) -> Frame {
        Frame::Exchange(Exchange {
            from_core: 1,
            to_core: 2,
            conversation: 3,
            bytes: vec![b'x'; size].into(),
        })
    }

    #[test]
    fn frames_are_written_in_order_for_any_socket_write_size() {
        for step in [1, 7, 4_096, usize::MAX] {
            let (mut outbox, mut expected, mut written) = (Outbox::default(), vec![], vec![]);
            for size in [0, 10, 5_000, 9_000, 3, 4_096, 4_097, 1] {
                frame(size).encode(&mut expected);
                assert_eq!(outbox.push(&frame(size)), expected.len() as u64);
                take(&mut outbox, step.min(3_000), &mut written);
            }
            while outbox.queued_bytes() > 0 {
                take(&mut outbox, step, &mut written);
            }
            assert_eq!(written, expected);
            assert_eq!(outbox.written(), expected.len() as u64);
        }
    }

    #[test]
    fn held_frames_are_not_written() {
        let (mut outbox, mut written) = (Outbox::default(), vec![]);
        let end = outbox.push(&Frame::Ping(1));
        outbox.hold();
        outbox.push(&Frame::Ping(2));
        take(&mut outbox, usize::MAX, &mut written);
        assert_eq!((written.len() as u64, outbox.written()), (end, end));
        assert_eq!(take(&mut outbox, usize::MAX, &mut written), 0);
        outbox.release();
        take(&mut outbox, usize::MAX, &mut written);
        assert_eq!(written.len() as u64, 2 * end);
    }

    fn take(outbox: &mut Outbox, most: usize, written: &mut Vec<u8>) -> usize {
        let mut slices = [IoSlice::new(&[]); 3];
        let count = outbox.slices(&mut slices);
        let before = written.len();
        for slice in &slices[..count] {
            let left = most - (written.len() - before);
            written.extend_from_slice(&slice[..left.min(slice.len())]);
        }
        let size = written.len() - before;
        outbox.wrote(size);
        size
    }
}
