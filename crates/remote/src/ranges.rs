//! Reads ranges of an object, for readers that do not need all of it.

use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use object_store::{GetOptions, GetRange};

use crate::blocking::{BlockingWait, RETRIES};
use crate::error::{Error, Result};
use crate::location::{Location, Place};

/// The size of one request, and the number of concurrent requests.
const PIECE_BYTES: u64 = 4 << 20;
const REQUESTS: usize = 4;

impl Location {
    /// Returns whether [`Location::read_ranges`] is supported: in object stores and HDFS.
    pub fn has_ranges(&self) -> bool {
        matches!(self.place, Place::Store { .. } | Place::Hdfs(_))
    }

    /// Calls `take` with the bytes of the ranges in order, in pieces with their offsets; blocks. The object must have
    /// `size` bytes, and the ranges must be within it. Must not be called inside a runtime.
    ///
    /// # Errors
    /// `WrongAnswer` if the object has another size now; `Failed`, also if `take` fails.
    pub fn read_ranges(
        &self,
        size: u64,
        ranges: &[Range<u64>],
        mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<()> {
        let pieces = ranges.iter().cloned().flat_map(pieces);
        let waiting = BlockingWait::new(self)?;
        let mut answers = futures::stream::iter(pieces)
            .map(|piece| async move { (piece.start, self.range(size, piece).await) })
            .buffered(REQUESTS);
        while let Some((at, bytes)) = waiting.wait(async { Ok(answers.next().await) })? {
            take(at, &bytes?).map_err(|e| Error::from_io(self, &e))?;
        }
        Ok(())
    }

    async fn range(&self, size: u64, range: Range<u64>) -> Result<Bytes> {
        let mut retries = 0;
        loop {
            match self.range_once(size, range.clone()).await {
                Err(error) if error.is_retryable() && retries < RETRIES => retries += 1,
                answer => return answer,
            }
        }
    }

    async fn range_once(&self, size: u64, range: Range<u64>) -> Result<Bytes> {
        let length = (range.end - range.start) as usize;
        let wrong = |reason: String, retry| Error::WrongAnswer {
            location: self.to_string(),
            reason,
            retry,
        };
        let (stream, now) = match &self.place {
            Place::Store { store, path, .. } => {
                let options = GetOptions {
                    range: Some(GetRange::Bounded(range)),
                    ..GetOptions::default()
                };
                let answer = store.get_opts(path, options).await;
                let answer = answer.map_err(|e| Error::from_store(self, e))?;
                let now = answer.meta.size;
                let stream = answer.into_stream();
                (stream.map_err(|e| Error::from_store(self, e)).boxed(), now)
            }
            Place::Hdfs(hdfs) => {
                hdfs.stream(self, range.start, Some(length), |_| Ok(()))
                    .await?
            }
            Place::Local(_) | Place::Http(_) => {
                return Err(Error::Unsupported {
                    location: self.to_string(),
                    reason: "its server does not support range requests".into(),
                });
            }
        };
        if now != size {
            return Err(wrong(format!("it has {now} bytes, and had {size}"), false));
        }
        let parts = stream.try_fold(
            BytesMut::with_capacity(length),
            |mut all, part| async move {
                all.extend_from_slice(&part);
                Ok(all)
            },
        );
        let bytes = parts.await?.freeze();
        if bytes.len() != length {
            let count = bytes.len();
            return Err(wrong(
                format!("it returned {count} of {length} bytes"),
                true,
            ));
        }
        Ok(bytes)
    }
}

fn pieces(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = range.clone().step_by(PIECE_BYTES as usize);
    starts.map(move |start| start..range.end.min(start + PIECE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::{PIECE_BYTES, pieces};

    #[test]
    fn pieces_are_the_range() {
        let all: Vec<_> = pieces(5..2 * PIECE_BYTES + 6).collect();
        let end = 5 + 2 * PIECE_BYTES;
        assert_eq!(
            all,
            [5..5 + PIECE_BYTES, 5 + PIECE_BYTES..end, end..end + 1]
        );
        assert_eq!(pieces(7..7).count(), 0);
    }
}
