//! The rows of a search. The content of an entry is in the form of [`crate::search::content::decode_content`]; it is
//! empty with NOCONTENT.

use std::sync::Arc;

use larder_types::wire::{Malformed, put_count};

use super::{Consumer, Reader, Run};
use crate::error::{Refusal, Result};
use crate::index::SpaceIndex;
use crate::index::finder::FinderQuery;
use crate::index::single_step::should_select;
use crate::search::content::put_content;
use crate::search::request::Content;
use crate::search::{Partial, Search};

/// The number of objects that are read before the size of the result is compared with the limit.
const READ_BATCH: usize = 64;

/// Collects the first rows of a search.
#[derive(Debug)]
pub struct SearchConsumer {
    partial: Partial,
    bytes_max: usize,
    /// The first matches of this step. Objects are read after it is known which of them are returned.
    rows: Vec<u32>,
}

pub(in crate::index) fn finder_query(search: &Search) -> FinderQuery<'_> {
    FinderQuery {
        order: &search.order,
        is_counted: !search.options.skips_total,
        keys: search.options.keys.as_ref(),
        ..FinderQuery::new(&search.predicate, search.keep())
    }
}

impl SpaceIndex {
    /// Starts a search that runs in steps. The kept rows may take at most `bytes_max` bytes.
    pub fn search(&self, search: Arc<Search>, bytes_max: usize) -> Run<SearchConsumer> {
        let consumer = SearchConsumer {
            partial: Partial::new(search.keep()),
            bytes_max,
            rows: Vec::new(),
        };
        Run::start(self, search, consumer, None)
    }
}

impl Consumer for SearchConsumer {
    type Request = Search;
    type Output = Partial;

    fn query<'r>(&self, search: &'r Search) -> FinderQuery<'r> {
        finder_query(search)
    }

    fn row_work(search: &Search) -> usize {
        search.row_work()
    }

    fn matches(&self) -> usize {
        self.partial.total as usize
    }

    fn restart(&mut self, search: &Search) {
        self.partial = Partial::new(search.keep());
        self.rows.clear();
    }

    fn consume(
        &mut self,
        search: &Search,
        reader: &mut Reader<'_>,
        batch: &mut Vec<u32>,
        is_walking: bool,
    ) -> Result<()> {
        self.rows.append(batch);
        if is_walking {
            // The walk ends when the requested number of objects has been read.
            self.read_rows(search, reader)
        } else {
            if should_select(search.keep(), &self.rows) {
                self.keep_first(search, reader.index);
            }
            Ok(())
        }
    }

    fn end_step(
        &mut self,
        search: &Search,
        reader: &mut Reader<'_>,
        total: Option<u64>,
    ) -> Result<()> {
        self.read_rows(search, reader)?;
        self.partial.total = self.partial.total.max(total.unwrap_or(0));
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    fn into_output(self) -> Partial {
        self.partial
    }
}

impl SearchConsumer {
    /// Keeps the first rows. The others are only counted.
    fn keep_first(&mut self, search: &Search, index: &SpaceIndex) {
        let found = self.rows.len();
        index.keep_first(&search.order, search.keep(), &mut self.rows);
        self.partial.total += (found - self.rows.len()) as u64;
    }

    /// Adds the first rows to the result.
    fn read_rows(&mut self, search: &Search, reader: &mut Reader<'_>) -> Result<()> {
        self.keep_first(search, reader.index);
        let mut rows = std::mem::take(&mut self.rows);
        rows.chunks(READ_BATCH)
            .try_for_each(|some| self.offer_rows(search, reader, some))?;
        rows.clear();
        self.rows = rows;
        Ok(())
    }

    fn offer_rows(&mut self, search: &Search, reader: &mut Reader<'_>, rows: &[u32]) -> Result<()> {
        let (index, now_ms, partial) = (reader.index, reader.now_ms, &mut self.partial);
        // The concatenated ranks of the rows to read, and the range of each.
        let (mut ranks, mut read) = (Vec::new(), Vec::with_capacity(rows.len()));
        let mut kept: Vec<(u32, &[u8])> = Vec::with_capacity(rows.len());
        for row in rows.iter().copied() {
            let (key, begin) = (index.rows.key(row), ranks.len());
            index.put_rank(&search.order, row, &mut ranks);
            let rank = &ranks[begin..];
            if search.content == Content::Nothing || !partial.would_keep(rank) {
                partial.offer(rank, key, |_| ());
                ranks.truncate(begin);
            } else {
                read.push(begin..ranks.len());
                kept.push((row, key));
            }
        }
        reader.objects(&kept, &mut |at, bytes| {
            let put = |out: &mut Vec<u8>| {
                let bytes = bytes.ok_or(Malformed("the object is gone"))?;
                put_content(search, index.definition(), bytes, now_ms, out, put_count)
            };
            // An object that is gone or damaged is not counted.
            let _ = partial.try_offer(&ranks[read[at].clone()], kept[at].1, put);
        });
        if partial.bytes() > self.bytes_max {
            return Err(Refusal::new(format!(
                "rows take more than {} bytes: request fewer with LIMIT, less content with RETURN or NOCONTENT, or read them with FT.AGGREGATE WITHCURSOR",
                self.bytes_max
            )));
        }
        Ok(())
    }
}
