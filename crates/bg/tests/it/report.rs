//! Tests of rating reports: the pages are self-contained, and the JSON contains the same results.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use larder_bg::model::action::Action;
use larder_bg::model::draw::Cell;
use larder_bg::rate::compare::{ComparisonVerdict, Subject, compare};
use larder_bg::rate::report::{Facts, Machine, Report};
use larder_bg::rate::{Goal, Plan, Rating, rate};
use larder_bg::stores::contract::Failure;
use larder_bg::ui::page;
use larder_bg::verdict::measure::{
    Effort, Load, Measurements, ReadValidation, SecondMeasurements, Trial, TrialRunner,
};

/// A simulated store whose results contain everything that a page may show.
struct Everything;

impl TrialRunner for Everything {
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
        let Load::Threads(threads) = trial.load else {
            panic!("closed loop");
        };
        let load = f64::from(threads);
        let seconds = trial.duration.as_secs();
        let mut measured = Measurements::new(trial.duration);
        let per_second = (900.0 * load / (1.0 + (load / 60.0).powi(2))) as u64;
        let latency =
            |percent: u64| 40_000 + (load * 9_000.0) as u64 * (1 + percent * percent / 900);
        for (action, share) in [
            (Action::ViewProfile, 70),
            (Action::ListFriends, 25),
            (Action::InviteFriend, 5),
        ] {
            let one = &mut measured.actions[action as usize];
            for percent in 0..100 {
                let count = per_second * seconds * share / 10_000;
                one.latency.record_n(latency(percent), count).unwrap();
            }
        }
        let invite = &mut measured.actions[Action::InviteFriend as usize];
        invite.record(5_000_000_000, Some(&Failure::Unknown("late".to_owned())));
        invite.skipped = 17;
        for second in 0..seconds {
            let mut moment = SecondMeasurements::new();
            for percent in 0..100 {
                let count = per_second / (100 + second % 7);
                moment.latency.record_n(latency(percent), count).unwrap();
            }
            (moment.reads, moment.unpredictable) = (1000, second % 3);
            measured.series.push(moment);
        }
        let mut ages = vec![0; 65];
        for (bits, count) in [(14, 3), (15, 12), (17, 31), (18, 40), (20, 9)] {
            ages[bits] = count;
        }
        measured.reads = Some(ReadValidation {
            reads: per_second * seconds,
            unpredictable: per_second * seconds / 400,
            by_class: vec![
                ("stale".to_owned(), per_second * seconds / 400),
                ("phantom".to_owned(), 0),
            ],
            by_level: [Some(80), Some(90), None, Some(101), None],
            ages,
            witnesses: vec![
                "list-friends of 7 <at 3 s> saw {1, 2}; 3 was acknowledged before".to_owned(),
            ],
            ..ReadValidation::default()
        });
        let cell = |rank: u32, intended, drawn| Cell {
            first_rank: rank,
            last_rank: rank,
            intended,
            drawn,
        };
        measured.drawn.cells = vec![cell(1, 0.6, 500), cell(2, 0.3, 400), cell(3, 0.1, 100)];
        measured.effort = Some(Effort {
            cpu: trial.duration.mul_f64(0.4),
            processors: 2,
            busiest_worker: if threads > 64 { 0.97 } else { 0.31 },
            others: None,
            stolen: None,
        });
        Ok(measured)
    }
}

fn plan(sla: &str) -> Plan {
    Plan::new(sla.parse().unwrap(), Goal::Soar)
}

fn report(plan: &Plan, rating: &Rating) -> Report {
    let facts = Facts {
        store: "a <store>".to_owned(),
        command: "bg rate --sla '95% < 1ms'".to_owned(),
        settings: vec![("mix".to_owned(), "low-write".to_owned())],
        machine: Machine::here(),
    };
    Report::new(plan, rating, facts)
}

/// Writes a report and returns the page and the JSON.
fn written(report: &Report) -> (String, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let page = page::write(report, &folder.path().join("new/folder")).unwrap();
    let json = std::fs::read(page.with_file_name("rating.json")).unwrap();
    let page = std::fs::read_to_string(page).unwrap();
    if let Ok(keep) = std::env::var("LARDER_KEEP_REPORT") {
        std::fs::write(keep, &page).unwrap();
    }
    (page, serde_json::from_slice(&json).unwrap())
}

#[test]
fn a_page_is_complete_and_self_contained() {
    let plan = plan("95% < 1ms, list-friends: p99 < 20ms, 1% errors, 1% unpredictable, 30s");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let report = report(&plan, &rating);
    let (page, json) = written(&report);
    for part in [
        "a &lt;store&gt;: SoAR ",
        "bg rate --sla '95% &lt; 1ms'",
        "Throughput of each load visited",
        "Latency over time",
        "Unpredictable reads over time",
        "Age of stale reads",
        "Members drawn 1000 times: 50.00 % of the draws went to the most popular 20 % (intended 60.00 %)",
        "&lt;at 3 s&gt; saw {1, 2}",
        "list-friends",
        " stale.",
        "missed: 95% &lt; 1ms",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Nothing is loaded and no script runs; external text is escaped.
    for part in [
        "http",
        "<script",
        "<link",
        "@import",
        "url(",
        "<store>",
        "<at 3",
        "0 phantom",
    ] {
        assert!(!page.contains(part), "{part}");
    }
    for element in [
        "svg", "table", "p", "div", "pre", "dl", "h2", "h3", "text", "circle",
    ] {
        let opened = page.matches(&format!("<{element} ")).count()
            + page.matches(&format!("<{element}>")).count();
        let closed = page.matches(&format!("</{element}>")).count();
        assert_eq!(opened, closed, "{element}");
    }
    // Each experiment is in the table, the chart and the JSON.
    let experiments = rating.experiments.len();
    assert_eq!(json["experiments"].as_array().unwrap().len(), experiments);
    assert_eq!(
        page.matches("class=\"dot met\"").count() + page.matches("class=\"cross missed\"").count(),
        experiments
    );
    assert_eq!(json["format"], "bg-rating-1");
    assert_eq!(json["load"].as_u64().unwrap(), rating.load());
    assert_eq!(json["plan"]["sla"], plan.sla.to_string());
    let shown = &json["experiments"][json["shown"].as_u64().unwrap() as usize - 1];
    assert_eq!(shown["purpose"], "confirm");
    let measured: Measurements = serde_json::from_value(json["measured"].clone()).unwrap();
    assert_eq!(measured.duration, Duration::from_secs(30));
    assert_eq!(measured.done(), rating.best().unwrap().measured.done());
}

/// Recorded runs keep only the JSON; the page can be generated from it.
#[test]
fn a_page_can_be_generated_from_its_json() {
    let plan = plan("95% < 1ms, list-friends: p99 < 20ms, 1% errors, 1% unpredictable at counts");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let folder = tempfile::tempdir().unwrap();
    let page = page::write(&report(&plan, &rating), folder.path()).unwrap();
    let written = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    let bg_report = |more: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
        command.arg("report").args(more).output().unwrap()
    };
    let made = bg_report(&[folder.path()]);
    assert_eq!(
        String::from_utf8_lossy(&made.stdout).trim_end(),
        page.to_str().unwrap()
    );
    assert!(std::fs::read_to_string(&page).unwrap() == written);

    let json = folder.path().join("rating.json");
    let elsewhere = folder.path().join("elsewhere.html");
    let made = bg_report(&[&json, Path::new("--to"), &elsewhere]);
    assert!(made.status.success());
    assert!(std::fs::read_to_string(&elsewhere).unwrap() == written);
    // A page is not JSON, and the JSON of a run is not a rating.
    std::fs::write(
        &json,
        serde_json::to_string(&Measurements::new(Duration::ZERO)).unwrap(),
    )
    .unwrap();
    for (file, why) in [
        (&elsewhere, "not valid JSON"),
        (&json, "without a format name"),
    ] {
        let refused = bg_report(&[file]);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2));
        assert!(stderr.contains(why), "{stderr}");
    }
}

#[test]
fn a_rating_of_zero_names_the_missed_clause() {
    let plan = plan("95% < 1us, 5s");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let (page, json) = written(&report(&plan, &rating));
    assert!(page.contains("SoAR 0 actions/s") && page.contains("No load meets the agreement"));
    assert!(page.contains("Even a load of 1 misses the agreement: 95% &lt; 1us"));
    assert_eq!(json["load"], 0);
}

/// A store that fails from the third trial on.
struct Dies(u32);

impl TrialRunner for Dies {
    fn run(&mut self, trial: &Trial) -> Result<Measurements, String> {
        self.0 += 1;
        match self.0 {
            1 | 2 => Everything.run(trial),
            _ => Err("client 10.0.0.7:4000: the connection was closed".to_owned()),
        }
    }
}

#[test]
fn an_incomplete_search_also_has_a_page() {
    let plan = plan("95% < 1s, 1% errors, 5s");
    let rating = rate(&plan, &mut Dies(0), &mut |_| true);
    let (page, json) = written(&report(&plan, &rating));
    assert!(page.contains("SoAR unknown: failed") && page.contains("client 10.0.0.7:4000"));
    assert_eq!(json["end"], "failed");
    assert_eq!(json["experiments"].as_array().unwrap().len(), 2);
    let rating = rate(&plan, &mut Dies(2), &mut |_| true);
    let (page, json) = written(&report(&plan, &rating));
    assert!(page.contains("unknown: failed") && json["measured"].is_null());
    let rating = rate(&plan, &mut Everything, &mut |_| false);
    let (page, _) = written(&report(&plan, &rating));
    assert!(page.contains("SoAR unknown: interrupted"));
}

#[test]
fn a_generator_short_of_processors_causes_a_warning() {
    let plan = plan("95% < 1s, 1% errors, 5s");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let mut measured = rating.best().unwrap().measured.clone();
    assert_eq!(measured.generator_warning(), None);
    measured.effort.as_mut().unwrap().busiest_worker = 0.95;
    assert!(
        measured
            .generator_warning()
            .unwrap()
            .contains("busiest worker")
    );
    let effort = measured.effort.as_mut().unwrap();
    (effort.busiest_worker, effort.cpu) = (0.5, measured.duration.mul_f64(1.9));
    assert!(
        measured
            .generator_warning()
            .unwrap()
            .contains("1.90 of 2 processors")
    );
    measured.effort = None;
    assert_eq!(measured.generator_warning(), None);
}

#[test]
fn processor_use_by_other_processes_causes_a_warning() {
    let plan = plan("95% < 1s, 1% errors, 5s");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let mut measured = rating.best().unwrap().measured.clone();
    assert_eq!(measured.disturbance_warning(), None);
    let part = |part: f64| Some(measured.duration.mul_f64(part));
    let (little, much) = (part(0.06), part(0.8));
    let effort = measured.effort.as_mut().unwrap();
    (effort.others, effort.stolen) = (little, little);
    assert!(
        measured.disturbance_warning().is_some(),
        "0.12 of 2 processors"
    );
    measured.effort.as_mut().unwrap().stolen = None;
    assert_eq!(measured.disturbance_warning(), None);
    measured.effort.as_mut().unwrap().others = much;
    let warning = measured.disturbance_warning().unwrap();
    assert!(
        warning.contains("other processes used 0.80 of 2 processors"),
        "{warning}"
    );
    // A single disturbed trial of a search is also reported.
    let mut rating = rating;
    rating.experiments[2].measured = measured;
    let report = report(&plan, &rating);
    let warning = &report.warnings[0];
    assert!(
        warning.contains("in trial 3, other processes used 0.80"),
        "{warning}"
    );
}

#[test]
fn the_page_shows_the_spread_of_a_rating() {
    let plan = plan("95% < 1s, 1% errors, 5s");
    let rating = rate(&plan, &mut Everything, &mut |_| true);
    let (page, json) = written(&report(&plan, &rating));
    let spread = rating.spread().unwrap();
    assert!(spread.trials > 1, "{spread:?}");
    assert!(spread.least <= rating.throughput() && rating.throughput() <= spread.most);
    assert_eq!(json["spread"]["trials"], spread.trials);
    let spread_line = format!("{} trials of that load", spread.trials);
    assert!(page.contains(&spread_line));
}

#[test]
fn comparing_ratings_uses_the_noise_of_repeated_loads() {
    let plan = plan("95% < 1s, 1% errors, 5s");
    let json = |change: &dyn Fn(&mut serde_json::Value)| {
        let rating = rate(&plan, &mut Everything, &mut |_| true);
        let (_, mut json) = written(&report(&plan, &rating));
        change(&mut json);
        Subject::read(&json.to_string())
    };
    let compared = |one: &Subject, other: &Subject| compare(one, other, 0.02).unwrap();
    let same = json(&|_| {}).unwrap();
    assert_eq!(compared(&same, &same).verdict, ComparisonVerdict::Alike);
    let throughput = |factor: f64| {
        json(&move |json| {
            let rated = json["throughput"].as_f64().unwrap();
            json["throughput"] = (rated * factor).into();
            json["facts"]["settings"][0][1] = "high-write".into();
        })
        .unwrap()
    };
    let worse = compared(&same, &throughput(0.5));
    assert_eq!(worse.verdict, ComparisonVerdict::Worse);
    assert_eq!(worse.differences, ["mix: low-write and high-write"]);
    assert_eq!(
        compared(&same, &throughput(2.0)).verdict,
        ComparisonVerdict::Better
    );
    assert_eq!(
        compared(&same, &throughput(1.01)).verdict,
        ComparisonVerdict::Alike
    );
    // With such noise between trials of one load, no difference is significant.
    let noisy = json(&|json| {
        let rows = json["experiments"].as_array_mut().unwrap();
        for (number, row) in rows.iter_mut().enumerate() {
            row["load"] = 8.into();
            row["throughput"] = (1000 * (1 + number % 2)).into();
        }
    })
    .unwrap();
    let rated = noisy_half(&noisy, &same);
    assert_eq!(rated, ComparisonVerdict::Alike);
    // Any increase in wrong reads is worse.
    let stale = json(&|json| json["experiments"][0]["wrong"] = 5000.into()).unwrap();
    assert_eq!(compared(&same, &stale).verdict, ComparisonVerdict::Worse);
    let unknown = json(&|json| json["end"] = "interrupted".into()).unwrap_err();
    assert!(unknown.contains("the search was interrupted"), "{unknown}");
}

/// Returns the verdict on the throughput alone.
fn noisy_half(noisy: &Subject, other: &Subject) -> ComparisonVerdict {
    compare(noisy, other, 0.02).unwrap().rows[0].verdict
}

fn bg_rate(sla: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bg"));
    command.args(["rate", "--store", "memory", "--members", "200"]);
    command.args(["--friends", "10", "--resources", "5", "--most", "2"]);
    command.args(["--trial", "100ms", "--warmup", "0s", "--sla", sla]);
    command.args(more).output().unwrap()
}

#[test]
fn the_command_rates_a_store_and_writes_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().to_str().unwrap();
    let sla = "95% < 1s, 0% unpredictable, 200ms";
    let output = bg_rate(sla, &["--report", to, "--between-trials", "reload"]);
    let text = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert!(
        text.contains("\nSoAR ") || text.starts_with("SoAR "),
        "{text}"
    );
    assert!(text.contains(&format!("--sla '{sla}'")), "{text}");
    assert!(stderr.contains("confirm"), "{stderr}");
    let json = std::fs::read(Path::new(to).join("rating.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert!(json["throughput"].as_f64().unwrap() > 0.0);
    assert!(json["measured"]["reads"]["reads"].as_u64().unwrap() > 0);
    assert_eq!(json["measured"]["reads"]["unpredictable"], 0);
}

#[test]
fn the_command_rejects_invalid_options() {
    let cases: [(&str, &[&str], &str); 6] = [
        ("95% < 1", &[], "column 8"),
        (
            "95% < 1s",
            &["--first", "3"],
            "--first 3: must be 1 to the highest load, 2",
        ),
        ("95% < 1s", &["--tolerance", "0"], "--tolerance 0"),
        ("95% < 1s", &["--trials", "0"], "--trials 0"),
        (
            "95% < 1s, 7s",
            &["--within", "5s"],
            "must be at least 7.1 s",
        ),
        (
            "1% unpredictable",
            &["--untraced"],
            "reads are not validated",
        ),
    ];
    for (sla, more, why) in cases {
        let output = bg_rate(sla, more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stderr.contains(why), "{stderr}");
    }
}
