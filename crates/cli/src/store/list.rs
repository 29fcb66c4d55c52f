//! `larder store list` and `larder store info`: show stores and their versions.

use clap::Args;
use larder_protocol::http::{BuiltStatus, PullStatus, StoreStatus, VersionStatus};
use larder_types::StoreName;

use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, Column, Table, bytes, count};

#[derive(Args)]
#[command(after_help = "Example:\n    larder store list")]
pub struct ListArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = "Example:\n    larder store info pymk")]
pub struct InfoArgs {
    /// The store
    store: StoreName,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn list(args: ListArgs) -> Result<(), Failure> {
    let stores = args.server.admin()?.stores()?;
    if args.json {
        return output::print_json(&stores);
    }
    if stores.is_empty() {
        return output::print_line(
            "no stores yet; make one with `larder push FILE --store NAME --key COLUMN`",
        );
    }
    let mut table = Table::new([
        Column::Text("store"),
        Column::Number("live"),
        Column::Number("records"),
        Column::Number("size"),
        Column::Number("in memory"),
        Column::Number("kept"),
        Column::Text("pulled"),
        Column::Text("pull"),
    ]);
    for store in &stores {
        let live = live_version(store);
        let of_live = |show: &dyn Fn(&VersionStatus) -> String| live.map_or("-".to_owned(), show);
        table.row([
            store.name.to_string(),
            store.live.map_or("-".to_owned(), |id| id.to_string()),
            of_live(&|version| count(version.record_count)),
            of_live(&|version| bytes(version.size_bytes)),
            of_live(&resident),
            store.versions.len().to_string(),
            of_live(&|version| version.pulled_at.map_or("-".to_owned(), output::moment)),
            store.pull.as_ref().map_or(String::new(), pull_line),
        ]);
    }
    output::print_line(&table.render())
}

pub fn info(args: InfoArgs) -> Result<(), Failure> {
    let store = args.server.admin()?.store(&args.store)?;
    if args.json {
        return output::print_json(&store);
    }
    let live = store.live.map_or("nothing is live".to_owned(), |id| {
        format!("version {id} is live")
    });
    let previous = match store.previous {
        Some(id) => format!("; a rollback returns to {id}"),
        None => "; there is nothing to roll back to".to_owned(),
    };
    let mut text = format!("{}: {live}{previous}\n", store.name);
    if let Some(pull) = &store.pull {
        text.push_str(&format!("pull: {} from {}\n", pull_line(pull), pull.source));
    }
    let mut table = Table::new([
        Column::Number("version"),
        Column::Text("state"),
        Column::Number("records"),
        Column::Number("size"),
        Column::Number("bytes/record"),
        Column::Number("overhead"),
        Column::Number("in memory"),
        Column::Number("partitions"),
        Column::Number("layers"),
        Column::Text("compression"),
        Column::Text("pulled"),
        Column::Text("source"),
    ]);
    for version in &store.versions {
        let state = if version.live && version.damaged.is_some() {
            "live, damaged"
        } else if version.damaged.is_some() {
            "damaged"
        } else if version.live {
            "live"
        } else if store.previous == Some(version.version) {
            "previous"
        } else if version.unchecked {
            "unchecked"
        } else {
            "kept"
        };
        table.row([
            version.version.to_string(),
            state.to_owned(),
            count(version.record_count),
            bytes(version.size_bytes),
            per_record(version),
            overhead(version.size_bytes, version.key_bytes + version.value_bytes),
            resident(version),
            version.partitions.to_string(),
            version.layers.to_string(),
            version.compression.clone(),
            version.pulled_at.map_or("-".to_owned(), output::moment),
            version.source.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    text.push('\n');
    text.push_str(&table.render());
    for version in &store.versions {
        if let Some(reason) = &version.damaged {
            text.push_str(&format!("\nversion {}: {reason}", version.version));
        }
        if let Some(built) = &version.built {
            text.push_str(&format!(
                "\nversion {}: {}",
                version.version,
                built_line(built)
            ));
        }
    }
    output::print_line(&text)
}

fn built_line(built: &BuiltStatus) -> String {
    let value = match &built.value_column {
        Some(column) => format!("value {column}"),
        None => format!("values {}", built.value),
    };
    let mut line = format!(
        "built {} by {} from {}; key {}, {value}",
        output::moment(built.at),
        built.by,
        built.describe_inputs(10),
        built.key.join(",")
    );
    if let Some(framing) = &built.collect_as {
        line.push_str(&format!(", collected as {framing}"));
    }
    for (name, value) in &built.options {
        line.push_str(&format!(", {name} {value}"));
    }
    line
}

fn live_version(store: &StoreStatus) -> Option<&VersionStatus> {
    store.versions.iter().find(|version| version.live)
}

fn resident(version: &VersionStatus) -> String {
    match version.resident_bytes {
        Some(resident) if version.size_bytes > 0 => {
            format!(
                "{:.0}%",
                100.0 * resident as f64 / version.size_bytes as f64
            )
        }
        _ => "-".to_owned(),
    }
}

fn per_record(version: &VersionStatus) -> String {
    if version.record_count == 0 {
        return "-".to_owned();
    }
    format!(
        "{:.1}",
        version.size_bytes as f64 / version.record_count as f64
    )
}

/// Formats a version's size beyond its keys and values; negative if it is compressed.
pub fn overhead(size_bytes: u64, data_bytes: u64) -> String {
    // With so few records, the fixed size of segments would dominate.
    const TELLING: u64 = 1 << 20;
    if data_bytes < TELLING {
        return "-".to_owned();
    }
    let share = 100.0 * (size_bytes as f64 - data_bytes as f64) / data_bytes as f64;
    format!("{share:+.1}%")
}

fn pull_line(pull: &PullStatus) -> String {
    match pull.bytes_total {
        // The version has no number before its manifest is read.
        0 => pull.state.to_string(),
        total => format!(
            "version {}: {} {:.0}%",
            pull.version,
            pull.state,
            100.0 * pull.bytes_done as f64 / total as f64
        ),
    }
}
