//! The subspaces of a space, and their replacement.
//!
//! ```text
//!  SUBSPACES city ──FT.ALTER hotels SUBSPACES 2 city price──► filling: keep city, add price ──SWITCH──► SUBSPACES city price
//!                                                                  └──CANCEL──► SUBSPACES city
//! ```
//!
//! Two subspaces are the same if they have the same attributes in the same order, and as many cells for each.

use super::attribute::{AttributeId, AttributeKind};
use super::create::{REGIONS_MAX, SUBSPACES_MAX};
use super::definition::{Cut, Definition};
use crate::base::arguments::Arguments;
use crate::base::number::Number;
use crate::error::{Refusal, Result, printable};
use crate::mapping::allocate_bits;

/// The future subspaces of a space. Those that the space does not have yet are being filled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filling {
    pub subspaces: Vec<Vec<Cut>>,
    /// The maximum number of regions of each subspace; a power of two.
    pub regions: u32,
}

/// The attributes of a subspace, each with its number of bits.
pub type Shape = Vec<(AttributeId, u8)>;

/// The effect of a change of subspaces: the ones that are kept, added and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SubspaceChange {
    pub kept: Vec<Shape>,
    pub added: Vec<Shape>,
    pub removed: Vec<Shape>,
}

/// The parsed arguments of FT.ALTER .. SUBSPACES.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alteration {
    Begin(Filling),
    Switch,
    Cancel,
}

impl Definition {
    /// Parses the arguments of FT.ALTER, starting with SUBSPACES: `SUBSPACES count list.. [REGIONS count]`, `SUBSPACES
    /// SWITCH` or `SUBSPACES CANCEL`.
    ///
    /// # Errors
    /// The first invalid argument, and what is valid there.
    pub fn parse_subspaces(&self, arguments: &[&[u8]]) -> Result<Alteration> {
        let mut args = Arguments::new(arguments);
        if !args.take_word("SUBSPACES") {
            return Err(args.refuse("SUBSPACES is expected"));
        }
        let one = match () {
            () if args.take_word("SWITCH") => Some(Alteration::Switch),
            () if args.take_word("CANCEL") => Some(Alteration::Cancel),
            () => None,
        };
        if let Some(one) = one {
            return if args.is_done() {
                Ok(one)
            } else {
                Err(args.refuse("nothing may follow SWITCH or CANCEL"))
            };
        }
        let is_count = |it: &[u8]| matches!(Number::parse(it), Some(Number::Int(_)));
        if let Some(other) = args.peek().filter(|it| !is_count(it)) {
            return Err(args.refuse(format!(
                "Bad arguments for SUBSPACES: {:?} is neither the number of lists of attributes that follow, nor SWITCH, nor CANCEL",
                printable(other)
            )));
        }
        let list = args.take_list("SUBSPACES")?;
        let begin = args.position() - list.len();
        if list.len() > SUBSPACES_MAX {
            return Err(args.refuse_last(format!("a space has at most {SUBSPACES_MAX} subspaces")));
        }
        let mut regions = self.layout.regions;
        if args.take_word("REGIONS") {
            regions = take_regions(&mut args)?;
        }
        if let Some(more) = args.peek() {
            return Err(args.refuse(format!(
                "Unknown argument `{}`: only REGIONS and a number may follow the lists",
                printable(more)
            )));
        }
        let lists: Vec<(usize, &[u8])> = (begin..).zip(list.iter().copied()).collect();
        let filling = Filling {
            subspaces: self.resolve_subspaces(&lists, regions)?,
            regions,
        };
        self.ensure_all_differ(&lists, &filling.subspaces, regions)?;
        Ok(Alteration::Begin(filling))
    }

    /// Rejects duplicate subspaces. `lists` contains the lists that the subspaces were parsed from, each with the
    /// position of its argument.
    ///
    /// # Errors
    /// There is a duplicate, or an error of [`Definition::shapes`].
    pub(super) fn ensure_all_differ(
        &self,
        lists: &[(usize, &[u8])],
        subspaces: &[Vec<Cut>],
        regions: u32,
    ) -> Result<()> {
        let shapes = self.shapes(subspaces, regions)?;
        let is_twice = |at: &usize| shapes[..*at].contains(&shapes[*at]);
        match (0..shapes.len()).find(is_twice) {
            None => Ok(()),
            Some(at) => {
                let message = format!("subspace {:?} occurs twice", printable(lists[at].1));
                Err(Refusal::at_argument(lists[at].0, message))
            }
        }
    }

    /// Returns the shapes of these subspaces.
    ///
    /// # Errors
    /// A list needs more than `regions` regions.
    pub fn shapes(&self, subspaces: &[Vec<Cut>], regions: u32) -> Result<Vec<Shape>> {
        let shape = |cuts: &Vec<Cut>| {
            let requested: Vec<Option<u8>> = cuts.iter().map(|it| it.bits).collect();
            let values = |at: usize| match self.get(cuts[at].attribute).kind {
                AttributeKind::Boolean => Some(2),
                _ => None,
            };
            let bits = allocate_bits(regions, &requested, values)
                .map_err(|error| Refusal::new(error.to_string()))?;
            Ok(cuts.iter().map(|it| it.attribute).zip(bits).collect())
        };
        subspaces.iter().map(shape).collect()
    }

    /// Returns the effect of a filling on the current subspaces.
    ///
    /// # Errors
    /// See [`Definition::shapes`].
    pub fn plan_change(&self, filling: &Filling) -> Result<SubspaceChange> {
        let mut go = self.shapes(&self.layout.subspaces, self.layout.regions)?;
        let mut turnover = SubspaceChange::default();
        for shape in self.shapes(&filling.subspaces, filling.regions)? {
            match go.iter().position(|it| *it == shape) {
                Some(at) => turnover.kept.push(go.remove(at)),
                None => turnover.added.push(shape),
            }
        }
        turnover.removed = go;
        Ok(turnover)
    }

    /// Formats a shape as in the clause SUBSPACES: `city:4,price:4`.
    pub fn shape_text(&self, shape: &Shape) -> String {
        let text = |(attribute, bits): &(AttributeId, u8)| {
            let name = self.attribute(*attribute).map_or("?", |it| &it.name);
            format!("{name}:{bits}")
        };
        shape.iter().map(text).collect::<Vec<_>>().join(",")
    }

    /// Returns a copy with this filling, or with none.
    #[must_use]
    pub fn with_filling(&self, filling: Option<Filling>) -> Definition {
        let mut altered = self.clone();
        altered.layout.filling = filling;
        altered
    }

    /// Returns a copy in which the subspaces being filled replace the current ones, or `None` if there are none.
    pub fn with_filling_applied(&self) -> Option<Definition> {
        let filling = self.layout.filling.clone()?;
        let mut switched = self.with_filling(None);
        switched.layout.subspaces = filling.subspaces;
        switched.layout.regions = filling.regions;
        Some(switched)
    }

    /// Returns a copy without subspaces and with default indexes. The values of objects do not depend on the layout.
    #[must_use]
    pub fn without_layout(&self) -> Definition {
        let mut plain = self.without_subspaces();
        plain.layout.indexes = None;
        plain
    }

    /// Returns a copy without subspaces, but with its indexes.
    #[must_use]
    pub fn without_subspaces(&self) -> Definition {
        let mut plain = self.with_filling(None);
        let indexes = plain.layout.indexes.take();
        plain.layout = super::definition::Layout {
            indexes,
            ..Default::default()
        };
        plain
    }
}

/// Parses the argument of REGIONS.
pub(super) fn take_regions(args: &mut Arguments<'_>) -> Result<u32> {
    let count = args.take_count("REGIONS", REGIONS_MAX)?;
    if count.is_power_of_two() {
        Ok(count as u32)
    } else {
        Err(args.refuse_last(format!(
            "Bad arguments for REGIONS: {count} is not a power of two"
        )))
    }
}
