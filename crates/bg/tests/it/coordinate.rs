//! Tests of coordinators and clients as processes on the loopback interface: results add up, and a client that dies
//! ends the trial with its address.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use larder_bg::coordinate::Fleet;
use larder_bg::verdict::measure::{Load, Trial, TrialRunner};
use rustix::process::{Pid, Signal, kill_process};

/// A `bg client` that ends with the test.
struct Client {
    process: Child,
    address: String,
    stderr: Lines<BufReader<ChildStderr>>,
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
            stderr: BufReader::new(process.stderr.take().unwrap()).lines(),
            process,
            address,
            scratch,
            folder,
            _printed: printed,
        }
    }

    fn wait_for(&mut self, what: &str) {
        let found = self.stderr.any(|line| line.unwrap().contains(what));
        assert!(found, "the client never printed: {what}");
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
    let intended = drawn["cells"].as_array().unwrap().iter();
    let intended: f64 = intended.map(|cell| cell["meant"].as_f64().unwrap()).sum();
    assert!((intended - 1.0).abs() < 1e-9, "{drawn}");
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
fn clients_are_rated_as_one_and_validate_their_own_traces() {
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
fn a_killed_client_ends_the_trial_and_the_error_names_it() {
    let (mut one, mut other) = (Client::start(), Client::start());
    let words = ["run", "--threads", "4", "--duration", "60s"];
    let running = coordinator(&[&one, &other], &words).spawn().unwrap();
    one.wait_for("trial: ");
    other.wait_for("trial: ");
    other.process.kill().unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(!output.status.success());
    let output_text = text(&output);
    assert!(
        output_text.contains(&format!("client {}: ", other.address)),
        "{output_text}"
    );
    assert!(
        !output_text.contains(&format!("client {}: ", one.address)),
        "{output_text}"
    );
    // The surviving client ends its trial too, and serves the next coordinator.
    one.wait_for("the coordinator ");
    let words = ["run", "--threads", "1", "--duration", "100ms"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_rating_whose_client_is_killed_reports_the_reason() {
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
fn a_client_rejects_impossible_requests_with_the_reason() {
    let one = Client::start();
    let words = ["run", "--threads", "401", "--duration", "100ms"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(text(&output).contains(&format!("client {}: 401 threads", one.address)));
    // Rejected before any client is contacted.
    let words = ["run", "--mix", "no-such-mix"];
    let output = coordinator(&[&one], &words).output().unwrap();
    assert!(!output.status.success() && text(&output).contains("no-such-mix"));
}

/// Returns the requests of a coordinator as lines, without its keep-alive messages, until the connection ends.
fn requests(stream: &TcpStream) -> impl Iterator<Item = String> + use<> {
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
        let mut lines = requests(&stream);
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
fn invalid_clients_are_reported_with_the_reason() {
    const HELLO: &str = r#"{"hello":{"protocol":4}}"#;
    const PREPARED: &str = r#"{"prepared":{"mass":1.0,"members":9}}"#;
    let other = trial(&[r#"{"hello":{"protocol":2}}"#]);
    assert!(other.contains("protocol 2"), "{other}");
    let junk = trial(&["+PONG"]);
    assert!(junk.contains("not a message of protocol 4"), "{junk}");
    assert_eq!(
        trial(&[HELLO, PREPARED]),
        "the client sent no heartbeat for 0.2 s"
    );
    let failed = trial(&[HELLO, r#"{"failed":{"why":"no such store"}}"#]);
    assert_eq!(failed, "no such store");
    let odd = trial(&[HELLO, PREPARED, PREPARED]);
    assert!(odd.contains("unexpected message prepared"), "{odd}");
    // A client that did not receive go cannot be done.
    let hasty = trial(&[HELLO, PREPARED, DONE]);
    assert!(hasty.contains("unexpected message done"), "{hasty}");
    // A client that is ready received go, and then is silent.
    assert_eq!(
        trial(&[HELLO, PREPARED, r#""ready""#]),
        "the client sent no heartbeat for 0.2 s"
    );
}

const DONE: &str = r#"{"done":{"measured":{"seconds":1.0,"actions":{},"sessions":0,"reads":null,"series":[],"effort":null},"failures":[],"injected":[]}}"#;

/// A simulated client that reads one request at a time.
struct FakeClient {
    stream: TcpStream,
    requests: Box<dyn Iterator<Item = String>>,
}

impl FakeClient {
    fn accept(listener: &TcpListener) -> FakeClient {
        let (stream, _) = listener.accept().unwrap();
        let requests = Box::new(requests(&stream));
        FakeClient { stream, requests }
    }

    /// Waits for a request and sends an answer.
    fn answer(&mut self, request: &str, answer: &str) {
        let received = self.requests.next().unwrap();
        assert!(received.contains(request), "{request}: {received}");
        self.send(answer);
    }

    fn send(&mut self, what: &str) {
        self.stream
            .write_all(format!("{what}\n").as_bytes())
            .unwrap();
    }
}

/// Runs a coordinator with two simulated clients: the first is ready, the second sends `then`. Returns the
/// coordinator's result, and the request that each client received next.
fn run_with_second_reply(then: &str) -> (Result<f64, String>, [Option<String>; 2]) {
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
        let mut client = FakeClient::accept(&listener);
        client.answer("hello", r#"{"hello":{"protocol":4}}"#);
        client
    });
    for client in [&mut one, &mut other] {
        client.answer("prepare", r#"{"prepared":{"mass":0.5,"members":9}}"#);
    }
    one.answer("trial", r#""ready""#);
    other.answer("trial", then);
    let received = [&mut one, &mut other].map(|client| {
        let received = client.requests.next();
        if received.is_some() {
            client.send(DONE);
        }
        received
    });
    (ran.join().unwrap(), received)
}

#[test]
fn no_client_starts_before_all_are_ready() {
    let (ran, received) = run_with_second_reply(r#""ready""#);
    assert_eq!(ran, Ok(1.0));
    let go = || Some(r#""go""#.to_owned());
    assert_eq!(received, [go(), go()]);
    // If the trial does not start, no client receives go.
    let (ran, received) = run_with_second_reply(r#"{"failed":{"why":"no data store"}}"#);
    assert!(ran.unwrap_err().ends_with(": no data store"));
    assert_eq!(received, [None, None]);
}

#[test]
fn a_client_that_fails_to_prepare_reports_why_and_no_client_starts() {
    let (one, other) = (Client::start(), Client::start());
    // No server listens on that port.
    let words = ["run", "--threads", "4", "--duration", "60s"];
    let mut command = coordinator_at(&[&one.address, &other.address], &words, "redis");
    let output = command.args(["--at", "127.0.0.1:1"]).output().unwrap();
    let output_text = text(&output);
    assert!(
        !output.status.success() && output_text.contains("client 127.0.0.1:"),
        "{output_text}"
    );
    assert!(
        output_text.contains("cannot connect to the data store redis"),
        "{output_text}"
    );
}

/// The result of an interrupted coordinator is what its clients measured until then, and their trials end.
#[test]
fn an_interrupted_coordinator_stops_its_clients_and_reports_partial_results() {
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
            client.wait_for("the coordinator disconnected");
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
fn a_terminated_client_reports_it_and_leaves_no_files() {
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
    let mut stderr = BufReader::new(running.stderr.take().unwrap()).lines();
    assert!(stderr.any(|line| line.unwrap().contains("2 threads")));
    let folder = one.scratch.path().to_owned();
    let traces = || std::fs::read_dir(&folder).unwrap().count();
    assert_eq!(traces(), 1, "a scratch trace while it runs");
    kill_process(Pid::from_child(&one.process), Signal::TERM).unwrap();
    assert!(one.process.wait().unwrap().success());
    assert_eq!(traces(), 0);
    assert!(stderr.any(|line| line.unwrap().contains("the client was stopped by")));
    assert!(!running.wait().unwrap().success());
}

#[test]
fn the_deck_shows_and_controls_all_clients() {
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
    let mut stderr = BufReader::new(running.stderr.take().unwrap()).lines();
    let first_line = stderr
        .find(|line| line.as_ref().unwrap().contains("deck at "))
        .unwrap()
        .unwrap();
    let address = first_line
        .trim_start_matches("deck at http://")
        .trim_end_matches('/')
        .to_owned();
    assert!(stderr.any(|line| line.unwrap().contains("4 threads")));
    let reply = ask(&address, "POST /v1/threads", r#"{"threads":2}"#);
    assert!(reply.contains("200 OK"), "{reply}");
    assert!(stderr.any(|line| line.unwrap().contains("2 threads")));
    // Some seconds later, reads of both clients have been validated.
    let reads = || {
        let state = ask(&address, "GET /v1/state", "");
        let json = state.split("\r\n\r\n").nth(1).unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        json["reads"]["reads"].as_u64().unwrap_or(0)
    };
    assert!((0..10).any(|_| reads() > 0 || stderr.next().unwrap().is_err()));
    let reply = ask(&address, "POST /v1/stop", "{}");
    assert!(reply.contains("200 OK"), "{reply}");
    assert!(running.wait().unwrap().success());
}

const SHORT: [&str; 5] = ["run", "--threads", "1", "--duration", "50ms"];

/// A port scanner, a peer that sends no hello and a slow peer do not delay the coordinator.
#[test]
fn silent_and_invalid_connections_do_not_block_a_coordinator() {
    let one = Client::start();
    let silent = [(); 3].map(|()| TcpStream::connect(&one.address).unwrap());
    let mut stranger = TcpStream::connect(&one.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut reply = String::new();
    // It receives an explanation, and the connection is closed.
    let _ = stranger.read_to_string(&mut reply);
    assert!(reply.contains("not a message of protocol"), "{reply}");
    let mut hasty = TcpStream::connect(&one.address).unwrap();
    hasty.write_all(b"\"stop\"\n").unwrap();
    let mut reply = String::new();
    let _ = hasty.read_to_string(&mut reply);
    assert!(
        reply.contains("the first message of a coordinator must be hello"),
        "{reply}"
    );
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    drop(silent);
}

/// More connections than the client greets at the same time.
#[test]
fn two_hundred_silent_connections_do_not_block_a_coordinator() {
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
fn a_silent_coordinator_is_disconnected_and_the_next_one_is_served() {
    let mut one = Client::start_with(None, &["--patience", "300ms"]);
    // It keeps the connection open during its work, and sends nothing.
    let mut silent = greeted(&one);
    let words = ["run", "--store", "memory", "--members", "400"];
    let request = serde_json::json!({"prepare": {
        "words": words, "fragment": 0, "speeds": [1.0], "load": false, "run": "r"
    }});
    silent.write_all(format!("{request}\n").as_bytes()).unwrap();
    one.wait_for("the coordinator was lost: the coordinator sent no heartbeat for 0.3 s");
    drop(greeted(&one));
    drop(silent);
}

#[test]
fn a_waiting_coordinator_sends_heartbeats() {
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
fn a_second_coordinator_is_rejected_with_the_address_of_the_first() {
    let mut one = Client::start();
    let words = ["run", "--threads", "2", "--duration", "1h"];
    let mut running = coordinator(&[&one], &words).spawn().unwrap();
    one.wait_for("trial: ");
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("already in use by the coordinator at 127.0.0.1:"));
    running.kill().unwrap();
    running.wait().unwrap();
    one.wait_for("the coordinator disconnected");
    let output = coordinator(&[&one], &SHORT).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_client_with_a_secret_accepts_only_coordinators_that_have_it() {
    let one = Client::start_with(Some("a long secret"), &[]);
    for wrong in [None, Some(""), Some("a long"), Some("a long secrets")] {
        let mut command = coordinator(&[&one], &SHORT);
        if let Some(wrong) = wrong {
            command.env("BG_SECRET", wrong);
        }
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let output_text = text(&output);
        assert!(
            output_text.contains("the secret does not match"),
            "{output_text}"
        );
        assert!(!output_text.contains("a long secret"), "{output_text}");
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
fn a_client_opens_no_file_outside_its_folder_and_rejects_excessive_sizes() {
    let one = Client::start();
    let refused = |words: &[&str]| {
        let mut stream = TcpStream::connect(&one.address).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut ask = |request: &serde_json::Value| {
            stream.write_all(format!("{request}\n").as_bytes()).unwrap();
            let answer = lines.find(|line| !line.as_ref().unwrap().contains("alive"));
            answer.unwrap().unwrap()
        };
        let hello = ask(&serde_json::json!({"hello": {"protocol": 4}}));
        assert!(hello.contains("hello"), "{hello}");
        let all: Vec<&str> = [&["run", "--store", "memory"], words].concat();
        let request = serde_json::json!({"words": all, "fragment": 0, "speeds": [1.0], "load": false, "run": "r"});
        ask(&serde_json::json!({ "prepare": request }))
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
        let reply = refused(&words);
        assert!(
            reply.contains("must be a relative path within the client's --folder"),
            "{reply}"
        );
        assert!(!reply.contains("root:x"), "{reply}");
    }
    for (words, why) in [
        (["--members", "4000000000"], "GiB are free"),
        (["--workers", "1000000"], "--workers 1000000: at most"),
    ] {
        let reply = refused(&words);
        assert!(reply.contains(why), "{reply}");
    }
    // It continues, and accepts a file in its folder.
    std::fs::write(one.folder.path().join("edges"), "0 1\n1 2\n2 0\n").unwrap();
    let reply = refused(&["--edges", "edges"]);
    assert!(reply.contains("prepared"), "{reply}");
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
