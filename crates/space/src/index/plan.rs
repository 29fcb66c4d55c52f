//! The plan and the profile of a search, as shown by FT.EXPLAIN and FT.PROFILE.

use std::fmt;
use std::sync::Arc;

use super::SpaceIndex;
use super::access::{Access, Source};
use super::finder::Work;
use crate::schema::{AttributeId, Definition};
use crate::search::request::SortBy;

#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) definition: Arc<Definition>,
    pub(super) origin: Origin,
    /// The order in which objects are examined (true: descending), until this many matches are found.
    pub(super) walk: Option<(SortBy, bool, usize)>,
    /// The estimated number of examined objects.
    pub candidates_estimated: u64,
    /// The attributes that are tested on each candidate.
    pub(super) filters: Vec<AttributeId>,
    /// The total is taken from an index.
    pub(super) is_counted: bool,
}

/// The access path: the origin of the candidates.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Nothing,
    All,
    Keys(usize),
    Ranges(AttributeId, usize),
    Composite(Vec<AttributeId>, usize),
    Terms(AttributeId, usize),
    Missing(AttributeId),
    Union(Vec<Origin>),
}

impl Origin {
    pub fn of(access: &Access, index: &SpaceIndex) -> Origin {
        let id = |at: &usize| index.attributes[*at].attribute.id;
        match &access.source {
            Source::Nothing => Origin::Nothing,
            Source::All => Origin::All,
            Source::Ranks(at, ranges) => Origin::Ranges(id(at), ranges.len()),
            Source::Composite(at, ranges) => {
                let ids = index.composites[*at].attributes.iter().map(id);
                Origin::Composite(ids.collect(), ranges.len())
            }
            Source::Terms(at, terms) => Origin::Terms(id(at), terms.len()),
            Source::Missing(at) => Origin::Missing(id(at)),
            Source::Union(parts) => {
                Origin::Union(parts.iter().map(|part| Origin::of(part, index)).collect())
            }
        }
    }

    /// Returns the attributes whose index is used; none for a union.
    pub fn attributes(&self) -> impl Iterator<Item = AttributeId> + '_ {
        let (one, several) = match self {
            Origin::Ranges(id, _) | Origin::Terms(id, _) | Origin::Missing(id) => {
                (Some(*id), &[][..])
            }
            Origin::Composite(ids, _) => (None, &ids[..]),
            Origin::Nothing | Origin::All | Origin::Keys(_) | Origin::Union(_) => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().copied())
    }

    fn write(&self, definition: &Definition, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |id: AttributeId| definition.attribute(id).map_or("?", |it| &it.name);
        match self {
            Origin::Nothing => write!(f, "no object"),
            Origin::All => write!(f, "all objects"),
            Origin::Keys(count) => write!(f, "{count} given keys"),
            Origin::Ranges(id, 1) => write!(f, "index {}, a range", name(*id)),
            Origin::Ranges(id, count) => write!(f, "index {}, {count} ranges", name(*id)),
            Origin::Terms(id, 1) => write!(f, "index {}, a value", name(*id)),
            Origin::Terms(id, count) => write!(f, "index {}, {count} values", name(*id)),
            Origin::Missing(id) => write!(f, "index {}, missing", name(*id)),
            Origin::Composite(ids, count) => {
                let names: Vec<&str> = ids.iter().map(|id| name(*id)).collect();
                let plural = if *count == 1 { "a range" } else { "ranges" };
                write!(f, "index ({}), {plural}", names.join(", "))
            }
            Origin::Union(parts) => {
                for (at, part) in parts.iter().enumerate() {
                    f.write_str(if at > 0 { " or " } else { "" })?;
                    part.write(definition, f)?;
                }
                Ok(())
            }
        }
    }
}

/// Formats a plan like `index city, a value; about 50 candidates; filter price`.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |id: AttributeId| self.definition.attribute(id).map_or("?", |it| &it.name);
        if let Some((by, is_descending, count)) = self.walk {
            let by = match by {
                SortBy::Key => "key",
                SortBy::Attribute(id) => name(id),
            };
            let direction = if is_descending { " descending" } else { "" };
            write!(
                f,
                "in order of {by}{direction} until {count} are found, else "
            )?;
        }
        self.origin.write(&self.definition, f)?;
        write!(f, "; about {} candidates", self.candidates_estimated)?;
        if !self.filters.is_empty() {
            let names: Vec<&str> = self.filters.iter().map(|id| name(*id)).collect();
            write!(f, "; filter {}", names.join(", "))?;
        }
        if self.is_counted {
            f.write_str("; the total by index")
        } else {
            Ok(())
        }
    }
}

/// The work of a run so far.
#[derive(Debug, Clone)]
pub struct Profile {
    pub plan: Plan,
    pub steps: u64,
    /// The maximum work without a pause, including planning, as a number of objects that could have been examined
    /// individually.
    pub work_max: u64,
    /// The number of individually examined objects, counting repeated examinations.
    pub candidates: u64,
    /// The number of objects examined in a sequential scan, which takes a fraction of the time.
    pub scanned: u64,
    /// The number of matches among them.
    pub found: u64,
    /// The number of stored objects that were read, to return or to group them.
    pub objects_read: u64,
}

impl Profile {
    pub(super) fn new(plan: Plan) -> Profile {
        Profile {
            plan,
            steps: 0,
            work_max: 0,
            candidates: 0,
            scanned: 0,
            found: 0,
            objects_read: 0,
        }
    }

    /// Records the effort of work without a pause.
    pub(super) fn record_effort(&mut self, effort: usize) {
        self.work_max = self
            .work_max
            .max(effort.div_ceil(super::finder::SINGLE_ROW_EFFORT) as u64);
    }

    pub(super) fn record_work(&mut self, work: Work) {
        (self.candidates, self.scanned, self.found) = (work.candidates, work.scanned, work.found);
    }
}
