//! Coordinators and clients as processes on loopback: results add up, and a client that dies ends the trial with its name.

use std::io::{BufRead, BufReader, Lines, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use larder_bg::coordinate::Fleet;
use larder_bg::measure::{Laboratory, Load, Trial};

/// A `bg client`; ends with the test.
struct Client {
    process: Child,
    address: String,
    told: Lines<BufReader<ChildStderr>>,
    // Held, so that the client can go on printing.
    _printed: BufReader<ChildStdout>,
}

impl Client {
    fn start() -> Client {
        let mut process = Command::new(env!("CARGO_BIN_EXE_bg"))
            .args(["client", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut printed = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        printed.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .unwrap()
            .to_owned();
        Client {
            told: BufReader::new(process.stderr.take().unwrap()).lines(),
            process,
            address,
            _printed: printed,
        }
    }

    fn wait_for(&mut self, what: &str) {
        let found = self.told.any(|line| line.unwrap().contains(what));
        assert!(found, "the client never told: {what}");
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn coordinator(clients: &[&Client], words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
    command.arg("coordinator");
    for client in clients {
        command.args(["--client", &client.address]);
    }
    command.args(words);
    command.args(["--store", "memory", "--members", "400"]);
    command.args(["--friends", "10", "--resources", "5", "--workers", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn clients_run_together_and_their_results_add_up() {
    let (one, other) = (Client::start(), Client::start());
    let words = ["run", "--threads", "5", "--duration", "300ms", "--json"];
    let output = coordinator(&[&one, &other], &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(json["actions"]["view-profile"]["latency_ns"]["values"].is_array());
    // Two processes' processors and, without a trace, no reads.
    assert!(json["effort"]["processors"].as_u64().unwrap() >= 2);
    assert!(json["reads"].is_null());
    // All members were meant to be drawn, by one client or the other.
    let drawn = &json["drawn"];
    let meant = drawn["cells"].as_array().unwrap().iter();
    let meant: f64 = meant.map(|cell| cell["meant"].as_f64().unwrap()).sum();
    assert!((meant - 1.0).abs() < 1e-9, "{drawn}");
    assert!(drawn["draws"].as_u64().unwrap() > 0 && drawn["chi_square"].is_number());
}

#[test]
fn clients_are_rated_as_one_and_judge_their_own_traces() {
    let (one, other) = (Client::start(), Client::start());
    let sla = "95% < 1s, 0% unpredictable, 300ms";
    let words = [
        "rate",
        "--sla",
        sla,
        "--first",
        "2",
        "--most",
        "4",
        "--trial",
        "100ms",
        "--warmup",
        "0s",
        "--mix",
        "high-write",
        "--json",
    ];
    let output = coordinator(&[&one, &other], &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["end"], "rated", "{}", text(&output));
    assert!(json["load"].as_u64().unwrap() >= 2, "{}", text(&output));
    assert!(json["measured"]["reads"]["reads"].as_u64().unwrap() > 0);
    assert_eq!(json["measured"]["reads"]["unpredictable"], 0);
    let settings = json["facts"]["settings"].to_string();
    assert!(settings.contains(&one.address) && settings.contains(&other.address));
}

#[test]
fn a_client_that_is_killed_ends_the_trial_and_is_named() {
    let (mut one, mut other) = (Client::start(), Client::start());
    let words = ["run", "--threads", "4", "--duration", "60s"];
    let running = coordinator(&[&one, &other], &words).spawn().unwrap();
    one.wait_for("trial: ");
    other.wait_for("trial: ");
    other.process.kill().unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(!output.status.success());
    let told = text(&output);
    assert!(
        told.contains(&format!("client {}: ", other.address)),
        "{told}"
    );
    assert!(
        !told.contains(&format!("client {}: ", one.address)),
        "{told}"
    );
    // The one that lives ends its trial too, and serves the next coordinator.
    one.wait_for("the coordinator ");
    let words = ["run", "--threads", "1", "--duration", "100ms"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_rating_whose_client_dies_ends_with_the_reason_and_a_report() {
    let (one, mut other) = (Client::start(), Client::start());
    let sla = "95% < 1s, 60s";
    let words = [
        "rate", "--sla", sla, "--first", "2", "--trial", "60s", "--json",
    ];
    let running = coordinator(&[&one, &other], &words).spawn().unwrap();
    other.wait_for("trial: ");
    other.process.kill().unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(!output.status.success());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["end"], "failed");
    let why = json["why"].as_str().unwrap();
    assert!(why.contains(&other.address), "{why}");
}

#[test]
fn a_client_refuses_what_it_cannot_do_and_says_why() {
    let one = Client::start();
    let words = ["run", "--threads", "401", "--duration", "100ms"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(text(&output).contains(&format!("client {}: 401 threads", one.address)));
    // Refused before any client is asked.
    let words = ["run", "--mix", "no-such-mix"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("no-such-mix"));
}

/// A listener whose one visitor is answered line by line with these, then with silence.
fn scripted(answers: &'static [&'static str]) -> (String, thread::JoinHandle<Option<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        for answer in answers {
            lines.next()?.ok()?;
            stream.write_all(format!("{answer}\n").as_bytes()).ok()?;
        }
        Some(stream)
    });
    (address, served)
}

fn trial(answers: &'static [&'static str]) -> String {
    let (address, served) = scripted(answers);
    let mut fleet = Fleet::new(vec![(address.clone(), 1.0)], Vec::new(), false, false)
        .with_silence_max(Duration::from_millis(200));
    let error = fleet
        .run(&Trial {
            load: Load::Threads(1),
            warmup: Duration::ZERO,
            duration: Duration::from_secs(1),
        })
        .unwrap_err();
    drop(served.join().unwrap());
    error
        .strip_prefix(&format!("client {address}: "))
        .unwrap()
        .to_owned()
}

#[test]
fn clients_that_are_none_are_told_apart() {
    const HELLO: &str = r#"{"hello":{"protocol":1}}"#;
    const PREPARED: &str = r#"{"prepared":{"mass":1.0,"members":9}}"#;
    let other = trial(&[r#"{"hello":{"protocol":2}}"#]);
    assert!(other.contains("protocol 2"), "{other}");
    let junk = trial(&["+PONG"]);
    assert!(junk.contains("not a message of protocol 1"), "{junk}");
    assert_eq!(trial(&[HELLO, PREPARED]), "no sign of life for 0.2 s");
    let failed = trial(&[HELLO, r#"{"failed":{"why":"no such store"}}"#]);
    assert_eq!(failed, "no such store");
    let odd = trial(&[HELLO, PREPARED, PREPARED]);
    assert!(odd.contains("answered with prepared"), "{odd}");
}
