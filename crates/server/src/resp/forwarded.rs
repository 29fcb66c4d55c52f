//! Requests of a connection that are forwarded to the cores that have their rows: one message to each core, and the replies are put
//! back in the order of the requests.
//!
//! ```text
//!  session ─ forward ─► [ reply | hole: core 2 | reply | hole: core 1 ] ─ drain: fills the holes as answers come
//!                                 │ Requests                 ▲ ReplyPiece: bytes, and where replies end
//!                                 ▼                          │
//!                              core 2: remote ─ dispatch ─ gate ─┘
//! ```
//!
//! 1. Requests of one session to one core are executed in their order. Requests to several cores are executed at the same
//!    time, unless one reads what joins compute, which reads_outputs on rows of all cores: it waits for writes before it, and
//!    writes behind it wait for it.
//! 2. After a crash no write of a session is there without those before it. So where writes of one batch are executed by several
//!    cores at the same time, they are one shared batch of the journal (see `crate::tables::Tables::end_shared_batch`), which is ended
//!    as soon as all were executed, and not when the client takes the replies.

use std::io;

use larder_protocol::commands::{Batch, Command};
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use super::drive::Replies;
use super::incoming::{Incoming, PIECES_MAX};
use super::nodes::Wanted;
use super::session::{Session, Stream};
use super::state::State;
use crate::catalog::Snapshot;
use crate::tables::{Execution, Requests, Scope, Tables};

/// What decides whether a request may be executed at the same time as those before it, which other cores execute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dependencies {
    pub writes: bool,
    /// It reads what joins compute.
    pub reads_outputs: bool,
    /// Its reply may be long, and then waits for the client.
    pub is_long: bool,
}

/// What a batch has for other cores.
pub(super) struct Forwarded {
    proto: Proto,
    parts: Vec<Part>,
    is_long: bool,
    /// The journal's number of what several cores write at the same time, if they do.
    shared_batch: Option<u64>,
    holes: Vec<Hole>,
}

/// What one core has to do.
struct Part {
    /// The number of its place.
    core: usize,
    batch: Batch,
    writes: bool,
    /// It reads what joins compute.
    reads_outputs: bool,
    /// Of stores, by name: what its reads began with.
    versions: Vec<(String, u64)>,
}

/// Where in the output's tail a reply of a core belongs.
pub(super) struct Hole {
    at: usize,
    part: usize,
    name: &'static str,
    writes: bool,
}

impl Forwarded {
    pub fn new(proto: Proto) -> Forwarded {
        Forwarded {
            proto,
            parts: Vec::new(),
            is_long: false,
            shared_batch: None,
            holes: Vec::new(),
        }
    }

    /// Whether a request to `core` must wait for those forwarded before it.
    pub fn must_be_answered_first(&self, core: usize, needs: Dependencies, proto: Proto) -> bool {
        let others = || self.parts.iter().filter(|part| part.core != core);
        proto != self.proto
            || (needs.reads_outputs && others().any(|part| part.writes))
            || (needs.writes && others().any(|part| part.reads_outputs))
            || (needs.writes && self.is_long)
            || (needs.is_long && self.writes())
    }

    /// Whether there are writes among it.
    pub fn writes(&self) -> bool {
        self.parts.iter().any(|part| part.writes)
    }

    /// What a write that is executed here, behind those that were forwarded, is part of.
    pub fn shared_batch_with_here(&mut self, tables: &Tables) -> Option<u64> {
        if self.writes() {
            self.shared_batch
                .get_or_insert_with(|| tables.new_shared_batch());
        }
        self.shared_batch
    }

    fn part(&mut self, core: usize) -> usize {
        let known = self.parts.iter().position(|part| part.core == core);
        known.unwrap_or_else(|| {
            self.parts.push(Part {
                core,
                batch: Batch::default(),
                writes: false,
                reads_outputs: false,
                versions: Vec::new(),
            });
            self.parts.len() - 1
        })
    }

    /// Names the versions of stores that a read to be added has begun with. False if another one of a store is named already, which
    /// was live before: those reads must be answered first.
    pub fn names_version(
        &mut self,
        core: usize,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> bool {
        let number = self.part(core);
        let versions = &mut self.parts[number].versions;
        for key in command.keys() {
            let end = key.iter().position(|&byte| byte == b':').unwrap_or(0);
            let Some(live) = snapshot.get(&key[..end]) else {
                continue;
            };
            let (name, version) = (live.name.as_str(), live.version_id.0);
            match versions.iter().find(|(known, _)| known == name) {
                Some((_, known)) if *known != version => return false,
                Some(_) => {}
                None => versions.push((name.to_owned(), version)),
            }
        }
        true
    }

    pub fn add(&mut self, core: usize, at: usize, needs: Dependencies, command: Command<'_>) {
        let number = self.part(core);
        let part = &mut self.parts[number];
        part.batch.push(command);
        part.writes |= needs.writes;
        part.reads_outputs |= needs.reads_outputs;
        self.is_long |= needs.is_long;
        self.holes.push(Hole {
            at,
            part: number,
            name: command.spec.name,
            writes: needs.writes,
        });
    }

    /// Sends it; returns the replies of each core as they will come, and where they belong. The shared batch is to be ended when all
    /// have replied.
    pub fn send(mut self, state: &State) -> Sent {
        let tables = &state.core.tables;
        let cores = state.core.shared.tables.cores();
        let writes = |part: &&Part| part.writes && part.core < cores;
        match self.parts.iter().filter(writes).count() {
            // Other nodes have journals of their own.
            0 => {}
            // What was written here before is logged before.
            1 if self.shared_batch.is_none() => tables.commit(),
            _ => {
                self.shared_batch
                    .get_or_insert_with(|| tables.new_shared_batch());
            }
        }
        let writes = self.writes();
        // What this core's writes mean to others comes before what reads them.
        tables.send_exchange();
        let send = |part: Part| {
            if state.core.nodes.is_some() {
                let mut wanted = Wanted::of(part.batch, self.proto, &state.client);
                wanted.shared_batch = self.shared_batch;
                wanted.versions = part.versions;
                return Incoming::routed(&state.core, Some(part.core as u16), wanted);
            }
            let (pieces, receiver) = mpsc::channel(PIECES_MAX);
            let requests = Requests {
                batch: part.batch,
                proto: self.proto,
                client: state.client.clone(),
                ticket: None,
                execution: Execution::OneByOne,
                shared_batch: self.shared_batch,
                scope: Scope::Settled,
                versions: Vec::new(),
                pieces,
            };
            Incoming::of(&state.core, part.core, requests, receiver)
        };
        let incoming = self.parts.into_iter().map(send).collect();
        Sent {
            incoming,
            holes: self.holes,
            writes,
            shared_batch: self.shared_batch,
        }
    }
}

/// What was forwarded, on its way.
pub(super) struct Sent {
    pub incoming: Vec<Incoming>,
    pub holes: Vec<Hole>,
    pub writes: bool,
    pub shared_batch: Option<u64>,
}

impl<S: Stream> Session<S> {
    /// Sends what the batch has for other cores, and puts their replies where they belong.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        let Some(forwarded) = self.state.forwarded.take() else {
            return Ok(());
        };
        self.state.output.has_holes = false;
        let Sent {
            mut incoming,
            holes,
            writes,
            shared_batch,
        } = forwarded.send(&self.state);
        let Some(first) = holes.first().map(|hole| hole.at) else {
            return Ok(());
        };
        let late = self.state.output.tail.split_off(first);
        let mut at = first;
        let limits = self.state.core.clients.limits;
        let mut dropped = Vec::new();
        for hole in holes {
            let tail = &mut self.state.output.tail;
            tail.extend_from_slice(&late[at - first..hole.at - first]);
            at = hole.at;
            let begin = tail.len();
            let gone = || io::Error::other("a core does not answer");
            let incoming = &mut incoming[hole.part];
            // The bytes of an answer that is not kept.
            let mut too_long = 0;
            loop {
                let tail = &mut self.state.output.tail;
                let out = if too_long > 0 { &mut dropped } else { tail };
                let ended = incoming.next(out).await.ok_or_else(gone)?;
                too_long += dropped.len();
                dropped.clear();
                // Writes are not to wait for their client to take replies. So nothing of this one was sent yet.
                let tail = &mut self.state.output.tail;
                if writes && tail.len() > limits.most() {
                    too_long = tail.len() - begin;
                    tail.truncate(begin);
                }
                if !writes {
                    self.room().await?;
                }
                if ended {
                    break;
                }
            }
            match hole.writes {
                _ if too_long == 0 => {}
                true => self.state.refuse(limits.executed(hole.name, too_long)),
                false => self.state.refuse(limits.too_long()),
            }
        }
        let State {
            output, gate, core, ..
        } = &mut self.state;
        output.tail.extend_from_slice(&late[at - first..]);
        if let Some(shared_batch) = shared_batch {
            core.tables.end_shared_batch(shared_batch, gate);
        }
        Ok(())
    }
}
