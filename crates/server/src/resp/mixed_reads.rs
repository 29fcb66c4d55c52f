//! MGET, EXISTS and TOUCH whose keys are in both stores and tables.
//!
//! ```text
//!  MGET s:1 t|2 nosuch:3 ─► rows: MGET t|2 nosuch:3, on their cores ─► stores: s:1, from one snapshot ─► reply, in order
//! ```
//!
//! In a transaction, the stores are read before it is executed (see `tables::store_reads`), and the two replies are
//! combined.
//!
//! The rows are read first and at one moment, as without the stores. All keys of one store are read from one version:
//! the one that was live when the request arrived.

use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::commands::{Batch, Command, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};

use super::handlers::{self, Function};
use super::incoming::Incoming;
use super::pending::Work;
use super::reads::{KeyQuery, ReadJob, ReadTarget, resolve};
use super::reply_decoding::{decode_elements, decode_integer};
use super::state::ConnectionState;
use super::subject::is_of_table;
use super::tables::CoordinatedCommand;
use super::tracking;
use crate::catalog::Snapshot;
use crate::error::Refusal;
use crate::tables::Execution;

pub(super) struct MixedReadJob {
    snapshot: Arc<Snapshot>,
}

/// A mixed request, split into its keys of tables and its keys of stores.
pub(super) struct SplitRequest {
    pub rows: OwnedCommand,
    pub stores: OwnedCommand,
    is_row: Vec<bool>,
}

impl SplitRequest {
    /// Splits a mixed command into two.
    pub fn split(snapshot: &Snapshot, command: Command<'_>) -> SplitRequest {
        let (mut rows, mut stores) = (vec![command.arg(0)], vec![command.arg(0)]);
        let mut is_row = Vec::with_capacity(command.len());
        for key in command.keys() {
            let row = is_of_table(snapshot, key);
            is_row.push(row);
            if row {
                rows.push(key)
            } else {
                stores.push(key)
            }
        }
        SplitRequest {
            rows: command.with_args(rows.into_iter()),
            stores: command.with_args(stores.into_iter()),
            is_row,
        }
    }

    /// Combines two replies into one. If either is an error, returns that error.
    pub fn merge_replies(&self, rows: &[u8], stores: &[u8]) -> Option<Vec<u8>> {
        if let Some(error) = [rows, stores]
            .into_iter()
            .find(|reply| reply.starts_with(b"-"))
        {
            return Some(error.to_vec());
        }
        if let (Some(rows), Some(stores)) = (decode_integer(rows), decode_integer(stores)) {
            return Some(encode_reply(|encoder| encoder.integer(rows + stores)));
        }
        let (mut rows, mut stores) = (
            decode_elements(rows)?.into_iter(),
            decode_elements(stores)?.into_iter(),
        );
        let mut reply = encode_reply(|encoder| encoder.array(self.is_row.len()));
        for is_row in &self.is_row {
            let element = if *is_row { rows.next() } else { stores.next() };
            reply.extend_from_slice(element?);
        }
        Some(reply)
    }
}

/// Encodes replies that are the same in both versions of the protocol.
fn encode_reply(write: impl FnOnce(&mut Encoder<'_>)) -> Vec<u8> {
    let (mut out, proto) = (Vec::new(), Proto::Resp2);
    write(&mut Encoder {
        out: &mut out,
        proto,
    });
    out
}

impl MixedReadJob {
    pub fn new(state: &ConnectionState) -> MixedReadJob {
        MixedReadJob {
            snapshot: state.core.shared.catalog.load().clone(),
        }
    }

    /// Reads the rows, and returns the job that completes the reply. `None` if an error was returned.
    pub async fn run(&self, state: &mut ConnectionState, command: Command<'_>) -> Option<Work> {
        tracking::note_record_reads(state, &self.snapshot, command);
        match self.read_rows_and_plan(state, command).await {
            Ok(next) => next.map(Work::Read),
            Err(refusal) => {
                state.refuse(refusal);
                None
            }
        }
    }

    async fn read_rows_and_plan(
        &self,
        state: &mut ConnectionState,
        command: Command<'_>,
    ) -> Result<Option<ReadJob>, Refusal> {
        let unreadable = || {
            (
                Code::Io,
                "the rows of the tables could not be read".to_owned(),
            )
        };
        let (mut rows, mut is_row) = (vec![command.arg(0)], Vec::new());
        for key in command.keys() {
            is_row.push(is_of_table(&self.snapshot, key));
            match is_row.last() {
                Some(true) => rows.push(key),
                // The error for an unreadable store is returned before anything is read.
                _ => drop(resolve(&self.snapshot, key)?),
            }
        }
        let rows = command.with_args(rows.into_iter());
        let rows_count = rows.request.len() as u64 - 1;
        let reply = read_rows(state, rows).await?;
        if reply.first() == Some(&b'-') {
            state.failed = true;
            state.output.tail.extend_from_slice(&reply);
            return Ok(None);
        }
        let query = match handlers::find(command).function {
            Function::Query(query) => query(command.request)?,
            _ => KeyQuery::Exists,
        };
        let mut job = ReadJob::new(state, query, is_row.len());
        let mut elements = match query {
            KeyQuery::MGet => decode_elements(&reply).ok_or_else(unreadable)?.into_iter(),
            _ => {
                let present =
                    decode_integer(&reply).and_then(|present| u64::try_from(present).ok());
                job.count_rows(rows_count, present.ok_or_else(unreadable)?);
                Vec::new().into_iter()
            }
        };
        for (key, is_row) in command.keys().zip(is_row) {
            match is_row {
                true if query == KeyQuery::Exists => {}
                true => job.add(ReadTarget::Row(
                    elements.next().ok_or_else(unreadable)?.to_vec(),
                )),
                false => {
                    let (live, key) = resolve(&self.snapshot, key)?;
                    job.add(ReadTarget::Key(live.clone(), Box::from(key)));
                }
            }
        }
        Ok(Some(job))
    }
}

/// Returns the command's reply for the rows alone.
async fn read_rows(state: &mut ConnectionState, rows: OwnedCommand) -> Result<Vec<u8>, Refusal> {
    let core = state.core.clone();
    if core.tables.shard().is_none() {
        let (proto, client) = (state.proto, &state.client);
        let batch = Batch::from(rows);
        let mut incoming = Incoming::request_core(
            &core,
            core.index,
            batch,
            proto,
            client,
            None,
            Execution::OneByOne,
            0,
        );
        let stopping = || (Code::Io, "the server is stopping".to_owned());
        return incoming.reply().await.ok_or_else(stopping);
    }
    let mut several = CoordinatedCommand::default();
    let done = several.run(state, Rc::new(rows)).await?;
    state.gate.merge(done.gate);
    Ok(done.reply)
}
