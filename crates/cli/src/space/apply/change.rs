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
use larder_space::schema::{Alteration, Definition, Filling, Turnover};

use super::super::info::{Space, items, value};
use super::super::layout::{number, text};
use super::super::nodes::Nodes;
use super::super::plan::Plan;
use super::super::told;
use super::away::Watch;
use crate::failure::Failure;
use crate::progress::{Progress, Unit};
use crate::{interrupt, output};

/// Interval at which the servers are polled.
const PAUSE: Duration = Duration::from_millis(200);

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
pub struct State {
    pub definition: Definition,
    pub objects: u64,
    /// The subspaces that are being filled.
    pub filling: Option<Standing>,
    /// The share of objects that are in indexes under construction. `None`: there are none.
    pub built: Option<f64>,
}

/// The state of subspaces that are being filled.
pub struct Standing {
    pub subspaces: Vec<String>,
    pub regions: u32,
    pub copies: u64,
    pub copies_in_all: u64,
    pub regions_filled: u64,
    pub regions_in_all: u64,
}

impl Target {
    /// # Errors
    /// The plan cannot be applied.
    pub fn of(plan: &Plan, path: &Path) -> Result<Target, Failure> {
        if told::is_thesis(plan) {
            return Err(Failure::refused(format!(
                "{} is computed as the thesis does, which does not say how attributes are cut: plan without --thesis",
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

    pub fn text(&self) -> String {
        let subspaces = told::subspaces(&self.subspaces, false);
        match &self.indexes {
            None => subspaces,
            Some(names) => format!("{subspaces}, indexes of {}", listed(names)),
        }
    }

    /// Returns the local indexes to build and to drop.
    ///
    /// # Errors
    /// The space cannot have them.
    pub fn indexes(&self, definition: &Definition) -> Result<[Vec<String>; 2], Failure> {
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
                    "{} cannot have indexes of {}: {}; plan anew for what it is now, or leave them as they are with --keep-indexes",
                    definition.name,
                    listed(names),
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

    fn filling(&self, state: &State) -> Result<Filling, Failure> {
        let arguments = self.arguments();
        let arguments: Vec<&[u8]> = arguments.iter().map(String::as_bytes).collect();
        let cannot = |why: String| {
            Failure::refused(format!(
                "{} cannot have {}: {why}; plan anew for what it is now",
                state.definition.name,
                self.text()
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
    pub fn turnover(&self, state: &State) -> Result<Turnover, Failure> {
        let turnover = state.definition.turnover(&self.filling(state)?);
        turnover.map_err(|refused| Failure::refused(refused.to_string()))
    }
}

impl Standing {
    fn read(reply: &Reply) -> Standing {
        let of = |name: &str| value(reply, name).and_then(number).unwrap_or_default();
        let subspaces = value(reply, "subspaces").map(items).unwrap_or_default();
        Standing {
            subspaces: subspaces.iter().filter_map(text).collect(),
            regions: u32::try_from(of("regions")).unwrap_or(0),
            copies: of("copies"),
            copies_in_all: of("of"),
            regions_filled: of("regions filled"),
            regions_in_all: of("regions in all"),
        }
    }

    /// Returns whether the subspaces being filled are those of the target.
    ///
    /// # Errors
    /// The space cannot have the target's subspaces.
    pub fn is(&self, state: &State, target: &Target) -> Result<bool, Failure> {
        let own = Target {
            subspaces: self.subspaces.clone(),
            regions: self.regions,
            indexes: None,
        };
        let sorted = |target: &Target| {
            let turnover = target.turnover(state)?;
            let mut all = [turnover.stay, turnover.come].concat();
            all.sort();
            Ok::<_, Failure>(all)
        };
        Ok(sorted(&own)? == sorted(target)?)
    }
}

impl State {
    /// # Errors
    /// The space does not exist, or there was no reply.
    pub fn ask(nodes: &Nodes, space: &str) -> Result<State, Failure> {
        State::look(nodes, space).map_err(Trouble::failure)
    }

    fn look(nodes: &Nodes, space: &str) -> Result<State, Trouble> {
        let reply = send(nodes, &["FT.INFO", space]).map_err(|trouble| {
            if trouble.is_passing || !trouble.failure.message.contains("Unknown index") {
                trouble
            } else {
                Trouble::from(Failure::not_found(format!(
                    "there is no space {space:?}; `larder space list` shows those that there are"
                )))
            }
        })?;
        let found = Space::read(&reply)?;
        Ok(State {
            definition: found.definition,
            objects: found.objects,
            filling: value(&reply, "filling").map(Standing::read),
            built: found.is_indexing.then(|| {
                let part = value(&reply, "percent_indexed").and_then(text);
                part.and_then(|it| it.parse().ok()).unwrap_or(0.0)
            }),
        })
    }
}

/// A failure, and whether it may be temporary: a server is down, or owners change.
struct Trouble {
    failure: Failure,
    is_passing: bool,
}

impl Trouble {
    fn failure(self) -> Failure {
        self.failure
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        Trouble {
            failure,
            is_passing: false,
        }
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let is_passing = match &error {
            Error::NoServer { .. }
            | Error::TimedOut { .. }
            | Error::Broken { .. }
            | Error::Unknown { .. }
            | Error::NoNode { .. } => true,
            _ => error.code().is_some_and(|code| PASSING.contains(&code)),
        };
        Trouble {
            failure: error.into(),
            is_passing,
        }
    }
}

/// Error codes of conditions that may be temporary.
const PASSING: [&str; 4] = ["TRYAGAIN", "CLUSTERDOWN", "IOERR", "LOADING"];

fn send(nodes: &Nodes, words: &[&str]) -> Result<Reply, Trouble> {
    let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Ok(nodes.one().command(&parts)?)
}

fn alter(nodes: &Nodes, space: &str, arguments: &[String]) -> Result<Reply, Trouble> {
    let words = arguments.iter().map(String::as_str);
    let words: Vec<&str> = ["FT.ALTER", space].into_iter().chain(words).collect();
    send(nodes, &words)
}

/// Formats names as a list, or `none`.
pub fn listed(names: &[String]) -> String {
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
pub fn make(nodes: &Nodes, space: &str, target: &Target, mut begun: bool) -> Result<(), Failure> {
    let since = Instant::now();
    let progress = Progress::new(Unit::Copies, "filling", false);
    let watch = Watch::begin();
    loop {
        if interrupt::is_interrupted() {
            drop(progress);
            return Err(Failure::interrupted(format!(
                "the servers go on with {}: the same command again goes on, and `larder space apply --cancel --space {space}` drops subspaces that are being filled",
                target.text()
            )));
        }
        // A server may be down for a while, and commands without a reply may have been executed.
        let looked = State::look(nodes, space)
            .and_then(|state| step(nodes, space, target, &state, &mut begun));
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
            Err(trouble) if trouble.is_passing && !watch.is_over() => {
                watch.failed(&trouble.failure.message);
            }
            Err(trouble) => return Err(trouble.failure),
        }
        interrupt::wait(PAUSE);
    }
    drop((progress, watch));
    output::print_line(&format!(
        "{space} has {} now, after {}",
        target.text(),
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
    state: &State,
    begun: &mut bool,
) -> Result<Step, Trouble> {
    let Some(filling) = &state.filling else {
        let turnover = target.turnover(state)?;
        if turnover.come.is_empty() && turnover.go.is_empty() {
            return build(nodes, space, target, state);
        }
        if *begun {
            return Err(Trouble::from(Failure::refused(format!(
                "somebody has dropped what was being filled: {space} has {}; apply the plan again if it is still wanted",
                told::subspaces(&state.definition.subspace_texts(), false)
            ))));
        }
        alter(nodes, space, &target.arguments())?;
        *begun = true;
        return Ok(Step::Filling(0, 0));
    };
    *begun = true;
    if !filling.is(state, target)? {
        return Err(Trouble::from(Failure::refused(format!(
            "somebody has begun to give {space} other subspaces: {}",
            told::subspaces(&filling.subspaces, false)
        ))));
    }
    if filling.regions_filled >= filling.regions_in_all {
        match send(nodes, &["FT.ALTER", space, "SUBSPACES", "SWITCH"]) {
            // Another client has switched; the next check shows to which subspaces.
            Err(trouble) if trouble.failure.message.contains("are being filled") => {}
            done => drop(done?),
        }
    }
    Ok(Step::Filling(filling.copies, filling.copies_in_all))
}

/// Builds the indexes, once the subspaces are as intended.
fn build(nodes: &Nodes, space: &str, target: &Target, state: &State) -> Result<Step, Trouble> {
    if target.indexes.is_none() {
        return Ok(Step::Done);
    }
    let [come, go] = target.indexes(&state.definition)?;
    if !come.is_empty() || !go.is_empty() {
        alter(nodes, space, &target.index_arguments())?;
        return Ok(Step::Building(0, state.objects));
    }
    Ok(match state.built {
        None => Step::Done,
        Some(part) => Step::Building((part * state.objects as f64) as u64, state.objects),
    })
}
