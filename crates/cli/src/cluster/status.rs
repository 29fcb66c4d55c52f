//! `larder cluster status`: shows the state of a cluster, as seen by one node.

use std::time::{Duration, Instant};

use clap::Args;
use larder_client::Error;
use larder_protocol::http::{ClusterClock, ClusterMember, ClusterPush, ClusterStatus};

use super::moves;
use crate::command_line::parse_count;
use crate::connection::ServerArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::{self, Column, Table, count, duration, moment};

/// Number of hash slots of a cluster, as in Redis Cluster.
pub const SLOTS: u32 = 16_384;
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum difference between clocks that is reported, in milliseconds.
const CLOCKS_DIFFER_MS: u64 = 500;

const EXAMPLES: &str = "\
Examples:
    larder cluster status
    larder cluster status --server http://10.0.0.2:7070 --json
    larder cluster status --watch
    larder cluster status --wait && larder push recs.parquet --store recs --key member

Exits with 1 if no node serves some slot. With --wait, the command returns when the cluster is healthy: every slot is served
and has all its copies (the setting replicas), and no slot is moving and no push is in progress. It also waits for a node that does
not listen yet.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Print the status again whenever it changes, until ctrl-c
    #[arg(long, conflicts_with = "wait")]
    watch: bool,
    /// Wait until the cluster is healthy
    #[arg(long)]
    wait: bool,
    /// The maximum time to wait, in seconds [default: no limit]
    #[arg(long, value_name = "SECONDS", requires = "wait", value_parser = parse_count::<u64>)]
    timeout: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: StatusArgs) -> Result<(), Failure> {
    let admin = args.server.admin()?;
    let show = |status: &ClusterStatus| {
        if args.json {
            output::print_json(status)
        } else {
            output::print_line(&format_status(status))
        }
    };
    interrupt::listen()?;
    if args.watch {
        let mut shown = None;
        while !interrupt::is_interrupted() {
            let status = admin.cluster()?;
            if shown.as_ref() != Some(&status) {
                show(&status)?;
                output::print_line("")?;
                shown = Some(status);
            }
            interrupt::wait(POLL_INTERVAL);
        }
        return Ok(());
    }
    let started = Instant::now();
    let status = loop {
        interrupt::check()?;
        let status = match admin.cluster() {
            // The node may be starting.
            Err(error @ (Error::NoServer { .. } | Error::Broken { .. })) if args.wait => Err(error),
            other => Ok(other?),
        };
        match status {
            Ok(status) if !args.wait || is_healthy(&status) => break status,
            Ok(status) if has_timed_out(&args, started) => {
                show(&status)?;
                return Err(Failure::new(format!(
                    "not all is well after {} s",
                    args.timeout.unwrap_or_default()
                )));
            }
            Err(error) if has_timed_out(&args, started) => return Err(error.into()),
            _ => {}
        }
        interrupt::wait(POLL_INTERVAL);
    };
    show(&status)?;
    match status.slots_served {
        SLOTS => Ok(()),
        served => Err(Failure::new(format!(
            "{} of {} slots have no serving node",
            count(u64::from(SLOTS - served)),
            count(u64::from(SLOTS))
        ))),
    }
}

fn has_timed_out(args: &StatusArgs, started: Instant) -> bool {
    let is_over = |limit: u64| started.elapsed() >= Duration::from_secs(limit);
    args.timeout.is_some_and(is_over)
}

/// Returns whether the cluster is complete: nothing is missing, and nothing is in progress.
pub fn is_healthy(status: &ClusterStatus) -> bool {
    let copies = u32::from(status.settings.replicas);
    status.slots_served == SLOTS
        && status.blocked.is_empty()
        && status.missing.is_none()
        && status.trouble.is_none()
        && status.unreached.is_empty()
        && status.unable.is_empty()
        && status.pushes.is_empty()
        && status.members.iter().all(|it| it.state != "joining")
        && status.slots.iter().all(|run| {
            let has = 1 + run.in_sync.len() as u32;
            run.goal.is_empty() && run.filling.is_empty() && has >= copies
        })
}

fn format_status(status: &ClusterStatus) -> String {
    let settings = &status.settings;
    let controller = match &status.controller {
        Some(name) => format!("{name} is the controller"),
        None => "there is no controller".to_owned(),
    };
    let mut text = format!(
        "cluster {}, epoch {}, as {} knows it; {controller}\n\
         {} of {} slots are served; each slot is on {}, writes acknowledged by {}; a dead node is replaced after {}\n\n",
        status.name,
        status.epoch,
        status.node,
        count(u64::from(status.slots_served)),
        count(u64::from(SLOTS)),
        format_copies(settings.replicas),
        match settings.acknowledge.as_str() {
            "replicas" => "all in sync",
            _ => "the owner",
        },
        duration(Duration::from_millis(settings.replace_after_ms)),
    );
    text += &format_members(&status.members);
    text += &describe_missing_copies(status);
    if status.moves.copied_slots + status.moves.owner_slots > 0 {
        text += &format!("\n\nmoving: {}", moves::format_moves(&status.moves));
    }
    for push in &status.pushes {
        text += &format!("\n\n{}", describe_push(push));
    }
    for store in status.stores.iter().filter(|it| !it.lacking.is_empty()) {
        let lacking = store.lacking.join(", ");
        text += &format!(
            "\n\n{}: {lacking} has not all of the live version yet, and passes reads on",
            store.name
        );
    }
    let notes = [status.missing.as_ref(), status.trouble.as_ref()];
    let notes = notes.into_iter().flatten();
    for note in notes
        .chain(&status.unreached)
        .chain(&status.unable)
        .chain(&status.blocked)
    {
        text += &format!("\n\n! {note}");
    }
    for clock in status.clocks.iter().filter(|it| is_skewed(it)) {
        text += &format!("\n\n! {}", describe_skew(clock, &status.node));
    }
    text
}

/// Returns whether two clocks certainly differ enough to be reported.
fn is_skewed(clock: &ClusterClock) -> bool {
    clock.ahead_ms.unsigned_abs() >= CLOCKS_DIFFER_MS + clock.within_ms
}

fn describe_skew(clock: &ClusterClock, node: &str) -> String {
    let seconds = clock.ahead_ms.unsigned_abs() as f64 / 1_000.0;
    let way = if clock.ahead_ms < 0 {
        "behind"
    } else {
        "ahead of"
    };
    format!(
        "the clock of {} is {seconds:.1} s {way} that of {node}: rows expire by the clock of their slot's owner, so have all machines synchronize theirs (NTP)",
        clock.node
    )
}

fn format_copies(replicas: u8) -> String {
    match replicas {
        1 => "one node".to_owned(),
        replicas => format!("{replicas} nodes"),
    }
}

fn format_members(members: &[ClusterMember]) -> String {
    let mut table = Table::new([
        Column::Text("node"),
        Column::Text("zone"),
        Column::Text("state"),
        Column::Number("owns"),
        Column::Number("of its share"),
        Column::Number("copies"),
        Column::Number("filling"),
        Column::Text("Redis protocol"),
        Column::Text("HTTP"),
        Column::Text("since"),
    ]);
    for it in members {
        let mut state = it.state.clone();
        if it.is_removed {
            state += ", to be removed";
        }
        if it.roles != "both" {
            state += &format!(" ({})", it.roles);
        }
        let share = if it.slots_share > 0.0 {
            format!("{:.0}%", 100.0 * f64::from(it.slots_owned) / it.slots_share)
        } else {
            "-".to_owned()
        };
        let or_dash = |text: &str| {
            if text.is_empty() {
                "-".to_owned()
            } else {
                text.to_owned()
            }
        };
        table.row([
            it.name.clone(),
            or_dash(&it.zone),
            state,
            count(u64::from(it.slots_owned)),
            share,
            count(u64::from(it.slots_in_sync)),
            count(u64::from(it.slots_filling)),
            or_dash(&it.resp),
            or_dash(&it.http),
            if it.since == 0 {
                "-".to_owned()
            } else {
                moment(it.since)
            },
        ]);
    }
    table.render()
}

/// Describes the slots that have fewer copies than required.
fn describe_missing_copies(status: &ClusterStatus) -> String {
    let selected = usize::from(status.settings.replicas);
    let slots = status.slots.iter();
    let owned = slots.filter(|run| run.owner.is_some() && 1 + run.in_sync.len() < selected);
    match owned
        .map(|run| u64::from(run.to - run.from) + 1)
        .sum::<u64>()
    {
        0 => String::new(),
        short => format!(
            "\n\n{} slots have fewer copies than {selected}",
            count(short)
        ),
    }
}

fn describe_push(push: &ClusterPush) -> String {
    let mut text = format!(
        "push of {} version {} from {}",
        push.store, push.version, push.source
    );
    for it in &push.nodes {
        let how = match (it.state.as_str(), &it.why) {
            ("pulling", _) if it.of_bytes > 0 => {
                format!(
                    "pulling, {:.0}%",
                    100.0 * it.bytes as f64 / it.of_bytes as f64
                )
            }
            (state, Some(why)) => format!("{state}: {why}"),
            (state, None) => state.to_owned(),
        };
        text += &format!("\n  {}: {how}", it.node);
    }
    text
}

#[cfg(test)]
mod tests {
    use larder_protocol::http::{ClusterSettings, ClusterSlots};

    use super::*;

    fn status() -> ClusterStatus {
        let member = |name: &str| ClusterMember {
            name: name.to_owned(),
            state: "up".to_owned(),
            roles: "both".to_owned(),
            slots_owned: 8192,
            slots_share: 8192.0,
            ..ClusterMember::default()
        };
        ClusterStatus {
            settings: ClusterSettings {
                replicas: 2,
                ..ClusterSettings::default()
            },
            members: vec![member("a"), member("b")],
            slots_served: SLOTS,
            slots: vec![ClusterSlots {
                from: 0,
                to: 16_383,
                owner: Some("a".to_owned()),
                in_sync: vec!["b".to_owned()],
                ..ClusterSlots::default()
            }],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn clocks_that_certainly_differ_are_reported() {
        let mut status = status();
        status.node = "a".to_owned();
        let clock = |node: &str, ahead_ms: i64| ClusterClock {
            node: node.to_owned(),
            ahead_ms,
            within_ms: 100,
        };
        status.clocks = vec![clock("b", -3_200), clock("c", 550)];
        let text = format_status(&status);
        assert!(
            text.contains("! the clock of b is 3.2 s behind that of a: "),
            "{text}"
        );
        assert!(!text.contains("clock of c"), "it may be less: {text}");
    }

    #[test]
    fn a_cluster_is_healthy_when_every_slot_has_its_copies_and_nothing_moves() {
        assert!(is_healthy(&status()));
        let not = |change: fn(&mut ClusterStatus)| {
            let mut status = status();
            change(&mut status);
            assert!(!is_healthy(&status), "{status:?}");
        };
        not(|it| it.slots_served -= 1);
        not(|it| it.slots[0].in_sync.clear());
        not(|it| it.slots[0].goal = vec!["b".to_owned()]);
        not(|it| it.blocked.push("a is gone".to_owned()));
        not(|it| it.unable.push("node a cannot serve".to_owned()));
        not(|it| it.unreached.push("node a cannot be reached".to_owned()));
        not(|it| it.members[0].state = "joining".to_owned());
        not(|it| it.pushes.push(ClusterPush::default()));
        // A node with copies is missing.
        not(|it| {
            it.members.pop();
            it.slots[0].in_sync.clear();
        });
    }

    #[test]
    fn missing_copies_and_failed_nodes_are_reported() {
        let mut status = status();
        status.slots[0].in_sync.clear();
        status
            .blocked
            .push("node b is down; start it again".to_owned());
        let text = format_status(&status);
        assert!(
            text.contains("16,384 slots have fewer copies than 2"),
            "{text}"
        );
        assert!(text.contains("\n! node b is down"), "{text}");
    }
}
