//! Statistics of a space for FT.INFO and for choosing cuts: of one core, of a node, or of all nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_space::copies::Regions;
use larder_space::index::{Failure, Failures};
use larder_space::schema::AttributeId;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::reach::{Asker, Reach, altered, damaged};
use crate::spaces::Declared;
use crate::spaces::copies::Copies;
use crate::tables::Refusal;

/// The statistics of one core, or a sum.
#[derive(Debug)]
pub(super) struct Figures {
    pub(super) objects: u64,
    pub(super) memory_bytes: u64,
    pub(super) looked_at: u64,
    /// Total number of objects to index: for declared spaces, and for indexes that are being built.
    pub(super) of: u64,
    pub(super) is_walking: bool,
    /// Number of copies in regions of subspaces, and of searches answered from them.
    pub(super) copies: u64,
    pub(super) region_answers: u64,
    /// Number of objects in each region of each subspace. `None` if it is not known for all objects yet.
    pub(super) filled: Option<Vec<Vec<u64>>>,
    /// Identifies the cuts, because other nodes may not have the newest ones yet.
    pub(super) cuts: u64,
    pub(super) failures: Failures,
    /// The holders' copies of each subspace.
    pub(super) here: Vec<Here>,
    /// The copies of each subspace in detail, by its position, if requested.
    pub(super) subspaces: Vec<Held>,
}

/// The holders' copies of one subspace, in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Here {
    pub(super) copies: u64,
    /// Number of complete regions.
    pub(super) whole: u64,
}

/// The holders' copies of one subspace, in the detail of a region picture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Number of copies in each non-empty region.
    pub(super) copies: BTreeMap<u16, u64>,
    /// Number of key slots whose objects have arrived, and the total number of slots.
    pub(super) filled: (u64, u64),
}

impl Here {
    fn add(&mut self, other: Here) {
        self.copies += other.copies;
        self.whole += other.whole;
    }
}

impl Held {
    fn add(&mut self, other: &Held) {
        for (region, count) in &other.copies {
            *self.copies.entry(*region).or_default() += count;
        }
        self.filled.0 += other.filled.0;
        self.filled.1 += other.filled.1;
    }
}

/// Returns a number that identifies the cuts of a space.
fn cuts_of(declared: &Declared) -> u64 {
    let regions = declared.regions.as_ref();
    let ids = (0..regions.map_or(0, |it| it.count())).filter_map(|it| Some(regions?.id(it)));
    ids.fold(0, |all, id| all ^ id)
}

impl Figures {
    /// Returns empty statistics.
    fn none(declared: &Declared) -> Figures {
        let regions = declared.regions.as_ref();
        let subspaces = (0..regions.map_or(0, |regions| regions.count())).filter_map(|number| {
            let subspace = regions?.subspace(number)?;
            Some(vec![0; subspace.regions() as usize])
        });
        Figures {
            objects: 0,
            memory_bytes: 0,
            looked_at: 0,
            of: 0,
            is_walking: false,
            copies: 0,
            region_answers: 0,
            filled: Some(subspaces.collect()),
            cuts: cuts_of(declared),
            failures: Failures::default(),
            here: Vec::new(),
            subspaces: Vec::new(),
        }
    }

    /// Returns the number of objects in each region of each subspace, if it is known.
    pub fn filled(&self) -> Option<&[Vec<u64>]> {
        self.filled.as_deref()
    }

    /// Returns whether all regions of a subspace are complete.
    pub fn is_whole(&self, at: usize, regions: &Regions) -> bool {
        let whole = self.here.get(at).map_or(0, |here| here.whole);
        let count = regions.subspace(at).map_or(0, |it| it.regions());
        whole >= u64::from(count)
    }

    fn add(&mut self, other: Figures) {
        self.objects += other.objects;
        self.memory_bytes += other.memory_bytes;
        self.looked_at += other.looked_at;
        self.of += other.of;
        self.is_walking |= other.is_walking;
        self.copies += other.copies;
        self.region_answers += other.region_answers;
        let filled = self.filled.take().zip(other.filled);
        self.filled = filled.filter(|_| self.cuts == other.cuts).map(sums);
        self.failures.count += other.failures.count;
        // A node with an older definition reports other subspaces.
        if self.cuts == other.cuts {
            let count = self.here.len().max(other.here.len());
            self.here.resize_with(count, Here::default);
            let both = self.here.iter_mut().zip(&other.here);
            both.for_each(|(own, other)| own.add(*other));
            let count = self.subspaces.len().max(other.subspaces.len());
            self.subspaces.resize_with(count, Held::default);
            let both = self.subspaces.iter_mut().zip(&other.subspaces);
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
            self.looked_at,
            self.of,
            u64::from(self.is_walking),
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
        put_count(&mut out, self.here.len());
        for here in &self.here {
            out.extend_from_slice(&here.copies.to_le_bytes());
            out.extend_from_slice(&here.whole.to_le_bytes());
        }
        put_count(&mut out, self.subspaces.len());
        for held in &self.subspaces {
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

    fn decode(bytes: &[u8]) -> Result<Figures, Malformed> {
        let mut reader = WireReader::new(bytes);
        let mut figures = Figures {
            objects: reader.u64()?,
            memory_bytes: reader.u64()?,
            looked_at: reader.u64()?,
            of: reader.u64()?,
            is_walking: reader.u64()? != 0,
            copies: reader.u64()?,
            region_answers: reader.u64()?,
            filled: None,
            cuts: reader.u64()?,
            failures: Failures::default(),
            here: Vec::new(),
            subspaces: Vec::new(),
        };
        figures.failures.count = reader.u64()?;
        let (is_known, count) = (reader.flag()?, reader.count(4)?);
        let subspaces = (0..count).map(|_| {
            let regions = 0..reader.count(8)?;
            regions.map(|_| reader.u64()).collect()
        });
        let filled = subspaces.collect::<Result<_, Malformed>>()?;
        figures.filled = is_known.then_some(filled);
        let failure = |reader: &mut WireReader<'_>| {
            Ok::<_, Malformed>(Failure {
                key: reader.bytes()?.to_vec(),
                message: String::from_utf8_lossy(reader.bytes()?).into_owned(),
            })
        };
        for _ in 0..reader.count(8)? {
            figures.failures.newest = Some(failure(&mut reader)?);
        }
        let mut by_attribute = BTreeMap::new();
        for _ in 0..reader.count(18)? {
            let id = AttributeId(reader.u16()?);
            by_attribute.insert(id, (reader.u64()?, failure(&mut reader)?));
        }
        for _ in 0..reader.count(16)? {
            let (copies, whole) = (reader.u64()?, reader.u64()?);
            figures.here.push(Here { copies, whole });
        }
        for _ in 0..reader.count(20)? {
            let filled = (reader.u64()?, reader.u64()?);
            let count = reader.count(10)?;
            let region = |_| Ok((reader.u16()?, reader.u64()?));
            let copies = (0..count).map(region).collect::<Result<_, Malformed>>()?;
            figures.subspaces.push(Held { copies, filled });
        }
        reader.end()?;
        figures.failures.by_attribute = by_attribute;
        Ok(figures)
    }
}

/// Adds the numbers of the same regions.
fn sums((mut own, others): (Vec<Vec<u64>>, Vec<Vec<u64>>)) -> Vec<Vec<u64>> {
    let pairs = own.iter_mut().flatten().zip(others.into_iter().flatten());
    pairs.for_each(|(own, other)| *own += other);
    own
}

fn held(copies: &Copies, regions: &Regions) -> Vec<Held> {
    let mut all: Vec<Held> = Vec::new();
    for (place, holder) in copies.holders(regions) {
        all.resize_with(all.len().max(place + 1), Held::default);
        let copies = holder.full();
        all[place].add(&Held {
            copies: copies
                .map(|(region, count)| (region.0, count.into()))
                .collect(),
            filled: holder.filled(),
        });
    }
    all
}

fn here(copies: &Copies, regions: &Regions) -> Vec<Here> {
    let mut all = vec![Here::default(); regions.count()];
    for (place, holder) in copies.holders(regions) {
        let (copies, whole) = (holder.len() as u64, holder.whole());
        all[place].add(Here { copies, whole });
    }
    all
}

/// Returns the statistics of a space over all participants, and the details of its regions if requested. `command` is
/// FT.INFO of the space.
pub(super) async fn figures(
    asker: &Asker,
    command: Command<'_>,
    declared: &Arc<Declared>,
    with_regions: bool,
) -> Result<Figures, Refusal> {
    let mut all = Figures::none(declared);
    if asker.reach == Reach::Nodes {
        for part in asker.parts_of_nodes(command, declared).await? {
            all.add(Figures::decode(&part).map_err(|_| damaged())?);
        }
        return Ok(all);
    }
    let of = declared.clone();
    let of_core = asker.on_cores(move |tables| async move {
        let spaces = tables.spaces().read();
        let space = spaces.spaces.get(&of.definition.name);
        let space = space
            .filter(|space| space.declared.version == of.version)
            .ok_or_else(altered)?;
        let standing = space.standing();
        // Indexes that are being built, of objects and of copies.
        let building = [space.building(), spaces.copies.building(&space.declared)];
        let building = || building.iter().flatten();
        let regions = space.declared.regions.as_deref();
        let is_same_cut = regions == of.regions.as_deref();
        let regions = regions.filter(|_| is_same_cut);
        let nowhere = of.regions.is_none().then(Vec::new);
        Ok(Figures {
            objects: space.index.len(),
            memory_bytes: (space.memory_bytes() + spaces.copies.memory_bytes(&of.definition.name))
                as u64,
            looked_at: standing.looked_at + building().map(|it| it.0).sum::<u64>(),
            of: standing.of + building().map(|it| it.1).sum::<u64>(),
            is_walking: standing.is_walking || building().next().is_some(),
            copies: spaces.copies.count(&space.declared),
            region_answers: space.region_answers,
            filled: space.filled().filter(|_| is_same_cut).or(nowhere),
            cuts: cuts_of(&of),
            failures: space.index.failures().clone(),
            here: regions.map_or_else(Vec::new, |it| here(&spaces.copies, it)),
            subspaces: match regions.filter(|_| with_regions) {
                Some(regions) => held(&spaces.copies, regions),
                None => Vec::new(),
            },
        })
    });
    of_core.await?.into_iter().for_each(|part| all.add(part));
    Ok(all)
}
