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
use larder_space::schema::{Alteration, Definition, Filling, SubspaceChange};

use super::super::tables::wait_for_change;
use super::context::{QueryContext, retry_on_schema_change};
use super::cuts::{collect_sample, recut_subspaces};
use super::define::{apply_change, generate_change_id};
use super::stats::{SpaceStats, gather_stats};
use crate::spaces::{DeclaredSpace, SpaceChange, SpaceVersion, change};
use crate::tables::Refusal;

/// Index of the SUBSPACES argument of FT.ALTER.
const SUBSPACES: usize = 2;
/// Maximum number of attempts at a step that conflicts with concurrent changes.
const TRIES_MAX: usize = 8;

/// Returns whether the command is FT.ALTER .. SUBSPACES.
pub(super) fn changes_subspaces(command: Command<'_>) -> bool {
    let word = command.request.get(SUBSPACES);
    command.id() == Id::FtAlter && word.is_some_and(|it| it.eq_ignore_ascii_case(b"SUBSPACES"))
}

/// Begins, completes or cancels a change of subspaces.
///
/// # Errors
/// The change is not possible, or not yet.
pub(super) async fn alter(context: &QueryContext, command: Command<'_>) -> Result<(), Refusal> {
    let arguments: Vec<&[u8]> = command.args().skip(SUBSPACES).collect();
    let mut tries = 0;
    loop {
        let epoch = context.core.tables.map_epoch();
        let declared = context.find_space(command.arg(1));
        let declared = declared.map_err(|_| change::unknown_name())?;
        let parsed = declared.definition.parse_subspaces(&arguments);
        let update = match parsed.map_err(|refused| super::argument_refusal(refused, SUBSPACES))? {
            Alteration::Begin(filling) => begin_change(context, &declared, filling).await?,
            Alteration::Switch => Some(switch(context, &declared).await?),
            Alteration::Cancel => Some(cancel(&declared)?),
        };
        let Some((definition, regions)) = update else {
            return Ok(());
        };
        let change = SpaceChange::LayOut {
            space: definition.name.clone(),
            before: SpaceVersion::of(&declared),
            definition: Box::new(definition),
            regions: regions.map(Box::new),
        };
        tries += 1;
        match apply_change(context, change).await {
            Err((_, reason)) if reason == change::HAS_CHANGED && tries < TRIES_MAX => {
                wait_for_change(&context.core, epoch).await;
            }
            done => return done,
        }
    }
}

/// The new contents of the space's record.
type RecordUpdate = (Definition, Option<Regions>);

/// Begins a change. Returns `None` if the same change has already begun.
async fn begin_change(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    filling: Filling,
) -> Result<Option<RecordUpdate>, Refusal> {
    let definition = &declared.definition;
    let cannot =
        |refused: larder_space::error::Refusal| super::argument_refusal(refused, SUBSPACES);
    let SubspaceChange { added, removed, .. } = definition.plan_change(&filling).map_err(cannot)?;
    if let Some(other) = &definition.layout.filling {
        let is_same = definition.plan_change(other).is_ok_and(|it| {
            let same = |one: &[_], other: &[_]| {
                one.len() == other.len() && one.iter().all(|shape| other.contains(shape))
            };
            same(&it.added, &added) && same(&it.removed, &removed)
        });
        if is_same {
            return Ok(None);
        }
        return Err(change::bad_request(format!(
            "its subspaces are already being changed to {}: complete the change with FT.ALTER {name} SUBSPACES SWITCH, or cancel it with FT.ALTER {name} SUBSPACES CANCEL",
            join_names(&definition.texts_of(&other.subspaces)),
            name = definition.name,
        )));
    }
    if added.is_empty() && removed.is_empty() {
        return Err(change::bad_request(format!(
            "{} already has these subspaces: {}",
            definition.name,
            join_names(&definition.subspace_texts())
        )));
    }
    let altered = definition.with_filling(Some(filling));
    let before = declared.regions.as_deref().cloned().unwrap_or_default();
    let change = generate_change_id(
        &context.core.tables,
        &context.core.shared.config.cluster.node,
    );
    let mut regions = before.with_definition(&altered, change).map_err(cannot)?;
    if !added.is_empty() {
        regions = cut_new_subspaces(context, declared, regions).await?;
    }
    Ok(Some((altered, Some(regions))))
}

/// Cuts the new subspaces from a sample of the objects, if there are enough of them. The subspaces that serve are
/// unchanged.
async fn cut_new_subspaces(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    regions: Regions,
) -> Result<Regions, Refusal> {
    retry_on_schema_change(&context.core, context.scope, async || {
        let all = gather_space_stats(context, declared).await?;
        if all.objects < CUT_OBJECTS_MIN {
            return Ok(regions.clone());
        }
        let sample = collect_sample(context, declared, &regions).await?;
        let attributes = |subspace: usize| {
            let new = regions
                .subspace(subspace)
                .filter(|_| subspace >= regions.serving());
            let dimensions = new.into_iter().flat_map(|it| it.dimensions());
            dimensions.map(|it| it.attribute).collect()
        };
        let to_recut: Vec<Vec<Attribute>> = (0..regions.count()).map(attributes).collect();
        Ok(recut_subspaces(context, &regions, &to_recut, &sample))
    })
    .await
}

async fn switch(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
) -> Result<RecordUpdate, Refusal> {
    let switched = declared.definition.with_filling_applied();
    let switched = switched.ok_or_else(|| no_filling_refusal(&declared.definition))?;
    let progress = retry_on_schema_change(&context.core, context.scope, async || {
        let all = gather_space_stats(context, declared).await?;
        Ok(FillProgress::of(declared, &all, has_single_place(context)))
    })
    .await?;
    if progress.regions < progress.regions_in_all {
        let message = format!(
            "{} of {} regions are complete: send the command again when all are; FT.INFO {} reports the progress",
            progress.regions, progress.regions_in_all, switched.name
        );
        return Err((Code::TryAgain, message));
    }
    altered(declared, switched)
}

fn cancel(declared: &DeclaredSpace) -> Result<RecordUpdate, Refusal> {
    let definition = &declared.definition;
    if definition.layout.filling.is_none() {
        return Err(no_filling_refusal(definition));
    }
    altered(declared, definition.with_filling(None))
}

fn altered(declared: &DeclaredSpace, definition: Definition) -> Result<RecordUpdate, Refusal> {
    let regions = declared.regions.as_ref();
    let regions = regions
        .map(|regions| regions.with_definition(&definition, 0))
        .transpose();
    let regions = regions.map_err(|refused| change::bad_request(refused.to_string()))?;
    Ok((definition, regions))
}

fn no_filling_refusal(definition: &Definition) -> Refusal {
    change::bad_request(format!(
        "no subspaces of {name} are being filled: FT.ALTER {name} SUBSPACES 2 a,b c starts a change; the present subspaces are {}",
        join_names(&definition.subspace_texts()),
        name = definition.name
    ))
}

fn join_names(subspaces: &[String]) -> String {
    if subspaces.is_empty() {
        "none".to_owned()
    } else {
        subspaces.join(" ")
    }
}

async fn gather_space_stats(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
) -> Result<SpaceStats, Refusal> {
    let name = declared.definition.name.as_bytes();
    let command = OwnedCommand::of(Id::FtInfo, [name].into_iter());
    gather_stats(context, command.command(), declared, false).await
}

/// Returns whether there is only one place, which needs no copies.
pub(super) fn has_single_place(context: &QueryContext) -> bool {
    let shard = context.core.tables.shard();
    shard.is_none_or(|shard| shard.owners().count() <= 1)
}

/// The progress of filling new subspaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct FillProgress {
    /// Number of copies that exist, and the final number.
    pub copies: u64,
    pub copies_in_all: u64,
    /// Number of complete regions, and the total number.
    pub regions: u64,
    pub regions_in_all: u64,
}

impl FillProgress {
    pub fn of(declared: &DeclaredSpace, all: &SpaceStats, has_single_place: bool) -> FillProgress {
        let Some(regions) = declared.regions.as_ref().filter(|_| !has_single_place) else {
            return FillProgress::default();
        };
        let new_subspaces = regions.serving()..regions.count();
        let mut progress = FillProgress {
            copies_in_all: all.objects * new_subspaces.len() as u64,
            ..FillProgress::default()
        };
        for subspace in new_subspaces {
            let totals = all.copy_totals.get(subspace).copied().unwrap_or_default();
            progress.copies += totals.copies;
            progress.regions += totals.complete_regions;
            let in_all = regions.subspace(subspace).map(|it| it.regions());
            progress.regions_in_all += u64::from(in_all.unwrap_or(0));
        }
        progress
    }
}
