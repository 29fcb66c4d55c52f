//! Requests of one batch that other cores execute: in one message a core, their replies put back in order.
//!
//! ```text
//!  session ─ gather ─► [ reply | hole: core 2 | reply | hole: core 1 ] ─ drain: fills the holes as answers come
//!                                 │ Requests                 ▲ Answer: bytes, and where replies end
//!                                 ▼                          │
//!                              core 2: remote ─ dispatch ─ gate ─┘
//! ```
//!
//! 1. Requests of one session to one core are executed in their order. Requests to several cores are executed at the same
//!    time, unless one reads what joins compute, which depends on rows of all cores: it waits for writes before it, and
//!    writes behind it wait for it.
//! 2. After a crash no write of a session is there without those before it. So where writes of one batch are executed by several
//!    cores at the same time, they are parts of one whole in the journal (see `crate::tables::Tables::keep_parts`), which is ended
//!    as soon as all were executed, and not when the client takes the replies.

use std::io;

use larder_protocol::commands::{Batch, Command};
use larder_protocol::resp::Proto;
use tokio::sync::mpsc;

use super::drive::Replies;
use super::requests::{ANSWERS_MAX, Incoming, Mode, Requests};
use super::session::Session;
use super::state::State;
use crate::tables::Tables;

/// What decides whether requests to several cores may be executed at the same time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub writes: bool,
    /// It reads what joins compute.
    pub depends: bool,
    /// Its reply may be long, and then waits for the client.
    pub is_long: bool,
}

/// What a batch has for other cores.
pub(super) struct Gathered {
    proto: Proto,
    by_core: Vec<Batch>,
    wrote: Vec<bool>,
    /// Cores that read what joins compute.
    depends: Vec<bool>,
    is_long: bool,
    /// The number of what is written at the same time, if it is.
    parts: Option<u64>,
    holes: Vec<Hole>,
}

/// Where in the output's tail a reply of a core belongs.
pub(super) struct Hole {
    at: usize,
    core: usize,
    name: &'static str,
    writes: bool,
}

impl Gathered {
    pub fn new(cores: usize, proto: Proto) -> Gathered {
        Gathered {
            proto,
            by_core: vec![Batch::default(); cores],
            wrote: vec![false; cores],
            depends: vec![false; cores],
            is_long: false,
            parts: None,
            holes: Vec::new(),
        }
    }

    /// Whether a request to `core` must wait for those gathered before it.
    pub fn must_come_before(&self, core: usize, kind: Kind, proto: Proto) -> bool {
        let others = |cores: &[bool]| {
            let mut others = cores.iter().enumerate();
            others.any(|(other, is)| *is && other != core)
        };
        proto != self.proto
            || (kind.depends && others(&self.wrote))
            || (kind.writes && others(&self.depends))
            || (kind.writes && self.is_long)
            || (kind.is_long && self.writes())
    }

    /// Whether there are writes among it.
    pub fn writes(&self) -> bool {
        self.wrote.contains(&true)
    }

    /// What a write that is executed here, behind those that were gathered, is part of.
    pub fn parts_with_here(&mut self, tables: &Tables) -> Option<u64> {
        if self.writes() {
            self.parts.get_or_insert_with(|| tables.new_parts());
        }
        self.parts
    }

    pub fn add(&mut self, core: usize, at: usize, kind: Kind, command: Command<'_>) {
        self.by_core[core].push(command);
        self.wrote[core] |= kind.writes;
        self.depends[core] |= kind.depends;
        self.is_long |= kind.is_long;
        self.holes.push(Hole {
            at,
            core,
            name: command.spec.name,
            writes: kind.writes,
        });
    }

    /// Sends it; the answers of each core, and the holes. `parts` are to be kept when all have answered.
    pub fn send(mut self, state: &State) -> Sent {
        let tables = &state.core.tables;
        match self.wrote.iter().filter(|wrote| **wrote).count() {
            0 => {}
            // What was written here before is logged before.
            1 if self.parts.is_none() => tables.commit(),
            _ => {
                self.parts.get_or_insert_with(|| tables.new_parts());
            }
        }
        let writes = self.writes();
        // What this core's writes mean to others comes before what reads them.
        tables.send_exchange();
        let send = |(core, batch): (usize, Batch)| {
            (!batch.is_empty()).then(|| {
                let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
                let requests = Requests {
                    batch,
                    proto: self.proto,
                    client: state.client.clone(),
                    ticket: None,
                    mode: Mode::Each,
                    parts: self.parts,
                    answers,
                };
                Incoming::of(&state.core, core, requests, receiver)
            })
        };
        let incoming = self.by_core.into_iter().enumerate().map(send).collect();
        Sent {
            incoming,
            holes: self.holes,
            writes,
            parts: self.parts,
        }
    }
}

/// What was gathered, on its way.
pub(super) struct Sent {
    pub incoming: Vec<Option<Incoming>>,
    pub holes: Vec<Hole>,
    pub writes: bool,
    pub parts: Option<u64>,
}

impl Session {
    /// Sends what the batch has for other cores, and puts their replies where they belong.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        let Some(gathered) = self.state.gathered.take() else {
            return Ok(());
        };
        self.state.output.has_holes = false;
        let Sent {
            mut incoming,
            holes,
            writes,
            parts,
        } = gathered.send(&self.state);
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
            let incoming = incoming[hole.core].as_mut().ok_or_else(gone)?;
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
        if let Some(parts) = parts {
            core.tables.keep_parts(parts, gate);
        }
        Ok(())
    }
}
