//! `larder config`: checks, shows and describes the configuration.

use clap::{Args, Subcommand};
use larder_protocol::config;

use crate::failure::Failure;
use crate::output;
use crate::serve::ConfigArgs;

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration without starting a server
    Check(CheckArgs),
    /// Print the effective configuration: defaults, file, environment and flags combined
    Show(ShowArgs),
    /// Describe every setting: meaning, default, unit, environment variable
    Reference(ReferenceArgs),
}

#[derive(Args)]
#[command(
    after_help = "Example:\n    larder config check --config larder.toml\n\nExits with 2 if the configuration has an error, and names it."
)]
pub struct CheckArgs {
    #[command(flatten)]
    config: ConfigArgs,
}

#[derive(Args)]
#[command(after_help = "Example:\n    larder config show --config larder.toml > effective.toml")]
pub struct ShowArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n    larder config reference\n    larder config reference --sample > larder.toml"
)]
pub struct ReferenceArgs {
    /// Print a configuration file with the default and a description of every setting
    #[arg(long, conflicts_with = "json")]
    sample: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(command: ConfigCommand) -> Result<(), Failure> {
    match command {
        ConfigCommand::Check(args) => check(args),
        ConfigCommand::Show(args) => show(args),
        ConfigCommand::Reference(args) => reference(args),
    }
}

fn check(args: CheckArgs) -> Result<(), Failure> {
    args.config.load()?;
    let checked = match &args.config.config {
        Some(path) => format!("{} is right", path.display()),
        None => "the configuration is right; no file was given".to_owned(),
    };
    output::print_line(&checked)
}

fn show(args: ShowArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    if !args.json {
        return output::print_bytes(config.to_toml().as_bytes());
    }
    let mut sections = serde_json::Map::new();
    for key in config::keys() {
        let secret = key.path() == "server.password" && !config.server.password.is_empty();
        let value = match config.display_value(key.section, key.name) {
            _ if secret => serde_json::json!("(set)"),
            Some(value) => serde_json::to_value(value)
                .map_err(|error| Failure::new(format!("cannot show {}: {error}", key.path())))?,
            None => serde_json::Value::Null,
        };
        let section = sections
            .entry(key.section)
            .or_insert_with(|| serde_json::json!({}));
        section[key.name] = value;
    }
    output::print_json(&sections)
}

fn reference(args: ReferenceArgs) -> Result<(), Failure> {
    if args.sample {
        return output::print_bytes(config::sample_toml().as_bytes());
    }
    let keys = config::keys();
    if args.json {
        let described = keys.iter().map(|key| {
            serde_json::json!({
                "key": key.path(), "type": key.kind, "allowed": key.allowed, "unit": key.unit,
                "default": key.default, "env": key.env, "doc": key.doc,
            })
        });
        return output::print_json(&described.collect::<Vec<_>>());
    }
    let mut section = "";
    for key in &keys {
        if key.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            output::print_line(&format!("{gap}[{}]", key.section))?;
            section = key.section;
        }
        let notes: Vec<&str> = [key.unit, &key.allowed]
            .into_iter()
            .filter(|note| !note.is_empty())
            .collect();
        let unit = if notes.is_empty() {
            String::new()
        } else {
            format!(" ({})", notes.join(", "))
        };
        output::print_line(&format!(
            "  {} = {}{unit}\n      {}\n      {}",
            key.name, key.default, key.doc, key.env
        ))?;
    }
    Ok(())
}
