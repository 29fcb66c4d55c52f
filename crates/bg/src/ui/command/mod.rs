//! The command line.
//!
//! Each command has a file. `options` contains the options of several commands, `interrupt` handles Ctrl-C, `outcome`
//! defines the exit statuses, and `table` formats the result of a trial.

mod client;
mod compare;
mod coordinator;
mod deck;
mod folder;
mod interrupt;
mod load;
mod memory;
pub mod options;
mod outcome;
mod output;
mod rate;
mod report;
mod run;
mod table;
mod validate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use outcome::CommandOutcome;

use crate::model::mix;
use crate::stores;

/// Rates a data store by social actions under an SLA, and validates its reads
#[derive(Parser)]
#[command(name = "bg", version, after_help = EXAMPLES)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  bg run --store memory --threads 8 --duration 5s --trace /tmp/trace
  bg load --store postgres --at 'host=/run/postgresql user=me' --members 10000
  bg run --store postgres --threads 16 --mix high-write --duration 30s --json
  bg rate --store memory --sla '95% < 10ms, 0.1% unpredictable, 10s' --report /tmp/rating
  bg compare yesterday/rating.json today/rating.json
  bg deck --store memory

Exit status: 0 on success; 1 if an SLA was missed, reads were unpredictable, or a comparison is worse; 2 if the command failed;
130 if it was interrupted before it had a result. docs/guide/bg.md has the details.";

#[derive(Subcommand)]
enum Command {
    /// Fill a data store with members, friendships and resources
    Load(load::LoadArguments),
    /// Execute actions on a data store for some time; report throughput and latencies, and validate the reads
    Run(Box<run::RunArguments>),
    /// Find the highest throughput, or the highest load, at which a data store meets an SLA
    Rate(Box<rate::RateArguments>),
    /// Run trials that are shown and controlled in the browser
    Deck(Box<deck::DeckArguments>),
    /// Run or rate with several clients on other machines
    Coordinator(Box<coordinator::CoordinatorArguments>),
    /// Execute the actions of some of the members for a coordinator
    Client(client::ClientArguments),
    /// Validate the reads of a trace
    Validate(validate::ValidateArguments),
    /// Create the HTML page of a rating from its JSON
    Report(report::ReportArguments),
    /// Compare two reports, and show whether noise could explain the difference
    Compare(compare::CompareArguments),
    /// List the supported data stores
    Stores,
    /// List the named mixes
    Mixes,
}

/// Executes the command line.
pub fn main() -> ExitCode {
    let met = |()| CommandOutcome::Met;
    let done = match CommandLine::parse().command {
        Command::Load(arguments) => load::load(arguments).map(met),
        Command::Run(arguments) => run::run(&arguments),
        Command::Rate(arguments) => rate::rate(&arguments),
        Command::Coordinator(arguments) => coordinator::coordinator(*arguments),
        Command::Client(arguments) => client::client(&arguments).map(met),
        Command::Deck(arguments) => deck::deck(*arguments).map(met),
        Command::Validate(arguments) => validate::validate(arguments),
        Command::Report(arguments) => report::report(&arguments).map(met),
        Command::Compare(arguments) => compare::compare(&arguments),
        Command::Stores => {
            for store in stores::STORES {
                println!("{:<20} {}", store.name, store.about);
            }
            Ok(CommandOutcome::Met)
        }
        Command::Mixes => {
            for named in mix::NAMED {
                println!("{:<26} {}", named.name, named.about);
            }
            Ok(CommandOutcome::Met)
        }
    };
    match done {
        Ok(outcome) => outcome.into(),
        Err(why) => {
            output::err(format_args!("bg: {why}"));
            ExitCode::from(outcome::FAILED)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::CommandLine;

    /// Returns the help texts of two commands for an option that both have.
    fn help_texts(one: &str, other: &str, option: &clap::Id) -> Option<[String; 2]> {
        let help_text = |command: &str| {
            let all = CommandLine::command();
            let command = all.find_subcommand(command).expect("a command");
            let option = command.get_arguments().find(|it| it.get_id() == option)?;
            let default = option.get_default_values();
            Some(format!("{:?} {default:?}", option.get_help()))
        };
        Some([help_text(one)?, help_text(other)?])
    }

    #[test]
    fn shared_options_have_the_same_help_text() {
        // These options have the same name but different meanings.
        let own = ["online", "warmup", "json", "sla"];
        let all = CommandLine::command();
        for (one, other) in [("run", "deck"), ("run", "rate"), ("deck", "rate")] {
            let options = all.find_subcommand(one).expect("a command").get_arguments();
            let mut shared = 0;
            for option in options.map(clap::Arg::get_id) {
                let alike = (one, other) == ("run", "deck") || !own.contains(&option.as_str());
                if let Some([mine, theirs]) = help_texts(one, other, option).filter(|_| alike) {
                    assert_eq!(mine, theirs, "{option} of {one} and {other}");
                    shared += 1;
                }
            }
            assert!(shared >= 25, "{one} and {other} share {shared}");
        }
    }
}
