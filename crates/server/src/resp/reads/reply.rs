//! The incremental reply of a read of stores: for each command, the replies for a value and for an absent key.

use std::ops::{Deref, Range};

use larder_protocol::resp::Proto;

use super::super::output::{LARGE_VALUE_BYTES, Output};
use super::super::tables::digest;
use super::KeyQuery;
use crate::pinned_value::PinnedValue;

/// The reply of a command while it is being built.
#[derive(Clone, Copy)]
pub(in crate::resp) struct ReplyBuilder {
    pub query: KeyQuery,
    pub requested: u64,
    pub absent: u64,
    /// Number of elements of the array, until its header is written.
    pub(super) array: Option<usize>,
}

impl ReplyBuilder {
    pub fn new(query: KeyQuery, keys: usize) -> ReplyBuilder {
        ReplyBuilder {
            query,
            requested: 0,
            absent: 0,
            array: (query == KeyQuery::MGet).then_some(keys),
        }
    }

    /// Appends one key's reply. `hold` is called only for large values.
    #[inline]
    pub fn add<T: Deref<Target = [u8]>>(
        &mut self,
        output: &mut Output,
        proto: Proto,
        key_len: usize,
        value: Option<T>,
        hold: impl FnOnce(T) -> PinnedValue,
    ) {
        self.begin(output, proto);
        let Some(value) = value else {
            self.absent += 1;
            return self.add_absent(output, proto);
        };
        match self.query {
            KeyQuery::Get | KeyQuery::MGet if value.len() < LARGE_VALUE_BYTES => {
                output.encoder(proto).bulk(&value)
            }
            KeyQuery::Get | KeyQuery::MGet => output.push_pinned(proto, hold(value)),
            KeyQuery::Exists => {}
            KeyQuery::StrLen => output.encoder(proto).count(value.len() as u64),
            KeyQuery::MemoryUsage => output.encoder(proto).count((key_len + value.len()) as u64),
            KeyQuery::Object(query) => query.encode_text_reply(&value, &mut output.encoder(proto)),
            KeyQuery::Digest => output.encoder(proto).text(&digest(&value)),
            KeyQuery::Type => output.encoder(proto).simple("string"),
            KeyQuery::Ttl => output.encoder(proto).integer(-1),
            KeyQuery::GetRange { start, end } => {
                let range = byte_range(start, end, value.len());
                if range.len() < LARGE_VALUE_BYTES {
                    output.encoder(proto).bulk(&value[range]);
                } else {
                    output.push_pinned(proto, hold(value).slice(range));
                }
            }
        }
    }

    /// Appends the reply for a key of a table.
    pub(super) fn add_reply(&mut self, output: &mut Output, proto: Proto, reply: &[u8]) {
        self.begin(output, proto);
        let is_absent = reply == b"$-1\r\n" || reply == b"_\r\n";
        self.absent += u64::from(is_absent);
        output.tail.extend_from_slice(reply);
    }

    fn begin(&mut self, output: &mut Output, proto: Proto) {
        self.requested += 1;
        if let Some(len) = self.array.take() {
            output.encoder(proto).array(len);
        }
    }

    fn add_absent(&self, output: &mut Output, proto: Proto) {
        let mut encoder = output.encoder(proto);
        match self.query {
            KeyQuery::Get
            | KeyQuery::MGet
            | KeyQuery::MemoryUsage
            | KeyQuery::Object(_)
            | KeyQuery::Digest => encoder.null(),
            KeyQuery::Exists => {}
            KeyQuery::StrLen => encoder.integer(0),
            KeyQuery::GetRange { .. } => encoder.bulk(b""),
            KeyQuery::Type => encoder.simple("none"),
            KeyQuery::Ttl => encoder.integer(-2),
        }
    }

    pub(super) fn finish(&self, output: &mut Output, proto: Proto) {
        if self.query == KeyQuery::Exists {
            output.encoder(proto).count(self.requested - self.absent);
        }
    }
}

/// Computes the byte range of GETRANGE as Redis does: both ends are inclusive, negative ends count from the end, and
/// the range is clamped.
pub(in crate::resp) fn byte_range(start: i64, end: i64, len: usize) -> Range<usize> {
    let signed = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |at: i64| {
        if at < 0 {
            signed.saturating_add(at)
        } else {
            at
        }
    };
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let (start, end) = (place(start).max(0), place(end).max(0).min(signed - 1));
    if start > end || len == 0 {
        return 0..0;
    }
    start as usize..end as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_redis_reads_them() {
        for (start, end, expected) in [
            (0, 3, 0..4),
            (-3, -1, 8..11),
            (0, -1, 0..11),
            (10, 100, 10..11),
            (5, 2, 0..0),
            (-1, -5, 0..0),
            (-100, 1, 0..2),
            (20, 30, 0..0),
            (0, i64::MIN, 0..1),
        ] {
            assert_eq!(byte_range(start, end, 11), expected, "{start} {end}");
        }
        assert_eq!(byte_range(0, -1, 0), 0..0);
    }
}
