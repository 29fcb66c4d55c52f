//! FT.ALTER .. SUBSPACES: changes the subspaces of a space without interrupting searches.
//!
//! ```text
//!  SUBSPACES 2 city price ─► a sample of all objects ─► the record: `city` serves, `price` is being filled ─► holders request its objects
//!  SUBSPACES SWITCH ─► are all regions of `price` complete? ─► the record: both serve
//!  SUBSPACES CANCEL ─► the record: `city` serves
//! ```
//!
//! 1. The state of a change is only in the space's record, so the change continues after any crash.
//! 2. Each step is one change of the record, and is applied only if the space is unchanged since the step was decided.
//! 3. Searches use only the subspaces that serve, and a holder answers only for complete regions, even if it has not
//!    received a step yet. No step therefore makes an answer incorrect.

use std::sync::Arc;

use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_space::copies::{CUT_OBJECTS_MIN, Regions};
use larder_space::mapping::Attribute;
use larder_space::schema::{Alteration, Definition, Filling, Turnover};

use super::super::tables::wait_for_change;
use super::cuts::{anew_by, sample_of};
use super::define::{make, new_number};
use super::figures::{Figures, figures};
use super::reach::{Asker, again};
use crate::spaces::{Before, Change, Declared, change};
use crate::tables::Refusal;

/// Index of the SUBSPACES argument of FT.ALTER.
const SUBSPACES: usize = 2;
/// Maximum number of attempts at a step that conflicts with concurrent changes.
const TRIES_MAX: usize = 8;

/// Returns whether the command is FT.ALTER .. SUBSPACES.
pub(super) fn is_asked(command: Command<'_>) -> bool {
    let word = command.request.get(SUBSPACES);
    command.id() == Id::FtAlter && word.is_some_and(|it| it.eq_ignore_ascii_case(b"SUBSPACES"))
}

/// Begins, completes or cancels a change of subspaces.
///
/// # Errors
/// The change is not possible, or not yet.
pub(super) async fn alter(asker: &Asker, command: Command<'_>) -> Result<(), Refusal> {
    let arguments: Vec<&[u8]> = command.args().skip(SUBSPACES).collect();
    let mut tries = 0;
    loop {
        let epoch = asker.core.tables.epoch_of_map();
        let declared = asker.declared(command.arg(1));
        let declared = declared.map_err(|_| change::unknown_name())?;
        let parsed = declared.definition.parse_subspaces(&arguments);
        let decided = match parsed.map_err(|refused| super::refusal(refused, SUBSPACES))? {
            Alteration::Begin(filling) => begin(asker, &declared, filling).await?,
            Alteration::Switch => Some(switch(asker, &declared).await?),
            Alteration::Cancel => Some(cancel(&declared)?),
        };
        let Some((definition, regions)) = decided else {
            return Ok(());
        };
        let change = Change::LayOut {
            space: definition.name.clone(),
            before: Before::of(&declared),
            definition: Box::new(definition),
            regions: regions.map(Box::new),
        };
        tries += 1;
        match make(asker, change).await {
            Err((_, why)) if why == change::HAS_CHANGED && tries < TRIES_MAX => {
                wait_for_change(&asker.core, epoch).await;
            }
            done => return done,
        }
    }
}

/// The new contents of the space's record.
type Decided = (Definition, Option<Regions>);

/// Begins a change. Returns `None` if the same change has already begun.
async fn begin(
    asker: &Asker,
    declared: &Arc<Declared>,
    filling: Filling,
) -> Result<Option<Decided>, Refusal> {
    let definition = &declared.definition;
    let cannot = |refused: larder_space::error::Refusal| super::refusal(refused, SUBSPACES);
    let Turnover { come, go, .. } = definition.turnover(&filling).map_err(cannot)?;
    if let Some(other) = &definition.layout.filling {
        let is_same = definition.turnover(other).is_ok_and(|it| {
            let same = |one: &[_], other: &[_]| {
                one.len() == other.len() && one.iter().all(|shape| other.contains(shape))
            };
            same(&it.come, &come) && same(&it.go, &go)
        });
        if is_same {
            return Ok(None);
        }
        return Err(change::refused(format!(
            "its subspaces are being changed already, to {}: wait, and then FT.ALTER {name} SUBSPACES SWITCH; or FT.ALTER {name} SUBSPACES CANCEL",
            list(&definition.texts_of(&other.subspaces)),
            name = definition.name,
        )));
    }
    if come.is_empty() && go.is_empty() {
        return Err(change::refused(format!(
            "{} has these subspaces already: {}",
            definition.name,
            list(&definition.subspace_texts())
        )));
    }
    let altered = definition.with_filling(Some(filling));
    let before = declared.regions.as_deref().cloned().unwrap_or_default();
    let change = new_number(&asker.core.tables, &asker.core.shared.config.cluster.node);
    let mut regions = before.altered(&altered, change).map_err(cannot)?;
    if !come.is_empty() {
        regions = cut(asker, declared, regions).await?;
    }
    Ok(Some((altered, Some(regions))))
}

/// Cuts the new subspaces from a sample of the objects, if there are enough of them. The subspaces that serve are
/// unchanged.
async fn cut(
    asker: &Asker,
    declared: &Arc<Declared>,
    regions: Regions,
) -> Result<Regions, Refusal> {
    again(&asker.core, asker.reach, async || {
        let all = figures_of(asker, declared).await?;
        if all.objects < CUT_OBJECTS_MIN {
            return Ok(regions.clone());
        }
        let sample = sample_of(asker, declared, &regions).await?;
        let attributes = |subspace: usize| {
            let of = regions
                .subspace(subspace)
                .filter(|_| subspace >= regions.serving());
            let dimensions = of.into_iter().flat_map(|it| it.dimensions());
            dimensions.map(|it| it.attribute).collect()
        };
        let anew: Vec<Vec<Attribute>> = (0..regions.count()).map(attributes).collect();
        Ok(anew_by(asker, &regions, &anew, &sample))
    })
    .await
}

async fn switch(asker: &Asker, declared: &Arc<Declared>) -> Result<Decided, Refusal> {
    let switched = declared.definition.switched();
    let switched = switched.ok_or_else(|| none_is_filled(&declared.definition))?;
    let progress = again(&asker.core, asker.reach, async || {
        let all = figures_of(asker, declared).await?;
        Ok(Progress::of(declared, &all, is_alone(asker)))
    })
    .await?;
    if progress.regions < progress.regions_in_all {
        let message = format!(
            "{} of {} regions have all their objects: send it again when all have; FT.INFO {} tells how far it is",
            progress.regions, progress.regions_in_all, switched.name
        );
        return Err((Code::TryAgain, message));
    }
    altered(declared, switched)
}

fn cancel(declared: &Declared) -> Result<Decided, Refusal> {
    let definition = &declared.definition;
    if definition.layout.filling.is_none() {
        return Err(none_is_filled(definition));
    }
    altered(declared, definition.with_filling(None))
}

fn altered(declared: &Declared, definition: Definition) -> Result<Decided, Refusal> {
    let regions = declared.regions.as_ref();
    let regions = regions
        .map(|regions| regions.altered(&definition, 0))
        .transpose();
    let regions = regions.map_err(|refused| change::refused(refused.to_string()))?;
    Ok((definition, regions))
}

fn none_is_filled(definition: &Definition) -> Refusal {
    change::refused(format!(
        "no subspaces of {name} are being filled: FT.ALTER {name} SUBSPACES 2 a,b c begins that; it has {}",
        list(&definition.subspace_texts()),
        name = definition.name
    ))
}

fn list(subspaces: &[String]) -> String {
    if subspaces.is_empty() {
        "none".to_owned()
    } else {
        subspaces.join(" ")
    }
}

async fn figures_of(asker: &Asker, declared: &Arc<Declared>) -> Result<Figures, Refusal> {
    let name = declared.definition.name.as_bytes();
    let command = OwnedCommand::of(Id::FtInfo, [name].into_iter());
    figures(asker, command.command(), declared, false).await
}

/// Returns whether there is only one place, which needs no copies.
pub(super) fn is_alone(asker: &Asker) -> bool {
    let shard = asker.core.tables.shard();
    shard.is_none_or(|shard| shard.owners().count() <= 1)
}

/// The progress of filling new subspaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Number of copies that exist, and the final number.
    pub copies: u64,
    pub copies_in_all: u64,
    /// Number of complete regions, and the total number.
    pub regions: u64,
    pub regions_in_all: u64,
}

impl Progress {
    pub fn of(declared: &Declared, all: &Figures, is_alone: bool) -> Progress {
        let Some(regions) = declared.regions.as_ref().filter(|_| !is_alone) else {
            return Progress::default();
        };
        let coming = regions.serving()..regions.count();
        let mut progress = Progress {
            copies_in_all: all.objects * coming.len() as u64,
            ..Progress::default()
        };
        for subspace in coming {
            let here = all.here.get(subspace).copied().unwrap_or_default();
            progress.copies += here.copies;
            progress.regions += here.whole;
            let in_all = regions.subspace(subspace).map(|it| it.regions());
            progress.regions_in_all += u64::from(in_all.unwrap_or(0));
        }
        progress
    }
}
