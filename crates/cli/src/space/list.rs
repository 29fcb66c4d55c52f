//! `larder space list`: lists the spaces of a server.

use clap::Args;
use serde_json::json;

use super::info::{SpaceInfo, list_names};
use super::nodes::Nodes;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, Column, Table, bytes, count};

const EXAMPLES: &str = "\
Examples:
    larder space list
    larder space list --json";

/// Maximum number of attributes per space in the table.
const ATTRIBUTES_SHOWN_MAX: usize = 4;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: ListArgs) -> Result<(), Failure> {
    let nodes = Nodes::connect(&args.server)?;
    let mut spaces = Vec::new();
    for name in list_names(&nodes)? {
        // A space that was dropped meanwhile is omitted.
        spaces.extend(SpaceInfo::find(&nodes, &name)?);
    }
    if args.json {
        let spaces: Vec<_> = spaces.iter().map(to_json).collect();
        return output::print_json(&json!({ "spaces": spaces }));
    }
    if spaces.is_empty() {
        return output::print_line(
            "no spaces; declare one with FT.CREATE, as docs/guide/spaces.md shows",
        );
    }
    let mut table = Table::new([
        Column::Text("space"),
        Column::Text("keys"),
        Column::Text("attributes"),
        Column::Number("objects"),
        Column::Number("memory"),
        Column::Text(""),
    ]);
    for space in &spaces {
        let definition = &space.definition;
        let attributes = definition.attributes.iter();
        let mut attributes: Vec<String> = attributes
            .take(ATTRIBUTES_SHOWN_MAX)
            .map(|it| format!("{} {}", it.name, it.kind.name()))
            .collect();
        match definition.attributes.len() {
            0..=ATTRIBUTES_SHOWN_MAX => {}
            all => attributes.push(format!("and {} more", all - ATTRIBUTES_SHOWN_MAX)),
        }
        let prefixes = definition.prefixes.iter();
        let prefixes: Vec<_> = prefixes.map(|it| String::from_utf8_lossy(it)).collect();
        table.row([
            definition.name.clone(),
            prefixes.join(" "),
            attributes.join(", "),
            count(space.objects),
            bytes(space.memory_bytes),
            match (space.is_indexing, space.failures) {
                (true, _) => "indexing".to_owned(),
                (false, 0) => String::new(),
                (false, failures) => format!("{} fields do not fit", count(failures)),
            },
        ]);
    }
    output::print_line(&table.render())
}

fn to_json(space: &SpaceInfo) -> serde_json::Value {
    let definition = &space.definition;
    let attributes = definition.attributes.iter().map(|it| {
        json!({
            "identifier": it.identifier,
            "attribute": it.name,
            "type": it.kind.name(),
        })
    });
    let arguments = definition.to_arguments();
    let arguments = arguments.iter().map(|it| String::from_utf8_lossy(it));
    json!({
        "name": definition.name,
        "attributes": attributes.collect::<Vec<_>>(),
        "definition": arguments.collect::<Vec<_>>(),
        "objects": space.objects,
        "memory_bytes": space.memory_bytes,
        "indexing": space.is_indexing,
        "fields_that_do_not_fit": space.failures,
    })
}
