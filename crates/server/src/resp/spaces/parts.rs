//! Gathers the parts of an answer: determines the participants, and merges their results.
//!
//! ```text
//!  a question ─► whole ─► regions: the holders of a few regions, if they are complete ───────┐
//!                  └────► else all owners of objects: the cores of this node, or every node ─┴─► parts ─► merged
//!  another node's request ─► part: the results of this node's cores
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_protocol::commands::Command;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::aside::{Patience, Waiting, aside, dispose};
use super::profile::{Contacted, Told};
use super::question::{Question, Replying, Steps};
use super::reach::{Asker, Reach, damaged};
use super::regions::{self, Asked};
use super::run::{Order, run};
use crate::spaces::Declared;
use crate::tables::Refusal;

/// The data that participants return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// The objects found.
    Found,
    /// The objects found, and a profile of the work.
    Profiled,
    /// Only the plan; the search is not executed.
    Planned,
}

/// The result of one core or one node, with its profile.
pub(super) struct Part<F> {
    pub told: Vec<Told>,
    pub found: F,
}

/// A complete answer.
pub(super) struct Whole<F> {
    pub part: Part<F>,
    /// Empty unless requested.
    pub contacted: Contacted,
    /// The remaining time for the reply.
    pub patience: Patience,
    /// Keeps the search alive until it is dropped.
    _waiting: Waiting,
}

impl Asker {
    pub(super) fn order(
        &self,
        declared: &Arc<Declared>,
        timeout_ms: Option<u64>,
        depth: Depth,
    ) -> Order {
        let limit = timeout_ms.unwrap_or(self.core.shared.config.spaces.search_timeout_ms);
        // 0 means no limit.
        let until = Instant::now().checked_add(Duration::from_millis(limit));
        Order {
            declared: declared.clone(),
            epoch: self.epoch(),
            patience: Patience::until(
                until.filter(|_| limit > 0),
                self.core.shared.tables.abandoned_searches.clone(),
            ),
            depth,
            ticket: self.ticket,
            is_of_all: false,
        }
    }

    /// Returns the name of a core in profiles.
    pub(super) fn core_name(&self, core: usize) -> String {
        match self.reach {
            Reach::Alone => format!("core {core}"),
            _ => format!("{} core {core}", self.core.shared.config.cluster.node),
        }
    }
}

/// Returns the merged results of all participants. `command` is sent to other nodes.
///
/// # Errors
/// A participant does not reply or rejects the question, or it needs a full scan and those are rejected.
pub(super) async fn whole<Q: Question>(
    asker: &Asker,
    command: Command<'_>,
    declared: &Arc<Declared>,
    question: &Q,
    depth: Depth,
) -> Result<Whole<Q::Found>, Refusal> {
    if asker.core.shared.config.spaces.refuse_full_scans && depth != Depth::Planned {
        question.ensure_no_full_scan(&declared.definition)?;
    }
    let order = asker.order(declared, question.timeout_ms(), depth);
    let (patience, waiting) = (order.patience.clone(), order.patience.waiting());
    let mut contacted = match depth {
        Depth::Found => Contacted::default(),
        _ => Contacted {
            considered: regions::considered(asker, declared, question.predicate()),
            ..Contacted::owners(asker)
        },
    };
    // Copies in regions may not reflect the transaction's own writes yet.
    if asker.ticket.is_none()
        && let Some(asked) = regions::asked(asker, declared, question.predicate())
    {
        let of_regions = match depth {
            Depth::Found => Contacted::default(),
            _ => contacted.regions(declared, &asked),
        };
        match regions::parts(asker, command, &order, question, asked.by_node).await? {
            Some(parts) => {
                let part = merged(&patience, question, parts, Q::merge_copies).await?;
                return Ok(Whole {
                    part,
                    contacted: of_regions,
                    patience,
                    _waiting: waiting,
                });
            }
            None => contacted.not_ready = of_regions.subspace,
        }
    }
    let parts = match asker.reach {
        Reach::Nodes => {
            let parts = asker.parts_of_nodes(command, declared).await?;
            let (bytes, question) = (parts.iter().map(Vec::len).sum(), question.clone());
            let decode_all = move || {
                let decoded = parts.iter().map(|part| decode(&question, part, depth));
                decoded.collect::<Result<_, _>>()
            };
            aside(&patience, bytes, decode_all).await?
        }
        _ => of_cores(asker, &order, question).await?,
    };
    let part = merged(&patience, question, parts, Q::merge).await?;
    Ok(Whole {
        part,
        contacted,
        patience,
        _waiting: waiting,
    })
}

/// Returns this node's part for another node: from the requested regions, or from all objects that it owns.
///
/// # Errors
/// Some of the regions are not on this node, or the search is rejected.
pub(super) async fn part<Q: Question>(
    asker: &Asker,
    asked: Option<Asked>,
    declared: &Arc<Declared>,
    question: &Q,
    depth: Depth,
) -> Result<Vec<u8>, Refusal> {
    let order = asker.order(declared, question.timeout_ms(), depth);
    let (patience, _waiting) = (order.patience.clone(), order.patience.waiting());
    let merged = match asked {
        Some(asked) => {
            let parts = regions::of_held(asker, &order, &asked, question).await?;
            let parts = parts.ok_or_else(regions::not_held)?;
            merged(&patience, question, parts, Q::merge_copies).await?
        }
        None => {
            let parts = of_cores(asker, &order, question).await?;
            merged(&patience, question, parts, Q::merge).await?
        }
    };
    let (bytes, question) = (question.bytes(&merged.found), question.clone());
    let part = aside(&patience, bytes, move || {
        Ok(encode(&question, &merged, depth))
    });
    let part = part.await?;
    Ok(asker.part(declared, &part))
}

/// Returns the results of this node's cores for the objects that they own.
async fn of_cores<Q: Question>(
    asker: &Asker,
    order: &Order,
    question: &Q,
) -> Result<Vec<Part<Q::Found>>, Refusal> {
    let (mut order, own) = (order.clone(), question.clone());
    order.is_of_all = question.is_of_all();
    let parts = asker.on_cores(move |tables| async move {
        let (begun, core) = (Instant::now(), tables.index);
        let depth = order.depth;
        let done = run(tables, order, |index| own.begin(index)).await?;
        finished(&own, done, depth, (core, begun))
    });
    let parts = parts.await?.into_iter();
    Ok(parts.map(|part| part.named(asker)).collect())
}

/// Returns a core's result and profile. The tuple has the core's number and the start time.
pub(super) fn finished<Q: Question>(
    question: &Q,
    done: Q::Run,
    depth: Depth,
    (core, begun): (usize, Instant),
) -> Result<Part<Q::Found>, Refusal> {
    let told = match depth {
        Depth::Found => Vec::new(),
        _ => vec![Told::of(core, done.profile(), begun)],
    };
    if let Some(refusal) = question.refusal(&done) {
        dispose(done.bytes(), done);
        return Err(refusal);
    }
    let found = question.finish(done)?;
    Ok(Part { told, found })
}

/// A method of [`Question`] that merges parts.
type Merging<Q> = fn(&Q, Vec<<Q as Question>::Found>) -> Result<<Q as Question>::Found, Refusal>;

async fn merged<Q: Question>(
    patience: &Patience,
    question: &Q,
    mut parts: Vec<Part<Q::Found>>,
    merge: Merging<Q>,
) -> Result<Part<Q::Found>, Refusal> {
    let told = parts.iter_mut().flat_map(|part| part.told.drain(..));
    let told = told.collect();
    let found: Vec<Q::Found> = parts.into_iter().map(|part| part.found).collect();
    let bytes = found.iter().map(|part| question.bytes(part)).sum();
    let question = question.clone();
    let found = aside(patience, bytes, move || merge(&question, found)).await?;
    Ok(Part { told, found })
}

/// Returns the reply to a client.
///
/// # Errors
/// The reply would be too long, or the time limit is exceeded.
pub(super) async fn replied<Q: Question>(
    asker: &Asker,
    question: &Q,
    patience: &Patience,
    found: Q::Found,
) -> Result<Vec<u8>, Refusal> {
    let replying = Replying {
        proto: asker.proto,
        limits: asker.core.clients.limits,
    };
    let (question, own) = (question.clone(), patience.clone());
    aside(patience, question.bytes(&found), move || {
        question.reply(replying, &own, found)
    })
    .await
}

impl<F> Part<F> {
    /// Sets the names of the cores in the profile.
    pub fn named(mut self, asker: &Asker) -> Part<F> {
        for told in &mut self.told {
            told.name = asker.core_name(told.core);
        }
        self
    }
}

/// Encodes a part for another node: the result, preceded by the number of cores (4) and their profiles, if requested.
fn encode<Q: Question>(question: &Q, part: &Part<Q::Found>, depth: Depth) -> Vec<u8> {
    let found = question.encode(&part.found);
    if depth == Depth::Found {
        return found;
    }
    let mut out = Vec::new();
    put_count(&mut out, part.told.len());
    part.told.iter().for_each(|one| one.encode(&mut out));
    put_bytes(&mut out, &found);
    out
}

/// # Errors
/// The bytes were not written by [`encode`].
pub(super) fn decode<Q: Question>(
    question: &Q,
    bytes: &[u8],
    depth: Depth,
) -> Result<Part<Q::Found>, Refusal> {
    let (told, found) = match depth {
        Depth::Found => (Vec::new(), question.decode(bytes)?),
        _ => {
            let (told, found) = opened(bytes).map_err(|_| damaged())?;
            (told, question.decode(&found)?)
        }
    };
    Ok(Part { told, found })
}

fn opened(part: &[u8]) -> Result<(Vec<Told>, Vec<u8>), Malformed> {
    let mut reader = WireReader::new(part);
    let mut told = Vec::new();
    for _ in 0..reader.count(48)? {
        told.push(Told::decode(&mut reader)?);
    }
    let found = reader.bytes()?.to_vec();
    reader.end()?;
    Ok((told, found))
}
