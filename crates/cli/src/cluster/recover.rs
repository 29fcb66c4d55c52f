//! `larder cluster recover` and `backup`: restore the map of a cluster after etcd has lost its data.

use std::path::PathBuf;

use clap::Args;
use larder_client::AdminClient;
use larder_protocol::http::{ClusterKept, ClusterRecover, ClusterRecovery};

use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, Column, Table, count};

const RECOVER: &str = "\
Examples:
    larder cluster recover                            shows the map that would be written, and what is missing
    larder cluster recover --yes
    larder cluster recover --without node-3           node-3 is lost, or cannot be started now
    larder cluster recover --from cluster-map.json    no node has a copy of the map, but a backup exists

Start etcd and the nodes first; the nodes do not serve requests, and report why. Each node has stored the last map that it applied
and the position of its copy of each slot. The node with the most recent copy of a slot becomes its owner. If no node that answered
has the most recent rows of a slot, the slot waits for the other nodes. Start every node that can be started: writes that a missing
node acknowledged after the most recent copy was made are unknown to the others, and the node discards them when it returns.";

const BACKUP: &str = "\
Examples:
    larder cluster backup cluster-map.json

The file contains the cluster map: the members, the slots and their owners, the definitions of joins and spaces, and the live versions
of stores. It contains no rows. Each node stores its own copy of the map; you need the file only if all of these copies are lost.";

#[derive(Args)]
#[command(after_help = RECOVER)]
pub struct RecoverArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Write the map, instead of only showing it
    #[arg(long)]
    yes: bool,
    /// Exclude this node; can be repeated
    #[arg(long, value_name = "NODE")]
    without: Vec<String>,
    /// A backup of the map, used in addition to the nodes' copies
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = BACKUP)]
pub struct BackupArgs {
    /// The file to write; an existing file is replaced
    #[arg(value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

pub fn backup(args: BackupArgs) -> Result<(), Failure> {
    let kept = args.server.admin()?.cluster_kept()?;
    let map = kept.map.ok_or_else(|| {
        Failure::refused(format!(
            "node {} has not received a cluster map yet; name another node with --server",
            kept.node
        ))
    })?;
    let shown = args.file.display();
    std::fs::write(&args.file, map).map_err(Failure::io(&format!("write {shown}")))?;
    output::print_line(&format!("the cluster's map is in {shown}"))
}

pub fn recover(args: RecoverArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    let first = admin.cluster_kept()?;
    let backup = match &args.from {
        None => None,
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(Failure::io(&format!("read {}", path.display())))?)
        }
    };
    let mut request = ClusterRecover {
        kept: Vec::new(),
        backup,
        write: false,
    };
    if !args.without.contains(&first.node) {
        request.kept.push(first);
    }
    let plan = query_members(&args, &admin, &mut request)?;
    if !args.json {
        output::print_line(&format_recovery(&plan))?;
    }
    if !args.yes {
        return if args.json {
            output::print_json(&plan)
        } else {
            output::print_line(
                "\nNothing is written yet. To write this map: the same command with --yes",
            )
        };
    }
    request.write = true;
    let written = admin.cluster_recover(&request)?;
    if args.json {
        output::print_json(&written)
    } else {
        output::print_line(
            "\nThe map is written. Nodes take it up within seconds: larder cluster status --wait",
        )
    }
}

/// Queries the members of the newest map, repeatedly if a member has a newer map. The request then contains their
/// answers.
fn query_members(
    args: &RecoverArgs,
    admin: &AdminClient,
    request: &mut ClusterRecover,
) -> Result<ClusterRecovery, Failure> {
    loop {
        let plan = admin.cluster_recover(request)?;
        let is_known = |name: &String| {
            args.without.contains(name) || request.kept.iter().any(|it| it.node == *name)
        };
        let next = plan.members.iter().find(|it| !is_known(&it.name));
        let Some(member) = next else {
            reject_unknown_nodes(&args.without, &plan)?;
            return Ok(plan);
        };
        let kept = query_member(args, &member.name, &member.http).map_err(|why| {
            Failure::new(format!(
                "node {name} at {} did not return its copy of the cluster map: {why}; start it, or exclude it: --without {name}",
                member.http,
                name = member.name
            ))
        })?;
        request.kept.push(kept);
    }
}

/// Rejects an excluded node that is not in the map, because a misspelled name would exclude no node.
fn reject_unknown_nodes(without: &[String], plan: &ClusterRecovery) -> Result<(), Failure> {
    let is_member = |name: &String| plan.members.iter().any(|it| it.name == *name);
    let Some(unknown) = without.iter().find(|name| !is_member(name)) else {
        return Ok(());
    };
    let members: Vec<&str> = plan.members.iter().map(|it| it.name.as_str()).collect();
    Err(Failure::refused(format!(
        "--without {unknown}: the map has no node of this name; its nodes are {}",
        members.join(", ")
    )))
}

fn query_member(args: &RecoverArgs, name: &str, http: &str) -> Result<ClusterKept, String> {
    let scheme = if args.server.server.starts_with("https://") {
        "https"
    } else {
        "http"
    };
    let server = ServerArgs {
        server: format!("{scheme}://{http}"),
        ..args.server.clone()
    };
    let admin = server.admin().map_err(|failure| failure.message)?;
    let kept = admin.cluster_kept().map_err(|error| error.to_string())?;
    if kept.node == name {
        Ok(kept)
    } else {
        Err(format!("it is node {}", kept.node))
    }
}

fn format_recovery(plan: &ClusterRecovery) -> String {
    let source = match &plan.source {
        Some(node) => format!("node {node}"),
        None => "the backup".to_owned(),
    };
    let found = match plan.found_epoch {
        Some(epoch) => format!("etcd has a map of epoch {epoch}"),
        None => "etcd has no map".to_owned(),
    };
    let mut text = format!(
        "{found}; the newest copy is that of {source}, of epoch {}; the map to be written has epoch {}\n\n",
        plan.source_epoch, plan.epoch
    );
    let mut table = Table::new([
        Column::Text("node"),
        Column::Text("HTTP"),
        Column::Text("state"),
        Column::Number("epoch of its copy"),
        Column::Number("slots to own"),
    ]);
    for it in &plan.members {
        table.row([
            it.name.clone(),
            it.http.clone(),
            it.state.clone(),
            it.epoch.map_or("-".to_owned(), count),
            count(u64::from(it.slots_owned)),
        ]);
    }
    text += &table.render();
    let stores = plan.stores.iter().map(|(name, live)| match live {
        Some(version) => format!("{name} (version {version})"),
        None => format!("{name} (no live version)"),
    });
    for (what, names) in [
        ("joins", plan.joins.clone()),
        ("spaces", plan.spaces.clone()),
        ("stores", stores.collect()),
    ] {
        if !names.is_empty() {
            text += &format!("\n\n{what}: {}", names.join(", "));
        }
    }
    for it in &plan.waiting {
        text += &format!(
            "\n\n! {} slots wait for {}: no node that answered has their newest rows",
            count(u64::from(it.slots)),
            it.nodes.join(" or ")
        );
    }
    if plan.slots_unconfirmed > 0 {
        text += &format!(
            "\n\n! {} slots were written to after the newest copy of the map was made: acknowledged writes may be missing, unless \
             all nodes that had copies of them have answered",
            count(u64::from(plan.slots_unconfirmed))
        );
    }
    if let Some(missed) = plan.missed_epoch {
        text += &format!(
            "\n\n! a node followed the map up to epoch {missed}, and no copy here is so new: acknowledged writes and definitions may be \
             missing, and that node gives up what it has when it returns; start it before the map is written, if it can be started"
        );
    }
    for it in plan.members.iter().filter(|it| it.state == "other disk") {
        text += &format!(
            "\n\n! node {} has an older or another data folder than the one that the cluster knows: its copies are not used",
            it.name
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use larder_protocol::http::{ClusterRecoveryMember, ClusterWaiting};

    use super::*;

    #[test]
    fn a_recovery_plan_lists_owners_and_losses() {
        let member = |name: &str, state: &str, slots_owned| ClusterRecoveryMember {
            name: name.to_owned(),
            state: state.to_owned(),
            slots_owned,
            ..ClusterRecoveryMember::default()
        };
        let text = format_recovery(&ClusterRecovery {
            source: Some("a".to_owned()),
            source_epoch: 20,
            epoch: 1020,
            members: vec![member("a", "answered", 8192), member("b", "other disk", 0)],
            waiting: vec![ClusterWaiting {
                slots: 8192,
                nodes: vec!["b".to_owned()],
            }],
            joins: vec!["timeline".to_owned()],
            ..ClusterRecovery::default()
        });
        for words in [
            "etcd has no map; the newest copy is that of node a, of epoch 20",
            "! 8,192 slots wait for b",
            "! node b has an older or another data folder",
            "joins: timeline",
        ] {
            assert!(text.contains(words), "{text}");
        }
    }

    #[test]
    fn an_excluded_node_must_be_in_the_map() {
        let plan = ClusterRecovery {
            members: vec![ClusterRecoveryMember {
                name: "a".to_owned(),
                ..ClusterRecoveryMember::default()
            }],
            ..ClusterRecovery::default()
        };
        assert!(reject_unknown_nodes(&["a".to_owned()], &plan).is_ok());
        let refused = reject_unknown_nodes(&["b".to_owned()], &plan);
        let why = refused.expect_err("no such node").message;
        assert!(why.ends_with("its nodes are a"), "{why}");
    }
}
