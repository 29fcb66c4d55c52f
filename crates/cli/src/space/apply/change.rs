//! A change of subspaces: where it stands at the servers, and how it is made.

use std::path::Path;
use std::time::{Duration, Instant};

use larder_client::{Error, Reply};
use larder_space::schema::{Alteration, Definition, Filling, Turnover};

use super::super::info::{Space, items, value};
use super::super::layout::{number, text};
use super::super::nodes::Nodes;
use super::super::plan::Plan;
use super::super::told;
use crate::failure::Failure;
use crate::progress::{Progress, Unit};
use crate::{interrupt, output};

/// How often the servers are asked how far it is.
const PAUSE: Duration = Duration::from_millis(200);
/// How long it may be that no server answers.
const AWAY_MAX: Duration = Duration::from_secs(120);

/// The subspaces that a space is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// As the clause SUBSPACES has them.
    pub subspaces: Vec<String>,
    pub regions: u32,
}

/// A space as the servers tell of it.
pub struct State {
    pub definition: Definition,
    pub objects: u64,
    /// What it is being given.
    pub filling: Option<Standing>,
}

/// How far it is with subspaces that are being filled.
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
    /// It is a plan that cannot be had.
    pub fn of(plan: &Plan, path: &Path) -> Result<Target, Failure> {
        if told::is_thesis(plan) {
            return Err(Failure::refused(format!(
                "{} is computed as the thesis does, which does not say how attributes are cut: plan without --thesis",
                path.display()
            )));
        }
        Ok(Target {
            subspaces: plan.report.best.subspaces.clone(),
            regions: plan.servers.regions,
        })
    }

    pub fn text(&self) -> String {
        told::subspaces(&self.subspaces, false)
    }

    /// The arguments of FT.ALTER from SUBSPACES on.
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

    /// What becomes of the subspaces of a space with it.
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

    /// Whether that is what is to be.
    ///
    /// # Errors
    /// The space cannot have it.
    pub fn is(&self, state: &State, target: &Target) -> Result<bool, Failure> {
        let own = Target {
            subspaces: self.subspaces.clone(),
            regions: self.regions,
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
    /// There is no such space, or no reply.
    pub fn ask(nodes: &Nodes, space: &str) -> Result<State, Failure> {
        State::look(nodes, space).map_err(Trouble::failure)
    }

    fn look(nodes: &Nodes, space: &str) -> Result<State, Trouble> {
        let reply = send(nodes, &["FT.INFO", space]).map_err(|trouble| {
            match trouble.is_passing || !trouble.failure.message.contains("Unknown index") {
                true => trouble,
                false => Trouble::from(Failure::not_found(format!(
                    "there is no space {space:?}; `larder space list` shows those that there are"
                ))),
            }
        })?;
        let found = Space::read(&reply)?;
        Ok(State {
            definition: found.definition,
            objects: found.objects,
            filling: value(&reply, "filling").map(Standing::read),
        })
    }
}

/// Why something could not be done, and whether it may be otherwise in a moment: a server is away, or owners change.
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

/// Codes of errors that may be otherwise in a moment.
const PASSING: [&str; 4] = ["TRYAGAIN", "CLUSTERDOWN", "IOERR", "LOADING"];

fn send(nodes: &Nodes, words: &[&str]) -> Result<Reply, Trouble> {
    let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    Ok(nodes.one().command(&parts)?)
}

/// Has the servers fill what is new, and lets it take over. `begun`: they fill it already.
///
/// # Errors
/// It cannot be done; or it was interrupted, and goes on at the servers.
pub fn make(nodes: &Nodes, space: &str, target: &Target, begun: bool) -> Result<(), Failure> {
    let since = Instant::now();
    if !begun {
        let arguments = target.arguments();
        let words = arguments.iter().map(String::as_str);
        let words: Vec<&str> = ["FT.ALTER", space].into_iter().chain(words).collect();
        nodes.patient(&words)?;
    }
    let progress = Progress::new(Unit::Copies, "filling", false);
    let mut answered = Instant::now();
    loop {
        if interrupt::is_interrupted() {
            drop(progress);
            return Err(Failure::interrupted(format!(
                "the servers go on filling {}: the same command again goes on, and `larder space apply --cancel --space {space}` drops it",
                target.text()
            )));
        }
        // A server may be away for a while, and what it was told may have been done.
        let looked = State::look(nodes, space).and_then(|state| step(nodes, space, target, &state));
        match looked {
            Ok(Step::Done) => break,
            Ok(Step::Filling(copies, of)) => {
                progress.set("filling", copies, of);
                answered = Instant::now();
            }
            Err(trouble) if trouble.is_passing && answered.elapsed() < AWAY_MAX => {}
            Err(trouble) => return Err(trouble.failure),
        }
        interrupt::wait(PAUSE);
    }
    drop(progress);
    output::print_line(&format!(
        "{space} has {} now, after {}",
        target.text(),
        output::duration(since.elapsed())
    ))
}

enum Step {
    Filling(u64, u64),
    Done,
}

/// Looks once, and lets what is whole take over.
fn step(nodes: &Nodes, space: &str, target: &Target, state: &State) -> Result<Step, Trouble> {
    let Some(filling) = &state.filling else {
        let turnover = target.turnover(state)?;
        return match turnover.come.is_empty() && turnover.go.is_empty() {
            true => Ok(Step::Done),
            false => Err(Trouble::from(Failure::refused(format!(
                "somebody has dropped what was being filled: {space} has {}; apply the plan again if it is still wanted",
                told::subspaces(&state.definition.subspace_texts(), false)
            )))),
        };
    };
    if !filling.is(state, target)? {
        return Err(Trouble::from(Failure::refused(format!(
            "somebody has begun to give {space} other subspaces: {}",
            told::subspaces(&filling.subspaces, false)
        ))));
    }
    if filling.regions_filled >= filling.regions_in_all {
        match send(nodes, &["FT.ALTER", space, "SUBSPACES", "SWITCH"]) {
            // Somebody else was faster; the next look tells with what.
            Err(trouble) if trouble.failure.message.contains("are being filled") => {}
            done => drop(done?),
        }
    }
    Ok(Step::Filling(filling.copies, filling.copies_in_all))
}
