//! Forwards the requests of a connection to the cores that own their rows. Each core receives one message, and the
//! replies are put back into the order of the requests.
//!
//! ```text
//!  session ─ forward ─► [ reply | hole: core 2 | reply | hole: core 1 ] ─ drain: fills the holes as replies arrive
//!                                 │ Requests                 ▲ ReplyPiece: bytes, and where replies end
//!                                 ▼                          │
//!                              core 2: remote ─ dispatch ─ gate ─┘
//! ```
//!
//! 1. Requests of one session to one core are executed in order. Requests to several cores are executed concurrently,
//!    unless one reads outputs of joins, which depend on rows of all cores. Such a read waits for the preceding writes,
//!    and later writes wait for it.
//! 2. After a crash, no write of a session exists without the preceding ones. If several cores write concurrently for
//!    one batch, these writes therefore form one shared batch of the journal (see
//!    `crate::tables::Tables::end_shared_batch`). It ends as soon as all of them were executed, and not when the client
//!    reads the replies.

use std::io;

use larder_protocol::commands::{Batch, Command};
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use super::drive::ReplySink;
use super::incoming::{Incoming, PIECES_MAX};
use super::nodes::RoutedBatch;
use super::session::{Session, Stream};
use super::state::ConnectionState;
use crate::catalog::Snapshot;
use crate::tables::{Execution, Requests, Scope, Tables};

/// The properties that decide whether a request may be executed concurrently with the forwarded requests before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dependencies {
    pub writes: bool,
    /// The request reads outputs of joins.
    pub reads_outputs: bool,
    /// The reply may be long, and then waits for the client to read.
    pub is_long: bool,
}

/// The forwarded requests of one batch.
pub(super) struct Forwarded {
    proto: Proto,
    by_core: Vec<CoreRequests>,
    is_long: bool,
    /// The number of the journal's shared batch, if several cores write concurrently.
    shared_batch: Option<u64>,
    holes: Vec<Hole>,
}

/// The requests for one core.
struct CoreRequests {
    /// The number of the core's place.
    core: usize,
    batch: Batch,
    writes: bool,
    /// Some request reads outputs of joins.
    reads_outputs: bool,
    /// The store versions from which the reads started, by store name.
    versions: Vec<(String, u64)>,
}

/// The position of a forwarded reply in the output's tail.
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
            by_core: Vec::new(),
            is_long: false,
            shared_batch: None,
            holes: Vec::new(),
        }
    }

    /// Returns whether a request to `core` must wait for the replies of the requests forwarded before it.
    pub fn has_conflict(&self, core: usize, needs: Dependencies, proto: Proto) -> bool {
        let others = || self.by_core.iter().filter(|part| part.core != core);
        proto != self.proto
            || (needs.reads_outputs && others().any(|part| part.writes))
            || (needs.writes && others().any(|part| part.reads_outputs))
            || (needs.writes && self.is_long)
            || (needs.is_long && self.writes())
    }

    /// Returns whether any of the requests writes.
    pub fn writes(&self) -> bool {
        self.by_core.iter().any(|part| part.writes)
    }

    /// Returns the shared batch for a write on this core that follows forwarded writes.
    pub fn join_shared_batch(&mut self, tables: &Tables) -> Option<u64> {
        if self.writes() {
            self.shared_batch
                .get_or_insert_with(|| tables.new_shared_batch());
        }
        self.shared_batch
    }

    fn core_index(&mut self, core: usize) -> usize {
        let found = self.by_core.iter().position(|part| part.core == core);
        found.unwrap_or_else(|| {
            self.by_core.push(CoreRequests {
                core,
                batch: Batch::default(),
                writes: false,
                reads_outputs: false,
                versions: Vec::new(),
            });
            self.by_core.len() - 1
        })
    }

    /// Records the store versions from which a read starts. Returns false if an earlier read started from another
    /// version of the same store: its reply must arrive first.
    pub fn try_record_versions(
        &mut self,
        core: usize,
        snapshot: &Snapshot,
        command: Command<'_>,
    ) -> bool {
        let number = self.core_index(core);
        let versions = &mut self.by_core[number].versions;
        for key in command.keys() {
            let end = key.iter().position(|&byte| byte == b':').unwrap_or(0);
            let Some(live) = snapshot.get(&key[..end]) else {
                continue;
            };
            let (name, version) = (live.name.as_str(), live.version_id.0);
            match versions.iter().find(|(recorded, _)| recorded == name) {
                Some((_, recorded)) if *recorded != version => return false,
                Some(_) => {}
                None => versions.push((name.to_owned(), version)),
            }
        }
        true
    }

    pub fn add(&mut self, core: usize, at: usize, needs: Dependencies, command: Command<'_>) {
        let number = self.core_index(core);
        let part = &mut self.by_core[number];
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

    /// Sends the requests. Returns the future replies of each core and their positions. The caller ends the shared
    /// batch when all cores have replied.
    pub fn send(mut self, state: &ConnectionState) -> SentRequests {
        let tables = &state.core.tables;
        let cores = state.core.shared.tables.cores();
        let writes = |part: &&CoreRequests| part.writes && part.core < cores;
        match self.by_core.iter().filter(writes).count() {
            // Other nodes have their own journals.
            0 => {}
            // This core's earlier writes must precede the forwarded ones in the log.
            1 if self.shared_batch.is_none() => tables.commit(),
            _ => {
                self.shared_batch
                    .get_or_insert_with(|| tables.new_shared_batch());
            }
        }
        let writes = self.writes();
        // Exchange messages of this core's writes must precede requests that read them.
        tables.send_exchange();
        let send = |part: CoreRequests| {
            if state.core.nodes.is_some() {
                let mut routed_batch = RoutedBatch::of(part.batch, self.proto, &state.client);
                routed_batch.shared_batch = self.shared_batch;
                routed_batch.versions = part.versions;
                return Incoming::request_owner(&state.core, Some(part.core as u16), routed_batch);
            }
            let (pieces, receiver) = mpsc::channel(PIECES_MAX);
            let requests = Requests {
                batch: part.batch,
                proto: self.proto,
                client: state.client.clone(),
                ticket: None,
                execution: Execution::OneByOne,
                shared_batch: self.shared_batch,
                scope: Scope::Verified,
                versions: Vec::new(),
                pieces,
            };
            Incoming::send(&state.core, part.core, requests, receiver)
        };
        let incoming = self.by_core.into_iter().map(send).collect();
        SentRequests {
            incoming,
            holes: self.holes,
            writes,
            shared_batch: self.shared_batch,
        }
    }
}

/// The forwarded requests while their replies are pending.
pub(super) struct SentRequests {
    pub incoming: Vec<Incoming>,
    pub holes: Vec<Hole>,
    pub writes: bool,
    pub shared_batch: Option<u64>,
}

impl<S: Stream> Session<S> {
    /// Sends the forwarded requests of the batch, and puts their replies into place.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        let Some(forwarded) = self.state.forwarded.take() else {
            return Ok(());
        };
        self.state.output.has_holes = false;
        let SentRequests {
            mut incoming,
            holes,
            writes,
            shared_batch,
        } = forwarded.send(&self.state);
        let Some(first) = holes.first().map(|hole| hole.at) else {
            return Ok(());
        };
        let rest = self.state.output.tail.split_off(first);
        let mut at = first;
        let limits = self.state.core.clients.limits;
        let mut discarded = Vec::new();
        for hole in holes {
            let tail = &mut self.state.output.tail;
            tail.extend_from_slice(&rest[at - first..hole.at - first]);
            at = hole.at;
            let begin = tail.len();
            let stopped = || io::Error::other("a core did not reply");
            let incoming = &mut incoming[hole.part];
            // Length of a discarded reply so far; 0 while the reply is kept.
            let mut too_long = 0;
            loop {
                let tail = &mut self.state.output.tail;
                let out = if too_long > 0 { &mut discarded } else { tail };
                let ended = incoming.next(out).await.ok_or_else(stopped)?;
                too_long += discarded.len();
                discarded.clear();
                // Writes must not wait for the client to read replies, so nothing of this reply has been sent yet.
                let tail = &mut self.state.output.tail;
                if writes && tail.len() > limits.unsent_bytes() {
                    too_long = tail.len() - begin;
                    tail.truncate(begin);
                }
                if !writes {
                    self.wait_for_room().await?;
                }
                if ended {
                    break;
                }
            }
            match hole.writes {
                _ if too_long == 0 => {}
                true => self
                    .state
                    .refuse(limits.executed_reply_too_long(hole.name, too_long)),
                false => self.state.refuse(limits.reply_too_long()),
            }
        }
        let ConnectionState {
            output, gate, core, ..
        } = &mut self.state;
        output.tail.extend_from_slice(&rest[at - first..]);
        if let Some(shared_batch) = shared_batch {
            core.tables.end_shared_batch(shared_batch, gate);
        }
        Ok(())
    }
}
