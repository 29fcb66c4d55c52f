//! `bg coordinator`: runs or rates with several clients as one.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use super::client;
use super::folder::Folder;
use super::interrupt::on_interrupt;
use super::outcome::CommandOutcome;
use super::{rate, run};
use crate::coordinate::Fleet;
use crate::model::duration::parse_duration;
use crate::run::Setup;
use crate::run::live::Watchable;

const EXAMPLES: &str = "\
Examples:
  bg coordinator --client 10.0.0.7:7654 --client 10.0.0.8:7654 run --store postgres --threads 64 --duration 30s
  bg coordinator --client 10.0.0.7:7654 --client 10.0.0.8:7654@2.5 \\
      rate --store larder --sla '95% < 100ms, 0.1% unpredictable, 60s' --report /tmp/rating

A client with @SPEED receives SPEED times as much work as a client without. The options after `run` and `rate` are those of `bg run`
and `bg rate`. The addresses of data stores are resolved on the clients. Paths of files (--edges, --mix, --trace) are relative to each
client's --folder; for --edges and --mix, the file must also exist relative to the coordinator's current folder. The coordinator
sends the secret in BG_SECRET to clients that require one.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CoordinatorArguments {
    /// A client and its speed relative to the others; repeat for each client
    #[arg(long = "client", required = true, value_name = "HOST:PORT[@SPEED]", value_parser = parse_client)]
    clients: Vec<(String, f64)>,
    /// End the trial when a client has sent no heartbeat for this time
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    patience: Duration,
    #[command(subcommand)]
    work: Work,
}

/// The command that all clients execute together.
#[derive(Subcommand)]
pub enum Work {
    /// Execute actions on a data store for some time
    Run(Box<run::RunArguments>),
    /// Find the highest throughput, or the highest load, that meets an SLA
    Rate(Box<rate::RateArguments>),
}

/// The command line that a client receives.
#[derive(Parser)]
#[command(name = "bg")]
struct ClientCommand {
    #[command(subcommand)]
    work: Work,
}

impl Work {
    /// Parses a command line. A client accepts every command line that a coordinator of the same version accepted.
    ///
    /// # Errors
    ///
    /// The command line is invalid.
    pub fn parse(words: &[String]) -> Result<Work, String> {
        let all = std::iter::once("bg").chain(words.iter().map(String::as_str));
        ClientCommand::try_parse_from(all)
            .map(|words| words.work)
            .map_err(|why| why.to_string())
    }

    /// Restricts the files that a command on a client may open to those in a folder.
    ///
    /// # Errors
    ///
    /// A file is outside the folder.
    pub fn confine(&mut self, folder: Option<&Folder>) -> Result<(), String> {
        match self {
            Work::Run(arguments) => arguments.confine(folder),
            Work::Rate(arguments) => arguments.confine(folder),
        }
    }

    /// Returns all parameters of a trial except its load, for all members. Clients of these speeds share the members.
    ///
    /// # Errors
    ///
    /// A parameter is invalid; the message names it.
    pub fn setup(&self, speeds: &[f64]) -> Result<Setup, String> {
        match self {
            Work::Run(arguments) => arguments.setup(speeds),
            Work::Rate(arguments) => arguments.setup(speeds),
        }
    }

    /// Returns whether reads are also validated while trials run.
    pub fn validates_online(&self) -> bool {
        match self {
            Work::Run(arguments) => arguments.validates_online(),
            Work::Rate(arguments) => arguments.validates_online(),
        }
    }
}

pub fn coordinator(arguments: CoordinatorArguments) -> Result<CommandOutcome, String> {
    // The words after this command's options, from `run` or `rate` on, are the command line for the clients.
    let own = std::env::args().position(|word| word == "coordinator");
    let words: Vec<String> = std::env::args()
        .skip(own.map_or(0, |own| own + 1))
        .skip_while(|word| word != "run" && word != "rate")
        .collect();
    // Reject invalid parameters here, before connecting to any client.
    let speeds: Vec<f64> = arguments.clients.iter().map(|(_, speed)| *speed).collect();
    let setup = arguments.work.setup(&speeds)?;
    let fleet = |load, reload| {
        Fleet::new(arguments.clients.clone(), words, load, reload)
            .with_silence_max(arguments.patience)
            .with_secret(client::secret())
    };
    let mut fleet = match &arguments.work {
        Work::Run(work) => fleet(work.setup.load, false),
        Work::Rate(work) => fleet(work.setup.load, work.reloads()),
    };
    let live = fleet.live().clone();
    on_interrupt(move || live.end())?;
    match &arguments.work {
        Work::Run(work) => work.run_with(&mut fleet, &setup),
        Work::Rate(work) => {
            let clients = arguments
                .clients
                .iter()
                .map(|(address, _)| address.as_str());
            let clients = clients.collect::<Vec<_>>().join(", ");
            work.rate_with(&mut fleet, &setup, &clients)
        }
    }
}

fn parse_client(text: &str) -> Result<(String, f64), String> {
    let (address, speed) = match text.split_once('@') {
        None => (text, 1.0),
        Some((address, speed)) => match speed.parse() {
            Ok(speed) => (address, speed),
            Err(_) => return Err(format!("{speed:?} is not a number")),
        },
    };
    if !(speed > 0.0 && f64::is_finite(speed)) {
        return Err("the speed must be more than 0".to_owned());
    }
    match address.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
            Ok((address.to_owned(), speed))
        }
        _ => Err("must be HOST:PORT, or HOST:PORT@SPEED".to_owned()),
    }
}
