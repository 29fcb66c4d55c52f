//! `larder cluster set`: shows and changes the settings in the cluster map, which all nodes share.

use clap::Args;
use larder_protocol::http::{ClusterRequest, ClusterSettings, ClusterSettingsChange};
use serde_json::{Map, Value};

use super::moves;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, Column, Table};

const EXAMPLES: &str = "\
Examples:
    larder cluster set                                shows the settings
    larder cluster set replicas=3
    larder cluster set replace_after_ms=60000 admit_new_nodes=false

If a change moves slots, they remain available; larder cluster status --wait returns when the moves are complete.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SetArgs {
    /// A setting and its new value
    #[arg(value_name = "SETTING=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn set(args: SetArgs) -> Result<(), Failure> {
    let selected = parse_settings(&args.settings)?;
    let admin = args.server.admin()?;
    if !args.settings.is_empty() {
        if let (Some(replicas), false) = (selected.replicas, args.json) {
            let plan = admin.cluster_plan(&[], &[], Some(replicas))?;
            output::print_line(&moves::format_moves(&plan.moves))?;
        }
        admin.cluster_request(&ClusterRequest::Set { settings: selected })?;
    }
    let in_force = admin.cluster()?.settings;
    match (args.json, args.settings.is_empty()) {
        (true, _) => output::print_json(&in_force),
        (false, true) => output::print_line(&table(&in_force)),
        (false, false) => output::print_line("set for all nodes"),
    }
}

fn parse_settings(settings: &[String]) -> Result<ClusterSettingsChange, Failure> {
    let mut selected = Map::new();
    for setting in settings {
        let Some((name, value)) = setting.split_once('=') else {
            return Err(Failure::usage(format!(
                "{setting}: write SETTING=VALUE, such as replicas=3"
            )));
        };
        // A number or a boolean if it is one, otherwise a string.
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        selected.insert(name.to_owned(), value);
    }
    serde_json::from_value(Value::Object(selected))
        .map_err(|error| Failure::usage(format!("{}: {error}", settings.join(" "))))
}

fn table(settings: &ClusterSettings) -> String {
    let mut table = Table::new([Column::Text("setting"), Column::Text("value")]);
    if let Ok(Value::Object(all)) = serde_json::to_value(settings) {
        for (name, value) in all {
            let value = value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned);
            table.row([name, value]);
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_typed_and_unknown_ones_are_rejected_by_name() {
        let given = ["replicas=3", "acknowledge=owner", "admit_new_nodes=false"];
        let selected = parse_settings(&given.map(str::to_owned)).unwrap();
        assert_eq!(selected.replicas, Some(3));
        assert_eq!(selected.acknowledge.as_deref(), Some("owner"));
        assert_eq!(selected.admit_new_nodes, Some(false));
        for (wrong, words) in [
            ("copies=3", "unknown field `copies`"),
            ("replicas=many", "replicas=many: invalid type"),
            ("replicas", "write SETTING=VALUE"),
        ] {
            let refused = parse_settings(&[wrong.to_owned()]).unwrap_err();
            assert!(refused.message.contains(words), "{refused}");
        }
    }
}
