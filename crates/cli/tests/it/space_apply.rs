//! `larder space apply`: applies a plan's subspaces to a space while clients search it.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use larder_client::Reply;
use larder_testing::proxy::Proxy;

use crate::support::{Server, larder, run_failing, run_ok, spawn_server_with, text};

/// Starts a server with enough cores for copies to exist.
fn server(folder: &Path) -> Server {
    spawn_server_with(folder, |command| {
        command.args(["--set", "server.threads=3"]);
    })
}

fn send(server: &Server, line: &str) -> String {
    let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    match server.resp().command(&parts) {
        Ok(reply) => shown(&reply),
        Err(error) => error.to_string(),
    }
}

pub fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => text(bytes),
        Reply::Array(items) => items.iter().map(|it| shown(it) + "|").collect(),
        other => format!("{other:?}"),
    }
}

fn is_filling(server: &Server) -> bool {
    let info = send(server, "FT.INFO hotels");
    assert!(info.contains("|subspaces|"), "{info}");
    info.contains("|filling|")
}

/// Creates the space `hotels` with `count` hotels.
fn declare(server: &Server, count: u64) {
    let resp = server.resp();
    // The separator is empty, so that each value is one city.
    let line = "FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 1 stars REGIONS 64 SCHEMA city TAG SEPARATOR '' stars NUMERIC price NUMERIC rating NUMERIC";
    let parts = line.split(' ').map(|it| it.trim_matches('\'').as_bytes());
    resp.command(&parts.collect::<Vec<_>>()).unwrap();
    for number in 0..count {
        let line = format!(
            "HSET hotel:{number} city c{} stars {} price {number} rating {}",
            number % 50,
            number % 6,
            number % 9
        );
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).unwrap();
    }
}

/// Writes a plan for hotels as `larder space plan` prints it, and returns its path.
fn planned(folder: &Path, server: &Server, more: &[&str]) -> String {
    planned_at(folder, &server.http, more)
}

pub fn planned_at(folder: &Path, http: &str, more: &[&str]) -> String {
    let workload = folder.join("workload.toml");
    let text = "objects = 100000\n[[attribute]]\nname = \"city\"\ndistinct = 5000\n[[attribute]]\nname = \"price\"\nordered = true\n\
                [[attribute]]\nname = \"stars\"\ndistinct = 6\n[[query]]\nfrequency = 9\nequal = [\"city\"]\n[[query]]\nfrequency = 5\nrange = { price = 0.001 }\n\
                [[modification]]\nfrequency = 1\nchanges = [\"price\"]\n";
    std::fs::write(&workload, text).unwrap();
    let plan = [
        "space",
        "plan",
        "--json",
        "--workload",
        workload.to_str().unwrap(),
    ];
    let arguments = ["--server", http];
    let printed = run_ok([&plan[..], &arguments, more].concat());
    let file = folder.join("plan.json");
    std::fs::write(&file, printed).unwrap();
    file.to_str().unwrap().to_owned()
}

pub const OF_HOTELS: [&str; 2] = ["--space", "hotels"];

fn applying(server: &Server, more: &[&str]) -> Child {
    applying_at(&server.http, more)
}

pub fn applying_at(http: &str, more: &[&str]) -> Child {
    larder()
        .args(["space", "apply", "--server", http])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_plan_is_applied_once_and_an_unusable_plan_is_rejected_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 1200);
    let plan = planned(folder.path(), &server, &OF_HOTELS);
    let apply = |more: &[&str]| {
        let words = [&["space", "apply", "--server", &server.http], more].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    // Without a terminal, there is no confirmation prompt.
    let error = run_failing(2, apply(&[&plan]));
    assert!(error.contains("pass --yes to apply a plan"), "{error}");
    assert!(!is_filling(&server));
    let error = run_failing(4, apply(&[&plan, "--space", "inns"]));
    assert!(
        error.contains("is a plan for hotels, and not for inns"),
        "{error}"
    );
    let error = run_failing(3, apply(&["/nowhere.json"]));
    assert!(
        error.contains("cannot read the plan /nowhere.json"),
        "{error}"
    );
    let workload = folder.path().join("workload.toml");
    let error = run_failing(1, apply(&[workload.to_str().unwrap()]));
    assert!(error.contains("is no plan: "), "{error}");
    // Another change is in progress.
    send(&server, "FT.ALTER hotels SUBSPACES 1 rating:2");
    assert!(is_filling(&server));
    let error = run_failing(4, apply(&[&plan, "--yes"]));
    assert!(
        error.contains("other subspaces already, rating:2")
            && error.contains("--cancel --space hotels"),
        "{error}"
    );
    let output = run_ok(apply(&["--cancel", "--space", "hotels"]));
    assert_eq!(output, "hotels keeps stars; rating:2 is dropped\n");
    let error = run_failing(4, apply(&["--cancel", "--space", "hotels"]));
    assert!(error.contains("there is nothing to cancel"), "{error}");
    let output = run_ok(apply(&[&plan, "--yes"]));
    for part in [
        "hotels: 1,200 objects\n",
        "\nadded   city:",
        "\ndropped stars:6",
        "ops/s",
        "to copy: ",
        "costs are guesses",
        "indexes stay as they are",
        "hotels has city:",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    assert!(!is_filling(&server));
    let error = run_failing(4, apply(&[&plan, "--yes"]));
    assert!(
        error.contains("hotels has the subspaces of this plan already: city:"),
        "{error}"
    );
    // The space no longer has the plan's attributes.
    send(&server, "FT.DROPINDEX hotels");
    send(&server, "FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG");
    let error = run_failing(4, apply(&[&plan, "--yes"]));
    assert!(
        error.contains("hotels cannot have ") && error.contains("\"price\" is not an attribute"),
        "{error}"
    );
    let plan = planned(folder.path(), &server, &["--thesis"]);
    let error = run_failing(2, apply(&[&plan]));
    assert!(error.contains("name the space with --space"), "{error}");
    let error = run_failing(4, apply(&[&plan, "--space", "hotels"]));
    assert!(error.contains("plan without --thesis"), "{error}");
}

#[test]
fn indexes_chosen_by_a_plan_are_built_and_others_stay() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 1200);
    let apply = |more: &[&str]| {
        let words = [&["space", "apply", "--server", &server.http], more].concat();
        words.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let indexes = || {
        let info = send(&server, "FT.INFO hotels");
        let rest = info.split("|INDEX|").nth(1).map(str::to_owned);
        let words = rest.as_deref().map(|it| it.split("|SCHEMA|").next());
        words.flatten().map(str::to_owned)
    };
    let plan = planned(folder.path(), &server, &["--space", "hotels", "--indexes"]);
    let output = run_ok(apply(&[&plan, "--yes", "--keep-indexes"]));
    assert!(output.contains("indexes stay as they are"), "{output}");
    assert_eq!(indexes(), None);
    let output = run_ok(apply(&[&plan, "--yes"]));
    assert!(
        output.contains("dropped indexes: ") && output.contains(", indexes of city"),
        "{output}"
    );
    let built = indexes().expect("they are others");
    assert!(built.contains("city"), "{built}");
    assert!(!send(&server, "FT.INFO hotels").contains("|indexing|1|"));
    let error = run_failing(4, apply(&[&plan, "--yes"]));
    assert!(error.contains("there is nothing to apply"), "{error}");
    // A plan that matches the existing subspaces changes nothing.
    let plan = planned(folder.path(), &server, &OF_HOTELS);
    let error = run_failing(4, apply(&[&plan, "--yes"]));
    assert!(error.contains("there is nothing to apply"), "{error}");
    assert_eq!(indexes(), Some(built));
}

#[test]
fn an_unresponsive_server_is_reported_and_awaited() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 1200);
    let plan = planned(folder.path(), &server, &OF_HOTELS);
    // The kill interrupts the fill, which can end only after the server is back.
    let mut applying = applying(&server, &[&plan, "--yes"]);
    while !is_filling(&server) && applying.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    server.kill();
    if applying.try_wait().unwrap().is_some() {
        // The change completed before the kill.
        return;
    }
    let mut output = BufReader::new(applying.stderr.take().unwrap()).lines();
    if let Some(line) = output.next() {
        let line = line.unwrap();
        assert!(
            line.contains("the server has not answered for ") && line.contains("retrying for "),
            "{line}"
        );
    }
    let _ = applying.kill();
    applying.wait().unwrap();
}

#[test]
fn a_change_whose_reply_was_lost_is_verified_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 300);
    let plan = planned(folder.path(), &server, &OF_HOTELS);
    let proxy = Proxy::to(&server.resp);
    let stand_in = http_that_names(&proxy.address());
    for lost in ["SUBSPACES", "SWITCH"] {
        proxy.lose_reply_to(lost);
        let before = proxy.replies_lost();
        let told = larder()
            .args(["space", "apply", "--yes", "--server", &stand_in, &plan])
            .output()
            .unwrap();
        assert_eq!(proxy.replies_lost() - before, 1, "{lost}");
        let (told, error) = (text(&told.stdout), text(&told.stderr));
        assert!(told.contains("hotels has city:"), "{told}{error}");
        assert!(!is_filling(&server));
        // Switches to other subspaces, so that the next round can apply the plan again.
        send(&server, "FT.ALTER hotels SUBSPACES 1 rating:2");
        while !send(&server, "FT.ALTER hotels SUBSPACES SWITCH").contains("OK") {
            std::thread::yield_now();
        }
    }
}

/// Starts an HTTP server that names `resp` as the RESP address in every response, and returns its address.
fn http_that_names(resp: &str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let body = format!("{{\"resp\":\"{resp}\"}}");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let length = body.len();
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json";
            let _ = write!(stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        }
    });
    address.to_string()
}

#[test]
fn a_killed_apply_continues_when_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = server(folder.path());
    declare(&server, 1200);
    let plan = planned(folder.path(), &server, &OF_HOTELS);
    let mut first = applying(&server, &[&plan, "--yes"]);
    while !is_filling(&server) && first.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    let _ = first.kill();
    first.wait().unwrap();
    // The server is killed and restarted as well.
    server.kill();
    server = self::server(folder.path());
    // A change in progress is continued without a confirmation.
    let again = applying(&server, &[&plan]).wait_with_output().unwrap();
    let (output, error) = (text(&again.stdout), text(&again.stderr));
    let is_done = if again.status.success() {
        output.contains("hotels: continues with city:") && output.contains("hotels has city:")
    } else {
        // The change completed before the kill.
        error.contains("has the subspaces of this plan already")
    };
    assert!(is_done, "{output}{error}");
    assert!(!is_filling(&server));
}

#[test]
fn watch_applies_a_plan_when_the_gain_is_worth_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 300);
    let deployment = folder.path().join("servers.toml");
    std::fs::write(&deployment, "servers = 8\n").unwrap();
    let watch = ["--watch", "--space", "hotels"];
    let error = run_failing(2, ["space", "apply", "--watch", "--space", "hotels"]);
    assert!(error.contains("--deployment"), "{error}");
    let more = ["--window", "1", "--windows", "1", "--yes", "--deployment"];
    let mut watching = applying(
        &server,
        &[&watch[..], &more, &[deployment.to_str().unwrap()]].concat(),
    );
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut output = Vec::new();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| search_until(&server, &is_done));
        // Waits for the message of a change, or the end.
        let has_changed = |line: &String| line.contains("hotels has city:");
        while !output.last().is_some_and(has_changed) {
            match lines.next() {
                Some(line) => output.push(line.unwrap()),
                None => break,
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    interrupt(&watching);
    let ended = watching.wait_with_output().unwrap();
    let output = output.join("\n");
    assert!(
        output.contains(" with city:")
            && output.contains(": now\n")
            && output.contains("hotels has city:"),
        "{output}{}",
        text(&ended.stderr)
    );
    let explained = send(&server, "FT.EXPLAIN hotels @city:{c7}");
    assert!(explained.contains("subspace city"), "{explained}");
}

#[test]
fn watch_continues_when_the_objects_exceed_the_storage_limit() {
    let folder = tempfile::tempdir().unwrap();
    let server = server(folder.path());
    declare(&server, 10);
    let deployment = folder.path().join("servers.toml");
    std::fs::write(&deployment, "servers = 8\nstorage_bytes_max = 1\n").unwrap();
    let watch = ["--watch", "--space", "hotels", "--window", "1"];
    let deployment = ["--deployment", deployment.to_str().unwrap()];
    let mut watching = applying(&server, &[&watch[..], &deployment].concat());
    let lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let is_done = AtomicBool::new(false);
    let output: Vec<String> = std::thread::scope(|scope| {
        scope.spawn(|| search_until(&server, &is_done));
        let refused =
            |line: &String| line.contains("hotels: not planned") && line.contains("raise it");
        let output = lines.map_while(Result::ok).filter(refused).take(2);
        let output = output.collect();
        is_done.store(true, Ordering::Relaxed);
        output
    });
    interrupt(&watching);
    let ended = watching.wait_with_output().unwrap();
    assert_eq!(output.len(), 2, "{output:?}{}", text(&ended.stderr));
}

/// Searches for all cities in turn. With a single city, all searches would be on one server, which no subspace makes
/// faster.
fn search_until(server: &Server, is_done: &AtomicBool) {
    let resp = server.resp();
    let mut cities = (0..50).cycle();
    while !is_done.load(Ordering::Relaxed) {
        let query = format!("@city:{{c{}}}", cities.next().unwrap());
        let parts: [&[u8]; 3] = [b"FT.SEARCH", b"hotels", query.as_bytes()];
        resp.command(&parts).unwrap();
    }
}

fn interrupt(command: &Child) {
    let pid = command.id().to_string();
    let killed = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(killed.unwrap().success());
}
