//! Validates the reads of a trial: takes its trace folder and returns the results of validation.

use std::path::Path;
use std::sync::Arc;

use larder_validate::report::{Level, Names, Report};
use larder_validate::trace::{Initial, Options};

use crate::model::action::Action;
use crate::model::item::{self, Kind};
use crate::model::population::Population;
use crate::model::population::walls::Walls;
use crate::verdict::measure::ReadValidation;
use crate::verdict::trace::Parameters;
use crate::verdict::validate::print::classes;
use crate::verdict::validate::{Bound, TraceFolder, judge_within};

/// Default memory limit of validation: enough for eight million records.
pub const MEMORY_BYTES: u64 = 2 << 30;

/// Maximum number of failures described in words.
pub const WITNESSES_MAX: usize = 20;

/// Validates the trace in a folder and returns the summary.
///
/// # Errors
///
/// The folder contains no trace, or the trace is incomplete.
pub fn judge_folder(folder: &Path, cores: usize) -> Result<ReadValidation, String> {
    report_folder(folder, cores).map(|report| summarize(&report))
}

/// Validates the trace in a folder and returns the full report.
///
/// # Errors
///
/// As for [`judge_folder`].
pub fn report_folder(folder: &Path, cores: usize) -> Result<Report, String> {
    report_folder_within(folder, cores, &Bound::new(MEMORY_BYTES, folder))
}

/// Validates the trace in a folder within a memory bound and returns the full report.
///
/// # Errors
///
/// As for [`judge_folder`] and [`judge_within`].
pub fn report_folder_within(folder: &Path, cores: usize, bound: &Bound) -> Result<Report, String> {
    let (parameters, population) = Parameters::read(folder)?;
    let start = InitialState::new(population, parameters.top);
    let options = options(&start, cores);
    judge_within(&TraceFolder::open(folder)?, &start, &options, bound)
}

pub(crate) fn options(start: &InitialState, cores: usize) -> Options {
    Options {
        seed: start.population.seed,
        cores,
        witnesses_max: WITNESSES_MAX,
    }
}

/// Converts a report to the summary kept with the measurements.
pub fn summarize(report: &Report) -> ReadValidation {
    let total = &report.total;
    let level = |level| Some(report.rejected_up_to(level));
    let mut ages = vec![0; 65];
    for (first, _, count) in report.ages.buckets() {
        ages[64 - first.leading_zeros() as usize] += count;
    }
    ReadValidation {
        reads: total.reads,
        unpredictable: total.unpredictable(),
        unpredictable_sessions: report.unpredictable_sessions.len() as u64,
        undecided: total.undecided,
        by_level: Level::ALL.map(level),
        by_class: classes(total)
            .map(|(name, count)| (name.to_owned(), count))
            .into(),
        ages,
        witnesses: report
            .witnesses
            .iter()
            .map(|witness| witness.describe(&TraceNames))
            .collect(),
    }
}

/// Formats the numbers of a trace as text.
pub struct TraceNames;

impl Names for TraceNames {
    fn item(&self, item: u64) -> String {
        match item::parse(item) {
            Some((Kind::Comments, resource)) => format!("the comments on resource {resource}"),
            Some((kind, member)) => format!("the {} of member {member}", kind.name()),
            None => format!("item {item}"),
        }
    }

    fn element(&self, item: u64, element: u64) -> String {
        match item::parse(item) {
            Some((Kind::Friends | Kind::Invitations, _)) => format!("member {element}"),
            Some((Kind::Comments, _)) => format!("comment {element}"),
            _ => format!("element {element}"),
        }
    }

    fn action(&self, action: u8) -> String {
        let known = Action::ALL.get(usize::from(action));
        known.map_or("an earlier trial", |it| it.name()).to_owned()
    }
}

/// The state of the items before the first record: that of the population.
pub(crate) struct InitialState {
    population: Arc<Population>,
    walls: Walls,
    top: u32,
}

impl Initial for InitialState {
    fn count(&self, item: u64) -> i32 {
        self.set(item).len() as i32
    }

    fn set(&self, item: u64) -> Vec<u64> {
        match item::parse(item) {
            Some((Kind::Friends, member)) if self.is_member(member) => {
                let friends = self.population.friends_of(member as u32);
                friends.map(u64::from).collect()
            }
            Some((Kind::Invitations, member)) if self.is_member(member) => {
                let inviters = self.population.inviters_of(member as u32);
                inviters.map(u64::from).collect()
            }
            Some((Kind::Comments, _)) => (0..self.population.comments.into()).collect(),
            _ => Vec::new(),
        }
    }

    fn contains(&self, item: u64, element: u64) -> bool {
        match item::parse(item) {
            Some((Kind::Comments, _)) => element < u64::from(self.population.comments),
            _ => self.set(item).contains(&element),
        }
    }

    fn content(&self, item: u64) -> u64 {
        match item::parse(item) {
            Some((Kind::Wall, member)) if self.is_member(member) => {
                self.walls.content(member as u32, self.top)
            }
            _ => 0,
        }
    }
}

impl InitialState {
    /// `top`: number of resources of a wall that a read returns.
    pub fn new(population: Population, top: u32) -> InitialState {
        let population = Arc::new(population);
        InitialState {
            walls: Walls::new(&population),
            top,
            population,
        }
    }

    fn is_member(&self, member: u64) -> bool {
        member < u64::from(self.population.members)
    }
}
