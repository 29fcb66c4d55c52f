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

use std::rc::Rc;
use std::sync::Arc;

use larder_protocol::commands::{Batch, Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::OwnedRequest;

use super::pending::Work;
use super::reads::{Ask, ReadJob, Refusal, Target, resolve};
use super::requests::{Incoming, Mode};
use super::state::State;
use super::tables::{self, SeveralCores};
use crate::catalog::Snapshot;

pub(super) struct MixedJob {
    snapshot: Arc<Snapshot>,
}

/// Whether a request asks for keys of stores and for others.
pub(super) fn is_mixed(snapshot: &Snapshot, command: Command<'_>) -> bool {
    if !command.spec.reads_every_key() || command.len() < 3 {
        return false;
    }
    let mut are_rows = command.keys().map(|key| tables::is_of_table(snapshot, key));
    let first = are_rows.next();
    are_rows.any(|is_row| Some(is_row) != first)
}

/// What a mixed request asks of stores, and where among its keys they are.
pub(super) struct Split {
    pub rows: OwnedCommand,
    pub stores: OwnedCommand,
    is_row: Vec<bool>,
}

impl Split {
    /// Two commands of a mixed one.
    pub fn of(snapshot: &Snapshot, command: Command<'_>) -> Split {
        let (mut rows, mut stores) = (vec![command.arg(0)], vec![command.arg(0)]);
        let mut is_row = Vec::with_capacity(command.len());
        for key in command.keys() {
            let row = tables::is_of_table(snapshot, key);
            is_row.push(row);
            match row {
                true => rows.push(key),
                false => stores.push(key),
            }
        }
        let of = |args: Vec<&[u8]>| OwnedCommand {
            spec: command.spec,
            request: OwnedRequest::of(args.iter().copied()),
        };
        Split {
            rows: of(rows),
            stores: of(stores),
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
    pub fn new(state: &State) -> MixedJob {
        MixedJob {
            snapshot: state.core.shared.catalog.load().clone(),
        }
    }

    /// Reads the rows; what then answers all. `None`: it was refused.
    pub async fn run(&self, state: &mut State, command: Command<'_>) -> Option<Work> {
        match self.with_rows(state, command).await {
            Ok(next) => next.map(Work::Read),
            Err(refusal) => {
                state.refuse(refusal);
                None
            }
        }
    }

    async fn with_rows(
        &self,
        state: &mut State,
        command: Command<'_>,
    ) -> Result<Option<ReadJob>, Refusal> {
        let unreadable = || (Code::Io, "the rows cannot be read".to_owned());
        let (mut rows, mut is_row) = (vec![command.arg(0)], Vec::new());
        for key in command.keys() {
            is_row.push(tables::is_of_table(&self.snapshot, key));
            match is_row.last() {
                Some(true) => rows.push(key),
                // A store that cannot be read refuses before anything else is read.
                _ => drop(resolve(&self.snapshot, key)?),
            }
        }
        let rows = OwnedCommand {
            spec: command.spec,
            request: OwnedRequest::of(rows.iter().copied()),
        };
        let rows_count = rows.request.len() as u64 - 1;
        let reply = read_rows(state, rows).await?;
        if reply.first() == Some(&b'-') {
            state.failed = true;
            state.output.tail.extend_from_slice(&reply);
            return Ok(None);
        }
        let ask = match command.id() {
            Id::MGet => Ask::MGet,
            _ => Ask::Exists,
        };
        let mut job = ReadJob::new(state, ask, is_row.len());
        let mut elements = match ask {
            Ask::MGet => elements(&reply).ok_or_else(unreadable)?.into_iter(),
            _ => {
                job.count_rows(rows_count, number(&reply).ok_or_else(unreadable)?);
                Vec::new().into_iter()
            }
        };
        for (key, is_row) in command.keys().zip(is_row) {
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
}

/// What the command answers for the rows alone.
async fn read_rows(state: &mut State, rows: OwnedCommand) -> Result<Vec<u8>, Refusal> {
    let core = state.core.clone();
    if core.tables.shard().is_none() {
        let (proto, client) = (state.proto, &state.client);
        let batch = Batch::from(rows);
        let mut incoming = Incoming::ask(&core, core.index, batch, proto, client, None, Mode::Each);
        let gone = || (Code::Io, "the server is stopping".to_owned());
        return incoming.reply().await.ok_or_else(gone);
    }
    let mut several = SeveralCores::default();
    let done = several.answer(state, Rc::new(rows)).await?;
    state.gate.join(done.gate);
    Ok(done.reply)
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
