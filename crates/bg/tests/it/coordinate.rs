//! Tests of coordinators and clients as processes on the loopback interface: results add up, and a client that dies
//! ends the trial with its address.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use larder_bg::coordinate::Fleet;
use larder_bg::verdict::measure::{Laboratory, Load, Trial};
use rustix::process::{Pid, Signal, kill_process};

/// A `bg client` that ends with the test.
struct Client {
    process: Child,
    address: String,
    told: Lines<BufReader<ChildStderr>>,
    /// The folder of its traces.
    scratch: tempfile::TempDir,
    /// The folder of the files that its coordinator may open.
    folder: tempfile::TempDir,
    // Kept open so that the client can continue to print.
    _printed: BufReader<ChildStdout>,
}

impl Client {
    fn start() -> Client {
        Client::start_with(None, &[])
    }

    /// Starts a client with further options, which may require a secret.
    fn start_with(secret: Option<&str>, options: &[&str]) -> Client {
        let scratch = tempfile::tempdir().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
        if let Some(secret) = secret {
            command.env("BG_SECRET", secret);
        }
        let mut process = command
            .args(["client", "--listen", "127.0.0.1:0", "--folder"])
            .arg(folder.path())
            .args(options)
            .env("TMPDIR", scratch.path())
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
            scratch,
            folder,
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
    let addresses: Vec<&str> = clients.iter().map(|client| &*client.address).collect();
    coordinator_at(&addresses, words, "memory")
}

fn coordinator_at(clients: &[&str], words: &[&str], store: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
    command.arg("coordinator");
    for client in clients {
        command.args(["--client", client]);
    }
    command.args(words);
    command.args(["--store", store]);
    if !words.contains(&"--members") {
        command.args(["--members", "400"]);
    }
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
    // The processors of two processes and, without a trace, no reads.
    assert!(json["effort"]["processors"].as_u64().unwrap() >= 2);
    assert!(json["reads"].is_null());
    // The intended draws of both clients cover all members.
    let drawn = &json["drawn"];
    let meant = drawn["cells"].as_array().unwrap().iter();
    let meant: f64 = meant.map(|cell| cell["meant"].as_f64().unwrap()).sum();
    assert!((meant - 1.0).abs() < 1e-9, "{drawn}");
    assert!(drawn["draws"].as_u64().unwrap() > 0 && drawn["chi_square"].is_number());
}

/// Uses a mix of writes in which every client would run out of partners if friends and inviters belonged to other
/// clients.
#[test]
fn one_client_and_eight_deliver_the_same_mix() {
    let clients: Vec<Client> = (0..8).map(|_| Client::start()).collect();
    let delivered = |clients: &[Client]| {
        let words = [
            "run",
            "--threads",
            "8",
            "--mix",
            "high-write",
            "--json",
            "--members",
            "4000",
            "--actions",
            "4000",
        ];
        let clients: Vec<&Client> = clients.iter().collect();
        let addresses: Vec<&str> = clients.iter().map(|client| &*client.address).collect();
        let output = coordinator_at(&addresses, &words, "memory")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    for json in [delivered(&clients[..1]), delivered(&clients)] {
        // 10 % are drawn.
        let writes = json["writes_percent"].as_f64().unwrap();
        assert!((8.0..12.0).contains(&writes), "{writes}");
        let drift = json["drift_percent"].as_f64().unwrap();
        assert!(drift < 0.5, "{drift}");
        let accepted = &json["actions"]["accept-friend-request"];
        let percent = accepted["delivered_percent"].as_f64().unwrap();
        assert!((1.0..3.0).contains(&percent), "{accepted}");
    }
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
    // The surviving client ends its trial too, and serves the next coordinator.
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
    // Rejected before any client is contacted.
    let words = ["run", "--mix", "no-such-mix"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("no-such-mix"));
}

/// Returns the orders of a coordinator as lines, without its keep-alive messages, until the connection ends.
fn orders(stream: &TcpStream) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines
        .map_while(Result::ok)
        .filter(|line| line != "\"alive\"")
}

/// Starts a listener that answers the lines of its only connection with these lines, then stays silent.
fn scripted(answers: &'static [&'static str]) -> (String, thread::JoinHandle<Option<TcpStream>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let served = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = orders(&stream);
        for answer in answers {
            // For an empty answer, it only reads the next line.
            lines.next()?;
            if !answer.is_empty() {
                stream.write_all(format!("{answer}\n").as_bytes()).ok()?;
            }
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
        .run(&Trial::timed(
            Load::Threads(1),
            Duration::ZERO,
            Duration::from_secs(1),
        ))
        .unwrap_err();
    drop(served.join().unwrap());
    error
        .strip_prefix(&format!("client {address}: "))
        .unwrap()
        .to_owned()
}

#[test]
fn clients_that_are_none_are_told_apart() {
    const HELLO: &str = r#"{"hello":{"protocol":4}}"#;
    const PREPARED: &str = r#"{"prepared":{"mass":1.0,"members":9}}"#;
    let other = trial(&[r#"{"hello":{"protocol":2}}"#]);
    assert!(other.contains("protocol 2"), "{other}");
    let junk = trial(&["+PONG"]);
    assert!(junk.contains("not a message of protocol 4"), "{junk}");
    assert_eq!(trial(&[HELLO, PREPARED]), "no sign of life for 0.2 s");
    let failed = trial(&[HELLO, r#"{"failed":{"why":"no such store"}}"#]);
    assert_eq!(failed, "no such store");
    let odd = trial(&[HELLO, PREPARED, PREPARED]);
    assert!(odd.contains("answered with prepared"), "{odd}");
    // A client that did not receive go cannot be done.
    let hasty = trial(&[HELLO, PREPARED, DONE]);
    assert!(hasty.contains("answered with done"), "{hasty}");
    // A client that is ready received go, and then is silent.
    assert_eq!(
        trial(&[HELLO, PREPARED, r#""ready""#]),
        "no sign of life for 0.2 s"
    );
}

const DONE: &str = r#"{"done":{"measured":{"seconds":1.0,"actions":{},"sessions":0,"reads":null,"series":[],"effort":null},"failures":[],"injected":[]}}"#;

/// A simulated client that reads one order at a time.
struct Puppet {
    stream: TcpStream,
    orders: Box<dyn Iterator<Item = String>>,
}

impl Puppet {
    fn accept(listener: &TcpListener) -> Puppet {
        let (stream, _) = listener.accept().unwrap();
        let orders = Box::new(orders(&stream));
        Puppet { stream, orders }
    }

    /// Waits for an order and sends an answer.
    fn answer(&mut self, order: &str, answer: &str) {
        let heard = self.orders.next().unwrap();
        assert!(heard.contains(order), "{order}: {heard}");
        self.say(answer);
    }

    fn say(&mut self, what: &str) {
        self.stream
            .write_all(format!("{what}\n").as_bytes())
            .unwrap();
    }
}

/// Runs a coordinator with two simulated clients: the first is ready, the second sends `then`. Returns the
/// coordinator's result, and the order that each client received next.
fn ready_and(then: &str) -> (Result<f64, String>, [Option<String>; 2]) {
    let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = |listener: &TcpListener| (listener.local_addr().unwrap().to_string(), 1.0);
    let clients = listeners.iter().map(address).collect();
    let ran = thread::spawn(move || {
        let mut fleet = Fleet::new(clients, Vec::new(), false, false);
        let measured = fleet.run(&Trial::timed(
            Load::Threads(4),
            Duration::ZERO,
            Duration::from_secs(1),
        ));
        measured.map(|measured| measured.duration.as_secs_f64())
    });
    let [mut one, mut other] = listeners.map(|listener| {
        let mut puppet = Puppet::accept(&listener);
        puppet.answer("hello", r#"{"hello":{"protocol":4}}"#);
        puppet
    });
    for puppet in [&mut one, &mut other] {
        puppet.answer("prepare", r#"{"prepared":{"mass":0.5,"members":9}}"#);
    }
    one.answer("trial", r#""ready""#);
    other.answer("trial", then);
    let heard = [&mut one, &mut other].map(|puppet| {
        let heard = puppet.orders.next();
        if heard.is_some() {
            puppet.say(DONE);
        }
        heard
    });
    (ran.join().unwrap(), heard)
}

#[test]
fn no_client_begins_before_all_are_ready() {
    let (ran, heard) = ready_and(r#""ready""#);
    assert_eq!(ran, Ok(1.0));
    let go = || Some(r#""go""#.to_owned());
    assert_eq!(heard, [go(), go()]);
    // If the trial does not start, no client receives go.
    let (ran, heard) = ready_and(r#"{"failed":{"why":"no data store"}}"#);
    assert!(ran.unwrap_err().ends_with(": no data store"));
    assert_eq!(heard, [None, None]);
}

#[test]
fn a_client_that_does_not_get_ready_says_why_and_nobody_begins() {
    let (one, other) = (Client::start(), Client::start());
    // No server listens on that port.
    let words = ["run", "--threads", "4", "--duration", "60s"];
    let mut command = coordinator_at(&[&one.address, &other.address], &words, "redis");
    let output = command.args(["--at", "127.0.0.1:1"]).output().unwrap();
    let told = text(&output);
    assert!(
        !output.status.success() && told.contains("client 127.0.0.1:"),
        "{told}"
    );
    assert!(
        told.contains("cannot connect to the data store redis"),
        "{told}"
    );
}

/// The result of an interrupted coordinator is what its clients measured until then, and their trials end.
#[test]
fn an_interrupted_coordinator_ends_its_clients_at_once_and_reports_what_there_is() {
    for signal in [Signal::INT, Signal::TERM] {
        let (mut one, mut other) = (Client::start(), Client::start());
        let words = [
            "run",
            "--threads",
            "4",
            "--duration",
            "1h",
            "--json",
            "--online",
        ];
        let mut command = coordinator(&[&one, &other], &words);
        command.args(["--between", "1ms", "--trace", "trace"]);
        let mut running = command.spawn().unwrap();
        // The lines of its seconds go to standard error.
        let mut seconds = BufReader::new(running.stderr.take().unwrap()).lines();
        assert!(seconds.any(|line| line.unwrap().contains("4 threads")));
        kill_process(Pid::from_child(&running), signal).unwrap();
        let output = running.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["seconds"].as_f64().unwrap() < 3000.0);
        assert!(json["reads"]["reads"].as_u64().unwrap() > 0, "{json}");
        assert_eq!(json["reads"]["unpredictable"], 0);
        for (number, client) in [&mut one, &mut other].into_iter().enumerate() {
            client.wait_for("the coordinator has gone");
            let trace = client.folder.path().join(format!("trace/client-{number}"));
            assert!(trace.join("population.json").exists(), "{trace:?}");
        }
    }
}

#[test]
fn a_rating_by_clients_is_interrupted_with_a_report() {
    let mut one = Client::start();
    let words = ["rate", "--sla", "95% < 1s, 60s", "--trial", "60s", "--json"];
    let running = coordinator(&[&one], &words).spawn().unwrap();
    one.wait_for("trial: ");
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["end"], "interrupted");
}

#[test]
fn a_client_told_to_end_says_so_and_leaves_nothing_behind() {
    let mut one = Client::start();
    let words = [
        "run",
        "--threads",
        "2",
        "--duration",
        "1h",
        "--sla",
        "95% < 1s, 0% unpredictable",
    ];
    let mut running = coordinator(&[&one], &words).spawn().unwrap();
    let mut told = BufReader::new(running.stderr.take().unwrap()).lines();
    assert!(told.any(|line| line.unwrap().contains("2 threads")));
    let folder = one.scratch.path().to_owned();
    let traces = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(traces(), 1, "a scratch trace while it runs");
    kill_process(Pid::from_child(&one.process), Signal::TERM).unwrap();
    assert!(one.process.wait().unwrap().success());
    assert_eq!(traces(), 0);
    assert!(told.any(|line| line.unwrap().contains("it was told to end")));
    assert!(!running.wait().unwrap().success());
}

#[test]
fn the_deck_shows_all_clients_together_and_its_buttons_reach_them() {
    let (one, other) = (Client::start(), Client::start());
    let words = [
        "run",
        "--threads",
        "4",
        "--duration",
        "1h",
        "--online",
        "--deck",
        "0",
    ];
    let mut command = coordinator(&[&one, &other], &words);
    command.args(["--between", "1ms", "--trace", "trace"]);
    let mut running = command.spawn().unwrap();
    let mut told = BufReader::new(running.stderr.take().unwrap()).lines();
    let invitation = told
        .find(|line| line.as_ref().unwrap().contains("deck at "))
        .unwrap()
        .unwrap();
    let address = invitation
        .trim_start_matches("deck at http://")
        .trim_end_matches('/')
        .to_owned();
    assert!(told.any(|line| line.unwrap().contains("4 threads")));
    let said = ask(&address, "POST /v1/threads", r#"{"threads":2}"#);
    assert!(said.contains("200 OK"), "{said}");
    assert!(told.any(|line| line.unwrap().contains("2 threads")));
    // Some seconds later, reads of both clients have been validated.
    let reads = || {
        let state = ask(&address, "GET /v1/state", "");
        let json = state.split("\r\n\r\n").nth(1).unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        json["reads"]["reads"].as_u64().unwrap_or(0)
    };
    assert!((0..10).any(|_| reads() > 0 || told.next().unwrap().is_err()));
    let said = ask(&address, "POST /v1/stop", "{}");
    assert!(said.contains("200 OK"), "{said}");
    assert!(running.wait().unwrap().success());
}

const SHORT: [&str; 5] = ["run", "--threads", "1", "--duration", "50ms"];

/// A port scanner, a peer that sends no hello and a slow peer do not delay the coordinator.
#[test]
fn silent_visitors_and_strangers_hold_no_place() {
    let one = Client::start();
    let silent = [(); 3].map(|()| TcpStream::connect(&one.address).unwrap());
    let mut stranger = TcpStream::connect(&one.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut said = String::new();
    // It receives an explanation, and the connection is closed.
    let _ = stranger.read_to_string(&mut said);
    assert!(said.contains("not a message of protocol"), "{said}");
    let mut hasty = TcpStream::connect(&one.address).unwrap();
    hasty.write_all(b"\"stop\"\n").unwrap();
    let mut said = String::new();
    let _ = hasty.read_to_string(&mut said);
    assert!(
        said.contains("the first word of a coordinator is hello"),
        "{said}"
    );
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    drop(silent);
}

/// More connections than the client greets at the same time.
#[test]
fn two_hundred_silent_visitors_do_not_keep_a_coordinator_out() {
    let one = Client::start();
    let silent: Vec<TcpStream> = (0..200)
        .map(|_| TcpStream::connect(&one.address).unwrap())
        .collect();
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    drop(silent);
}

/// Connects to a client as a simulated coordinator that has exchanged hello.
fn greeted(client: &Client) -> TcpStream {
    let mut stream = TcpStream::connect(&client.address).unwrap();
    let hello = serde_json::json!({"hello": {"protocol": 4}});
    stream.write_all(format!("{hello}\n").as_bytes()).unwrap();
    let answer = BufReader::with_capacity(1, &stream).lines().next();
    assert!(answer.unwrap().unwrap().contains("hello"));
    stream
}

#[test]
fn a_coordinator_that_goes_silent_is_given_up_and_the_next_is_served() {
    let mut one = Client::start_with(None, &["--patience", "300ms"]);
    // It keeps the connection open during its work, and sends nothing.
    let mut silent = greeted(&one);
    let words = ["run", "--store", "memory", "--members", "400"];
    let order = serde_json::json!({"prepare": {
        "words": words, "fragment": 0, "speeds": [1.0], "load": false, "run": "r"
    }});
    silent.write_all(format!("{order}\n").as_bytes()).unwrap();
    one.wait_for("the coordinator was lost: no sign of life for 0.3 s");
    drop(greeted(&one));
    drop(silent);
}

#[test]
fn a_coordinator_sends_signs_of_life_while_it_waits() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ran = thread::spawn(move || {
        let mut fleet = Fleet::new(vec![(address, 1.0)], Vec::new(), false, false);
        fleet.prepare()
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    assert!(lines.next().unwrap().unwrap().contains("hello"));
    stream.write_all(b"{\"hello\":{\"protocol\":4}}\n").unwrap();
    assert!(lines.next().unwrap().unwrap().contains("prepare"));
    assert_eq!(lines.next().unwrap().unwrap(), "\"alive\"");
    drop((stream, lines));
    assert!(ran.join().unwrap().is_err());
}

#[test]
fn a_second_coordinator_is_told_that_there_is_one() {
    let mut one = Client::start();
    let words = ["run", "--threads", "2", "--duration", "1h"];
    let mut running = coordinator(&[&one], &words).spawn().unwrap();
    one.wait_for("trial: ");
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("it acts for the coordinator at 127.0.0.1:"));
    running.kill().unwrap();
    running.wait().unwrap();
    one.wait_for("the coordinator has gone");
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_client_with_a_secret_acts_for_those_who_know_it() {
    let one = Client::start_with(Some("a long secret"), &[]);
    for wrong in [None, Some(""), Some("a long"), Some("a long secrets")] {
        let mut command = coordinator(&[&one], &SHORT);
        if let Some(wrong) = wrong {
            command.env("BG_SECRET", wrong);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let told = text(&output);
        assert!(
            told.contains("the secret is not that of this client"),
            "{told}"
        );
        assert!(!told.contains("a long secret"), "{told}");
    }
    let mut command = coordinator(&[&one], &SHORT);
    let output = command.env("BG_SECRET", "a long secret").output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    // On an address that other machines can reach, a client requires a secret.
    let mut open = Command::new(env!("CARGO_BIN_EXE_bg"));
    let output = open
        .args(["client", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("set BG_SECRET"), "{}", text(&output));
}

/// The client itself rejects invalid command lines, whatever the coordinator checks.
#[test]
fn a_client_opens_no_file_outside_its_folder_and_refuses_what_does_not_fit() {
    let one = Client::start();
    let refused = |words: &[&str]| {
        let mut stream = TcpStream::connect(&one.address).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut ask = |order: &serde_json::Value| {
            stream.write_all(format!("{order}\n").as_bytes()).unwrap();
            let answer = lines.find(|line| !line.as_ref().unwrap().contains("alive"));
            answer.unwrap().unwrap()
        };
        let hello = ask(&serde_json::json!({"hello": {"protocol": 4}}));
        assert!(hello.contains("hello"), "{hello}");
        let all: Vec<&str> = [&["run", "--store", "memory"], words].concat();
        let order = serde_json::json!({"words": all, "fragment": 0, "speeds": [1.0], "load": false, "run": "r"});
        ask(&serde_json::json!({ "prepare": order }))
    };
    let secret = one.scratch.path().join("secret");
    std::fs::write(&secret, "root:x:0:0").unwrap();
    let path = secret.to_str().unwrap();
    for words in [
        ["--edges", path],
        ["--edges", "../secret"],
        ["--mix", path],
        ["--trace", path],
        ["--trace", "../new"],
    ] {
        let told = refused(&words);
        assert!(
            told.contains("must be a name below the client's --folder"),
            "{told}"
        );
        assert!(!told.contains("root:x"), "{told}");
    }
    for (words, why) in [
        (["--members", "4000000000"], "GiB are free"),
        (["--workers", "1000000"], "--workers 1000000: at most"),
    ] {
        let told = refused(&words);
        assert!(told.contains(why), "{told}");
    }
    // It continues, and accepts a file in its folder.
    std::fs::write(one.folder.path().join("edges"), "0 1\n1 2\n2 0\n").unwrap();
    let told = refused(&["--edges", "edges"]);
    assert!(told.contains("prepared"), "{told}");
}

/// Sends one HTTP request and returns the whole answer.
fn ask(address: &str, what: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
