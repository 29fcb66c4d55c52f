//! `larder space apply` on three nodes, during searches and writes, and during the outage of a node or of etcd.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cluster_local::Local;
use crate::space_apply::{OF_HOTELS, applying_at, planned_at, shown};
use crate::support::{run_ok, text};

const HOTELS: usize = 1200;

/// Starts a cluster with 24 hotels in each city. Returns `None` if etcd is not installed.
fn started(folder: &Path, more: &[&str]) -> Option<Local> {
    let local = Local::start_with(&folder.join("data"), 3, more)?;
    let created = "FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG stars NUMERIC price NUMERIC";
    assert_eq!(send(&local, 0, created), "Simple(\"OK\")");
    for number in 0..HOTELS {
        let (city, stars) = (number % 50, number % 6);
        let line = format!("HSET hotel:{number} city c{city} stars {stars} price {number}");
        assert_eq!(send(&local, number % 3, &line), "Integer(3)");
    }
    Some(local)
}

fn send(local: &Local, at: usize, line: &str) -> String {
    let answered = local.send(at, line);
    answered.map_or_else(|error| error.to_string(), |reply| shown(&reply))
}

const SEARCH: &str = "FT.SEARCH hotels @city:{c7} LIMIT 0 0";
const FOUND: &str = "Integer(24)|";

/// Checks that each of these nodes has the new subspaces and finds all objects.
fn ensure_applied(local: &Local, nodes: Range<usize>) {
    for at in nodes {
        let info = send(local, at, "FT.INFO hotels");
        assert!(
            info.contains("|subspaces|city:") && !info.contains("|filling|"),
            "{info}"
        );
        assert_eq!(send(local, at, SEARCH), FOUND);
    }
}

#[test]
fn a_plan_is_applied_to_a_cluster_while_it_is_searched_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let threads = ["--set", "server.threads=2"];
    let Some(local) = started(folder.path(), &threads) else {
        return;
    };
    let http = local.http(0);
    let plan = planned_at(folder.path(), http, &OF_HOTELS);
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        let (local, is_over) = (&local, &is_over);
        let searches = scope.spawn(move || {
            let mut done = 0;
            while done == 0 || !is_over.load(Ordering::Relaxed) {
                // Every node finds all hotels of a city, regardless of the fill in progress.
                assert_eq!(send(local, done % 3, SEARCH), FOUND, "after {done}");
                let price = format!("HSET hotel:{} price {}", done % HOTELS, done + 5000);
                assert_eq!(
                    send(local, (done + 1) % 3, &price),
                    "Integer(0)",
                    "after {done}"
                );
                done += 1;
            }
        });
        let output = run_ok(["space", "apply", "--server", http, &plan, "--yes"]);
        is_over.store(true, Ordering::Relaxed);
        searches.join().expect("all are answered");
        output
    });
    assert!(
        output.contains("\nadded   city:") && output.contains("hotels has city:"),
        "{output}"
    );
    ensure_applied(&local, 0..3);
    let explained = send(&local, 1, "FT.EXPLAIN hotels @city:{c7}");
    assert!(explained.contains("subspace city"), "{explained}");
    assert_eq!(local.end("-TERM"), Some(0));
}

/// A fault of a process while a plan is applied through node 0.
struct Fault {
    of: fn(&Local) -> u64,
    signal: &'static str,
    is_noticed: fn(&Local) -> bool,
    /// True if the process resumes.
    is_mended: bool,
}

fn break_and_apply(fault: &Fault) {
    let folder = tempfile::tempdir().unwrap();
    let Some(local) = started(folder.path(), &["--replicas", "2"]) else {
        return;
    };
    let plan = planned_at(folder.path(), local.http(0), &OF_HOTELS);
    let pid = (fault.of)(&local);
    local.signal(fault.signal, pid);
    // The command waits, because regions need copies from the failed node, or a change of the space needs etcd.
    let mut applying = applying_at(local.http(0), &[&plan, "--yes"]);
    while !(fault.is_noticed)(&local) && applying.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    if fault.is_mended {
        local.signal("-CONT", pid);
    }
    let ended = applying.wait_with_output().unwrap();
    let (output, error) = (text(&ended.stdout), text(&ended.stderr));
    assert!(
        ended.status.success() && output.contains("hotels has city:"),
        "{output}{error}"
    );
    let left = if fault.is_mended { 0..3 } else { 0..2 };
    if fault.is_mended {
        // A suspended process is a member again.
        for at in left.clone() {
            run_ok(["cluster", "status", "--wait", "--server", local.http(at)]);
        }
    }
    ensure_applied(&local, left);
    local.end("-TERM");
}

fn last_node(local: &Local) -> u64 {
    local.nodes()[2]["pid"].as_u64().expect("a number")
}

fn etcd(local: &Local) -> u64 {
    local.ready["etcd_pid"].as_u64().expect("a number")
}

fn is_node_down(local: &Local) -> bool {
    run_ok(["cluster", "status", "--server", local.http(0)]).contains("down")
}

fn is_refused(local: &Local) -> bool {
    send(local, 0, SEARCH).contains("CLUSTERDOWN")
}

#[test]
fn a_plan_is_applied_despite_a_killed_node() {
    break_and_apply(&Fault {
        of: last_node,
        signal: "-KILL",
        is_noticed: is_node_down,
        is_mended: false,
    });
}

#[test]
fn a_plan_is_applied_despite_a_paused_node() {
    break_and_apply(&Fault {
        of: last_node,
        signal: "-STOP",
        is_noticed: is_node_down,
        is_mended: true,
    });
}

#[test]
fn a_plan_is_applied_despite_an_etcd_outage() {
    break_and_apply(&Fault {
        of: etcd,
        signal: "-STOP",
        is_noticed: is_refused,
        is_mended: true,
    });
}
