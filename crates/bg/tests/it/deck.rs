//! Tests of the deck's API over HTTP, with simulated trials.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::ui::deck::{About, Board, Controls, Deck, Limits, NextStep, ObservedRunner, Second};
use larder_bg::verdict::measure::{Load, Measurements, ReadValidation, Trial, TrialRunner};
use serde_json::{Value, json};

/// The buttons that were pressed.
#[derive(Default)]
pub struct PressedButtons {
    pub threads: AtomicU32,
    pub stop: AtomicBool,
}

impl Controls for PressedButtons {
    fn set_threads(&self, threads: u32) {
        self.threads.store(threads, Ordering::SeqCst);
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn about(command: &'static str) -> About {
    About {
        command,
        store: "memory".to_owned(),
        mix: "symmetric-low-write".to_owned(),
        draw: "uniform".to_owned(),
        members: 1000,
        friends: 10,
        resources: 10,
        image_size_bytes: None,
        workers: 2,
        threads_max: 1000,
    }
}

pub fn trial(load: Load, seconds: u64) -> Trial {
    Trial::timed(load, Duration::ZERO, Duration::from_secs(seconds))
}

/// Returns a measurement of `calls` profile views with this latency in microseconds, and one slow list of friends.
pub fn measured(seconds: u64, calls: u64, us: u64) -> Measurements {
    let mut measured = Measurements::new(Duration::from_secs(seconds));
    for _ in 0..calls {
        measured.actions[Action::ViewProfile as usize].record(us * 1000, None);
    }
    measured.actions[Action::ListFriends as usize].record(200_000_000, None);
    measured
}

pub struct OpenDeck {
    pub board: Arc<Board>,
    pub pressed: Arc<PressedButtons>,
    pub deck: Deck,
}

pub fn open(command: &'static str, sla: Option<&str>) -> OpenDeck {
    open_within(Limits::default(), command, sla)
}

fn open_within(limits: Limits, command: &'static str, sla: Option<&str>) -> OpenDeck {
    let pressed = Arc::new(PressedButtons::default());
    let sla = sla.map(|text| text.parse().expect("an agreement"));
    let board = Arc::new(Board::new(about(command), sla, pressed.clone()));
    let deck = Deck::open_within(limits, "0", board.clone()).expect("opens");
    OpenDeck {
        board,
        pressed,
        deck,
    }
}

impl OpenDeck {
    pub fn second(&self, now: u64, threads: u32) {
        let (second, total) = (measured(1, 99, 50), measured(now, 99 * now, 50));
        self.board.record_second(&Second {
            now: Duration::from_secs(now),
            threads,
            second: &second,
            total: &total,
            failures: &[],
        });
    }

    fn state(&self, from: u64) -> Value {
        let path = format!("/v1/state?from={from}");
        let (status, body) = get(self.deck.addr(), &path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let json = [("Content-Type", "application/json")];
        let (status, body) = ask(self.deck.addr(), "POST", path, &json, &body.to_string());
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    #[track_caller]
    fn expect_error(&self, path: &str, body: &Value, status: u16, why: &str) {
        let (got, answer) = self.post(path, body);
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(
            got == status && message.contains(why),
            "{path} {body}: {got} {message}"
        );
    }
}

fn get(addr: SocketAddr, path: &str) -> (u16, String) {
    ask(addr, "GET", path, &[], "")
}

fn ask(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (u16, String) {
    let mut stream = TcpStream::connect(addr).expect("the deck listens");
    let mut request = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
    if !headers.iter().any(|(name, _)| *name == "Host") {
        request += &format!("Host: {addr}\r\n");
    }
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let status = head.split(' ').nth(1).expect("a status");
    (status.parse().expect("a number"), body.to_owned())
}

#[test]
fn a_trial_bounded_by_a_count_has_no_length() {
    let open = open("run", None);
    open.board
        .record_start(&Trial::counted(Load::Threads(4), 500));
    open.second(1, 4);
    let state = open.state(0);
    assert_eq!(state["phase"], "running");
    assert_eq!(state["trial"]["seconds"], Value::Null);
    assert_eq!(state["trial"]["actions"], 500);
    open.board.record_start(&trial(Load::Threads(4), 10));
    let state = open.state(0);
    assert_eq!(state["trial"]["seconds"], 10.0);
    assert_eq!(state["trial"]["actions"], Value::Null);
}

#[test]
fn each_second_has_statistics_in_total_and_for_each_action() {
    let open = open(
        "run",
        Some("95% < 100ms, list-friends: 90% < 100ms, 0.1% unpredictable, 60s"),
    );
    let before = open.state(0);
    assert_eq!(
        (&before["phase"], &before["all"]),
        (&json!("waiting"), &Value::Null)
    );
    assert_eq!(before["agreement"]["clauses"][0]["state"], "open");
    open.board.record_start(&trial(Load::Threads(4), 10));
    for now in 1..=3 {
        open.second(now, 4);
    }
    let state = open.state(0);
    assert_eq!(state["phase"], "running");
    assert_eq!(state["trial"]["elapsed_seconds"], 3.0);
    assert_eq!(state["all"]["second"]["actions_per_second"], 100.0);
    let rows = state["actions"].as_array().expect("rows");
    let names: Vec<_> = rows.iter().map(|row| row["action"].as_str()).collect();
    assert_eq!(names, [Some("view-profile"), Some("list-friends")]);
    let p99 = rows[0]["trial"]["latency_us_p99"]
        .as_f64()
        .expect("a number");
    assert!((49.0..51.0).contains(&p99), "{p99}");
    // Each action is compared with its own clause, or with that of all actions.
    assert_eq!(rows[0]["agreed"]["met"], true);
    assert_eq!(rows[1]["agreed"]["within_percent"], 0.0);
    assert_eq!(rows[1]["agreed"]["met"], false);
    let states: Vec<_> = state["agreement"]["clauses"]
        .as_array()
        .expect("clauses")
        .iter()
        .map(|clause| clause["state"].as_str())
        .collect();
    // The last clause is the limit of errors that every agreement has.
    assert_eq!(
        states,
        [Some("met"), Some("missed"), Some("open"), Some("met")]
    );
    // A page that already has some points receives only the others.
    let points = &open.state(2)["points"];
    assert_eq!(
        (&points["from"], points["points"].as_array().map(Vec::len)),
        (&json!(2), Some(1))
    );
    assert_eq!(open.state(9)["points"], json!({"from": 3, "points": []}));
}

#[test]
fn an_hour_of_seconds_is_kept_with_continuous_numbers() {
    let open = open("run", None);
    open.board.record_start(&trial(Load::Threads(1), 100_000));
    let second = Measurements::new(Duration::from_secs(1));
    let most = Board::POINTS_MAX as u64;
    for now in 1..=most + 5 {
        open.board.record_second(&Second {
            now: Duration::from_secs(now),
            threads: 1,
            second: &second,
            total: &second,
            failures: &[],
        });
    }
    let points = &open.state(0)["points"];
    assert_eq!(points["from"], 5);
    assert_eq!(
        points["points"].as_array().map(Vec::len),
        Some(most as usize)
    );
    assert_eq!(
        open.state(most + 4)["points"]["points"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[test]
fn threads_can_be_changed_only_while_a_closed_loop_runs() {
    let open = open("run", None);
    let four = json!({"threads": 4});
    open.expect_error("/v1/threads", &four, 409, "no trial is running");
    open.board.record_start(&trial(Load::Threads(1), 10));
    open.second(1, 1);
    assert_eq!(
        open.post("/v1/threads", &four),
        (200, json!({"threads": 4}))
    );
    assert_eq!(open.pressed.threads.load(Ordering::SeqCst), 4);
    assert_eq!(open.state(0)["trial"]["threads"], 4);
    for (body, why) in [
        (json!({"threads": 0}), "must be 1 to 1000"),
        (json!({"threads": 1001}), "must be 1 to 1000"),
        (json!({"threads": -1}), "invalid value"),
        (json!({"thread": 4}), "unknown field"),
        (json!([]), "invalid length"),
    ] {
        open.expect_error("/v1/threads", &body, 400, why);
    }
    assert_eq!(open.pressed.threads.load(Ordering::SeqCst), 4);
    open.board.record_start(&trial(Load::Rate(100.0), 10));
    open.second(1, 1);
    open.expect_error("/v1/threads", &four, 409, "of an open loop");
    open.board.record_run_end(None);
    open.expect_error("/v1/stop", &json!({}), 409, "the run has ended");
    assert_eq!(open.state(0)["controls"]["stop"], false);

    let search = self::open("rate", None);
    search.board.record_start(&trial(Load::Threads(1), 10));
    search.second(1, 1);
    search.expect_error(
        "/v1/threads",
        &four,
        409,
        "a rating chooses the number of threads",
    );
    assert_eq!(search.state(0)["controls"]["threads"], false);
}

#[test]
fn a_stop_ends_the_running_trial_or_the_next_one() {
    let open = open("run", None);
    // A stop before any trial. The start of a trial resets the controls, so the flag is cleared here.
    assert_eq!(open.post("/v1/stop", &json!({})).0, 200);
    open.pressed.stop.store(false, Ordering::SeqCst);
    open.board.record_start(&trial(Load::Threads(1), 10));
    open.second(1, 1);
    assert!(open.pressed.stop.load(Ordering::SeqCst));
    let state = open.state(0);
    assert_eq!(
        (&state["phase"], &state["controls"]["stopping"]),
        (&json!("ending"), &json!(true))
    );
    assert_eq!(open.board.next_step(), NextStep::Stop);
    open.expect_error(
        "/v1/start",
        &json!({}),
        409,
        "only `bg deck` can start again",
    );
}

#[test]
fn a_stopped_deck_restarts_with_the_chosen_threads() {
    let open = open("deck", None);
    assert_eq!(open.post("/v1/stop", &json!({})).0, 200);
    let board = open.board.clone();
    let waiter = thread::spawn(move || board.wait_for_start());
    while open.state(0)["phase"] != "stopped" {
        thread::yield_now();
    }
    assert_eq!(open.post("/v1/threads", &json!({"threads": 7})).0, 200);
    assert_eq!(open.post("/v1/start", &json!({})).0, 200);
    assert!(waiter.join().expect("no panic"), "it shall go on");
    assert_eq!(open.board.threads(), Some(7));
    // After quit, `rest` returns immediately.
    open.board.quit();
    assert!(!open.board.wait_for_start());
}

#[test]
fn trials_of_a_search_have_verdicts_and_failed_ones_a_reason() {
    struct ScriptedRunner(Mutex<Vec<Result<Measurements, String>>>);
    impl TrialRunner for ScriptedRunner {
        fn run(&mut self, _: &Trial) -> Result<Measurements, String> {
            self.0.lock().unwrap().remove(0)
        }
    }
    let open = open("rate", Some("90% < 100ms, 0% unpredictable, 60s"));
    let mut wrong = measured(3, 99, 50);
    wrong.reads = Some(ReadValidation {
        reads: 100,
        unpredictable: 2,
        by_class: vec![("stale".to_owned(), 2)],
        witnesses: vec!["the first".to_owned()],
        ..ReadValidation::default()
    });
    let mut right = measured(3, 99, 50);
    right.reads = Some(ReadValidation {
        reads: 100,
        ..ReadValidation::default()
    });
    let mut model = ScriptedRunner(Mutex::new(vec![
        Ok(right),
        Ok(wrong),
        Err("cannot connect".to_owned()),
    ]));
    let mut observed = ObservedRunner::new(&mut model, open.board.clone());
    for threads in [1, 2, 4] {
        let _ = observed.run(&trial(Load::Threads(threads), 3));
        open.board.set_purpose("double");
    }
    let state = open.state(0);
    let rows: Vec<_> = state["trials"]
        .as_array()
        .expect("trials")
        .iter()
        .map(|it| {
            (
                it["load"]["threads"].clone(),
                it["met"].clone(),
                it["why"].clone(),
            )
        })
        .collect();
    let why = json!("0% unpredictable: 2.00% of 100 reads");
    assert_eq!(
        rows,
        [
            (json!(1), json!(true), json!("")),
            (json!(2), json!(false), why),
            (json!(4), Value::Null, json!("cannot connect")),
        ]
    );
    assert_eq!(state["trials"][0]["purpose"], "double");
    let reads = &state["reads"];
    assert_eq!(
        (&reads["trial"], &reads["unpredictable"]),
        (&json!(2), &json!(2))
    );
    assert_eq!(reads["by_class"], json!([["stale", 2]]));
    assert_eq!(reads["witnesses"], json!(["the first"]));
}

#[test]
fn requests_from_other_sites_are_rejected() {
    let open = open("run", None);
    open.board.record_start(&trial(Load::Threads(1), 10));
    open.second(1, 1);
    let addr = open.deck.addr();
    let json = ("Content-Type", "application/json");
    for headers in [
        vec![("Content-Type", "text/plain")],
        vec![],
        vec![json, ("Origin", "http://elsewhere.example")],
        vec![json, ("Host", "elsewhere.example")],
    ] {
        let (status, body) = ask(addr, "POST", "/v1/stop", &headers, "{}");
        assert_eq!(status, 403, "{headers:?}: {body}");
    }
    assert!(!open.pressed.stop.load(Ordering::SeqCst));
    let rebound = [("Host", "elsewhere.example")];
    assert_eq!(ask(addr, "GET", "/v1/state", &rebound, "").0, 403);
    assert_eq!(get(addr, "/v1/state?form=1").0, 400);
    assert_eq!(get(addr, "/v1/nothing").0, 404);
    assert_eq!(get(addr, "/v1/stop").0, 405);
    let (status, page) = get(addr, "/");
    assert!(status == 200 && page.contains("<title>bg deck</title>"));
}

#[test]
fn an_open_page_receives_the_end_of_the_run() {
    // With this timeout, a needless wait would be noticed.
    let limits = Limits {
        linger: Duration::from_secs(3600),
        ..Limits::default()
    };
    let alone = open_within(limits, "run", None);
    alone.board.record_run_end(None);
    drop(alone);

    let observed = open_within(limits, "run", None);
    observed.state(0);
    let addr = observed.deck.addr();
    let closing = thread::spawn(move || drop(observed));
    loop {
        let (_, body) = get(addr, "/v1/state");
        let state: Value = serde_json::from_str(&body).expect("JSON");
        if state["phase"] == "ended" {
            break;
        }
    }
    closing.join().expect("no panic");
}

#[test]
fn an_address_in_use_is_rejected_by_name() {
    let open = open("run", None);
    let text = open.deck.addr().to_string();
    let again = Deck::open(&text, open.board.clone());
    let why = again.err().expect("it is taken");
    assert!(why.starts_with(&format!("--deck {text}: ")), "{why}");
    assert!(
        open.deck
            .address_message()
            .ends_with(&format!("http://{text}/"))
    );
}

/// An incomplete request is closed after the timeout and does not block other connections.
#[test]
fn incomplete_requests_time_out_and_free_their_connection() {
    let board = Board::new(about("run"), None, Arc::new(PressedButtons::default()));
    let limits = Limits {
        connections: 2,
        silence: Duration::from_millis(100),
        ..Limits::default()
    };
    let deck = Deck::open_within(limits, "0", Arc::new(board)).expect("opens");
    let send = |text: &str| {
        let mut stream = TcpStream::connect(deck.addr()).expect("connects");
        stream.write_all(text.as_bytes()).expect("sent");
        stream
    };
    let response = |mut stream: TcpStream| {
        let mut response = String::new();
        // A connection that is reset has already delivered its answer.
        let _ = stream.read_to_string(&mut response);
        response
    };
    let head = send("GET /v1/state HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    let body = send(
        "POST /v1/stop HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: 2\r\n\r\n{",
    );
    // Both connections are in use until then.
    let (head, body) = (response(head), response(body));
    assert!(!head.contains("200 OK"), "{head}");
    assert!(
        body.contains("408") && body.contains("did not arrive"),
        "{body}"
    );
    let mut one = send("GET /v1/state");
    let third = [(); 3].map(|()| send("GET /v1/state HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let refused = third
        .map(response)
        .iter()
        .filter(|response| response.contains("503"))
        .count();
    assert!(
        refused > 0,
        "at most two of four concurrent connections are accepted"
    );
    let mut rest = String::new();
    let _ = one.read_to_string(&mut rest);
    let (status, _) = get(deck.addr(), "/v1/state");
    assert_eq!(status, 200);
}
