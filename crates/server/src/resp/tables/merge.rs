//! A RANGE of rows that several cores have: each reads its own, and they are merged as the client takes them.
//!
//! Each core's part is of the moment when it began.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use larder_join::{Error, Limits, Reading};
use tokio::sync::mpsc;

use super::coordinate::TRIES_MAX;
use super::range::Asked;
use crate::clients::Client;
use crate::tables::{
    Paused, Refusal, Tables, TablesHandle, Unanswered, complete, refusal, stopping,
};

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

/// Holds a core's part, and says how many rows it has.
fn hold(tables: &Tables, asked: &Asked<'_>) -> Result<(Reading, u64), Unanswered> {
    tables.read(|engine, now| {
        let (lo, hi) = (&asked.lo, &asked.hi);
        let count = complete(engine.count(lo, hi, now))?;
        let limits = Limits {
            limit: Some(asked.left),
            reverse: asked.reverse,
            keys_only: asked.keys_only,
            in_all: None,
        };
        let reading = complete(engine.open_range(lo, hi, limits, now))?;
        Ok((reading, count.min(asked.left)))
    })
}

/// Sends a core's part, as it is taken.
async fn send(
    tables: Rc<Tables>,
    asked: Asked<'static>,
    counted: Arc<AtomicUsize>,
    pieces: mpsc::Sender<Piece>,
) {
    let (mut reading, rows) = match hold(&tables, &asked) {
        Ok(held) => held,
        Err(why) => {
            // An error means that nobody waits any more; so below.
            let _ = pieces.send(Piece::Refused(why.refusal())).await;
            return;
        }
    };
    reading.charge(&counted);
    let (mut left, epoch) = (rows, tables.epoch());
    if pieces.send(Piece::Count { rows, epoch }).await.is_err() {
        return;
    }
    while left > 0 {
        let Ok(permit) = pieces.reserve().await else {
            return;
        };
        let (mut rows, mut bytes) = (VecDeque::new(), 0);
        tables.read(|engine, _| {
            engine.read_more(&mut reading, CHUNK_ROWS, &mut |key, value| {
                bytes += key.len() + value.len();
                rows.push_back((key.to_vec(), value.to_vec()));
                match bytes < CHUNK_BYTES {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                }
            })
        });
        if reading.is_lost() {
            return permit.send(Piece::Refused(refusal(Error::AnswerLost)));
        }
        if rows.is_empty() {
            return;
        }
        left -= rows.len() as u64;
        permit.send(Piece::Rows(rows));
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
    /// Begins to read on all cores, of one moment as far as transactions go. If one keeps coming, the cores are paused for it.
    pub async fn begin(
        handle: &Arc<TablesHandle>,
        asked: &Asked<'_>,
        ticket: Option<u64>,
        client: &Client,
    ) -> Result<Merge, Refusal> {
        for _ in 0..TRIES_MAX {
            let begun = Merge::try_to_begin(handle, asked, ticket, client);
            if let Some(merge) = begun.await? {
                return Ok(merge);
            }
        }
        let paused = Paused::all(handle).await.map_err(stopping)?;
        let begun = Merge::try_to_begin(handle, asked, Some(paused.ticket), client);
        let begun = begun.await?;
        paused.end_reading();
        begun.ok_or_else(gone)
    }

    /// Nothing if a transaction came in between.
    async fn try_to_begin(
        handle: &TablesHandle,
        asked: &Asked<'_>,
        ticket: Option<u64>,
        client: &Client,
    ) -> Result<Option<Merge>, Refusal> {
        let mut sources = Vec::new();
        for core in 0..handle.cores() {
            let (sender, pieces) = mpsc::channel(CHUNKS_MAX);
            let (asked, counted) = (asked.owned(), client.elsewhere.clone());
            let send = move |tables| send(tables, asked, counted, sender);
            // Its end is seen by the pieces.
            drop(handle.start_on(core, ticket, send));
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
