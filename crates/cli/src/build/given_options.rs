//! The build options that were given on the command line, by name. The manifest records them, and commands that do not
//! build reject them.

use std::collections::BTreeMap;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use super::BuildArgs;

/// Collects the options from the command line; it adds no option of its own. It must be the first field of
/// [`BuildArgs`], because options that other fields have consumed are no longer visible.
#[derive(Clone, Default)]
pub struct GivenOptions(Vec<GivenOption>);

#[derive(Clone)]
struct GivenOption {
    name: String,
    heading: String,
    value: String,
}

impl GivenOptions {
    /// Returns the options that determine the version's contents and format, except those with their own fields in the
    /// manifest.
    pub fn version_options(&self) -> BTreeMap<String, String> {
        const FIELDS: [&str; 5] = ["key", "value", "values", "collect-as", "sign"];
        let bears = |option: &&GivenOption| {
            ["Rows", "Version"].contains(&option.heading.as_str())
                && !FIELDS.contains(&option.name.as_str())
        };
        let all = self.0.iter().filter(bears);
        all.map(|option| (option.name.clone(), option.value.clone()))
            .collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|option| option.name == name)
    }

    /// Lists the options that have no meaning for an existing version: `--key, --compress`. Returns `None` without any.
    pub fn list_build_options(&self) -> Option<String> {
        // This option also applies to pushes.
        let all = self.0.iter().filter(|option| option.name != "allow-empty");
        let names: Vec<String> = all.map(|option| format!("--{}", option.name)).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

impl Args for GivenOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for GivenOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<GivenOptions, clap::Error> {
        let known = BuildArgs::augment_args(Command::new("build"));
        let given = known.get_arguments().filter(|argument| {
            matches.value_source(argument.get_id().as_str()) == Some(ValueSource::CommandLine)
        });
        let option = |argument: &clap::Arg| {
            let id = argument.get_id().as_str();
            let values = matches.get_raw(id).into_iter().flatten();
            let values: Vec<_> = values.map(|value| value.to_string_lossy()).collect();
            GivenOption {
                name: argument.get_long().unwrap_or(id).to_owned(),
                heading: argument.get_help_heading().unwrap_or_default().to_owned(),
                value: values.join(","),
            }
        };
        Ok(GivenOptions(given.map(option).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = GivenOptions::from_arg_matches(matches)?;
        Ok(())
    }
}
