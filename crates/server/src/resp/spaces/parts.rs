//! The parts of an answer: who is asked for one, and what each finds.
//!
//! ```text
//!  a question ─► whole ─► regions: the holders of a few regions, if they have them ──────────┐
//!                  └────► else all who own objects: the cores of this node, or every node ───┴─► parts ─► merged
//!  another node asks ─► part: what the cores of this node find
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

/// How much is wanted of those who take part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// What they find.
    Found,
    /// And what they did for it.
    Profiled,
    /// How they would go about it, and nothing else.
    Planned,
}

/// What one core, or one node, found, and did for it.
pub(super) struct Part<F> {
    pub told: Vec<Told>,
    pub found: F,
}

/// An answer.
pub(super) struct Whole<F> {
    pub part: Part<F>,
    /// Of nobody, if that is not asked for.
    pub contacted: Contacted,
    /// What is left for the reply.
    pub patience: Patience,
    /// While this is kept, the search goes on.
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
        // 0 is no limit.
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

    /// The name of a core in what is told.
    pub(super) fn core_name(&self, core: usize) -> String {
        match self.reach {
            Reach::Alone => format!("core {core}"),
            _ => format!("{} core {core}", self.core.shared.config.cluster.node),
        }
    }
}

/// What all find that take part. `command` is what other nodes are sent.
///
/// # Errors
/// Not all answer, or one refuses; or all objects would be looked at, and that is refused here.
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
    // In a transaction copies in regions may not have its own writes yet.
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

/// This node's part, for the node that asks: of the regions that it asks for, or of all that is owned here.
///
/// # Errors
/// The regions are not all here; or the search is refused.
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

/// What the cores of this node find among the objects that they own.
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

/// What a core found, and what it did for it, of its number and since when.
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

/// One of the ways to merge parts that a question has.
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

/// The reply to a client.
///
/// # Errors
/// It is longer than a reply may be, or takes longer than it may.
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
    /// With the names of the cores as they are told.
    pub fn named(mut self, asker: &Asker) -> Part<F> {
        for told in &mut self.told {
            told.name = asker.core_name(told.core);
        }
        self
    }
}

/// A part as it travels: what was found; before it, if that is asked for, the number of cores (4) and what each did.
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
/// [`encode`] does not write such bytes.
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
