//! `bg rate`: determines the SoAR or Socialites of a data store.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::deck::{DeckOption, DeckSession};
use super::folder::Folder;
use super::interrupt::on_interrupt;
use super::options::{JudgeOption, SetupOptions};
use super::outcome::CommandOutcome;
use super::{load, output};
use crate::coordinate::Fleet;
use crate::model::duration::parse_duration;
use crate::rate::report::{Facts, Machine, Report};
use crate::rate::{self, Experiment, Goal, LoadUnit, Plan, RatingOutcome};
use crate::run::live::{Live, Watchable as _};
use crate::run::{Process, Setup, Tracing};
use crate::ui::deck::{NextStep, ObservedRunner};
use crate::ui::page;
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Measurements, StopCondition, Trial, TrialRunner};

mod text;

const EXAMPLES: &str = "\
Examples:
  bg rate --store memory --sla '95% < 10ms, 0.1% unpredictable, 10s'
  bg rate --store postgres --sla '95% < 100ms, view-profile: 99% < 10ms, 60s' --mix low-write --report /tmp/rating
  bg rate --store larder --sla 'p99 < 20ms, 1% errors' --for socialites --between-trials reload
  bg rate --store memory --sla '95% < 1ms, 10s' --deck
  bg rate --store redis --sla 'p99 < 5ms, 30s' --over rate --first 1000

The SLA (--sla) consists of clauses separated by commas:
  95% < 100ms                  at least this share of the calls takes less than this time
  p99.9 < 1s                   the same as a percentile
  view-profile: 99% < 10ms     the same for one action
  1% errors                    at most this share of the calls fails or has no result
  0.1% unpredictable           at most this share of the reads cannot be explained by any order of the writes;
                               `at counts`, `at members`, `at atomic` or `at joint` selects another level
  60s                          the duration of the trial that confirms the rating";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct RateArguments {
    #[command(flatten)]
    pub(super) setup: SetupOptions,
    #[command(flatten)]
    search: SearchOptions,
    #[command(flatten)]
    deck: DeckOption,
    /// The handling of the data store between trials
    #[arg(long, value_enum, default_value_t = BetweenTrials::Keep)]
    between_trials: BetweenTrials,
    #[command(flatten)]
    judge: JudgeOption,
    /// Validate reads already while trials run: a trial ends early when too many reads are unpredictable
    #[arg(long, conflicts_with = "untraced")]
    online: bool,
}

/// The goal and the method of the search.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Rating")]
pub struct SearchOptions {
    /// The SLA; see below
    #[arg(long, value_name = "AGREEMENT")]
    sla: Sla,
    /// The goal: soar is the highest throughput under the SLA, socialites the highest load
    #[arg(long = "for", value_enum, default_value_t = GoalOption::Soar, value_name = "RATING")]
    goal: GoalOption,
    /// The load: threads of a closed loop, or the rate of an open loop in actions per second
    #[arg(long = "over", value_enum, default_value_t = LoadUnitOption::Threads)]
    load_unit: LoadUnitOption,
    /// The initial load [default: 1 thread, or 100 actions per second]
    #[arg(long)]
    first: Option<u64>,
    /// The highest load to try [default: one thread per member, or 2^20 actions per second]
    #[arg(long)]
    most: Option<u64>,
    /// The duration of each trial of the search [default: that of the confirming trial in the SLA, at most a twentieth
    /// of --within]. Several durations (3s,10s,30s) are tried in turn until two of them give the same rating
    #[arg(long, value_delimiter = ',', value_parser = parse_duration)]
    trial: Vec<Duration>,
    /// The warm-up before each trial, which is not measured
    #[arg(long, default_value = "1s", value_parser = parse_duration)]
    warmup: Duration,
    /// The percentage of throughput that does not justify another trial
    #[arg(long, default_value_t = 1.0, value_name = "PERCENT")]
    tolerance: f64,
    /// The maximum number of trials of one load if noise could determine the result
    #[arg(long, default_value_t = 3)]
    trials: u32,
    /// The time limit of the complete rating: the search ends early enough to confirm its result [default: no limit]
    #[arg(long, value_parser = parse_duration)]
    within: Option<Duration>,
    /// Run each trial of the search to its end, even if it has already missed the SLA
    #[arg(long)]
    full_trials: bool,
    /// Write rating.html and rating.json into this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum GoalOption {
    Soar,
    Socialites,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum LoadUnitOption {
    Threads,
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum BetweenTrials {
    /// Empty and load it again, so that all trials start in the same state
    Reload,
    /// Continue with the state that the last trial left
    Keep,
}

pub fn rate(arguments: &RateArguments) -> Result<CommandOutcome, String> {
    let setup = arguments.setup(&[1.0])?;
    let members = u64::from(setup.drawing.size());
    let plan = arguments.plan(members)?;
    let mut process = Process::new(setup)?;
    if arguments.online {
        process.validate_online();
    }
    let live = process.live().clone();
    let shown = arguments.show(process.setup(), &live)?;
    if let Some(shown) = &shown {
        shown.watch(&mut process, |_| {});
    }
    on_interrupt(move || live.end())?;
    load::load_if_needed(&arguments.setup, &mut process, shown.as_ref())?;
    let settings = arguments.settings(process.setup());
    let mut runner = ReloadingRunner {
        process,
        reload: arguments.reloads(),
        run: 0,
    };
    let (store, search) = (&arguments.setup.store.store, &arguments.search);
    let shown = shown.as_ref();
    search.rate(&plan, &mut runner, shown, store, settings)
}

/// The trial runner of this process. Reloads the data store between trials if requested.
struct ReloadingRunner {
    process: Process,
    reload: bool,
    run: u32,
}

impl TrialRunner for ReloadingRunner {
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
        self.run_until(trial, &|_, _| false)
    }

    fn run_until(
        &mut self,
        trial: &Trial,
        should_stop: StopCondition<'_>,
    ) -> Result<Measurements, String> {
        if self.reload && self.run > 0 {
            self.process.load(&mut |_| {})?;
        }
        self.run += 1;
        self.process.run_until(trial, should_stop)
    }

    fn is_over(&self) -> bool {
        self.process.is_over()
    }
}

impl RateArguments {
    /// Returns all parameters of a trial except its load, for clients of these speeds together.
    ///
    /// # Errors
    ///
    /// A parameter is invalid; the message names it.
    pub fn setup(&self, speeds: &[f64]) -> Result<Setup, String> {
        let mut setup = self.setup.setup(None, speeds)?;
        if !self.judge.untraced && !setup.store.skips_validation() {
            setup.tracing = Tracing::Scratch;
        } else if self.search.sla.needs_validation() {
            return Err(
                "the agreement limits unpredictable reads, but reads are not validated: omit --untraced, and use a data store other than null"
                    .to_owned(),
            );
        }
        Ok(setup)
    }

    /// See [`Work::confine`](super::coordinator::Work::confine). The coordinator writes the report, so its path is not
    /// confined.
    pub fn confine(&mut self, folder: Option<&Folder>) -> Result<(), String> {
        self.setup.confine(folder)
    }

    /// Returns the plan for this number of members.
    fn plan(&self, members: u64) -> Result<Plan, String> {
        self.search.plan(if self.setup.behavior.shared_reads {
            1 << 20
        } else {
            members
        })
    }

    /// Returns whether the data store is reloaded between trials.
    pub fn reloads(&self) -> bool {
        self.between_trials == BetweenTrials::Reload
    }

    /// Returns whether reads are also validated while trials run.
    pub fn validates_online(&self) -> bool {
        self.online
    }

    /// Rates with clients that act as one. `setup` is the one that a single client would have.
    ///
    /// # Errors
    ///
    /// As for [`SearchOptions::rate`].
    pub fn rate_with(
        &self,
        fleet: &mut Fleet,
        setup: &Setup,
        clients: &str,
    ) -> Result<CommandOutcome, String> {
        let live = fleet.live().clone();
        let shown = self.show(setup, &live)?;
        if let Some(shown) = &shown {
            shown.watch(fleet, |_| {});
        }
        fleet.prepare()?;
        let plan = self.plan(fleet.threads_max())?;
        let mut settings = self.settings(setup);
        settings.push(("clients".to_owned(), clients.to_owned()));
        let store = &self.setup.store.store;
        self.search
            .rate(&plan, fleet, shown.as_ref(), store, settings)
    }

    /// Opens the deck if requested.
    fn show(&self, setup: &Setup, live: &Arc<Live>) -> Result<Option<DeckSession>, String> {
        let (address, sla) = (self.deck.deck.as_deref(), &self.search.sla);
        address
            .map(|address| DeckSession::open("rate", address, setup, live, Some(sla)))
            .transpose()
    }

    fn settings(&self, setup: &Setup) -> Vec<(String, String)> {
        let population = &setup.population;
        let images = population.image_size.map_or_else(
            || "without images".to_owned(),
            |size| format!("images of {size} bytes"),
        );
        let mut settings = vec![
            (
                "population",
                format!(
                    "{} members, {} friends, {} invitations, {} resources and {} comments on each, {images}; seed {}",
                    population.members,
                    population.friends,
                    population.invitations,
                    population.resources,
                    population.comments,
                    population.seed
                ),
            ),
            ("mix", self.setup.behavior.mix.clone()),
            ("members drawn", self.setup.behavior.draw.to_string()),
            ("workers", setup.workers.to_string()),
            (
                "between trials",
                match self.between_trials {
                    BetweenTrials::Reload => "reloaded".to_owned(),
                    BetweenTrials::Keep => "kept".to_owned(),
                },
            ),
        ];
        if let Some(address) = &self.setup.store.address {
            settings.insert(0, ("address", address.clone()));
        }
        let own = |(name, value): (&str, String)| (name.to_owned(), value);
        settings.into_iter().map(own).collect()
    }
}

impl SearchOptions {
    /// Returns the plan.
    ///
    /// # Errors
    ///
    /// A parameter is invalid (the message names it), or the report's folder is not writable.
    pub fn plan(&self, threads_max: u64) -> Result<Plan, String> {
        let load_unit = match self.load_unit {
            LoadUnitOption::Threads => LoadUnit::Threads,
            LoadUnitOption::Rate => LoadUnit::Rate,
        };
        let (first, most) = match self.load_unit {
            LoadUnitOption::Threads => (1, threads_max),
            LoadUnitOption::Rate => (100, 1 << 20),
        };
        let (first, most) = (self.first.unwrap_or(first), self.most.unwrap_or(most));
        if first == 0 || first > most {
            return Err(format!(
                "--first {first}: must be 1 to the highest load, {most}"
            ));
        }
        if self.load_unit == LoadUnitOption::Threads && most > u64::from(u32::MAX) {
            return Err(format!("--most {most}: must be less than 2^32 threads"));
        }
        if !(self.tolerance > 0.0 && self.tolerance <= 50.0) {
            return Err(format!(
                "--tolerance {}: must be more than 0 and at most 50 percent",
                self.tolerance
            ));
        }
        let trial = self.search_durations()[0];
        if trial.is_zero() {
            return Err("--trial 0: must be more than 0".to_owned());
        }
        if !self.trial.is_sorted_by(|shorter, longer| shorter < longer) {
            return Err("--trial: several durations must be in ascending order".to_owned());
        }
        if self.trial.len() > 1 && self.within.is_some() {
            return Err(
                "--within: cannot be combined with several durations in --trial".to_owned(),
            );
        }
        let least = 2 * self.warmup + trial + self.sla.duration;
        if let Some(within) = self.within
            && within < least
        {
            return Err(format!(
                "--within {} s: must be at least {} s, for one trial of the search and the confirming trial (--trial, --warmup, and the duration in the agreement)",
                within.as_secs_f64(),
                least.as_secs_f64()
            ));
        }
        if self.trials == 0 {
            return Err("--trials 0: must be at least 1".to_owned());
        }
        if let Some(folder) = &self.report {
            // Check now, not after an hour of trials.
            page::check_writable(folder)
                .map_err(|why| format!("--report {}: {why}", folder.display()))?;
        }
        Ok(Plan {
            sla: self.sla.clone(),
            goal: match self.goal {
                GoalOption::Soar => Goal::Soar,
                GoalOption::Socialites => Goal::Socialites,
            },
            load_unit,
            first,
            most,
            warmup: self.warmup,
            trial,
            tolerance: self.tolerance / 100.0,
            trials_max: self.trials,
            full_trials: self.full_trials,
            within: self.within,
        })
    }

    /// Returns the durations of the search's trials: at least one, ascending.
    fn search_durations(&self) -> Vec<Duration> {
        let confirming = self.sla.duration;
        let default = self
            .within
            .map_or(confirming, |within| confirming.min(within / 20));
        if self.trial.is_empty() {
            vec![default]
        } else {
            self.trial.clone()
        }
    }

    /// Rates, prints each experiment, and writes the report.
    ///
    /// # Errors
    ///
    /// An experiment has no result, or the report cannot be written.
    pub fn rate(
        &self,
        plan: &Plan,
        runner: &mut dyn TrialRunner,
        shown: Option<&DeckSession>,
        store: &str,
        settings: Vec<(String, String)>,
    ) -> Result<CommandOutcome, String> {
        output::err(format_args!("{}", text::header(plan)));
        let mut number = 0;
        let mut progress = |experiment: &Experiment| {
            number += 1;
            output::err(format_args!("{}", text::line(number, experiment)));
            shown.is_none_or(|shown| {
                shown.board.set_purpose(&experiment.purpose.to_string());
                shown.board.next_step() == NextStep::Go
            })
        };
        let trials = self.search_durations();
        let (plan, rating) = match shown {
            Some(shown) => {
                let mut observed = ObservedRunner::new(runner, shown.board.clone());
                let rated = rate::rate_until_stable(plan, &trials, &mut observed, &mut progress);
                shown.rated(&rated.1);
                rated
            }
            None => rate::rate_until_stable(plan, &trials, runner, &mut progress),
        };
        let facts = Facts {
            store: store.to_owned(),
            command: text::command(std::env::args()),
            settings,
            machine: Machine::here(),
        };
        let report = Report::new(&plan, &rating, facts);
        if self.json {
            let text = serde_json::to_string(&report).map_err(|why| why.to_string())?;
            // The reader of the output may have closed it.
            let _ = writeln!(io::stdout(), "{text}");
        } else {
            print!("{}", text::summary(&report));
        }
        if let Some(folder) = &self.report {
            let page = page::write(&report, folder)
                .map_err(|why| format!("cannot write the report to {}: {why}", folder.display()))?;
            output::err(format_args!("report: {}", page.display()));
        }
        match rating.end {
            RatingOutcome::Failed(why) => Err(why),
            RatingOutcome::Interrupted => Ok(CommandOutcome::Interrupted),
            RatingOutcome::Rated => Ok(CommandOutcome::from_met(report.load > 0)),
        }
    }
}
