//! Reads batches that several cores wrote concurrently: each takes effect completely or not at all, with each part at
//! its own position.
//!
//! A part whose batch is still open is held back, and so is everything after it, to preserve the order. The parts of
//! a batch and its end are written within a few milliseconds, so little is held back at any time.

use std::collections::{HashMap, VecDeque};

use crate::entry::Entry;

/// Passes on the entries of all logs, in order.
#[derive(Default)]
pub(crate) struct PartAssembler {
    /// The entries from the first part of an open batch on.
    pending: VecDeque<(Option<u64>, Vec<u8>)>,
    /// Batches with parts in `pending`: the number of parts, and how the batch ended.
    batches: HashMap<u64, (usize, Option<BatchEnd>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BatchEnd {
    Committed,
    Aborted,
}

impl PartAssembler {
    pub fn push(&mut self, entry: Entry<'_>, visit: &mut dyn FnMut(Entry<'_>)) {
        match entry {
            Entry::Part { batch, change } => {
                self.batches.entry(batch).or_default().0 += 1;
                self.pending.push_back((Some(batch), change.to_vec()));
            }
            Entry::Commit { batch } => self.end(batch, BatchEnd::Committed, visit),
            Entry::Abort { batch } => self.end(batch, BatchEnd::Aborted, visit),
            change if self.pending.is_empty() => visit(change),
            change => {
                let mut bytes = Vec::new();
                change.encode(&mut bytes);
                self.pending.push_back((None, bytes));
            }
        }
    }

    fn end(&mut self, batch: u64, end: BatchEnd, visit: &mut dyn FnMut(Entry<'_>)) {
        // A batch without parts here precedes the snapshot, which has its rows.
        if let Some((_, ended)) = self.batches.get_mut(&batch) {
            *ended = Some(end);
        }
        while let Some((batch, change)) = self.pending.pop_front() {
            let is_done = match batch {
                None => true,
                Some(batch) => match self.batches.get(&batch).and_then(|(_, end)| *end) {
                    None => return self.pending.push_front((Some(batch), change)),
                    Some(end) => {
                        self.release_part(batch);
                        end == BatchEnd::Committed
                    }
                },
            };
            if is_done {
                visit_encoded(&change, visit);
            }
        }
    }

    fn release_part(&mut self, batch: u64) {
        if let Some((parts, _)) = self.batches.get_mut(&batch) {
            *parts -= 1;
            if *parts == 0 {
                self.batches.remove(&batch);
            }
        }
    }

    /// Ends the input: batches that are still open were not acknowledged and do not take effect. Returns them.
    pub fn finish(self, visit: &mut dyn FnMut(Entry<'_>)) -> Vec<u64> {
        let is_committed = |batch: &u64| {
            let batch = self.batches.get(batch);
            batch.is_some_and(|(_, end)| *end == Some(BatchEnd::Committed))
        };
        for (batch, change) in &self.pending {
            if batch.as_ref().is_none_or(is_committed) {
                visit_encoded(change, visit);
            }
        }
        let open = self.batches.iter().filter(|(_, (_, end))| end.is_none());
        let mut open: Vec<u64> = open.map(|(batch, _)| *batch).collect();
        open.sort_unstable();
        open
    }
}

fn visit_encoded(change: &[u8], visit: &mut dyn FnMut(Entry<'_>)) {
    // It was decoded before it was held back.
    if let Ok((entry, _)) = Entry::decode(change) {
        visit(entry);
    }
}
