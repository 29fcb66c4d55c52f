//! Tests of the deck's page in a browser: content, buttons and layout.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::Ordering;

use larder_bg::verdict::measure::{Load, Measurements, Trial, TrialRunner};

use super::deck::{self, measured, trial};
use larder_testing::browser::Browser;

const PHASE: &str = "document.querySelector('#phase').textContent";
const FIRST_FIGURE: &str = "document.querySelector('#figures dd').firstChild.data";

#[test]
fn the_page_shows_each_second_and_its_buttons_work() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let open = deck::open("run", Some("95% < 100ms, list-friends: 90% < 100ms, 60s"));
    browser.open(&format!("http://{}/", open.deck.addr()));
    browser.wait_until(&format!("{PHASE} === 'starting'"));
    open.board.record_start(&trial(Load::Threads(4), 60));
    open.second(1, 4);
    browser.wait_until(&format!(
        "{PHASE} === 'running' && {FIRST_FIGURE} === '100'"
    ));
    let clauses = browser.text("#clauses .mark");
    assert_eq!(clauses, "✓\n✗\n✓");
    assert_eq!(
        browser.text("#actions td:first-child"),
        "view-profile\nlist-friends\nall"
    );
    assert!(browser.text("#doing").contains("4 threads"));
    // One path for each line, with a segment for each second.
    open.second(2, 4);
    browser.wait_until("document.querySelector('#throughput path[stroke-width]').getAttribute('d').split('L').length === 2");

    browser.click("#twice");
    browser.wait_until("document.querySelector('#count').value === '8' && document.querySelector('#doing').textContent.includes('8 threads')");
    assert_eq!(open.pressed.threads.load(Ordering::SeqCst), 8);
    browser.fill("#count", "12");
    browser.click("#set");
    browser.wait_until("document.querySelector('#doing').textContent.includes('12 threads')");
    assert_eq!(open.pressed.threads.load(Ordering::SeqCst), 12);
    // On a phone, the page fits without horizontal scrolling.
    browser.set_viewport(360, true);
    browser.wait_until("document.documentElement.scrollWidth <= 360 && document.querySelector('#throughput svg').clientWidth < 360");

    browser.click("#stop");
    browser.wait_until(&format!(
        "{PHASE} === 'stopping' && document.querySelector('#stop').disabled"
    ));
    assert!(open.pressed.stop.load(Ordering::SeqCst));
    // The run ends and the server is gone; the page must not report this as a lost connection.
    open.board.record_end(&Ok(measured(2, 198, 50)));
    drop(open);
    browser.wait_until(&format!("{PHASE} === 'ended'"));
    browser.wait_until("lost === true");
    assert_eq!(
        browser.value("document.querySelector('#lost').hidden"),
        true
    );
    assert_eq!(browser.value(PHASE), "ended");
}

#[test]
fn a_search_is_a_plot_of_points_with_their_verdicts() {
    struct SimulatedRunner;
    impl TrialRunner for SimulatedRunner {
        fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
            let Load::Threads(threads) = trial.load else {
                return Err("threads alone".to_owned());
            };
            Ok(measured(
                3,
                u64::from(threads) * 100,
                u64::from(threads) * 60,
            ))
        }
    }
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let open = deck::open("rate", Some("90% < 400us, 60s"));
    let mut model = SimulatedRunner;
    let mut observed = larder_bg::ui::deck::ObservedRunner::new(&mut model, open.board.clone());
    for threads in [1, 2, 4, 8] {
        observed
            .run(&trial(Load::Threads(threads), 3))
            .expect("a result");
        open.board.set_purpose("double");
    }
    browser.set_viewport(1000, false);
    browser.open(&format!("http://{}/", open.deck.addr()));
    browser.wait_until("document.querySelectorAll('#visited g[data-trial]').length === 4");
    let shown = browser.text("#trials td:first-child");
    assert_eq!(shown, "4 double\n3 double\n2 double\n1 double");
    let missed = "[...document.querySelectorAll('#visited g[data-trial] path')].map(cross => cross.getAttribute('visibility')).join()";
    assert_eq!(browser.value(missed), "hidden,hidden,hidden,visible");
    assert!(
        browser
            .text("#trials tr:first-child .why")
            .contains("90% < 400us")
    );
    // A search chooses its threads, so the control is hidden.
    assert_eq!(
        browser.value("document.querySelector('#threads').hidden"),
        true
    );
    open.board
        .record_run_end(Some("the data store is gone".to_owned()));
    browser.wait_until(&format!("{PHASE} === 'failed'"));
    assert_eq!(browser.text("#failed"), "the data store is gone");
}

/// A bg process with its deck open, killed when dropped.
struct Bg {
    child: Child,
    url: String,
    /// The folder of its traces, which remain if it is killed.
    _scratch: tempfile::TempDir,
    /// Kept open: bg prints a line for each second to it.
    _stderr: BufReader<ChildStderr>,
}

impl Bg {
    fn start(arguments: &str) -> Bg {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_bg"))
            .args(arguments.split(' '))
            .args("--store memory --members 100 --friends 4 --resources 2".split(' '))
            .env("TMPDIR", scratch.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("bg starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("bg prints its address");
        let url = line
            .trim()
            .strip_prefix("deck at ")
            .expect("where the deck is");
        Bg {
            url: url.to_owned(),
            child,
            _scratch: scratch,
            _stderr: stderr,
        }
    }

    /// Returns the output after the process has ended.
    fn result(mut self) -> String {
        let mut out = String::new();
        let stdout = self.child.stdout.as_mut().expect("piped");
        stdout.read_to_string(&mut out).expect("text");
        let status = self.child.wait().expect("our own child");
        assert!(status.success(), "{status}: {out}");
        out
    }
}

impl Drop for Bg {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_run_can_be_observed_and_controlled_in_the_browser() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    // Each thread waits between its actions, so throughput is proportional to the number of threads.
    let bg = Bg::start(
        "run --quiet --deck 0 --duration 600s --threads 2 --between 20ms --sla 95%<1s,0%unpredictable",
    );
    browser.open(&bg.url);
    browser.wait_until(&format!(
        "{PHASE} === 'running' && Number({FIRST_FIGURE}) > 50"
    ));
    let few = browser.value("state.all.second.actions_per_second");
    browser.fill("#count", "20");
    browser.click("#set");
    browser.wait_until(&format!("state.all.second.actions_per_second > 5 * {few}"));
    // The line in the plot rises too: the y coordinate of the last point is smaller than that of the first.
    browser.wait_until(
        "(([first, ...rest]) => Number(rest.pop()) < Number(first) - 50)(document.querySelector('#throughput path[stroke-width]').getAttribute('d').match(/ [0-9.]+/g))",
    );
    assert!(browser.text("#clauses").contains("95% < 1s"));
    browser.click("#stop");
    browser.wait_until(&format!("{PHASE} === 'ended'"));
    // Evaluated before the end: both clauses and the limit of errors, over the whole trial.
    assert_eq!(browser.text("#clauses .mark"), "✓\n✓\n✓");
    let out = bg.result();
    assert!(out.contains("met    0% unpredictable"), "{out}");
}

#[test]
fn a_deck_restarts_after_a_stop_and_a_killed_one_is_shown_as_lost() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let mut bg = Bg::start("deck --listen 0 --duration 1s --between 5ms");
    browser.open(&bg.url);
    // One trial after another, each validated.
    browser.wait_until("state.trials.length >= 2 && state.trials[1].unpredictable === 0");
    assert!(browser.text("#readsverdict").contains("none unpredictable"));
    browser.click("#stop");
    browser.wait_until(&format!("{PHASE} === 'stopped'"));
    let trials = browser.value("state.trials.length");
    browser.fill("#count", "3");
    browser.click("#set");
    browser.wait_until("state.controls.threads_next === 3");
    browser.click("#start");
    browser.wait_until(&format!("state.trials.length > {trials}"));
    assert_eq!(
        browser.value(&format!("state.trials[{trials}].load.threads")),
        3
    );
    bg.child.kill().expect("our own child");
    browser.wait_until(&format!(
        "{PHASE} === 'connection lost' && !document.querySelector('#lost').hidden && document.querySelector('#stop').disabled"
    ));
}

#[test]
fn a_rating_shows_its_search_and_its_result() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let bg =
        Bg::start("rate --deck 0 --sla 50%<1s,1s --most 4 --trial 400ms --warmup 0s --untraced");
    browser.open(&bg.url);
    browser.wait_until("state.trials.length > 1 && state.trials.every(trial => trial.met)");
    browser.wait_until(&format!("{PHASE} === 'ended'"));
    assert!(
        browser.text("#rating").starts_with("rated "),
        "{}",
        browser.text("#rating")
    );
    // The trial that confirmed the rating has a ring.
    let ring = "[...document.querySelectorAll('#visited g[data-trial]')].filter(g => g.firstChild.getAttribute('visibility') === 'visible').map(g => Number(g.dataset.trial)).join()";
    let confirming = "state.trials.filter(trial => trial.purpose === 'confirm')";
    let is_one = format!("String({confirming}.some(trial => String(trial.number) === {ring}))");
    assert_eq!(browser.value(&is_one), "true");
    let out = bg.result();
    assert!(out.contains("SoAR "), "{out}");
}
