//! `larder cluster join`, `drain`, `keep`, `remove` and `abort-push`: send a request to the controller, and wait until
//! it is fulfilled.

use std::time::{Duration, Instant};

use clap::Args;
use larder_client::AdminClient;
use larder_protocol::http::{ClusterMember, ClusterRequest, ClusterStatus};
use larder_types::StoreName;

use super::moves;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, count};
use crate::progress::{Progress, Unit};

const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Time without progress after which an obstacle that needs an operator is reported, and waiting ends.
const BLOCKED_FOR: Duration = Duration::from_secs(10);

const JOIN: &str = "\
Examples:
    larder cluster join node-4
    larder cluster join node-4 --plan

A registered node receives slots automatically if the cluster's setting admit_new_nodes is on; otherwise, this command admits it.
The command returns when the node has received all its slots.";

const DRAIN: &str = "\
Examples:
    larder cluster drain node-2
    larder cluster drain node-2 --plan

The node's slots move to other nodes, and remain available. The node remains a member, and receives no new slots.
`larder cluster keep` reverses it.";

const KEEP: &str = "\
Example:
    larder cluster keep node-2";

const ABORT_PUSH: &str = "\
Example:
    larder cluster abort-push recs

The live version is unchanged on all nodes. Ctrl-c in `larder push` has the same effect; use this command for a push whose client is gone.";

const REMOVE: &str = "\
Examples:
    larder cluster remove node-2
    larder cluster remove node-2 --plan
    larder cluster remove node-2 --lose-rows     its disk is lost, with the rows that only this node had

A node that is up is drained; then stop its process, and the cluster removes it. A node that is down is removed when new
copies of its slots exist on other nodes. If the node can be started again, start it instead of using --lose-rows.";

#[derive(Args)]
pub struct NodeRequestArgs {
    /// The node's name
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Only show what would move
    #[arg(long)]
    plan: bool,
    /// Return as soon as the controller has accepted the request
    #[arg(long)]
    no_wait: bool,
    /// The maximum time to wait, in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = parse_count::<u64>)]
    timeout: Option<u64>,
    /// Print JSON, without progress
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = JOIN)]
pub struct JoinArgs {
    #[command(flatten)]
    request: NodeRequestArgs,
}

#[derive(Args)]
#[command(after_help = DRAIN)]
pub struct DrainArgs {
    #[command(flatten)]
    request: NodeRequestArgs,
}

#[derive(Args)]
#[command(after_help = REMOVE)]
pub struct RemoveArgs {
    #[command(flatten)]
    request: NodeRequestArgs,
    /// Give up the rows that only this node has; it must be down for good
    #[arg(long)]
    lose_rows: bool,
}

#[derive(Args)]
#[command(after_help = KEEP)]
pub struct KeepArgs {
    /// The node's name
    #[arg(value_name = "NODE")]
    node: String,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[command(after_help = ABORT_PUSH)]
pub struct AbortPushArgs {
    /// The store
    #[arg(value_name = "STORE")]
    store: StoreName,
    #[command(flatten)]
    server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn abort_push(args: AbortPushArgs) -> Result<(), Failure> {
    let store = args.store.to_string();
    let ask = ClusterRequest::AbortPush {
        store: store.clone(),
    };
    let answer = args.server.admin()?.cluster_request(&ask)?;
    if args.json {
        output::print_json(&serde_json::json!({"store": store, "answer": answer}))
    } else {
        output::print_line(&format!("{store}: {answer}"))
    }
}

pub fn join(JoinArgs { request: ask }: JoinArgs) -> Result<(), Failure> {
    let change = ClusterRequest::Join {
        node: ask.node.clone(),
    };
    // A member has joined completely when no slots are moving to it.
    run(&ask, &change, |status, node| {
        let member = member(status, node)?;
        let goals = status
            .slots
            .iter()
            .filter(|run| run.goal.iter().any(|it| it == node));
        let has = |run: &&larder_protocol::http::ClusterSlots| {
            !run.goal.is_empty()
                && run.owner.as_deref() != Some(node)
                && !run.in_sync.iter().any(|it| it == node)
        };
        let left = goals
            .filter(has)
            .map(|run| u64::from(run.to - run.from) + 1)
            .sum();
        if member.state == "joining" {
            Ok(u64::MAX)
        } else {
            Ok(left)
        }
    })
}

pub fn drain(DrainArgs { request: ask }: DrainArgs) -> Result<(), Failure> {
    let change = ClusterRequest::Drain {
        node: ask.node.clone(),
    };
    run(&ask, &change, |status, node| {
        member(status, node).map(count_slots)
    })
}

pub fn remove(
    RemoveArgs {
        request: ask,
        lose_rows,
    }: RemoveArgs,
) -> Result<(), Failure> {
    let change = ClusterRequest::Remove {
        node: ask.node.clone(),
        lose_rows,
    };
    run(&ask, &change, |status, node| match member(status, node) {
        // The node is no longer a member.
        Err(_) => Ok(0),
        // Slots that only this node has count until it is no longer a member.
        Ok(member) if member.state == "down" => Ok(count_slots(member).max(1)),
        Ok(member) => Ok(count_slots(member)),
    })
}

pub fn keep(args: KeepArgs) -> Result<(), Failure> {
    let node = args.node.clone();
    let admin = args.server.admin()?;
    member(&admin.cluster()?, &node)?;
    let answer = admin.cluster_request(&ClusterRequest::Keep { node })?;
    if args.json {
        output::print_json(&serde_json::json!({"node": args.node, "answer": answer}))
    } else {
        output::print_line(&format!("{}: {answer}", args.node))
    }
}

/// Sends the request, and waits until `left` returns no remaining slots.
fn run(
    args: &NodeRequestArgs,
    request: &ClusterRequest,
    left: impl Fn(&ClusterStatus, &str) -> Result<u64, Failure>,
) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    let node = args.node.as_str();
    let preview = preview(&admin, request, node)?;
    if args.plan {
        return if args.json {
            output::print_json(&preview)
        } else {
            output::print_line(&moves::format_moves(&preview))
        };
    }
    if !args.json {
        output::print_line(&format!("{node}: {}", moves::format_moves(&preview)))?;
    }
    interrupt::listen()?;
    let answer = admin.cluster_request(request)?;
    let print_outcome = |status: Option<&ClusterStatus>, left: u64| {
        let is_member = status.is_some_and(|it| member(it, node).is_ok());
        if args.json {
            return output::print_json(&serde_json::json!({
                "node": node, "answer": answer, "slots_left": left, "is_member": is_member,
            }));
        }
        output::print_line(&format!(
            "{node}: {}",
            describe_outcome(request, &answer, status.is_some(), is_member)
        ))
    };
    if args.no_wait {
        return print_outcome(None, 0);
    }
    let progress = Progress::new(Unit::Slots, "moving", args.json);
    let (started, mut most) = (Instant::now(), 0);
    let mut moved = (Instant::now(), u64::MAX);
    loop {
        let status = admin.cluster()?;
        let left = left(&status, node)?;
        if left == 0 {
            drop(progress);
            return print_outcome(Some(&status), 0);
        }
        if left != moved.1 {
            moved = (Instant::now(), left);
        }
        if left < u64::MAX {
            most = left.max(most);
            progress.set("moving", most - left, most);
        }
        let remaining = format!(
            "{} slots remain; the move continues: follow it with larder cluster status",
            count(left)
        );
        if interrupt::is_interrupted() {
            return Err(Failure::interrupted(remaining));
        }
        if args
            .timeout
            .is_some_and(|limit| started.elapsed() >= Duration::from_secs(limit))
        {
            return Err(Failure::new(format!(
                "the move did not end within {} s: {remaining}",
                args.timeout.unwrap_or_default()
            )));
        }
        if !status.blocked.is_empty() && moved.0.elapsed() > BLOCKED_FOR {
            return Err(Failure::refused(format!(
                "the move is blocked: {}",
                status.blocked.join("; ")
            )));
        }
        interrupt::wait(POLL_INTERVAL);
    }
}

/// Returns the moves that the request would cause.
fn preview(
    admin: &AdminClient,
    request: &ClusterRequest,
    node: &str,
) -> Result<larder_protocol::http::ClusterMoves, Failure> {
    let status = admin.cluster()?;
    let known = member(&status, node);
    let plan = match (request, known) {
        (ClusterRequest::Join { .. }, Ok(member)) if member.state == "joining" => {
            let added = format!("{node}:{}:{}", member.zone, member.weight);
            admin.cluster_plan(&[added], &[], None)?
        }
        (ClusterRequest::Join { .. }, Ok(_)) => return Ok(status.moves),
        (_, Err(unknown)) => return Err(unknown),
        (_, Ok(_)) => admin.cluster_plan(&[], &[node.to_owned()], None)?,
    };
    Ok(plan.moves)
}

/// # Errors
/// The cluster has no such node.
pub fn member<'a>(status: &'a ClusterStatus, node: &str) -> Result<&'a ClusterMember, Failure> {
    let found = status.members.iter().find(|it| it.name == node);
    found.ok_or_else(|| {
        let known: Vec<&str> = status.members.iter().map(|it| it.name.as_str()).collect();
        Failure::not_found(format!(
            "no node {node} is a member of the cluster ({}); a node becomes one when it is started with this cluster's etcd and name",
            known.join(", ")
        ))
    })
}

/// Number of slots that a node has in any role.
fn count_slots(member: &ClusterMember) -> u64 {
    let all = [
        member.slots_owned,
        member.slots_in_sync,
        member.slots_filling,
    ];
    all.into_iter().map(u64::from).sum()
}

/// Describes the result of the request.
fn describe_outcome(
    request: &ClusterRequest,
    answer: &str,
    has_waited: bool,
    is_member: bool,
) -> String {
    match request {
        _ if !has_waited => answer.to_owned(),
        ClusterRequest::Join { .. } => "it has all that it is to have".to_owned(),
        ClusterRequest::Drain { .. } => "it has no slots any more, and stays a member".to_owned(),
        ClusterRequest::Remove { .. } if is_member => {
            "it has no slots any more; end its process, and the cluster forgets it".to_owned()
        }
        ClusterRequest::Remove { .. } => "the cluster has forgotten it".to_owned(),
        _ => answer.to_owned(),
    }
}
