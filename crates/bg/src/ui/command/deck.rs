//! `bg deck`: runs one trial after another with the deck open. Also opens the deck for other commands.

use std::sync::Arc;
use std::time::Instant;

use clap::Args;

use super::interrupt::on_interrupt;
use super::options::{JudgeOption, SetupOptions, TrialOptions};
use super::{load, output, table};
use crate::rate::{Rating, RatingOutcome};
use crate::run::live::{Live, Watchable};
use crate::run::{Process, Setup, Tracing};
use crate::ui::deck::{About, Board, Deck, NextStep, ObservedRunner};
use crate::verdict::agreement::Sla;
use crate::verdict::measure::{Load, TrialRunner};

const EXAMPLES: &str = "\
Examples:
  bg deck --store memory
  bg deck --store postgres --at 'host=/run/postgresql user=me' --load --threads 16 --sla '95% < 100ms, 0.1% unpredictable, 60s'
  bg deck --store redis --duration 60s --listen 8080

The page at http://127.0.0.1:6001/ has the controls: number of threads, stop, and start. Ctrl-C ends bg.";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct DeckArguments {
    #[command(flatten)]
    setup: SetupOptions,
    #[command(flatten)]
    trial: TrialOptions,
    #[command(flatten)]
    judge: JudgeOption,
    /// The address of the page: PORT on the loopback interface, or HOST:PORT; 0: a free port
    #[arg(long, value_name = "ADDR", default_value = PORT)]
    listen: String,
}

/// The port of the original BG's deck.
const PORT: &str = "6001";

/// The option of commands that can show a deck.
#[derive(Args, Clone, Debug)]
pub struct DeckOption {
    /// Show the trial in the browser while it runs: PORT on the loopback interface, or HOST:PORT; default 6001
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = PORT)]
    pub deck: Option<String>,
}

/// An open deck for a process.
pub struct DeckSession {
    pub board: Arc<Board>,
    _deck: Deck,
}

impl DeckSession {
    /// Opens the deck and prints its address.
    pub fn open(
        command: &'static str,
        address: &str,
        setup: &Setup,
        live: &Arc<Live>,
        sla: Option<&Sla>,
    ) -> Result<DeckSession, String> {
        let about = About::new(command, setup);
        let board = Board::new(about, sla.cloned(), live.clone());
        let board = Arc::new(board);
        let deck = Deck::open(address, board.clone())?;
        output::err(format_args!("{}", deck.address_message()));
        Ok(DeckSession { board, _deck: deck })
    }

    /// Shows each second of the trials, and passes it to `also`.
    pub fn watch(&self, trials: &mut dyn Watchable, mut also: impl FnMut(&Live) + 'static) {
        let board = self.board.clone();
        trials.watch(Box::new(move |live| {
            live.with_state(|seen| board.record_second(&seen.into()));
            also(live);
        }));
    }

    /// Loads the data store and shows the progress.
    pub fn load(&self, process: &mut Process) -> Result<(), String> {
        let mut show_progress = load::progress(Instant::now());
        let loaded = process.load(&mut |progress| {
            self.board
                .record_loading(progress.loaded.into(), progress.members.into());
            show_progress(progress);
        });
        self.failed(loaded)
    }

    /// Shows the result of a search.
    pub fn rated(&self, rating: &Rating) {
        match &rating.end {
            RatingOutcome::Rated => self.board.record_rating(
                rating.load(),
                rating.throughput(),
                rating.confirmed,
                &rating.notes,
            ),
            RatingOutcome::Interrupted => self
                .board
                .record_run_end(Some("the rating was stopped".to_owned())),
            RatingOutcome::Failed(why) => self.board.record_run_end(Some(why.clone())),
        }
    }

    /// Shows the reason if it failed.
    pub fn failed<T>(&self, done: Result<T, String>) -> Result<T, String> {
        done.inspect_err(|why| self.board.record_run_end(Some(why.clone())))
    }
}

pub fn deck(arguments: DeckArguments) -> Result<(), String> {
    let untraced = arguments.judge.untraced;
    let mut setup = arguments.setup.setup(None, &[1.0])?;
    if !untraced && !setup.store.skips_validation() {
        setup.tracing = Tracing::Scratch;
    }
    let mut trial = arguments.trial.trial();
    let mut process = Process::new(setup)?;
    process.check(&trial)?;
    if !untraced {
        process.validate_online();
    }
    let (live, sla) = (process.live().clone(), arguments.trial.sla.as_ref());
    let shown = DeckSession::open("deck", &arguments.listen, process.setup(), &live, sla)?;
    let board = shown.board.clone();
    on_interrupt(move || {
        live.end();
        board.quit();
    })?;
    load::load_if_needed(&arguments.setup, &mut process, Some(&shown))?;
    shown.watch(&mut process, |_| {});
    let board = &shown.board;
    for number in 1.. {
        if let (Load::Threads(_), Some(threads)) = (trial.load, board.threads()) {
            trial.load = Load::Threads(threads);
        }
        match ObservedRunner::new(&mut process, board.clone()).run(&trial) {
            Ok(measured) => {
                output::out(format_args!(
                    "trial {number}: {}",
                    table::format_summary(&measured)
                ));
            }
            Err(_) if process.is_over() => break,
            Err(why) => {
                output::err(format_args!("trial {number} has no result: {why}"));
                board.record_failure(why);
            }
        }
        if board.next_step() == NextStep::Stop && !board.wait_for_start() {
            break;
        }
    }
    Ok(())
}
