//! Searches and aggregations that contact the holders of one subspace's regions, instead of all owners of objects.
//!
//! ```text
//!  a query ─► route: the cheapest places ─► each place: `query_copies`, in steps ─► partial answers ─► merged
//!                └─ no subspace serves, or a region is incomplete: all owners, as without subspaces
//! ```
//!
//! A holder answers for regions of which it has all copies, and only while it is certain to receive every change; see
//! docs/decisions/0018-regions.md. The command that is sent to other nodes has two more arguments: the mark, and the
//! request to each of their cores:
//!
//! | field | size | meaning |
//! |---|---|---|
//! | id | 8 | of the subspace as declared and cut: `Regions::id` |
//! | cores | count (4), then for each | its number (2) and its regions: count (4), first and last (2 each) of each run |

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use larder_cluster::map::NodeId;
use larder_join::{NO_OWNER, Shard};
use larder_protocol::commands::{Command, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;
use larder_space::copies::{
    Estimate, PricedRoute, Regions, Route, RouteTargets, price_routes, route,
};
use larder_space::mapping::Subspace;
use larder_space::query::Predicate;
use larder_space::schema::{AttributeId, Definition};
use larder_types::wire::{Malformed, WireReader, put_count};

use super::super::tables::request_places;
use super::context::{QueryContext, QueryScope, decode_part};
use super::run::{STEP_EFFORT, ShardRequest};
use super::scatter_gather::{PartialResult, ResultDetail, finish_core};
use super::space_query::{SpaceQuery, SteppedRun};
use crate::spaces::DeclaredSpace;
use crate::tables::{Refusal, Tables, collect_results, stopping};

/// Precedes the requested regions in the arguments.
const REGIONS_MARK: &[u8] = b"\0REGIONS";

type Runs = Vec<RangeInclusive<u16>>;

/// Processor time of contacting another node, on both nodes together, and another core of a node, in microseconds. The
/// values only decide between routes, for which their ratio suffices. `larder space calibrate` measures the values of a
/// given server.
const NODE_US: f64 = 25.0;
const CORE_US: f64 = 5.0;
/// Processor time of a search at any place, in microseconds.
const PLACE_US: f64 = 2.0;

/// The request to one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::resp) struct RegionRequest {
    /// The id of the subspace.
    id: u64,
    /// The requested regions by core.
    cores: Vec<(u16, Runs)>,
}

impl RegionRequest {
    fn encode(&self) -> Vec<u8> {
        let mut out = self.id.to_le_bytes().to_vec();
        put_count(&mut out, self.cores.len());
        for (core, runs) in &self.cores {
            out.extend_from_slice(&core.to_le_bytes());
            put_count(&mut out, runs.len());
            for run in runs {
                out.extend_from_slice(&run.start().to_le_bytes());
                out.extend_from_slice(&run.end().to_le_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<RegionRequest, Malformed> {
        let mut reader = WireReader::new(bytes);
        let id = reader.u64()?;
        let count = reader.count(6)?;
        let mut cores = Vec::with_capacity(count);
        for _ in 0..count {
            let core = reader.u16()?;
            let count = reader.count(4)?;
            let run = |_| Ok(reader.u16()?..=reader.u16()?);
            let runs = (0..count).map(run).collect::<Result<_, Malformed>>()?;
            cores.push((core, runs));
        }
        reader.end()?;
        Ok(RegionRequest { id, cores })
    }

    /// Removes the request from the end of a command's arguments. `None` if all cores are requested.
    pub fn take(arguments: &mut Vec<&[u8]>) -> Option<RegionRequest> {
        let [.., mark, region_request] = arguments[..] else {
            return None;
        };
        let region_request =
            (mark == REGIONS_MARK).then(|| RegionRequest::decode(region_request).ok())??;
        arguments.truncate(arguments.len() - 2);
        Some(region_request)
    }
}

/// The participants, by node (`None`: this one): one of the node's places, and the request to the node.
pub(super) struct RegionRoute {
    pub by_node: BTreeMap<Option<NodeId>, (u16, RegionRequest)>,
    /// All subspaces of the space, and the index of the one that is used.
    pub subspaces: Arc<Regions>,
    pub subspace: usize,
    pub regions: u64,
    /// Number of regions of the subspace.
    pub regions_in_all: u64,
    pub cores: u64,
}

/// Chooses the regions to contact for a search. `None` if contacting all owners of objects is cheaper or necessary.
pub(super) fn choose_regions(
    context: &QueryContext,
    declared: &DeclaredSpace,
    predicate: &Predicate,
) -> Option<RegionRoute> {
    if let QueryScope::Part { .. } = context.scope {
        return None;
    }
    let tables = &context.core.tables;
    let regions = tables.spaces().regions(declared)?;
    let places = CandidatePlaces::of(context, declared, predicate)?;
    let route = route(&regions, predicate, &declared.definition, &places);
    let Route::Regions { subspace, requests } = route else {
        return None;
    };
    let of_requests = requests.values().flatten();
    let contacted: u64 = of_requests.map(|run| run.len() as u64).sum();
    let (regions_in_all, cores) = (regions.subspace(subspace)?.regions(), requests.len());
    let mut by_node: BTreeMap<Option<NodeId>, (u16, RegionRequest)> = BTreeMap::new();
    for (place, runs) in requests {
        let (node, core) = if usize::from(place) < tables.handle().cores() {
            (None, place)
        } else {
            let place = tables.place(place)?;
            (Some(place.node), place.core)
        };
        let empty = RegionRequest {
            id: regions.id(subspace),
            cores: Vec::new(),
        };
        let (_, of_node) = by_node.entry(node).or_insert((place, empty));
        of_node.cores.push((core, runs));
    }
    Some(RegionRoute {
        by_node,
        subspaces: regions,
        subspace,
        regions: contacted,
        regions_in_all: regions_in_all.into(),
        cores: cores as u64,
    })
}

/// The possible participants, as the requesting core knows them.
struct CandidatePlaces<'a> {
    context: &'a QueryContext,
    shard: Rc<Shard>,
    /// Number of places that own objects.
    owners: usize,
    declared: &'a DeclaredSpace,
    predicate: &'a Predicate,
}

impl<'a> CandidatePlaces<'a> {
    fn of(
        context: &'a QueryContext,
        declared: &'a DeclaredSpace,
        predicate: &'a Predicate,
    ) -> Option<CandidatePlaces<'a>> {
        let shard = context.core.tables.shard()?;
        Some(CandidatePlaces {
            context,
            owners: shard.owners().count(),
            shard,
            declared,
            predicate,
        })
    }
}

impl RouteTargets<u16> for CandidatePlaces<'_> {
    fn owners(&self) -> usize {
        self.owners
    }

    fn holder(&self, slot: u16) -> Option<u16> {
        Some(self.shard.owner_of_slot(slot)).filter(|owner| *owner != NO_OWNER)
    }

    fn contact_us(&self, places: Option<&mut dyn Iterator<Item = &u16>>) -> f64 {
        let tables = &self.context.core.tables;
        let (mut nodes, mut cores, mut all) = (BTreeSet::new(), 0, 0);
        let mut add = |place: u16| {
            all += 1;
            if usize::from(place) >= tables.handle().cores() {
                nodes.insert(tables.place(place).map(|it| it.node));
            }
            cores += usize::from(usize::from(place) != tables.index);
        };
        match places {
            Some(places) => places.for_each(|place| add(*place)),
            None => self.shard.owners().for_each(add),
        }
        nodes.len() as f64 * NODE_US + cores as f64 * CORE_US + f64::from(all) * PLACE_US
    }

    /// Extrapolates from this core: assumes that all owners have similar objects.
    fn estimate(&self) -> Estimate {
        let spaces = self.context.core.tables.spaces().read();
        let space = spaces.spaces.get(&self.declared.definition.name);
        let found = space.map(|space| space.index.estimate(self.predicate));
        let (candidates, by) = found.unwrap_or_default();
        let candidates = candidates * self.owners as f64;
        Estimate {
            candidates,
            indexed_by: by,
        }
    }
}

/// Returns all candidate routes with their estimated costs, the cheapest first: `town 31 us, all owners 182 us`. Empty
/// without subspaces.
pub(super) fn describe_candidates(
    context: &QueryContext,
    declared: &DeclaredSpace,
    predicate: &Predicate,
) -> String {
    let mut text = String::new();
    let regions = context.core.tables.spaces().regions(declared);
    let places = CandidatePlaces::of(context, declared, predicate);
    let (Some(regions), Some(places)) = (regions, places) else {
        return text;
    };
    let definition = &declared.definition;
    for PricedRoute { route, cost_us } in price_routes(&regions, predicate, definition, &places) {
        let name = match route {
            Route::Owners => "all owners".to_owned(),
            Route::Regions { subspace, .. } => regions
                .subspace(subspace)
                .map_or_else(String::new, |it| subspace_name(definition, it)),
        };
        let comma = if text.is_empty() { "" } else { ", " };
        let _ = write!(text, "{comma}{name} {cost_us:.0} us");
    }
    text
}

/// Returns the attributes of a subspace, such as `city,stars`.
pub(super) fn subspace_name(definition: &Definition, subspace: &Subspace) -> String {
    let dimensions = subspace.dimensions().iter();
    let names = dimensions.map(|it| definition.attribute(AttributeId(it.attribute.0)));
    let names: Vec<&str> = names.flatten().map(|it| it.name.as_str()).collect();
    names.join(",")
}

/// Returns the parts of the holders of the regions that a search contacts. `None` if all owners of objects must be
/// contacted instead.
///
/// # Errors
/// The search itself is rejected.
pub(super) async fn query_holders<Q: SpaceQuery>(
    context: &QueryContext,
    command: Command<'_>,
    request: &ShardRequest,
    space_query: &Q,
    mut by_node: BTreeMap<Option<NodeId>, (u16, RegionRequest)>,
) -> Result<Option<Vec<PartialResult<Q::Output>>>, Refusal> {
    let own = by_node.remove(&None);
    let mut others = Vec::new();
    for (place, region_request) in by_node.into_values() {
        let bytes = region_request.encode();
        let more = [REGIONS_MARK, &bytes];
        let args = command.args().skip(1).chain(more);
        others.push((place, OwnedCommand::of(command.id(), args).into()));
    }
    let own = async {
        match own {
            Some((_, region_request)) => {
                query_own_copies(context, request, &region_request, space_query).await
            }
            None => Ok(Some(Vec::new())),
        }
    };
    let others = request_places(&context.core, &context.client, Proto::Resp2, others);
    let (own, others) = tokio::join!(own, others);
    let (Some(mut parts), Ok(replies)) = (own?, others) else {
        return Ok(None);
    };
    for reply in replies {
        match decode_part(&reply, &request.declared) {
            Ok(part) => parts.push(super::scatter_gather::decode(
                space_query,
                &part,
                request.detail,
            )?),
            Err((Code::TryAgain, _)) => return Ok(None),
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(Some(parts))
}

/// Returns the results of this node's cores from regions that they hold. `None` if some regions are incomplete.
///
/// # Errors
/// The search itself is rejected.
pub(super) async fn query_own_copies<Q: SpaceQuery>(
    context: &QueryContext,
    request: &ShardRequest,
    region_request: &RegionRequest,
    space_query: &Q,
) -> Result<Option<Vec<PartialResult<Q::Output>>>, Refusal> {
    // This core's earlier writes must be visible.
    context.core.tables.commit();
    let mut running = Vec::with_capacity(region_request.cores.len());
    for (core, runs) in &region_request.cores {
        let core = usize::from(*core);
        if core >= context.core.tables.handle().cores() {
            return Ok(None);
        }
        let (request, runs, id) = (request.clone(), runs.clone(), region_request.id);
        let space_query = space_query.clone();
        let task = move |tables| async move {
            let (started, detail) = (Instant::now(), request.detail);
            let run = query_copies(tables, request, id, runs, &space_query).await?;
            let part = |done| finish_core(&space_query, done, detail, (core, started));
            run.map(part).transpose()
        };
        running.push(context.core.shared.tables.start_on(core, None, task));
    }
    // If any of them is `None`, the result is `None`.
    let parts = collect_results(running)
        .await
        .map_err(stopping)?
        .into_iter();
    let parts: Option<Result<Vec<_>, Refusal>> = parts.map(Result::transpose).collect();
    let named = |parts: Vec<PartialResult<_>>| {
        parts
            .into_iter()
            .map(|part| part.with_core_names(context))
            .collect()
    };
    Ok(parts.transpose()?.map(named))
}

/// Executes a query on the copies that this core holds. `None` if some copies are missing or were removed during the
/// execution.
async fn query_copies<Q: SpaceQuery>(
    tables: Rc<Tables>,
    request: ShardRequest,
    id: u64,
    runs: Runs,
    space_query: &Q,
) -> Result<Option<Q::Run>, Refusal> {
    let mut running: Option<(Q::Run, u64)> = None;
    loop {
        tables.wait_while_paused(None).await;
        let now = tables.read(|_, now| now);
        let step = {
            let mut all = tables.spaces().write();
            let generation = all.copies.generation();
            let Some(holder) = all.copies.holder(id, now) else {
                return Ok(None);
            };
            let (mut run, started) = match running.take() {
                Some(running) => running,
                None if holder.is_ready(space_query.predicate(), &runs) => {
                    (space_query.begin(holder.index()), generation)
                }
                None => return Ok(None),
            };
            if generation != started {
                return Ok(None);
            }
            let done = request.detail == ResultDetail::PlanOnly
                || run.step(holder.index(), holder.objects(), now, STEP_EFFORT);
            (run, generation, done)
        };
        let (run, generation, done) = step;
        if done {
            // The objects found may not have been replicated yet.
            tables.wait_until_committed().await?;
            let mut all = tables.spaces().write();
            let is_fresh = tables.is_subscribed() && all.copies.generation() == generation;
            let space = all.spaces.get_mut(&request.declared.definition.name);
            let is_answer = is_fresh && request.detail != ResultDetail::PlanOnly;
            if let Some(space) = space.filter(|_| is_answer) {
                space.region_answers += 1;
            }
            return Ok(is_fresh.then_some(run));
        }
        request.deadline.check()?;
        running = Some((run, generation));
        tokio::task::yield_now().await;
    }
}

/// Returns the error for requested regions that are not complete on this node.
pub(super) fn incomplete_regions() -> Refusal {
    let message = "this node does not have all copies of the requested regions";
    (Code::TryAgain, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_request_is_appended_to_a_command_and_removed_again() {
        let region_request = RegionRequest {
            id: 7,
            cores: vec![(0, vec![0..=3, 9..=9]), (1, Vec::new())],
        };
        let bytes = region_request.encode();
        for end in 0..bytes.len() {
            RegionRequest::decode(&bytes[..end]).expect_err("a truncated encoding");
        }
        let plain = [&b"hotels"[..], b"*"];
        let mut arguments: Vec<&[u8]> = plain.into_iter().chain([REGIONS_MARK, &bytes]).collect();
        assert_eq!(RegionRequest::take(&mut arguments), Some(region_request));
        assert_eq!(arguments, plain);
        assert_eq!(RegionRequest::take(&mut arguments), None);
        assert_eq!(RegionRequest::take(&mut vec![REGIONS_MARK]), None);
    }
}
