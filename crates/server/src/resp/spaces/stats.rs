//! Statistics of a space for FT.INFO and for choosing cuts: of one core, of a node, or of all nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_space::copies::Regions;
use larder_space::index::{Failure, Failures};
use larder_space::schema::AttributeId;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::context::{QueryContext, QueryScope, altered_refusal, unreadable_part};
use crate::spaces::DeclaredSpace;
use crate::spaces::copies::Copies;
use crate::tables::Refusal;

/// The statistics of one core, or a sum.
#[derive(Debug)]
pub(super) struct SpaceStats {
    pub(super) objects: u64,
    pub(super) memory_bytes: u64,
    pub(super) scanned: u64,
    /// Total number of objects to index: for declared spaces, and for indexes that are being built.
    pub(super) to_scan: u64,
    pub(super) is_scanning: bool,
    /// Number of copies in regions of subspaces, and of searches answered from them.
    pub(super) copies: u64,
    pub(super) region_answers: u64,
    /// Number of objects in each region of each subspace. `None` if it is not known for all objects yet.
    pub(super) filled: Option<Vec<Vec<u64>>>,
    /// Identifies the cuts, because other nodes may not have the newest ones yet.
    pub(super) cuts: u64,
    pub(super) failures: Failures,
    /// The holders' copies of each subspace.
    pub(super) copy_totals: Vec<CopyTotals>,
    /// The copies of each subspace in detail, by its position, if requested.
    pub(super) copy_details: Vec<CopyDetails>,
}

/// The holders' copies of one subspace, in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CopyTotals {
    pub(super) copies: u64,
    /// Number of complete regions.
    pub(super) complete_regions: u64,
}

/// The holders' copies of one subspace, in the detail of a region picture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CopyDetails {
    /// Number of copies in each non-empty region.
    pub(super) copies: BTreeMap<u16, u64>,
    /// Number of key slots whose objects have arrived, and the total number of slots.
    pub(super) filled: (u64, u64),
}

impl CopyTotals {
    fn add(&mut self, other: CopyTotals) {
        self.copies += other.copies;
        self.complete_regions += other.complete_regions;
    }
}

impl CopyDetails {
    fn add(&mut self, other: &CopyDetails) {
        for (region, count) in &other.copies {
            *self.copies.entry(*region).or_default() += count;
        }
        self.filled.0 += other.filled.0;
        self.filled.1 += other.filled.1;
    }
}

/// Returns a number that identifies the cuts of a space.
fn cuts_id(declared: &DeclaredSpace) -> u64 {
    let regions = declared.regions.as_ref();
    let ids = (0..regions.map_or(0, |it| it.count())).filter_map(|it| Some(regions?.id(it)));
    ids.fold(0, |all, id| all ^ id)
}

impl SpaceStats {
    /// Returns empty statistics.
    fn empty(declared: &DeclaredSpace) -> SpaceStats {
        let regions = declared.regions.as_ref();
        let subspaces = (0..regions.map_or(0, |regions| regions.count())).filter_map(|number| {
            let subspace = regions?.subspace(number)?;
            Some(vec![0; subspace.regions() as usize])
        });
        SpaceStats {
            objects: 0,
            memory_bytes: 0,
            scanned: 0,
            to_scan: 0,
            is_scanning: false,
            copies: 0,
            region_answers: 0,
            filled: Some(subspaces.collect()),
            cuts: cuts_id(declared),
            failures: Failures::default(),
            copy_totals: Vec::new(),
            copy_details: Vec::new(),
        }
    }

    /// Returns the number of objects in each region of each subspace, if it is known.
    pub fn filled(&self) -> Option<&[Vec<u64>]> {
        self.filled.as_deref()
    }

    /// Returns whether all regions of a subspace are complete.
    pub fn is_complete(&self, at: usize, regions: &Regions) -> bool {
        let complete = self
            .copy_totals
            .get(at)
            .map_or(0, |totals| totals.complete_regions);
        let count = regions.subspace(at).map_or(0, |it| it.regions());
        complete >= u64::from(count)
    }

    fn add(&mut self, other: SpaceStats) {
        self.objects += other.objects;
        self.memory_bytes += other.memory_bytes;
        self.scanned += other.scanned;
        self.to_scan += other.to_scan;
        self.is_scanning |= other.is_scanning;
        self.copies += other.copies;
        self.region_answers += other.region_answers;
        let filled = self.filled.take().zip(other.filled);
        self.filled = filled.filter(|_| self.cuts == other.cuts).map(add_counts);
        self.failures.count += other.failures.count;
        // A node with an older definition reports other subspaces.
        if self.cuts == other.cuts {
            let count = self.copy_totals.len().max(other.copy_totals.len());
            self.copy_totals.resize_with(count, CopyTotals::default);
            let both = self.copy_totals.iter_mut().zip(&other.copy_totals);
            both.for_each(|(own, other)| own.add(*other));
            let count = self.copy_details.len().max(other.copy_details.len());
            self.copy_details.resize_with(count, CopyDetails::default);
            let both = self.copy_details.iter_mut().zip(&other.copy_details);
            both.for_each(|(own, other)| own.add(other));
        }
        if other.failures.newest.is_some() {
            self.failures.newest = other.failures.newest;
        }
        for (id, (count, newest)) in other.failures.by_attribute {
            let entry = self.failures.by_attribute.entry(id);
            entry
                .and_modify(|(own, last)| {
                    *own += count;
                    last.clone_from(&newest);
                })
                .or_insert((count, newest));
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let failures = &self.failures;
        for number in [
            self.objects,
            self.memory_bytes,
            self.scanned,
            self.to_scan,
            u64::from(self.is_scanning),
            self.copies,
            self.region_answers,
            self.cuts,
            failures.count,
        ] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.push(u8::from(self.filled.is_some()));
        let filled = self.filled.iter().flatten();
        put_count(&mut out, self.filled.iter().flatten().count());
        for subspace in filled {
            put_count(&mut out, subspace.len());
            let numbers = subspace.iter().flat_map(|number| number.to_le_bytes());
            out.extend(numbers);
        }
        let put = |failure: &Failure, out: &mut Vec<u8>| {
            put_bytes(out, &failure.key);
            put_bytes(out, failure.message.as_bytes());
        };
        put_count(&mut out, failures.newest.iter().count());
        failures
            .newest
            .iter()
            .for_each(|newest| put(newest, &mut out));
        put_count(&mut out, failures.by_attribute.len());
        for (id, (count, newest)) in &failures.by_attribute {
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&count.to_le_bytes());
            put(newest, &mut out);
        }
        put_count(&mut out, self.copy_totals.len());
        for totals in &self.copy_totals {
            out.extend_from_slice(&totals.copies.to_le_bytes());
            out.extend_from_slice(&totals.complete_regions.to_le_bytes());
        }
        put_count(&mut out, self.copy_details.len());
        for held in &self.copy_details {
            for number in [held.filled.0, held.filled.1] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            put_count(&mut out, held.copies.len());
            for (region, count) in &held.copies {
                out.extend_from_slice(&region.to_le_bytes());
                out.extend_from_slice(&count.to_le_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<SpaceStats, Malformed> {
        let mut reader = WireReader::new(bytes);
        let mut stats = SpaceStats {
            objects: reader.u64()?,
            memory_bytes: reader.u64()?,
            scanned: reader.u64()?,
            to_scan: reader.u64()?,
            is_scanning: reader.u64()? != 0,
            copies: reader.u64()?,
            region_answers: reader.u64()?,
            filled: None,
            cuts: reader.u64()?,
            failures: Failures::default(),
            copy_totals: Vec::new(),
            copy_details: Vec::new(),
        };
        stats.failures.count = reader.u64()?;
        let (has_counts, count) = (reader.flag()?, reader.count(4)?);
        let subspaces = (0..count).map(|_| {
            let regions = 0..reader.count(8)?;
            regions.map(|_| reader.u64()).collect()
        });
        let filled = subspaces.collect::<Result<_, Malformed>>()?;
        stats.filled = has_counts.then_some(filled);
        let failure = |reader: &mut WireReader<'_>| {
            Ok::<_, Malformed>(Failure {
                key: reader.bytes()?.to_vec(),
                message: String::from_utf8_lossy(reader.bytes()?).into_owned(),
            })
        };
        for _ in 0..reader.count(8)? {
            stats.failures.newest = Some(failure(&mut reader)?);
        }
        let mut by_attribute = BTreeMap::new();
        for _ in 0..reader.count(18)? {
            let id = AttributeId(reader.u16()?);
            by_attribute.insert(id, (reader.u64()?, failure(&mut reader)?));
        }
        for _ in 0..reader.count(16)? {
            let (copies, complete_regions) = (reader.u64()?, reader.u64()?);
            stats.copy_totals.push(CopyTotals {
                copies,
                complete_regions,
            });
        }
        for _ in 0..reader.count(20)? {
            let filled = (reader.u64()?, reader.u64()?);
            let count = reader.count(10)?;
            let region = |_| Ok((reader.u16()?, reader.u64()?));
            let copies = (0..count).map(region).collect::<Result<_, Malformed>>()?;
            stats.copy_details.push(CopyDetails { copies, filled });
        }
        reader.end()?;
        stats.failures.by_attribute = by_attribute;
        Ok(stats)
    }
}

/// Adds the numbers of the same regions.
fn add_counts((mut own, others): (Vec<Vec<u64>>, Vec<Vec<u64>>)) -> Vec<Vec<u64>> {
    let pairs = own.iter_mut().flatten().zip(others.into_iter().flatten());
    pairs.for_each(|(own, other)| *own += other);
    own
}

fn count_details(copies: &Copies, regions: &Regions) -> Vec<CopyDetails> {
    let mut all: Vec<CopyDetails> = Vec::new();
    for (place, holder) in copies.holders(regions) {
        all.resize_with(all.len().max(place + 1), CopyDetails::default);
        let copies = holder.region_counts();
        all[place].add(&CopyDetails {
            copies: copies
                .map(|(region, count)| (region.0, count.into()))
                .collect(),
            filled: holder.fill_progress(),
        });
    }
    all
}

fn count_totals(copies: &Copies, regions: &Regions) -> Vec<CopyTotals> {
    let mut all = vec![CopyTotals::default(); regions.count()];
    for (place, holder) in copies.holders(regions) {
        let (copies, complete_regions) = (holder.len() as u64, holder.complete_regions());
        all[place].add(CopyTotals {
            copies,
            complete_regions,
        });
    }
    all
}

/// Returns the statistics of a space over all participants, and the details of its regions if requested. `command` is
/// FT.INFO of the space.
pub(super) async fn gather_stats(
    context: &QueryContext,
    command: Command<'_>,
    declared: &Arc<DeclaredSpace>,
    with_regions: bool,
) -> Result<SpaceStats, Refusal> {
    let mut all = SpaceStats::empty(declared);
    if context.scope == QueryScope::Nodes {
        for part in context.query_nodes(command, declared).await? {
            all.add(SpaceStats::decode(&part).map_err(|_| unreadable_part())?);
        }
        return Ok(all);
    }
    let expected = declared.clone();
    let core_stats = context.run_on_cores(move |tables| async move {
        let spaces = tables.spaces().read();
        let space = spaces.spaces.get(&expected.definition.name);
        let space = space
            .filter(|space| space.declared.version == expected.version)
            .ok_or_else(altered_refusal)?;
        let standing = space.walk_progress();
        // Indexes that are being built, of objects and of copies.
        let building = [space.building(), spaces.copies.building(&space.declared)];
        let building = || building.iter().flatten();
        let regions = space.declared.regions.as_deref();
        let is_same_cut = regions == expected.regions.as_deref();
        let regions = regions.filter(|_| is_same_cut);
        let no_regions = expected.regions.is_none().then(Vec::new);
        Ok(SpaceStats {
            objects: space.index.len(),
            memory_bytes: (space.memory_bytes()
                + spaces.copies.memory_bytes(&expected.definition.name))
                as u64,
            scanned: standing.examined + building().map(|it| it.0).sum::<u64>(),
            to_scan: standing.total + building().map(|it| it.1).sum::<u64>(),
            is_scanning: standing.is_walking || building().next().is_some(),
            copies: spaces.copies.count(&space.declared),
            region_answers: space.region_answers,
            filled: space.filled().filter(|_| is_same_cut).or(no_regions),
            cuts: cuts_id(&expected),
            failures: space.index.failures().clone(),
            copy_totals: regions.map_or_else(Vec::new, |it| count_totals(&spaces.copies, it)),
            copy_details: match regions.filter(|_| with_regions) {
                Some(regions) => count_details(&spaces.copies, regions),
                None => Vec::new(),
            },
        })
    });
    core_stats.await?.into_iter().for_each(|part| all.add(part));
    Ok(all)
}
