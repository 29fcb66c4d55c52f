//! MGET, EXISTS and TOUCH of keys of stores and keys of tables, or of nothing, in one request.
//!
//! ```text
//!  MGET s:1 t|2 nosuch:3 ─► rows: MGET t|2 nosuch:3, where the tables are ─► stores: s:1, of one snapshot ─► reply, in order
//! ```
//!
//! In a transaction the stores are read before it (see `tables::stores`), and their part is put to that of the rows.
//!
//! The rows come first and are of one moment, as they are without the stores. A store's keys are all of one version, that which
//! was live when the request came.

use std::sync::Arc;
use std::time::Instant;

use larder_protocol::commands::{Command, Id};
use larder_protocol::errors::Code;
use larder_protocol::resp::{Decoder, Request, Step};

use super::dispatch::Job;
use super::finish::kept_args;
use super::reads::{Ask, ReadJob, Refusal, Target, resolve};
use super::remote::{Incoming, Mode, write_request};
use super::session::State;
use super::tables::{self, ManyJob};
use crate::catalog::Snapshot;

pub(super) struct MixedJob {
    pub command: &'static Command,
    snapshot: Arc<Snapshot>,
    request: Vec<u8>,
    pub started: Instant,
    pub args: Vec<Vec<u8>>,
}

/// Whether a request asks for keys of stores and for others.
pub(super) fn is_mixed(snapshot: &Snapshot, command: &Command, request: Request<'_>) -> bool {
    if !matches!(command.id, Id::MGet | Id::Exists | Id::Touch) || request.len() < 3 {
        return false;
    }
    let is_row = |at: usize| tables::is_of_table(snapshot, request.arg(at));
    let first = is_row(1);
    (2..request.len()).any(|at| is_row(at) != first)
}

/// What a mixed request asks of stores, and where among its keys they are.
pub(super) struct Split {
    pub rows: Vec<u8>,
    pub stores: Vec<u8>,
    is_row: Vec<bool>,
}

impl Split {
    /// Two requests of a mixed one.
    pub fn of(snapshot: &Snapshot, request: Request<'_>) -> Split {
        let (mut rows, mut stores) = (vec![request.arg(0)], vec![request.arg(0)]);
        let mut is_row = Vec::with_capacity(request.len());
        for key in request.args().skip(1) {
            let row = tables::is_of_table(snapshot, key);
            is_row.push(row);
            match row {
                true => rows.push(key),
                false => stores.push(key),
            }
        }
        let written = |args: Vec<&[u8]>| {
            let mut bytes = Vec::new();
            write_request(&mut bytes, args.into_iter());
            bytes
        };
        Split {
            rows: written(rows),
            stores: written(stores),
            is_row,
        }
    }

    /// One reply of two; an error of either instead.
    pub fn join(&self, rows: &[u8], stores: &[u8]) -> Option<Vec<u8>> {
        if let Some(error) = [rows, stores]
            .into_iter()
            .find(|reply| reply.starts_with(b"-"))
        {
            return Some(error.to_vec());
        }
        if let (Some(rows), Some(stores)) = (number(rows), number(stores)) {
            return Some(format!(":{}\r\n", rows + stores).into_bytes());
        }
        let (mut rows, mut stores) = (elements(rows)?.into_iter(), elements(stores)?.into_iter());
        let mut reply = format!("*{}\r\n", self.is_row.len()).into_bytes();
        for is_row in &self.is_row {
            let element = match is_row {
                true => rows.next(),
                false => stores.next(),
            };
            reply.extend(element?);
        }
        Some(reply)
    }
}

impl MixedJob {
    pub fn new(state: &State, command: &'static Command, request: Request<'_>) -> MixedJob {
        let mut bytes = Vec::new();
        write_request(&mut bytes, request.args());
        MixedJob {
            command,
            snapshot: state.core.shared.catalog.load().clone(),
            request: bytes,
            started: Instant::now(),
            args: kept_args(&request),
        }
    }

    /// Reads the rows; the job that answers all. `None`: it was refused.
    pub async fn run(&mut self, state: &mut State) -> Option<Job> {
        match self.with_rows(state).await {
            Ok(next) => next.map(Job::Read),
            Err(refusal) => {
                state.refuse(refusal);
                None
            }
        }
    }

    async fn with_rows(&mut self, state: &mut State) -> Result<Option<ReadJob>, Refusal> {
        let unreadable = || (Code::Io, "the rows cannot be read".to_owned());
        let mut decoder = Decoder::new(state.core.limits);
        let Ok(Step::Request(_)) = decoder.decode(&self.request) else {
            return Err(unreadable());
        };
        let request = decoder.request(&self.request);
        let (mut rows, mut is_row) = (Vec::new(), Vec::new());
        for key in request.args().skip(1) {
            is_row.push(tables::is_of_table(&self.snapshot, key));
            match is_row.last() {
                Some(true) => rows.push(key),
                // A store that cannot be read refuses before anything else is read.
                _ => drop(resolve(&self.snapshot, key)?),
            }
        }
        let reply = self.rows(state, &rows).await?;
        if reply.first() == Some(&b'-') {
            state.failed = true;
            state.output.tail.extend_from_slice(&reply);
            return Ok(None);
        }
        let ask = match self.command.id {
            Id::MGet => Ask::MGet,
            _ => Ask::Exists,
        };
        let mut job = ReadJob::new(state, self.command.id, ask, is_row.len(), self.started);
        job.args = std::mem::take(&mut self.args);
        let mut elements = match ask {
            Ask::MGet => elements(&reply).ok_or_else(unreadable)?.into_iter(),
            _ => {
                job.count_rows(rows.len() as u64, number(&reply).ok_or_else(unreadable)?);
                Vec::new().into_iter()
            }
        };
        for (key, is_row) in request.args().skip(1).zip(is_row) {
            match is_row {
                true if ask == Ask::Exists => {}
                true => job.add(Target::Row(elements.next().ok_or_else(unreadable)?)),
                false => {
                    let (live, key) = resolve(&self.snapshot, key)?;
                    job.add(Target::Key(live.clone(), Box::from(key)));
                }
            }
        }
        Ok(Some(job))
    }

    /// What the command answers for the rows alone.
    async fn rows(&self, state: &mut State, keys: &[&[u8]]) -> Result<Vec<u8>, Refusal> {
        let mut bytes = Vec::new();
        let name = self.command.name.as_bytes();
        let args: Vec<&[u8]> = std::iter::once(name).chain(keys.iter().copied()).collect();
        write_request(&mut bytes, args.into_iter());
        let core = state.core.clone();
        if core.tables.shard().is_none() {
            let (proto, client) = (state.proto, &state.client);
            let mut incoming =
                Incoming::ask(&core, core.index, bytes, proto, client, None, Mode::Each);
            let gone = || (Code::Io, "the server is stopping".to_owned());
            return incoming.reply().await.ok_or_else(gone);
        }
        let mut decoder = Decoder::new(core.limits);
        let Ok(Step::Request(_)) = decoder.decode(&bytes) else {
            return Err((Code::BadRequest, "the request is too long".to_owned()));
        };
        let mut many = ManyJob::new(state, self.command, decoder.request(&bytes));
        let done = many.answer(state).await?;
        state.gate.join(done.gate);
        Ok(done.reply)
    }
}

/// The replies of an array of bulk strings and nulls.
fn elements(reply: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (count, mut rest) = line(reply.strip_prefix(b"*")?)?;
    let count = usize::try_from(count).ok()?;
    let mut elements = Vec::with_capacity(count);
    for _ in 0..count {
        let size = match rest.first()? {
            b'_' => 3,
            b'$' => {
                let (size, after) = line(&rest[1..])?;
                let head = rest.len() - after.len();
                head + usize::try_from(size).map_or(0, |size| size + 2)
            }
            _ => return None,
        };
        let (element, after) = rest.split_at_checked(size)?;
        elements.push(element.to_vec());
        rest = after;
    }
    rest.is_empty().then_some(elements)
}

fn number(reply: &[u8]) -> Option<u64> {
    let (number, rest) = line(reply.strip_prefix(b":")?)?;
    let number = u64::try_from(number).ok()?;
    rest.is_empty().then_some(number)
}

/// The number on the first line, and what follows it.
fn line(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(&bytes[..end]).ok()?.parse().ok()?;
    Some((number, &bytes[end + 2..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_is_cut_into_its_elements() {
        let reply = b"*4\r\n$3\r\na\r\n\r\n$-1\r\n_\r\n$0\r\n\r\n";
        let cut = elements(reply).expect("an array");
        let expected: [&[u8]; 4] = [b"$3\r\na\r\n\r\n", b"$-1\r\n", b"_\r\n", b"$0\r\n\r\n"];
        assert_eq!(cut, expected);
        for bad in [
            &b"*2\r\n$1\r\na\r\n"[..],
            b"*1\r\n$9\r\na\r\n",
            b"+OK\r\n",
            b"*1\r\n:1\r\n",
        ] {
            assert_eq!(elements(bad), None);
        }
        assert_eq!(number(b":12\r\n"), Some(12));
    }
}
