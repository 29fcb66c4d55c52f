//! The console in a browser: the nodes of a cluster, the slots as a ring, and nodes that are down; spaces, diagrams of
//! their subspaces, and plans.

use larder_testing::browser::Browser;

use serde_json::Value;

use crate::cluster_local::{Local, folder};
use crate::support::{run_ok, spawn_server_with};

#[test]
fn the_console_shows_nodes_slots_and_failures() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let data = folder();
    let Some(local) = Local::start(data.path(), 3) else {
        return;
    };
    let http = local.http(0);
    browser.open(&format!("{http}/"));
    browser.wait_until("document.querySelectorAll('#nodes tbody tr').length === 3");
    assert_eq!(browser.text("#cluster h2"), "Cluster local");
    let names = browser.text("#nodes tbody td:first-child");
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["node-1", "node-2", "node-3"]);
    browser.wait_until(
        "new Set([...document.querySelectorAll('.ring path[stroke-width=\"20\"]')].map(part => part.getAttribute('stroke'))).size === 3",
    );
    assert!(browser.text(".ring title").contains(": node-2"));
    assert!(browser.text(".ring text").contains("16,384"));
    for (width, dark) in [(1200, false), (390, true)] {
        browser.set_viewport(width, dark);
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(fits), true, "it is wider than {width}");
    }

    let pid = local.nodes()[1]["pid"].as_u64().expect("a number");
    local.signal("-KILL", pid);
    browser.wait_until(
        "[...document.querySelectorAll('#nodes .tag.bad')].some(tag => tag.textContent === 'down')",
    );
    assert_eq!(
        browser.value("document.body.classList.contains('lost')"),
        false
    );
    local.end("-TERM");
}

#[test]
fn the_console_keeps_the_focus_and_sends_no_request_that_fails() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let data = tempfile::tempdir().expect("a folder");
    let server = spawn_server_with(data.path(), |_| {});
    let resp = server.resp();
    let command = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).expect(line)
    };
    for space in ["inns", "stays"] {
        command(&format!(
            "FT.CREATE {space} PREFIX 1 {space}: SCHEMA city TAG"
        ));
    }
    browser.open(&format!("{}/", server.http));
    browser.wait_until("document.querySelectorAll('.spaces button').length === 2");
    let names = "new Set([...document.querySelectorAll('.spaces button')].map(button => button.getAttribute('aria-label'))).size";
    assert_eq!(browser.value(names), 2);
    let second = "document.querySelectorAll('.spaces button')[1]";
    browser.value(&format!("({second}.focus(), true)"));
    command("HSET stays:1 city rome");
    browser.wait_until("document.querySelector('.spaces tbody').textContent.includes('stays1')");
    assert_eq!(
        browser.value(&format!("document.activeElement === {second}")),
        true
    );
    let failed =
        "performance.getEntriesByType('resource').filter(it => it.responseStatus >= 400).length";
    assert_eq!(browser.value(failed), 0);
}

#[test]
fn the_console_shows_spaces_and_the_regions_of_a_query() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let data = tempfile::tempdir().expect("a folder");
    let server = spawn_server_with(data.path(), |command| {
        command.args(["--set", "server.threads=2"]);
    });
    let resp = server.resp();
    let command = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).expect(line)
    };
    command(
        "FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 2 city city,stars REGIONS 16 SCHEMA city TAG stars NUMERIC",
    );
    for number in 0..200 {
        command(&format!(
            "HSET hotel:{number} city town{} stars {}",
            number % 17,
            number % 5
        ));
    }
    browser.open(&format!("{}/", server.http));
    browser.wait_until("document.querySelectorAll('.spaces tbody tr').length === 1");
    assert!(browser.text(".spaces tbody td").contains("200"));
    browser.click(".spaces button");
    browser.wait_until("document.querySelectorAll('.maps figure').length === 2");
    assert_eq!(
        browser.value("document.querySelectorAll('.maps rect').length"),
        32
    );
    assert_eq!(
        browser.value("document.querySelectorAll('.maps rect.contacted').length"),
        0
    );
    assert!(browser.text(".maps figcaption").contains("200 copies"));
    assert_eq!(browser.text("#space .detail"), "city TAG, stars NUMERIC");
    browser.fill("#query", "@city:{town7}");
    browser.click(".query button");
    browser.wait_until("document.querySelectorAll('.maps rect.contacted').length > 0");
    let contacted = browser.value("document.querySelectorAll('.maps rect.contacted').length");
    assert!(contacted.as_u64().is_some_and(|it| it < 32), "{contacted}");
    assert!(browser.text("#route").starts_with("subspace city: "));
    // Other subspaces are being filled.
    command("FT.ALTER hotels SUBSPACES 2 city stars:2,city:2");
    browser.wait_until("document.querySelectorAll('.maps figure').length === 3");
    browser.wait_until("document.querySelector('#filling progress').value === 1");
    assert!(
        browser
            .text("#filling")
            .contains("New subspaces: city stars:2,city:2")
    );
    assert_eq!(
        browser.value("document.querySelectorAll('.maps figcaption .tag').length"),
        1
    );
    for (width, dark) in [(1200, false), (390, true)] {
        browser.set_viewport(width, dark);
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(fits), true, "it is wider than {width}");
    }
    command("FT.ALTER hotels SUBSPACES CANCEL");
    browser.wait_until("document.querySelector('#filling') === null");
    // An invalid query is reported, and the diagrams stay.
    browser.fill("#query", "@street:{x}");
    browser.click(".query button");
    browser.wait_until("document.querySelector('#space .note') !== null");
    assert!(browser.text("#space .note").contains("street"));
    assert_eq!(
        browser.value("document.querySelectorAll('.maps figure').length"),
        2
    );
    // Another client drops the space.
    command("FT.DROPINDEX hotels");
    browser.wait_until("document.querySelector('#space h2') === null");
    assert_eq!(
        browser.value("document.body.classList.contains('lost')"),
        false
    );
}

#[test]
fn the_console_compares_a_plan_with_the_current_subspaces_and_shows_its_progress() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let data = tempfile::tempdir().expect("a folder");
    let server = spawn_server_with(data.path(), |command| {
        command.args(["--set", "server.threads=2"]);
    });
    let resp = server.resp();
    let command = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).expect(line)
    };
    command("FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 1 price SCHEMA city TAG price NUMERIC");
    for number in 0..200 {
        command(&format!(
            "HSET hotel:{number} city town{} price {number}",
            number % 17
        ));
    }
    let file = |name: &str, text: &str| {
        let path = data.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let workload = file(
        "workload.toml",
        "objects = 100000\n[[attribute]]\nname = \"city\"\ndistinct = 2000\n[[attribute]]\nname = \"price\"\nordered = true\n\
         [[query]]\nname = \"in a city\"\nfrequency = 1.0\nequal = [\"city\"]\nresults = 20.0\n",
    );
    let workload = workload.display().to_string();
    let arguments = ["space", "plan", "--json", "--space", "hotels"];
    let arguments = [
        &arguments[..],
        &["--workload", &workload, "--server", &server.http],
    ];
    let printed = run_ok(arguments.concat());
    let plan: Value = serde_json::from_str(&printed).expect("JSON");
    let lists = plan["chosen"]["subspaces"].as_array().expect("a list");
    let lists: Vec<&str> = lists.iter().filter_map(Value::as_str).collect();
    assert!(!lists.is_empty(), "{printed}");
    browser.open(&format!("{}/#space=hotels", server.http));
    browser.wait_until("document.querySelector('#plan-file') !== null");
    // An invalid plan is reported.
    for (name, text) in [("bad.json", "{"), ("other.json", "{\"best\": {}}")] {
        let path = file(name, text);
        browser.select_file("#plan-file", &path);
        browser.wait_until(&format!(
            "document.querySelector('.plan .note')?.textContent.startsWith('{name} is no plan')"
        ));
    }
    browser.select_file("#plan-file", &file("plan.json", &printed));
    browser.wait_until("document.querySelector('#plan') !== null");
    let names = browser.text("#plan tbody td:first-child");
    let heuristics = plan["heuristics"].as_array().expect("a list");
    let is_simpler = plan["chosen"]["configuration"] != plan["best"]["configuration"];
    let first = is_simpler.then_some("chosen").into_iter();
    let expected = first.chain(["best", "now"]).map(str::to_owned);
    let expected = expected.chain(heuristics.iter().map(|it| {
        let name = it["name"].as_str();
        name.expect("a name").to_owned()
    }));
    assert_eq!(names, expected.collect::<Vec<_>>().join("\n"));
    assert!(
        browser
            .text("#plan tbody tr:first-child")
            .contains(lists[0])
    );
    assert_eq!(browser.text("#plan .tag"), "not applied");
    let drawn = plan["random"].as_array().expect("a list").len();
    assert_eq!(
        browser.value("document.querySelectorAll('#plan circle').length"),
        (drawn + 2 + heuristics.len()) as u64
    );
    let wide = "document.querySelector('#plan .bar.best i').getBoundingClientRect().width >= document.querySelector('#plan .bar.now i').getBoundingClientRect().width";
    assert_eq!(browser.value(wide), true);
    for (width, dark) in [(1200, false), (390, true)] {
        browser.set_viewport(width, dark);
        let fits = "document.documentElement.scrollWidth <= window.innerWidth";
        assert_eq!(browser.value(fits), true, "it is wider than {width}");
    }
    // The plan is applied, and the page shows the progress.
    let regions = plan["servers"]["regions"].as_u64().expect("a number");
    command(&format!(
        "FT.ALTER hotels SUBSPACES {} {} REGIONS {regions}",
        lists.len(),
        lists.join(" ")
    ));
    browser.wait_until("document.querySelector('#plan .tag').textContent === 'on its way'");
    browser.wait_until("document.querySelector('#filling progress').value === 1");
    command("FT.ALTER hotels SUBSPACES SWITCH");
    browser.wait_until("document.querySelector('#plan .tag').textContent === 'in place'");
    assert_eq!(
        browser.value("document.querySelector('#filling')"),
        Value::Null
    );
}
