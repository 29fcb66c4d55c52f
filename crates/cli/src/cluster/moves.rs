//! `larder cluster plan`, and the description of slot moves.

use clap::Args;
use larder_protocol::http::{ClusterMoves, ClusterPlan};

use super::membership;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::output::{self, Column, Table, bytes, count};

const EXAMPLES: &str = "\
Examples:
    larder cluster plan --add node-4
    larder cluster plan --add node-4:rack-2:2 --remove node-1
    larder cluster plan --replicas 3

Nothing is changed. The bytes are an estimate by the queried node.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// A node to add, with its zone and weight; can be repeated
    #[arg(long, value_name = "NAME[:ZONE[:WEIGHT]]")]
    add: Vec<String>,
    /// A node to remove; can be repeated
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,
    /// The number of copies of each slot
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    replicas: Option<u8>,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn plan(args: PlanArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    if !args.remove.is_empty() {
        let status = admin.cluster()?;
        for node in &args.remove {
            membership::member(&status, node)?;
        }
    }
    let plan = admin.cluster_plan(&args.add, &args.remove, args.replicas)?;
    if plan.nodes.is_empty() {
        return Err(Failure::refused("no node would be left to have any slot"));
    }
    if args.json {
        output::print_json(&plan)
    } else {
        output::print_line(&format_plan(&plan))
    }
}

fn format_plan(plan: &ClusterPlan) -> String {
    let mut table = Table::new([
        Column::Text("node"),
        Column::Text("zone"),
        Column::Number("would own"),
        Column::Number("would have"),
        Column::Number("given"),
        Column::Number("gives"),
    ]);
    let moves = &plan.moves;
    let flow = |node: &str| moves.nodes.iter().find(|it| it.node == node);
    for it in &plan.nodes {
        let flow = flow(&it.node);
        table.row([
            it.node.clone(),
            if it.zone.is_empty() {
                "-".to_owned()
            } else {
                it.zone.clone()
            },
            count(u64::from(it.slots_owned)),
            count(u64::from(it.slots_held)),
            flow.map_or("-".to_owned(), |it| bytes(it.bytes_in)),
            flow.map_or("-".to_owned(), |it| bytes(it.bytes_out)),
        ]);
    }
    let mut text = format_moves(moves);
    if plan.rounds > 1 {
        text += &format!(", in {} rounds", count(u64::from(plan.rounds)));
    }
    let missing: Vec<&str> = (plan.nodes.iter())
        .filter(|it| it.zone.is_empty())
        .map(|it| it.node.as_str())
        .collect();
    if missing.len() < plan.nodes.len() && !missing.is_empty() {
        text += &format!(
            "\n{}: has no known zone and is treated as a zone of its own (--add NAME:ZONE)",
            missing.join(", ")
        );
    }
    format!("{text}\n\n{}", table.render())
}

/// Describes moves in one line.
pub fn format_moves(moves: &ClusterMoves) -> String {
    if moves.copied_slots + moves.owner_slots == 0 {
        return "nothing moves".to_owned();
    }
    let mut text = format!(
        "{} slots are copied, about {}; {} get another owner",
        count(moves.copied_slots),
        bytes(moves.copied_bytes),
        count(moves.owner_slots)
    );
    if !moves.nodes.is_empty() {
        let each = moves
            .nodes
            .iter()
            .map(|it| match (it.slots_in, it.slots_out) {
                (given, 0) => format!("{} is given {}", it.node, count(given)),
                (0, gives) => format!("{} gives {}", it.node, count(gives)),
                (given, gives) => format!(
                    "{} is given {} and gives {}",
                    it.node,
                    count(given),
                    count(gives)
                ),
            });
        text += &format!(" ({})", each.collect::<Vec<_>>().join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use larder_protocol::http::ClusterFlow;

    use super::*;

    #[test]
    fn moves_name_the_sender_and_the_receiver() {
        assert_eq!(format_moves(&ClusterMoves::default()), "nothing moves");
        let flow = |node: &str, slots_in, slots_out| ClusterFlow {
            node: node.to_owned(),
            slots_in,
            slots_out,
            ..ClusterFlow::default()
        };
        let moves = ClusterMoves {
            copied_slots: 5000,
            copied_bytes: 3 << 20,
            owner_slots: 2000,
            nodes: vec![flow("a", 0, 2500), flow("b", 5000, 0)],
        };
        assert_eq!(
            format_moves(&moves),
            "5,000 slots are copied, about 3.0 MiB; 2,000 get another owner (a gives 2,500, b is given 5,000)"
        );
    }
}
