//! RANGE over rows of several cores. Each core reads its own rows, and they are merged as the client reads the reply.
//! Likewise, each node of a cluster answers its own RANGE, and the replies are merged.
//!
//! The part of each core or node is a snapshot of the moment when it started.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use larder_join::{Error, Limits, RangeReader};
use larder_protocol::commands::Command;
use larder_protocol::errors::{Code, ROWS};
use larder_protocol::resp::Proto;
use larder_protocol::resp::client::Token;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::super::core::Core;
use super::super::incoming::Incoming;
use super::super::nodes::{BatchTarget, RoutedBatch};
use super::coordinate::{
    ATTEMPTS_MAX, PAUSED_MAX, RetryLimit, core_stopped, until_deadline, wait_for_change,
    wait_for_node_places,
};
use super::range::RangeQuery;
use crate::clients::Client;
use crate::tables::{
    NoReply, PausedCores, Refusal, Tables, TablesHandle, refusal, require_done, stopping,
};

const CHUNK_ROWS: u64 = 512;
const CHUNK_BYTES: usize = 64 << 10;
/// Maximum number of a core's chunks that wait to be merged.
const CHUNKS_MAX: usize = 2;

type Row = (Vec<u8>, Vec<u8>);

/// A message of a core: first the number of its rows and its epochs, then the rows.
enum MergePiece {
    Count {
        rows: u64,
        /// The epochs of the core's transactions and of its ownership.
        epoch: (u64, u64),
    },
    Rows(VecDeque<Row>),
    Refused(Refusal),
    /// A node did not start, for this reason.
    NotDone(String),
}

/// Forwards the rows of a node's reply to RANGE, as the merge consumes them.
async fn forward_rows(mut incoming: Incoming, keys_only: bool, pieces: mpsc::Sender<MergePiece>) {
    let mut bytes = Vec::new();
    let head = loop {
        let Some(is_last) = incoming.next(&mut bytes).await else {
            let why = incoming.rejection().map(str::to_owned);
            let piece = why.map_or_else(|| MergePiece::Refused(rows_lost()), MergePiece::NotDone);
            return drop(pieces.send(piece).await);
        };
        match Token::first(&bytes) {
            Some((Token::Array(count), size)) => break Ok((count, size)),
            Some((Token::Error(text), _)) => break Err(parse_error_reply(text)),
            _ if is_last => break Err(rows_lost()),
            _ => {}
        }
    };
    let (elements, mut at) = match head {
        Ok(head) => head,
        // Here and below, an error means that the receiver is gone.
        Err(refusal) => return drop(pieces.send(MergePiece::Refused(refusal)).await),
    };
    let mut left = if keys_only { elements } else { elements / 2 };
    let (rows, epoch) = (left as u64, (0, 0));
    if pieces
        .send(MergePiece::Count { rows, epoch })
        .await
        .is_err()
    {
        return;
    }
    while left > 0 {
        let mut rows = VecDeque::new();
        while left > 0
            && let Some((row, size)) = decode_row(&bytes[at..], keys_only)
        {
            rows.push_back(row);
            at += size;
            left -= 1;
        }
        bytes.drain(..at);
        at = 0;
        if !rows.is_empty() && pieces.send(MergePiece::Rows(rows)).await.is_err() {
            return;
        }
        if left > 0 {
            match incoming.next(&mut bytes).await {
                Some(_) => {}
                None => return drop(pieces.send(MergePiece::Refused(rows_lost())).await),
            }
        }
    }
}

/// Returns the first row in `bytes` and its encoded size, if the row is complete.
fn decode_row(bytes: &[u8], keys_only: bool) -> Option<(Row, usize)> {
    let (Token::Bulk(key), size) = Token::first(bytes)? else {
        return None;
    };
    if keys_only {
        return Some(((key.to_vec(), Vec::new()), size));
    }
    let (Token::Bulk(value), more) = Token::first(&bytes[size..])? else {
        return None;
    };
    Some(((key.to_vec(), value.to_vec()), size + more))
}

/// Decodes the error reply of another node.
fn parse_error_reply(text: &[u8]) -> Refusal {
    let text = String::from_utf8_lossy(text);
    let (word, message) = text.split_once(' ').unwrap_or(("", &text));
    let row = ROWS.iter().find(|row| row.resp_prefix == word);
    match row {
        Some(row) => (row.code, message.to_owned()),
        None => (Code::Io, text.into_owned()),
    }
}

/// Starts to read a core's part, and returns the number of its rows.
fn open_part(tables: &Tables, query: &RangeQuery<'_>) -> Result<(RangeReader, u64), NoReply> {
    tables.read(|engine, now| {
        let (lo, hi) = (&query.lo, &query.hi);
        let count = require_done(engine.count(lo, hi, now))?;
        let limits = Limits {
            limit: Some(query.left),
            reverse: query.reverse,
            keys_only: query.keys_only(),
            total_limit: None,
        };
        let reading = require_done(engine.open_range(lo, hi, limits, now))?;
        Ok((reading, count.min(query.left)))
    })
}

/// Sends a core's part, as the merge consumes it.
async fn send_part(
    tables: Rc<Tables>,
    query: RangeQuery<'static>,
    epoch_of_map: u64,
    counted: Arc<AtomicUsize>,
    pieces: mpsc::Sender<MergePiece>,
) {
    // A row that moves during the read is then in the part of at least one core or node.
    let is_owner = tables.ensure_owner_since(epoch_of_map);
    let admitted = is_owner.map_err(NoReply::from);
    let (mut reading, rows) = match admitted.and_then(|()| open_part(&tables, &query)) {
        Ok(opened) => opened,
        Err(why) => {
            // Here and below, an error means that the receiver is gone.
            let _ = pieces.send(MergePiece::Refused(why.refusal())).await;
            return;
        }
    };
    reading.charge(&counted);
    let epoch = (tables.epoch(), tables.ownership_epoch());
    if let Err(refusal) = tables.wait_until_committed().await {
        let _ = pieces.send(MergePiece::Refused(refusal)).await;
        return;
    }
    let mut left = rows;
    if pieces
        .send(MergePiece::Count { rows, epoch })
        .await
        .is_err()
    {
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
                if bytes < CHUNK_BYTES {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            })
        });
        if reading.is_lost() {
            return permit.send(MergePiece::Refused(refusal(Error::SnapshotTooOld)));
        }
        if rows.is_empty() {
            return;
        }
        left -= rows.len() as u64;
        permit.send(MergePiece::Rows(rows));
        tokio::task::yield_now().await;
    }
}

/// Merges the rows of all cores in key order.
pub(in crate::resp) struct Merge {
    sources: Vec<MergeSource>,
    reverse: bool,
    pub left: u64,
}

struct MergeSource {
    pieces: mpsc::Receiver<MergePiece>,
    rows: VecDeque<Row>,
    left: u64,
}

impl Merge {
    /// Starts the reads on all cores. No transaction is executed between the starts, and each part covers what its core
    /// owned by the map of `epoch`. If transactions keep interfering, the cores are paused. `pause`: the ticket of a
    /// pause that the caller holds, and its deadline.
    ///
    /// # Errors
    /// The ownership has changed since that map, or a core rejects the read.
    pub async fn begin(
        handle: &Arc<TablesHandle>,
        query: &RangeQuery<'_>,
        epoch: u64,
        pause: Option<(u64, Option<Instant>)>,
        client: &Client,
    ) -> Result<Merge, Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let begun = Merge::try_begin(handle, query, epoch, pause, client);
            if let Some(merge) = begun.await? {
                return Ok(merge);
            }
        }
        let paused = PausedCores::pause_all(handle).await.map_err(stopping)?;
        let pause = (paused.ticket, Some(Instant::now() + PAUSED_MAX));
        let begun = Merge::try_begin(handle, query, epoch, Some(pause), client).await;
        paused.resume_after_reads();
        begun?.ok_or_else(core_stopped)
    }

    /// Starts the reads on all nodes.
    pub async fn over_nodes(
        core: &Rc<Core>,
        command: Command<'_>,
        query: &RangeQuery<'_>,
        client: &Arc<Client>,
    ) -> Result<Merge, Refusal> {
        let mut retry_limit = RetryLimit::new(core);
        loop {
            let places = wait_for_node_places(core, &mut retry_limit).await?;
            let epoch = core.tables.map_epoch();
            let mut sources = Vec::new();
            for place in places {
                let mut routed = RoutedBatch::of(command.into(), Proto::Resp2, client);
                routed.target = BatchTarget::Part(place);
                let incoming = Incoming::request_owner(core, Some(place), routed);
                let (sender, pieces) = mpsc::channel(CHUNKS_MAX);
                tokio::task::spawn_local(forward_rows(incoming, query.keys_only(), sender));
                sources.push(MergeSource {
                    pieces,
                    rows: VecDeque::new(),
                    left: 0,
                });
            }
            let (mut left, mut failure) = (0, None);
            for source in &mut sources {
                match source.pieces.recv().await {
                    Some(MergePiece::Count { rows, .. }) => source.left = rows,
                    Some(MergePiece::NotDone(why)) => failure = Some(why),
                    // No part of the reply has been sent to the client yet, so the read can be retried.
                    Some(MergePiece::Refused((Code::TryAgain, why))) => failure = Some(why),
                    Some(MergePiece::Refused(refused)) => return Err(refused),
                    _ => return Err(rows_lost()),
                }
                left += source.left;
            }
            let Some(why) = failure else {
                return Ok(Merge {
                    sources,
                    reverse: query.reverse,
                    left: left.min(query.left),
                });
            };
            if retry_limit.is_exhausted(core) {
                return Err(retry_limit.refusal(&why));
            }
            wait_for_change(core, epoch).await;
        }
    }

    /// Returns `None` if a transaction was executed between the starts.
    async fn try_begin(
        handle: &TablesHandle,
        query: &RangeQuery<'_>,
        epoch: u64,
        pause: Option<(u64, Option<Instant>)>,
        client: &Client,
    ) -> Result<Option<Merge>, Refusal> {
        let (ticket, until) = pause.unzip();
        let mut sources = Vec::new();
        for core in 0..handle.cores() {
            let (sender, pieces) = mpsc::channel(CHUNKS_MAX);
            let (query, counted) = (query.owned(), client.remote_bytes.clone());
            let start = move |tables| send_part(tables, query, epoch, counted, sender);
            // Completion is visible in the pieces.
            drop(handle.start_on(core, ticket, start));
            sources.push(MergeSource {
                pieces,
                rows: VecDeque::new(),
                left: 0,
            });
        }
        let (mut left, mut first) = (0, None);
        for source in &mut sources {
            let piece = until_deadline(until.flatten(), source.pieces.recv()).await;
            source.left = match piece.flatten() {
                Some(MergePiece::Count { rows, epoch }) if *first.get_or_insert(epoch) == epoch => {
                    rows
                }
                Some(MergePiece::Count { .. }) => return Ok(None),
                Some(MergePiece::Refused(refused)) => return Err(refused),
                _ => return Err(core_stopped()),
            };
            left += source.left;
        }
        Ok(Some(Merge {
            sources,
            reverse: query.reverse,
            left: left.min(query.left),
        }))
    }

    /// Returns the next row. It waits at most until a core has read its next chunk.
    pub async fn next(&mut self) -> Result<Option<Row>, Refusal> {
        if self.left == 0 {
            return Ok(None);
        }
        for source in &mut self.sources {
            if source.rows.is_empty() && source.left > 0 {
                source.rows = match source.pieces.recv().await {
                    Some(MergePiece::Rows(rows)) => rows,
                    Some(MergePiece::Refused(refused)) => return Err(refused),
                    _ => return Err(core_stopped()),
                };
                source.left -= source.rows.len() as u64;
            }
        }
        let has_row = |source: &&mut MergeSource| source.rows.front().is_some();
        let sources = self.sources.iter_mut().filter(has_row);
        let by_key = |a: &&mut MergeSource, b: &&mut MergeSource| a.rows[0].0.cmp(&b.rows[0].0);
        let source = if self.reverse {
            sources.max_by(by_key)
        } else {
            sources.min_by(by_key)
        };
        self.left -= 1;
        Ok(source.and_then(|source| source.rows.pop_front()))
    }
}

/// Returns the error for rows of a node that did not arrive.
fn rows_lost() -> Refusal {
    let message =
        "the rows of a node did not arrive, or the node no longer owns them; retry the request"
            .to_owned();
    (Code::TryAgain, message)
}
