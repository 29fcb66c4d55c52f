//! Gathers the parts of an answer: determines the participants, and merges their results.
//!
//! ```text
//!  a query ─► run_query ─► regions: the holders of a few regions, if they are complete ───────┐
//!                  └─────► else all owners of objects: the cores of this node, or every node ─┴─► parts ─► merge_parts
//!  another node's request ─► execute_part: the results of this node's cores
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_protocol::commands::Command;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::context::{QueryContext, QueryScope, unreadable_part};
use super::offload::{AbandonGuard, SearchDeadline, dispose, run_offloaded};
use super::profile::{ContactSummary, ShardProfile};
use super::regions::{self, RegionRequest};
use super::run::{ShardRequest, run_on_core};
use super::space_query::{ReplyFormat, SpaceQuery, SteppedRun};
use crate::spaces::DeclaredSpace;
use crate::tables::Refusal;

/// The data that participants return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResultDetail {
    /// The objects found.
    Objects,
    /// The objects found, and a profile of the work.
    ObjectsAndProfile,
    /// Only the plan; the search is not executed.
    PlanOnly,
}

/// The result of one core or one node, with its profile.
pub(super) struct PartialResult<F> {
    pub profiles: Vec<ShardProfile>,
    pub found: F,
}

/// A complete answer.
pub(super) struct QueryResult<F> {
    pub part: PartialResult<F>,
    /// Empty unless requested.
    pub contacted: ContactSummary,
    /// The remaining time for the reply.
    pub deadline: SearchDeadline,
    /// Keeps the search alive until it is dropped.
    _abandon_guard: AbandonGuard,
}

impl QueryContext {
    pub(super) fn shard_request(
        &self,
        declared: &Arc<DeclaredSpace>,
        timeout_ms: Option<u64>,
        detail: ResultDetail,
    ) -> ShardRequest {
        let limit = timeout_ms.unwrap_or(self.core.shared.config.spaces.search_timeout_ms);
        // 0 means no limit.
        let until = Instant::now().checked_add(Duration::from_millis(limit));
        ShardRequest {
            declared: declared.clone(),
            epoch: self.epoch(),
            deadline: SearchDeadline::new(
                until.filter(|_| limit > 0),
                self.core.shared.tables.abandoned_searches.clone(),
            ),
            detail,
            ticket: self.ticket,
            waits_for_all: false,
        }
    }

    /// Returns the name of a core in profiles.
    pub(super) fn core_name(&self, core: usize) -> String {
        match self.scope {
            QueryScope::Alone => format!("core {core}"),
            _ => format!("{} core {core}", self.core.shared.config.cluster.node),
        }
    }
}

/// Returns the merged results of all participants. `command` is sent to other nodes.
///
/// # Errors
/// A participant does not reply or rejects the question, or it needs a full scan and those are rejected.
pub(super) async fn run_query<Q: SpaceQuery>(
    context: &QueryContext,
    command: Command<'_>,
    declared: &Arc<DeclaredSpace>,
    space_query: &Q,
    detail: ResultDetail,
) -> Result<QueryResult<Q::Output>, Refusal> {
    if context.core.shared.config.spaces.refuse_full_scans && detail != ResultDetail::PlanOnly {
        space_query.ensure_no_full_scan(&declared.definition)?;
    }
    let request = context.shard_request(declared, space_query.timeout_ms(), detail);
    let (deadline, abandon_guard) = (request.deadline.clone(), request.deadline.abandon_guard());
    let mut contacted = match detail {
        ResultDetail::Objects => ContactSummary::default(),
        _ => ContactSummary {
            candidates: regions::describe_candidates(context, declared, space_query.predicate()),
            ..ContactSummary::all_owners(context)
        },
    };
    // Copies in regions may not reflect the transaction's own writes yet.
    if context.ticket.is_none()
        && let Some(region_request) =
            regions::choose_regions(context, declared, space_query.predicate())
    {
        let region_summary = match detail {
            ResultDetail::Objects => ContactSummary::default(),
            _ => contacted.with_regions(declared, &region_request),
        };
        match regions::query_holders(
            context,
            command,
            &request,
            space_query,
            region_request.by_node,
        )
        .await?
        {
            Some(parts) => {
                let part = merge_parts(&deadline, space_query, parts, Q::merge_copies).await?;
                return Ok(QueryResult {
                    part,
                    contacted: region_summary,
                    deadline,
                    _abandon_guard: abandon_guard,
                });
            }
            None => contacted.incomplete_subspace = region_summary.subspace,
        }
    }
    let parts = match context.scope {
        QueryScope::Nodes => {
            let parts = context.query_nodes(command, declared).await?;
            let (bytes, space_query) = (parts.iter().map(Vec::len).sum(), space_query.clone());
            let decode_all = move || {
                let decoded = parts.iter().map(|part| decode(&space_query, part, detail));
                decoded.collect::<Result<_, _>>()
            };
            run_offloaded(&deadline, bytes, decode_all).await?
        }
        _ => query_cores(context, &request, space_query).await?,
    };
    let part = merge_parts(&deadline, space_query, parts, Q::merge).await?;
    Ok(QueryResult {
        part,
        contacted,
        deadline,
        _abandon_guard: abandon_guard,
    })
}

/// Returns this node's part for another node: from the requested regions, or from all objects that it owns.
///
/// # Errors
/// Some of the regions are not on this node, or the search is rejected.
pub(super) async fn execute_part<Q: SpaceQuery>(
    context: &QueryContext,
    region_request: Option<RegionRequest>,
    declared: &Arc<DeclaredSpace>,
    space_query: &Q,
    detail: ResultDetail,
) -> Result<Vec<u8>, Refusal> {
    let request = context.shard_request(declared, space_query.timeout_ms(), detail);
    let (deadline, _abandon_guard) = (request.deadline.clone(), request.deadline.abandon_guard());
    let merged = match region_request {
        Some(region_request) => {
            let parts =
                regions::query_own_copies(context, &request, &region_request, space_query).await?;
            let parts = parts.ok_or_else(regions::incomplete_regions)?;
            merge_parts(&deadline, space_query, parts, Q::merge_copies).await?
        }
        None => {
            let parts = query_cores(context, &request, space_query).await?;
            merge_parts(&deadline, space_query, parts, Q::merge).await?
        }
    };
    let (bytes, space_query) = (space_query.bytes(&merged.found), space_query.clone());
    let part = run_offloaded(&deadline, bytes, move || {
        Ok(encode(&space_query, &merged, detail))
    });
    let part = part.await?;
    Ok(context.encode_part(declared, &part))
}

/// Returns the results of this node's cores for the objects that they own.
async fn query_cores<Q: SpaceQuery>(
    context: &QueryContext,
    request: &ShardRequest,
    space_query: &Q,
) -> Result<Vec<PartialResult<Q::Output>>, Refusal> {
    let (mut request, own) = (request.clone(), space_query.clone());
    request.waits_for_all = space_query.waits_for_all();
    let parts = context.run_on_cores(move |tables| async move {
        let (started, core) = (Instant::now(), tables.index);
        let detail = request.detail;
        let done = run_on_core(tables, request, |index| own.begin(index)).await?;
        finish_core(&own, done, detail, (core, started))
    });
    let parts = parts.await?.into_iter();
    Ok(parts.map(|part| part.with_core_names(context)).collect())
}

/// Returns a core's result and profile. The tuple has the core's number and the start time.
pub(super) fn finish_core<Q: SpaceQuery>(
    space_query: &Q,
    done: Q::Run,
    detail: ResultDetail,
    (core, started): (usize, Instant),
) -> Result<PartialResult<Q::Output>, Refusal> {
    let profiles = match detail {
        ResultDetail::Objects => Vec::new(),
        _ => vec![ShardProfile::of(core, done.profile(), started)],
    };
    if let Some(refusal) = space_query.refusal(&done) {
        dispose(done.bytes(), done);
        return Err(refusal);
    }
    let found = space_query.finish(done)?;
    Ok(PartialResult { profiles, found })
}

/// A method of [`SpaceQuery`] that merges parts.
type MergeMethod<Q> =
    fn(&Q, Vec<<Q as SpaceQuery>::Output>) -> Result<<Q as SpaceQuery>::Output, Refusal>;

async fn merge_parts<Q: SpaceQuery>(
    deadline: &SearchDeadline,
    space_query: &Q,
    mut parts: Vec<PartialResult<Q::Output>>,
    merge: MergeMethod<Q>,
) -> Result<PartialResult<Q::Output>, Refusal> {
    let profiles = parts.iter_mut().flat_map(|part| part.profiles.drain(..));
    let profiles = profiles.collect();
    let found: Vec<Q::Output> = parts.into_iter().map(|part| part.found).collect();
    let bytes = found.iter().map(|part| space_query.bytes(part)).sum();
    let space_query = space_query.clone();
    let found = run_offloaded(deadline, bytes, move || merge(&space_query, found)).await?;
    Ok(PartialResult { profiles, found })
}

/// Returns the reply to a client.
///
/// # Errors
/// The reply would be too long, or the time limit is exceeded.
pub(super) async fn encode_reply<Q: SpaceQuery>(
    context: &QueryContext,
    space_query: &Q,
    deadline: &SearchDeadline,
    found: Q::Output,
) -> Result<Vec<u8>, Refusal> {
    let reply_format = ReplyFormat {
        proto: context.proto,
        limits: context.core.clients.limits,
    };
    let (space_query, own) = (space_query.clone(), deadline.clone());
    run_offloaded(deadline, space_query.bytes(&found), move || {
        space_query.reply(reply_format, &own, found)
    })
    .await
}

impl<F> PartialResult<F> {
    /// Sets the names of the cores in the profile.
    pub fn with_core_names(mut self, context: &QueryContext) -> PartialResult<F> {
        for profile in &mut self.profiles {
            profile.name = context.core_name(profile.core);
        }
        self
    }
}

/// Encodes a part for another node: the result, preceded by the number of cores (4) and their profiles, if requested.
fn encode<Q: SpaceQuery>(
    space_query: &Q,
    part: &PartialResult<Q::Output>,
    detail: ResultDetail,
) -> Vec<u8> {
    let found = space_query.encode(&part.found);
    if detail == ResultDetail::Objects {
        return found;
    }
    let mut out = Vec::new();
    put_count(&mut out, part.profiles.len());
    part.profiles.iter().for_each(|one| one.encode(&mut out));
    put_bytes(&mut out, &found);
    out
}

/// # Errors
/// The bytes were not written by [`encode`].
pub(super) fn decode<Q: SpaceQuery>(
    space_query: &Q,
    bytes: &[u8],
    detail: ResultDetail,
) -> Result<PartialResult<Q::Output>, Refusal> {
    let (profiles, found) = match detail {
        ResultDetail::Objects => (Vec::new(), space_query.decode(bytes)?),
        _ => {
            let (profiles, found) = split_profiles(bytes).map_err(|_| unreadable_part())?;
            (profiles, space_query.decode(&found)?)
        }
    };
    Ok(PartialResult { profiles, found })
}

fn split_profiles(part: &[u8]) -> Result<(Vec<ShardProfile>, Vec<u8>), Malformed> {
    let mut reader = WireReader::new(part);
    let mut profiles = Vec::new();
    for _ in 0..reader.count(48)? {
        profiles.push(ShardProfile::decode(&mut reader)?);
    }
    let found = reader.bytes()?.to_vec();
    reader.end()?;
    Ok((profiles, found))
}
