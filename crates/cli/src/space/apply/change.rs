//! A change of subspaces and local indexes: its state on the servers, and its steps.
//!
//! ```text
//!  FT.ALTER SUBSPACES ─► filling ─► FT.ALTER SUBSPACES SWITCH ─► FT.ALTER INDEX ─► building ─► done
//! ```
//!
//! Each step depends only on the servers' current state, so an interrupted command can be run again.

use std::path::Path;
use std::time::{Duration, Instant};

use larder_client::{Error, Reply};
use larder_space::schema::{Alteration, Definition, Filling, SubspaceChange};

use super::super::info::{SpaceInfo, items, value};
use super::super::layout::{number, text};
use super::super::nodes::Nodes;
use super::super::plan::Plan;
use super::super::plan_text;
use super::outage::OutageWatch;
use crate::failure::Failure;
use crate::progress::{Progress, Unit};
use crate::{interrupt, output};

/// Interval at which the servers are polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The intended subspaces and local indexes of a space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// In the syntax of the clause SUBSPACES.
    pub subspaces: Vec<String>,
    pub regions: u32,
    /// The attributes with a local index each. `None`: the indexes stay as they are.
    pub indexes: Option<Vec<String>>,
}

/// A space's state on the servers.
pub struct SpaceState {
    pub definition: Definition,
    pub objects: u64,
    /// The subspaces that are being filled.
    pub filling: Option<FillProgress>,
    /// The share of objects that are in indexes under construction. `None`: there are none.
    pub built: Option<f64>,
}

/// The state of subspaces that are being filled.
pub struct FillProgress {
    pub subspaces: Vec<String>,
    pub regions: u32,
    pub copies: u64,
    pub copies_total: u64,
    pub regions_filled: u64,
    pub regions_total: u64,
}

impl Target {
    /// # Errors
    /// The plan cannot be applied.
    pub fn from_plan(plan: &Plan, path: &Path) -> Result<Target, Failure> {
        if plan_text::is_thesis(plan) {
            return Err(Failure::refused(format!(
                "{} was computed with --thesis, which does not determine how attributes are divided: plan without --thesis",
                path.display()
            )));
        }
        Ok(Target {
            subspaces: plan.report.chosen.subspaces.clone(),
            regions: plan.servers.regions,
            indexes: plan
                .chooses_indexes
                .then(|| plan.report.chosen.indexes.clone()),
        })
    }

    pub fn describe(&self) -> String {
        let subspaces = plan_text::subspaces(&self.subspaces, false);
        match &self.indexes {
            None => subspaces,
            Some(names) => format!("{subspaces}, indexes of {}", format_names(names)),
        }
    }

    /// Returns the local indexes to build and to drop.
    ///
    /// # Errors
    /// The space cannot have them.
    pub fn index_changes(&self, definition: &Definition) -> Result<[Vec<String>; 2], Failure> {
        let Some(names) = &self.indexes else {
            return Ok([Vec::new(), Vec::new()]);
        };
        let arguments = self.index_arguments();
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        match definition.parse_alter(&arguments) {
            Ok(_) => {}
            Err(refused) if refused.message.contains("already") => return Ok(Default::default()),
            Err(refused) => {
                return Err(Failure::refused(format!(
                    "{} cannot have indexes of {}: {}; plan again for the current definition, or keep the current indexes with --keep-indexes",
                    definition.name,
                    format_names(names),
                    refused.message
                )));
            }
        }
        let has = index_names(definition);
        let beyond = |own: &[String], other: &[String]| -> Vec<String> {
            let beyond = own.iter().filter(|name| !other.contains(name));
            beyond.cloned().collect()
        };
        Ok([beyond(names, &has), beyond(&has, names)])
    }

    /// Returns the arguments of FT.ALTER from INDEX on.
    fn index_arguments(&self) -> Vec<String> {
        let names = self.indexes.as_deref().unwrap_or_default();
        let mut arguments = vec!["INDEX".to_owned(), names.len().to_string()];
        arguments.extend(names.iter().cloned());
        arguments
    }

    /// Returns the arguments of FT.ALTER from SUBSPACES on.
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec!["SUBSPACES".to_owned(), self.subspaces.len().to_string()];
        arguments.extend(self.subspaces.iter().cloned());
        arguments.extend(["REGIONS".to_owned(), self.regions.to_string()]);
        arguments
    }

    fn plan_fill(&self, state: &SpaceState) -> Result<Filling, Failure> {
        let arguments = self.arguments();
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let cannot = |why: String| {
            Failure::refused(format!(
                "{} cannot have {}: the plan does not fit the space: {why}; plan again for the current definition",
                state.definition.name,
                self.describe()
            ))
        };
        match state.definition.parse_subspaces(&arguments) {
            Ok(Alteration::Begin(filling)) => Ok(filling),
            Ok(_) => Err(cannot("they are none".to_owned())),
            Err(refused) => Err(cannot(refused.message)),
        }
    }

    /// Returns which subspaces of a space are kept, dropped and added.
    ///
    /// # Errors
    /// The space cannot have these subspaces.
    pub fn turnover(&self, state: &SpaceState) -> Result<SubspaceChange, Failure> {
        let turnover = state.definition.plan_change(&self.plan_fill(state)?);
        turnover.map_err(|refused| Failure::refused(refused.to_string()))
    }
}

impl FillProgress {
    fn read(reply: &Reply) -> FillProgress {
        let of = |name: &str| value(reply, name).and_then(number).unwrap_or_default();
        let subspaces = value(reply, "subspaces").map(items).unwrap_or_default();
        FillProgress {
            subspaces: subspaces.iter().filter_map(text).collect(),
            regions: u32::try_from(of("regions")).unwrap_or(0),
            copies: of("copies"),
            copies_total: of("of"),
            regions_filled: of("regions filled"),
            regions_total: of("regions in all"),
        }
    }

    /// Returns whether the subspaces being filled are those of the target.
    ///
    /// # Errors
    /// The space cannot have the target's subspaces.
    pub fn matches(&self, state: &SpaceState, target: &Target) -> Result<bool, Failure> {
        let own = Target {
            subspaces: self.subspaces.clone(),
            regions: self.regions,
            indexes: None,
        };
        let sorted = |target: &Target| {
            let turnover = target.turnover(state)?;
            let mut all = [turnover.kept, turnover.added].concat();
            all.sort();
            Ok::<_, Failure>(all)
        };
        Ok(sorted(&own)? == sorted(target)?)
    }
}

impl SpaceState {
    /// # Errors
    /// The space does not exist, or there was no reply.
    pub fn fetch_state(nodes: &Nodes, space: &str) -> Result<SpaceState, Failure> {
        SpaceState::try_fetch_state(nodes, space).map_err(RequestFailure::into_failure)
    }

    fn try_fetch_state(nodes: &Nodes, space: &str) -> Result<SpaceState, RequestFailure> {
        let reply = send(nodes, &["FT.INFO", space]).map_err(|trouble| {
            if trouble.is_temporary || !trouble.failure.message.contains("Unknown index") {
                trouble
            } else {
                RequestFailure::from(Failure::not_found(format!(
                    "there is no space {space:?}; `larder space list` shows those that there are"
                )))
            }
        })?;
        let found = SpaceInfo::read(&reply)?;
        Ok(SpaceState {
            definition: found.definition,
            objects: found.objects,
            filling: value(&reply, "filling").map(FillProgress::read),
            built: found.is_indexing.then(|| {
                let part = value(&reply, "percent_indexed").and_then(text);
                part.and_then(|it| it.parse().ok()).unwrap_or(0.0)
            }),
        })
    }
}

/// A failure, and whether it may be temporary: a server is down, or owners change.
struct RequestFailure {
    failure: Failure,
    is_temporary: bool,
}

impl RequestFailure {
    fn into_failure(self) -> Failure {
        self.failure
    }
}

impl From<Failure> for RequestFailure {
    fn from(failure: Failure) -> RequestFailure {
        RequestFailure {
            failure,
            is_temporary: false,
        }
    }
}

impl From<Error> for RequestFailure {
    fn from(error: Error) -> RequestFailure {
        let is_passing = match &error {
            Error::NoServer { .. }
            | Error::TimedOut { .. }
            | Error::Broken { .. }
            | Error::Unknown { .. }
            | Error::NoNode { .. } => true,
            _ => error
                .code()
                .is_some_and(|code| TEMPORARY_CODES.contains(&code)),
        };
        RequestFailure {
            failure: error.into(),
            is_temporary: is_passing,
        }
    }
}

/// Error codes of conditions that may be temporary.
const TEMPORARY_CODES: [&str; 4] = ["TRYAGAIN", "CLUSTERDOWN", "IOERR", "LOADING"];

fn send(nodes: &Nodes, words: &[&str]) -> Result<Reply, RequestFailure> {
    let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Ok(nodes.single_node().command(&parts)?)
}

fn alter(nodes: &Nodes, space: &str, arguments: &[String]) -> Result<Reply, RequestFailure> {
    let words = arguments.iter().map(String::as_str);
    let words: Vec<&str> = ["FT.ALTER", space].into_iter().chain(words).collect();
    send(nodes, &words)
}

/// Formats names as a list, or `none`.
pub fn format_names(names: &[String]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// Lists the local indexes of a space, each with its attributes.
pub fn index_names(definition: &Definition) -> Vec<String> {
    let name = |id| definition.attribute(id).map_or("?", |it| it.name.as_str());
    match &definition.layout.indexes {
        Some(lists) => {
            let names = |list: &Vec<_>| list.iter().map(|id| name(*id)).collect::<Vec<_>>();
            lists.iter().map(|list| names(list).join(",")).collect()
        }
        None => definition.indexed().map(|it| it.name.clone()).collect(),
    }
}

/// Fills and builds new subspaces and indexes on the servers, and switches to them. `begun`: filling has already begun.
///
/// # Errors
/// The change is not possible; or it was interrupted, and continues on the servers.
pub fn apply_target(
    nodes: &Nodes,
    space: &str,
    target: &Target,
    mut started: bool,
) -> Result<(), Failure> {
    let since = Instant::now();
    let progress = Progress::new(Unit::Copies, "filling", false);
    let watch = OutageWatch::begin();
    loop {
        if interrupt::is_interrupted() {
            drop(progress);
            return Err(Failure::interrupted(format!(
                "the servers continue with {}: repeat the command to continue, or drop subspaces that are being filled with `larder space apply --cancel --space {space}`",
                target.describe()
            )));
        }
        // A server may be down for a while, and commands without a reply may have been executed.
        let looked = SpaceState::try_fetch_state(nodes, space)
            .and_then(|state| step(nodes, space, target, &state, &mut started));
        match looked {
            Ok(Step::Done) => break,
            Ok(Step::Filling(copies, of)) => {
                progress.set("filling", copies, of);
                watch.answered();
            }
            Ok(Step::Building(objects, of)) => {
                progress.set("building", objects, of);
                watch.answered();
            }
            Err(trouble) if trouble.is_temporary && !watch.is_over() => {
                watch.failed(&trouble.failure.message);
            }
            Err(trouble) => return Err(trouble.failure),
        }
        interrupt::wait(POLL_INTERVAL);
    }
    drop((progress, watch));
    output::print_line(&format!(
        "{space} has {} now, after {}",
        target.describe(),
        output::duration(since.elapsed())
    ))
}

enum Step {
    Filling(u64, u64),
    /// Objects in indexes under construction, and their total number.
    Building(u64, u64),
    Done,
}

/// Checks the state once, starts what is missing, and switches to subspaces that are filled. `begun`: the servers have
/// been seen to fill these subspaces. If the reply to the starting command was lost, the next check shows whether it
/// must be sent again.
fn step(
    nodes: &Nodes,
    space: &str,
    target: &Target,
    state: &SpaceState,
    started: &mut bool,
) -> Result<Step, RequestFailure> {
    let Some(filling) = &state.filling else {
        let turnover = target.turnover(state)?;
        if turnover.added.is_empty() && turnover.removed.is_empty() {
            return build(nodes, space, target, state);
        }
        if *started {
            return Err(RequestFailure::from(Failure::refused(format!(
                "another client has dropped the subspaces that were being filled: {space} has {}; apply the plan again if it is still needed",
                plan_text::subspaces(&state.definition.subspace_texts(), false)
            ))));
        }
        alter(nodes, space, &target.arguments())?;
        *started = true;
        return Ok(Step::Filling(0, 0));
    };
    *started = true;
    if !filling.matches(state, target)? {
        return Err(RequestFailure::from(Failure::refused(format!(
            "another client is filling other subspaces of {space}: {}",
            plan_text::subspaces(&filling.subspaces, false)
        ))));
    }
    if filling.regions_filled >= filling.regions_total {
        match send(nodes, &["FT.ALTER", space, "SUBSPACES", "SWITCH"]) {
            // Another client has switched; the next check shows to which subspaces.
            Err(trouble) if trouble.failure.message.contains("are being filled") => {}
            done => drop(done?),
        }
    }
    Ok(Step::Filling(filling.copies, filling.copies_total))
}

/// Builds the indexes, once the subspaces are as intended.
fn build(
    nodes: &Nodes,
    space: &str,
    target: &Target,
    state: &SpaceState,
) -> Result<Step, RequestFailure> {
    if target.indexes.is_none() {
        return Ok(Step::Done);
    }
    let [added, dropped] = target.index_changes(&state.definition)?;
    if !added.is_empty() || !dropped.is_empty() {
        alter(nodes, space, &target.index_arguments())?;
        return Ok(Step::Building(0, state.objects));
    }
    Ok(match state.built {
        None => Step::Done,
        Some(part) => Step::Building((part * state.objects as f64) as u64, state.objects),
    })
}
