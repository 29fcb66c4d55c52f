//! A trial's reads judged: its trace folder in, what validation says out.

use std::fs;
use std::path::Path;

use larder_validate::record::{self, Record};
use larder_validate::report::{Level, Names, Report};
use larder_validate::trace::{Initial, Options, judge};

use crate::action::Action;
use crate::item::{self, Kind};
use crate::measure::Judged;
use crate::population::Population;
use crate::population::walls::Walls;
use crate::trace::Parameters;

/// Failures told in words.
const WITNESSES_MAX: usize = 20;

/// # Errors
///
/// A folder that is no trace, or a trace that is not whole.
pub fn judge_folder(folder: &Path, cores: usize) -> Result<Judged, String> {
    report_folder(folder, cores).map(|report| summarize(&report))
}

/// # Errors
///
/// As [`judge_folder`].
pub fn report_folder(folder: &Path, cores: usize) -> Result<Report, String> {
    let (parameters, population) = Parameters::read(folder)?;
    let start = Start::new(population, parameters.top);
    let records = read_all(folder)?;
    let options = options(&start, cores);
    Ok(judge(&records, &start, &options))
}

pub(crate) fn options(start: &Start, cores: usize) -> Options {
    Options {
        seed: start.population.seed,
        cores,
        witnesses_max: WITNESSES_MAX,
    }
}

/// What a report says, as measurements keep it.
pub fn summarize(report: &Report) -> Judged {
    let total = &report.total;
    let classes = [
        ("stale", total.stale),
        ("fractured", total.fractured),
        ("future", total.future),
        ("phantom", total.phantom),
        ("never", total.never),
    ];
    let level = |level| {
        let tally = report.level(level);
        (tally.judged > 0).then_some(tally.refused)
    };
    let mut ages = vec![0; 65];
    for (first, _, count) in report.ages.buckets() {
        ages[64 - first.leading_zeros() as usize] += count;
    }
    Judged {
        reads: total.reads,
        unpredictable: total.unpredictable(),
        undecided: total.undecided,
        by_level: Level::ALL.map(level),
        by_class: classes.map(|(name, count)| (name.to_owned(), count)).into(),
        ages,
        witnesses: report
            .witnesses
            .iter()
            .map(|witness| witness.tell(&Words))
            .collect(),
    }
}

/// What a trace's numbers mean.
struct Words;

impl Names for Words {
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

fn read_all(folder: &Path) -> Result<Vec<Record>, String> {
    let fail = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let mut paths: Vec<_> = fs::read_dir(folder)
        .map_err(|why| fail(folder, &why))?
        .filter_map(|file| file.ok().map(|file| file.path()))
        .filter(|path| path.extension().is_some_and(|it| it == "trace"))
        .collect();
    paths.sort();
    let mut records = Vec::new();
    for path in paths {
        let bytes = fs::read(&path).map_err(|why| fail(&path, &why))?;
        records.extend(record::decode(&bytes).map_err(|why| fail(&path, &why))?);
    }
    Ok(records)
}

/// What items were before the first record: as the population has them.
pub(crate) struct Start {
    population: Population,
    walls: Walls,
    top: u32,
}

impl Initial for Start {
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

    fn content(&self, item: u64) -> u64 {
        match item::parse(item) {
            Some((Kind::Wall, member)) if self.is_member(member) => {
                self.walls.content(member as u32, self.top)
            }
            _ => 0,
        }
    }
}

impl Start {
    /// `top`: how many resources of a wall are looked at.
    pub fn new(population: Population, top: u32) -> Start {
        Start {
            walls: Walls::new(&population),
            top,
            population,
        }
    }

    fn is_member(&self, member: u64) -> bool {
        member < u64::from(self.population.members)
    }
}
