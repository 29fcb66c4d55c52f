//! `bg load`: loads the population into a data store.

use std::io::{IsTerminal, Write as _};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use clap::Args;

use super::deck::DeckSession;
use super::interrupt::on_interrupt;
use super::options::{PopulationOptions, SetupOptions, StoreOptions};
use super::output;
use crate::model::draw::{self, Distribution};
use crate::run::Process;
use crate::stores::load::{self, Progress};

const EXAMPLES: &str = "\
Examples:
  bg load --store postgres --at 'host=localhost user=me' --members 10000 --image-size 12K
  bg load --store postgres --at 'host=localhost user=me' --members 10000 --image-size 12K --from 4200";

#[derive(Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub struct LoadArguments {
    #[command(flatten)]
    store: StoreOptions,
    #[command(flatten)]
    population: PopulationOptions,
    /// The clients of the coordinator that will use the data store: their number, or their speeds (1,1,2.5);
    /// friendships are only between members of the same client
    #[arg(long, value_name = "N|SPEED,...", default_value = "1", value_parser = parse_speeds)]
    clients: Speeds,
    /// The distribution of members that those clients will use (--draw)
    #[arg(long, default_value_t = draw::DEFAULT, value_name = "DISTRIBUTION")]
    draw: Distribution,
    /// Continue an interrupted load at this member, instead of starting again
    #[arg(long, value_name = "MEMBER")]
    from: Option<u32>,
}

/// The speed of each client.
#[derive(Clone, Debug)]
struct Speeds(Vec<f64>);

/// Maximum number of clients, more than are practical.
const CLIENTS_MAX: usize = 4096;

fn parse_speeds(text: &str) -> Result<Speeds, String> {
    let syntax = "must be a number of clients, or their speeds separated by commas";
    if let Ok(clients) = text.parse::<usize>() {
        return match clients {
            1..=CLIENTS_MAX => Ok(Speeds(vec![1.0; clients])),
            _ => Err(syntax.to_owned()),
        };
    }
    let is_valid = |speed: &f64| *speed > 0.0 && speed.is_finite();
    let speeds = text
        .split(',')
        .map(|speed| speed.parse().ok().filter(is_valid));
    let speeds: Option<Vec<f64>> = speeds.collect();
    speeds.map(Speeds).ok_or_else(|| syntax.to_owned())
}

pub fn load(arguments: LoadArguments) -> Result<(), String> {
    let speeds = &arguments.clients.0;
    let population = arguments.population.population(arguments.draw, speeds)?;
    let store = arguments.store.open()?;
    if store.is_volatile() {
        return Err(format!(
            "the data in {} is lost when bg ends; bg run loads this data store automatically",
            arguments.store.store
        ));
    }
    let workers = arguments.store.workers();
    if let Some(from) = arguments.from
        && from > population.members
    {
        return Err(format!(
            "--from {from}: is more than --members {}",
            population.members
        ));
    }
    let started = Instant::now();
    let mut show_progress = progress(started);
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    on_interrupt(move || end.store(true, Ordering::Relaxed))?;
    let mut show_progress = |progress| {
        show_progress(progress);
        if ended.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    match arguments.from {
        None => load::load(&store, &population, workers, &mut show_progress)?,
        Some(first) => load::load_from(first, &store, &population, workers, &mut show_progress)?,
    }
    println!(
        "loaded {} members, {} friendships, {} resources in {:.1} s",
        population.members,
        population.friendship_count(),
        population.resource_count(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Loads the data store of a process, if requested or if no other process can have loaded it. A deck shows the
/// progress.
pub fn load_if_needed(
    options: &SetupOptions,
    process: &mut Process,
    shown: Option<&DeckSession>,
) -> Result<(), String> {
    match shown {
        _ if !options.load && !process.setup().store.is_volatile() => Ok(()),
        Some(shown) => shown.load(process),
        None => process.load(&mut progress(Instant::now())),
    }
}

/// Returns a progress display: on a terminal, a line that is updated; otherwise, one line for every tenth.
pub fn progress(started: Instant) -> impl FnMut(Progress) {
    let terminal = std::io::stderr().is_terminal();
    let mut tenths = 0;
    move |progress| {
        let Progress { loaded, members } = progress;
        let rate = f64::from(loaded) / started.elapsed().as_secs_f64().max(1e-3);
        let line = format!("{loaded} of {members} members, {rate:.0} a second");
        let now = u64::from(loaded) * 10 / u64::from(members.max(1));
        if terminal {
            let end = if loaded == members { "\n" } else { "" };
            let _ = write!(std::io::stderr(), "\r{line}{end}");
            let _ = std::io::stderr().flush();
        } else if now > tenths {
            output::err(format_args!("{line}"));
        }
        tenths = now;
    }
}
