//! Chooses the cuts of subspaces from the values of the space's objects, and updates them when the distribution drifts.
//!
//! ```text
//!  once a second, at the place that owns the slot of the space's name:
//!  a tenth of its objects has changed ─► statistics of all nodes: are regions uneven? ─► a sample ─► new cuts ─► the space's record ─► all nodes
//! ```
//!
//! 1. At most one new cut is made per tenth of the objects that changed, so the cost of cutting is proportional to the
//!    number of writes.
//! 2. A subspace that was cut from a sample must be complete before it is cut again. Otherwise, a subspace that is
//!    written faster than its copies arrive would never have a region to search.
//! 3. The cuts are in the space's record, so all nodes use the same ones. A change of the space between measuring and
//!    cutting invalidates the new cut.
//!
//! Nodes request parts of a sample from each other with FT.CURSOR SAMPLE, which clients cannot send. Its arguments are
//! the space, the number of objects per core, and the attribute ids, separated by commas.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::resp::Proto;
use larder_space::copies::{Regions, select_recuts};
use larder_space::mapping::Attribute;
use larder_space::schema::AttributeId;
use larder_space::search::regions::sample_value;
use larder_types::slot_of;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::super::core::Core;
use super::context::{QueryContext, QueryScope, altered_refusal, unreadable_part};
use super::define::apply_change;
use super::stats::gather_stats;
use crate::spaces::{DeclaredSpace, SpaceChange, SpaceVersion};
use crate::tables::Refusal;

/// The subcommand of FT.CURSOR with which a node requests another node's part of a sample.
pub(super) const SAMPLE: &[u8] = b"SAMPLE";
/// Sampled objects per cell of the finest attribute, over all cores. With fewer, cells would be uneven by chance.
const OBJECTS_EACH_CELL: usize = 64;
/// Minimum and maximum number of objects that a core reads for a sample.
const OBJECTS_MIN: usize = 512;
const OBJECTS_MAX: usize = 8192;
/// Number of objects read per step, which takes a few tenths of a millisecond, and the pause after it, in which clients
/// are served.
const STEP_OBJECTS: usize = 64;
const STEP_PAUSE: Duration = Duration::from_millis(2);

/// The sampled values by attribute, sorted, each with the number of objects that it represents.
#[derive(Debug, Default)]
pub(super) struct Sample(BTreeMap<AttributeId, Vec<(Vec<u8>, u64)>>);

/// Checks the subspaces that this place is responsible for, and cuts them again when necessary. Never returns.
pub(in crate::resp) async fn recut_on_drift(core: Rc<Core>) {
    let mut tick = interval(Duration::from_secs(1));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let context = QueryContext {
        client: core.clients.new_remote(core.index, None),
        proto: Proto::Resp2,
        scope: match core.shared.membership {
            Some(_) => QueryScope::Nodes,
            None => QueryScope::Alone,
        },
        ticket: None,
        core,
    };
    let mut failures = 0;
    loop {
        tick.tick().await;
        for name in spaces_to_check(&context.core) {
            let Err((_, reason)) = check_balance(&context, &name).await else {
                failures = 0;
                continue;
            };
            // Retried later: the ownership has changed, or a node does not reply.
            tracing::debug!(
                space = name,
                reason,
                "cannot recut the subspaces; the server will retry"
            );
            sleep(Duration::from_secs(1 << failures)).await;
            failures = 5.min(failures + 1);
        }
    }
}

/// Returns the spaces that this place is responsible for and whose regions may have drifted.
fn spaces_to_check(core: &Core) -> Vec<String> {
    let tables = &core.tables;
    let Some(shard) = tables.shard().filter(|shard| shard.owners().count() > 1) else {
        return Vec::new();
    };
    let all = tables.spaces().read();
    let spaces = all.spaces.iter();
    let spaces = spaces.filter(|(name, space)| {
        shard.owner_of_slot(slot_of(name.as_bytes())) == shard.index && space.may_have_drifted()
    });
    spaces.map(|(name, _)| name.clone()).collect()
}

/// Measures how evenly the regions are filled, and cuts the subspaces again if they are uneven.
async fn check_balance(context: &QueryContext, name: &str) -> Result<(), Refusal> {
    let declared = context.find_space(name.as_bytes())?;
    let Some(regions) = &declared.regions else {
        return Ok(());
    };
    let command = OwnedCommand::of(Id::FtInfo, [name.as_bytes()].into_iter());
    let all = gather_stats(context, command.command(), &declared, false).await?;
    // Objects are still being placed.
    let Some(filled) = all.filled() else {
        return Ok(());
    };
    let mut to_recut = select_recuts(regions, filled);
    let mut is_waiting = false;
    for (at, attributes) in to_recut.iter_mut().enumerate() {
        if !attributes.is_empty() && regions.is_cut(at) && !all.is_complete(at, regions) {
            attributes.clear();
            is_waiting = true;
        }
    }
    if to_recut.iter().any(|attributes| !attributes.is_empty()) {
        let sample = collect_sample(context, &declared, regions).await?;
        let cuts = recut_subspaces(context, regions, &to_recut, &sample);
        if !cuts.is_same_as(regions) {
            let version = cuts.version;
            let change = SpaceChange::Cut {
                space: name.to_owned(),
                before: SpaceVersion::of(&declared),
                cuts: Box::new(cuts),
            };
            apply_change(context, change).await?;
            tracing::info!(space = name, version, "recut the subspaces");
        }
    }
    if is_waiting {
        return Ok(());
    }
    let mut all = context.core.tables.spaces().write();
    if let Some(space) = all.spaces.get_mut(name) {
        space.reset_drift();
    }
    Ok(())
}

/// Returns the regions with some attributes cut again from a sample. Cells follow the current ownership of slots.
pub(super) fn recut_subspaces(
    context: &QueryContext,
    regions: &Regions,
    to_recut: &[Vec<Attribute>],
    sample: &Sample,
) -> Regions {
    let values = |attribute| sample.values(attribute);
    regions.recut(to_recut, &values, &|slot| context.owner_of(slot))
}

/// Returns a sample of all objects, for cutting the attributes of these regions.
pub(super) async fn collect_sample(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    regions: &Regions,
) -> Result<Sample, Refusal> {
    let subspaces = (0..regions.count()).filter_map(|number| regions.subspace(number));
    let dimensions: Vec<_> = subspaces
        .flat_map(|subspace| subspace.dimensions())
        .collect();
    let cells = dimensions
        .iter()
        .map(|dimension| dimension.cut.cells())
        .max();
    let attributes = dimensions
        .iter()
        .map(|dimension| AttributeId(dimension.attribute.0));
    let attributes: BTreeSet<AttributeId> = attributes.collect();
    let cores = context.core.tables.shard();
    let cores = cores.map_or(1, |shard| shard.owners().count()).max(1);
    let objects = cells.unwrap_or(1) as usize * OBJECTS_EACH_CELL / cores;
    let objects = objects.clamp(OBJECTS_MIN, OBJECTS_MAX);
    if context.scope != QueryScope::Nodes {
        return sample_cores(context, declared, attributes, objects).await;
    }
    let count = objects.to_string();
    let ids = attributes.iter().map(|it| it.0.to_string());
    let ids = ids.collect::<Vec<_>>().join(",");
    let name = declared.definition.name.as_bytes();
    let args = [SAMPLE, name, count.as_bytes(), ids.as_bytes()];
    let command = OwnedCommand::of(Id::FtCursor, args.into_iter());
    let mut all = Sample::default();
    for part in context.query_nodes(command.command(), declared).await? {
        all.merge(Sample::decode(&part).map_err(|_| unreadable_part())?);
        sleep(STEP_PAUSE).await;
    }
    Ok(all)
}

/// Returns this node's part of a sample, for another node.
///
/// # Errors
/// This node has a different definition of the space.
pub(super) async fn execute_sample_part(
    context: &QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let declared = context.find_space(command.arg(2))?;
    let objects = larder_types::integer(command.arg(3)).and_then(|it| usize::try_from(it).ok());
    let objects = objects.ok_or_else(unreadable_part)?.min(OBJECTS_MAX);
    let ids = std::str::from_utf8(command.arg(4)).unwrap_or_default();
    let ids = ids.split(',').filter_map(|id| id.parse().ok());
    let attributes = ids.map(AttributeId);
    let is_declared = |id: &AttributeId| declared.definition.attribute(*id).is_some();
    let attributes = attributes.filter(is_declared).collect();
    let sample = sample_cores(context, &declared, attributes, objects).await?;
    Ok(context.encode_part(&declared, &sample.encode()))
}

/// Returns a sample of the objects of this node's cores.
async fn sample_cores(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    attributes: BTreeSet<AttributeId>,
    objects: usize,
) -> Result<Sample, Refusal> {
    let expected = declared.clone();
    let parts = context.run_on_cores(move |tables| async move {
        let mut found: BTreeMap<AttributeId, Vec<Vec<u8>>> = BTreeMap::new();
        // Number of objects that each sampled object represents.
        let (mut every, mut from) = (0, Some(0));
        while let Some(row) = from.take() {
            {
                let all = tables.spaces().read();
                let space = all.spaces.get(&expected.definition.name);
                let space = space
                    .filter(|space| space.declared.version == expected.version)
                    .ok_or_else(altered_refusal)?;
                if every == 0 {
                    every = (space.index.len() as usize / objects.max(1)).max(1);
                }
                let mut left = STEP_OBJECTS;
                for (row, _, columns) in space.index.objects_from(row, every) {
                    if left == 0 {
                        from = Some(row);
                        break;
                    }
                    left -= 1;
                    for attribute in &attributes {
                        let value = sample_value(&columns, *attribute);
                        found.entry(*attribute).or_default().push(value);
                    }
                }
            }
            if from.is_some() {
                sleep(STEP_PAUSE).await;
            }
        }
        let mut sample = Sample::default();
        for (attribute, values) in found {
            sample.add(attribute, values, every as u64);
        }
        Ok(sample)
    });
    let mut all = Sample::default();
    parts.await?.into_iter().for_each(|part| all.merge(part));
    Ok(all)
}

impl Sample {
    /// Adds an attribute's sampled values, each of which represents `every` objects.
    fn add(&mut self, attribute: AttributeId, mut values: Vec<Vec<u8>>, every: u64) {
        values.sort_unstable();
        let counted = values.chunk_by(|one, next| one == next);
        let counted = counted.map(|same| (same[0].clone(), same.len() as u64 * every));
        self.0.insert(attribute, counted.collect());
    }

    fn merge(&mut self, other: Sample) {
        for (attribute, values) in other.0 {
            let own = self.0.entry(attribute).or_default();
            own.extend(values);
            // Both runs are sorted, which makes this sort fast.
            own.sort();
            own.dedup_by(|next, previous| {
                let is_same = next.0 == previous.0;
                previous.1 += if is_same { next.1 } else { 0 };
                is_same
            });
        }
    }

    pub(super) fn values(&self, attribute: AttributeId) -> Vec<(Vec<u8>, u64)> {
        self.0.get(&attribute).cloned().unwrap_or_default()
    }

    /// Encodes the number of attributes (4). For each attribute: its id (2), the number of its values (4), and the
    /// bytes and weight (8) of each value.
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        put_count(&mut out, self.0.len());
        for (attribute, values) in &self.0 {
            out.extend_from_slice(&attribute.0.to_le_bytes());
            put_count(&mut out, values.len());
            for (value, weight) in values {
                put_bytes(&mut out, value);
                out.extend_from_slice(&weight.to_le_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Sample, Malformed> {
        let mut reader = WireReader::new(bytes);
        let mut sample = Sample::default();
        for _ in 0..reader.count(6)? {
            let attribute = AttributeId(reader.u16()?);
            let count = reader.count(12)?;
            let mut values = Vec::with_capacity(count);
            for _ in 0..count {
                values.push((reader.bytes()?.to_vec(), reader.u64()?));
            }
            sample.0.insert(attribute, values);
        }
        reader.end()?;
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_merged_and_decoded() {
        let (id, mut one, mut other) = (AttributeId(3), Sample::default(), Sample::default());
        let values = |all: &[&[u8]]| all.iter().map(|it| it.to_vec()).collect::<Vec<_>>();
        one.add(id, values(&[b"b", b"b"]), 1);
        other.add(id, values(&[b"b", b"a", b"a", b"a", b"c"]), 2);
        let bytes = one.encode();
        for end in 0..bytes.len() {
            Sample::decode(&bytes[..end]).expect_err("a truncated encoding");
        }
        other.merge(Sample::decode(&bytes).expect("it was encoded"));
        let all = [(b"a".to_vec(), 6), (b"b".to_vec(), 4), (b"c".to_vec(), 2)];
        assert_eq!(other.values(id), all);
        assert_eq!(other.values(AttributeId(4)), []);
    }
}
