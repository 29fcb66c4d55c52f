//! A RANGE of rows that several cores have: each reads its own, and they are merged as the client takes them.
//!
//! Each core's part is of the moment when it began: before its table changes, what is left of it is copied.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;

use larder_join::{Engine, Limits};
use tokio::sync::mpsc;

use super::range::{Asked, complete};
use crate::tables::{Pending, Refusal, Tables, TablesHandle, refusal};

const CHUNK_ROWS: u64 = 512;
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a core that wait to be merged.
const CHUNKS_MAX: usize = 2;

type Row = (Vec<u8>, Vec<u8>);

/// What a core sends: first how many rows it has and when, then the rows.
enum Piece {
    Count { rows: u64, epoch: u64 },
    Rows(VecDeque<Row>),
    Refused(Refusal),
}

/// One core's rows on the core that has them.
struct Part {
    asked: Asked,
    copied: Option<VecDeque<Row>>,
}

struct PartRest(RefCell<Part>);

impl Part {
    /// Reads on; nothing when all was.
    fn read(
        &mut self,
        engine: &mut Engine,
        now: u64,
        rows_max: u64,
        bytes_max: usize,
    ) -> Result<VecDeque<Row>, Refusal> {
        let mut rows = VecDeque::new();
        if let Some(copied) = &mut self.copied {
            rows.extend(copied.drain(..copied.len().min(rows_max as usize)));
            return Ok(rows);
        }
        let asked = &mut self.asked;
        let limits = Limits {
            limit: Some(asked.left.min(rows_max)),
            reverse: asked.reverse,
            keys_only: asked.keys_only,
        };
        let mut bytes = 0;
        let outcome = engine.range(&asked.lo, &asked.hi, limits, now, &mut |key, value| {
            bytes += key.len() + value.len();
            rows.push_back((key.to_vec(), value.to_vec()));
            match bytes < bytes_max {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        complete(outcome)?;
        asked.left -= rows.len() as u64;
        if let Some((last, _)) = rows.back() {
            if asked.reverse {
                asked.hi.clone_from(last);
            } else {
                asked.lo.clone_from(last);
                asked.lo.push(0);
            }
        }
        Ok(rows)
    }
}

impl Pending for PartRest {
    fn reads(&self, key: &[u8]) -> bool {
        self.0.borrow().asked.is_of_table(key)
    }

    fn copy(&self, engine: &mut Engine, now: u64) {
        let mut part = self.0.borrow_mut();
        if part.copied.is_none()
            && let Ok(rows) = part.read(engine, now, u64::MAX, usize::MAX)
        {
            part.copied = Some(rows);
        }
    }
}

/// Sends a core's part, as it is taken.
async fn send(tables: Rc<Tables>, mut asked: Asked, pieces: mpsc::Sender<Piece>) {
    let counted = tables.read(|engine, now| engine.count(&asked.lo, &asked.hi, now));
    let count = match counted.map_err(refusal) {
        Ok((count, outcome)) => complete(Ok(outcome)).map(|()| count),
        Err(refused) => Err(refused),
    };
    let count = match count {
        Ok(count) => count.min(asked.left),
        Err(refused) => {
            // An error means that nobody waits any more; so below.
            let _ = pieces.send(Piece::Refused(refused)).await;
            return;
        }
    };
    asked.left = count;
    let part = Rc::new(PartRest(RefCell::new(Part {
        asked,
        copied: None,
    })));
    let pending: Rc<dyn Pending> = part.clone();
    tables.keep(&pending);
    let (rows, epoch) = (count, tables.epoch());
    if pieces.send(Piece::Count { rows, epoch }).await.is_err() {
        return;
    }
    let mut left = count;
    while left > 0 {
        let Ok(permit) = pieces.reserve().await else {
            return;
        };
        let rows = tables.read(|engine, now| {
            let mut part = part.0.borrow_mut();
            part.read(engine, now, CHUNK_ROWS, CHUNK_BYTES)
        });
        match rows {
            Ok(rows) if rows.is_empty() => return,
            Ok(rows) => {
                left -= rows.len() as u64;
                permit.send(Piece::Rows(rows));
            }
            Err(refused) => return permit.send(Piece::Refused(refused)),
        }
        tokio::task::yield_now().await;
    }
}

/// The rows of all cores in one order.
pub(in crate::resp) struct Merge {
    sources: Vec<Source>,
    reverse: bool,
    pub left: u64,
}

struct Source {
    pieces: mpsc::Receiver<Piece>,
    rows: VecDeque<Row>,
    left: u64,
}

impl Merge {
    /// Begins to read on all cores, of one moment as far as transactions go.
    pub async fn begin(
        handle: &TablesHandle,
        asked: &Asked,
        ticket: Option<u64>,
    ) -> Result<Merge, Refusal> {
        loop {
            if let Some(merge) = Merge::try_to_begin(handle, asked, ticket).await? {
                return Ok(merge);
            }
        }
    }

    /// Nothing if a transaction came in between.
    async fn try_to_begin(
        handle: &TablesHandle,
        asked: &Asked,
        ticket: Option<u64>,
    ) -> Result<Option<Merge>, Refusal> {
        let mut sources = Vec::new();
        for core in 0..handle.cores() {
            let (sender, pieces) = mpsc::channel(CHUNKS_MAX);
            let asked = asked.clone();
            // Its end is seen by the pieces.
            drop(handle.begin_call(core, ticket, move |tables| send(tables, asked, sender)));
            sources.push(Source {
                pieces,
                rows: VecDeque::new(),
                left: 0,
            });
        }
        let (mut left, mut first) = (0, None);
        for source in &mut sources {
            source.left = match source.pieces.recv().await {
                Some(Piece::Count { rows, epoch }) if *first.get_or_insert(epoch) == epoch => rows,
                Some(Piece::Count { .. }) => return Ok(None),
                Some(Piece::Refused(refused)) => return Err(refused),
                _ => return Err(gone()),
            };
            left += source.left;
        }
        Ok(Some(Merge {
            sources,
            reverse: asked.reverse,
            left: left.min(asked.left),
        }))
    }

    /// The next row. It waits for no core longer than that needs to read a chunk.
    pub async fn next(&mut self) -> Result<Option<Row>, Refusal> {
        if self.left == 0 {
            return Ok(None);
        }
        for source in &mut self.sources {
            if source.rows.is_empty() && source.left > 0 {
                source.rows = match source.pieces.recv().await {
                    Some(Piece::Rows(rows)) => rows,
                    Some(Piece::Refused(refused)) => return Err(refused),
                    _ => return Err(gone()),
                };
                source.left -= source.rows.len() as u64;
            }
        }
        let first = |source: &&mut Source| source.rows.front().is_some();
        let sources = self.sources.iter_mut().filter(first);
        let by_key = |a: &&mut Source, b: &&mut Source| a.rows[0].0.cmp(&b.rows[0].0);
        let source = match self.reverse {
            false => sources.min_by(by_key),
            true => sources.max_by(by_key),
        };
        self.left -= 1;
        Ok(source.and_then(|source| source.rows.pop_front()))
    }
}

fn gone() -> Refusal {
    let message = "a core of the server does not answer: it is stopping".to_owned();
    (larder_protocol::errors::Code::Io, message)
}
