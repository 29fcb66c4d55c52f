//! larder killed with SIGKILL under load and started again on its data: nothing acknowledged is missing, and what was not
//! acknowledged happened whole or not at all. Stalled with SIGSTOP: calls without an answer are of unknown outcome, and it goes on.
//!
//! The server is this test's own program, started once more to be only [`a_server_that_can_be_killed`].

use std::cell::RefCell;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use larder_bg::draw::{self, Drawing};
use larder_bg::item::Kind;
use larder_bg::judge;
use larder_bg::measure::{ActionMeasured, Laboratory, Load, Measured, Trial};
use larder_bg::mix::Mix;
use larder_bg::population::Population;
use larder_bg::run::{Conduct, Process, Setup, Tracing};
use larder_bg::store::Store;
use larder_bg::stores::Options;
use larder_protocol::config::ServerConfig;
use larder_server::Server;
use larder_validate::Span;
use larder_validate::record::{self, END_STATE, Encoder, Outcome, Record, What};
use larder_validate::set::Sketch;
use rustix::process::{Pid, Signal, kill_process};

use crate::conformance::{open, run};

const DATA: &str = "BG_TEST_SERVER_DATA";
const PORT: &str = "BG_TEST_SERVER_PORT";
const READY: &str = "the server is ready";

/// Not a test by itself: nothing, unless a test of this file started it.
#[test]
fn a_server_that_can_be_killed() {
    let (Ok(data), Ok(port)) = (std::env::var(DATA), std::env::var(PORT)) else {
        return;
    };
    let mut config = ServerConfig::default();
    config.server.data = data.into();
    config.server.resp = format!("127.0.0.1:{port}");
    config.server.http = "127.0.0.1:0".to_owned();
    config.server.threads = 2;
    config.tables.fsync = "always".to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(Server::start(config)).expect("it starts");
    println!("\n{READY}");
    // Until the test ends, if it has not killed this before.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    runtime.block_on(server.stop());
}

/// A server on the same port and data however often it is killed.
struct Killable {
    child: Option<Child>,
    port: u16,
    data: PathBuf,
}

impl Killable {
    fn start(data: &Path) -> Killable {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let mut server = Killable {
            child: None,
            port,
            data: data.to_owned(),
        };
        server.start_again();
        server
    }

    fn start_again(&mut self) {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--nocapture", "--exact"])
            .arg("killed::a_server_that_can_be_killed")
            .env(DATA, &self.data)
            .env(PORT, self.port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = said.lines().map_while(Result::ok);
        assert!(lines.any(|line| line == READY), "the server does not start");
        self.child = Some(child);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("our own child");
    }

    /// SIGKILL.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child");
            child.wait().expect("our own child");
        }
    }
}

impl Drop for Killable {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Killable {
    fn options(&self) -> Options {
        Options {
            address: Some(format!("127.0.0.1:{}", self.port)),
            connections: Some(2),
            ..Options::default()
        }
    }
}

/// Few members, half of whose calls write; loaded.
fn loaded(options: &Options, timeout: Duration, tracing: Tracing) -> Process {
    let population = Arc::new(Population {
        members: 200,
        friends: 10,
        invitations: 2,
        resources: 5,
        comments: 1,
        ..Population::default()
    });
    let mix = "view-profile 20\nlist-friends 10\nview-friend-requests 10\nview-comments 10\n\
        invite-friend 14\naccept-friend-request 7\nreject-friend-request 7\nthaw-friendship 7\n\
        post-comment 8\ndelete-comment 7";
    let mut process = Process::new(Setup {
        store: Arc::from(open("larder", options)),
        mix: Mix::parse("half writes", mix).expect("a mix"),
        drawing: Drawing::of_all(draw::DEFAULT, population.members),
        population,
        conduct: Conduct {
            timeout,
            ..Conduct::default()
        },
        workers: 2,
        tracing,
        seed: 3,
    })
    .expect("a process");
    process.load(&mut |_| {}).expect("loaded");
    process
}

fn failed(measured: &Measured, count: fn(&ActionMeasured) -> u64) -> u64 {
    measured.actions.iter().map(count).sum()
}

fn for_seconds(seconds: u64) -> Trial {
    Trial {
        load: Load::Threads(40),
        warmup: Duration::ZERO,
        duration: Duration::from_secs(seconds),
    }
}

/// The server is stopped for a second and goes on: calls meanwhile have no answer in time, what follows is as it should be.
#[test]
fn larder_stalled_under_load_is_measured_as_that_and_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Killable::start(&folder.path().join("data"));
    let timeout = Duration::from_millis(300);
    let mut process = loaded(&server.options(), timeout, Tracing::Scratch);
    let server = Rc::new(server);
    let mut signals = [Signal::STOP, Signal::CONT].into_iter();
    let stalled = server.clone();
    process.on_second(move |_| {
        if let Some(signal) = signals.next() {
            stalled.signal(signal);
        }
    });
    let measured = process.run(&for_seconds(4)).expect("measured");
    assert!(failed(&measured, |action| action.unknown) > 0);
    assert_eq!(failed(&measured, |action| action.wrong), 0);
    let slowest = measured.actions.iter().map(|action| action.latency.max());
    assert!(slowest.max() >= Some(290_000_000), "the timeout");
    let last = measured.series.last().expect("seconds");
    assert!(last.latency.len() > last.failed, "it goes on");
    let reads = measured.reads.as_ref().expect("it was traced");
    assert!(reads.reads > 200, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");
}

#[test]
fn larder_killed_under_load_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("trace");
    let server = Killable::start(&folder.path().join("data"));
    let options = server.options();
    let keep = Tracing::Keep(trace.clone());
    let mut process = loaded(&options, Conduct::default().timeout, keep);
    let population = process.setup().population.clone();

    let server = Rc::new(RefCell::new(server));
    let killed = server.clone();
    let mut seconds = 0;
    process.on_second(move |_| {
        seconds += 1;
        if seconds < 3 {
            killed.borrow_mut().kill();
            killed.borrow_mut().start_again();
        }
    });
    let measured = process.run(&for_seconds(4)).expect("measured");

    let unknown = failed(&measured, |action| action.unknown);
    assert!(unknown > 0, "nothing was under way");
    assert_eq!(failed(&measured, |action| action.wrong), 0);
    let reads = measured.reads.as_ref().expect("it was traced");
    assert!(reads.reads > 200, "{reads:?}");
    assert_eq!((reads.unpredictable, reads.undecided), (0, 0), "{reads:?}");

    // Once more, so that what is read is what was on disk.
    server.borrow_mut().kill();
    server.borrow_mut().start_again();
    let store = open("larder", &options);
    let left = run(end_state(&*store, &population, last_moment(&trace) + 1));
    let looked_at = left.len() as u64;
    fs::write(trace.join("worker-end.trace"), encoded(&left)).expect("written");
    let report = judge::report_folder(&trace, 2).expect("judged");
    assert_eq!(report.end_state.reads, looked_at);
    assert_eq!(report.end_state.acceptable, looked_at, "{report:?}");
}

/// Every list and count that can be read.
async fn end_state(store: &dyn Store, population: &Arc<Population>, moment: u64) -> Vec<Record> {
    let client = store.connect(population.clone()).await.expect("connected");
    let mut records = Vec::new();
    let mut read = |item: u64, what: What| {
        records.push(Record {
            item,
            span: Span::new(moment, moment).expect("an instant"),
            session: u32::MAX,
            action: END_STATE,
            outcome: Outcome::Done,
            what,
        });
    };
    let list = |item, elements: &[u64]| {
        What::ReadSet(Sketch::of(population.seed, item, elements.iter().copied()))
    };
    let of_members = |members: &[u32]| -> Vec<u64> { members.iter().map(|&m| m.into()).collect() };
    for member in 0..population.members {
        let friends = Kind::Friends.of(member.into());
        let invitations = Kind::Invitations.of(member.into());
        let profile = client
            .view_profile(member, member)
            .await
            .expect("a profile");
        read(friends, What::ReadCount(profile.friends as i64));
        let waiting = profile.invitations.expect("one's own");
        read(invitations, What::ReadCount(waiting as i64));
        let found = client.list_friends(member, member).await.expect("friends");
        read(friends, list(friends, &of_members(&found.members)));
        let found = client.view_friend_requests(member).await.expect("requests");
        read(invitations, list(invitations, &of_members(&found.members)));
    }
    for resource in 0..population.resource_count() {
        let comments = Kind::Comments.of(resource);
        let found = client.view_comments(0, resource).await.expect("comments");
        read(comments, list(comments, &found.comments));
    }
    records
}

fn last_moment(trace: &Path) -> u64 {
    let files = fs::read_dir(trace)
        .expect("the trace")
        .map(|file| file.expect("a file").path());
    let traces = files.filter(|path| path.extension().is_some_and(|end| end == "trace"));
    let records = traces.flat_map(|path| {
        let bytes = fs::read(path).expect("readable");
        record::decode(&bytes).expect("a whole trace")
    });
    // Where nobody knows the end, the start counts.
    let moment = |record: Record| match record.span.end() {
        u64::MAX => record.span.start(),
        end => end,
    };
    records.map(moment).max().expect("there are records")
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    for record in records {
        bytes.extend_from_slice(&encoder.record(record));
    }
    bytes.extend_from_slice(&encoder.footer());
    bytes
}
