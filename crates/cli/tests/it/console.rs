//! The console of a node, in a browser: the nodes of its cluster, the slots as a ring, and who is down.

use larder_testing::browser::Browser;

use crate::cluster_local::{Local, folder};

#[test]
fn the_console_shows_nodes_and_slots_and_who_is_down() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let data = folder();
    let Some(local) = Local::start(data.path(), 3) else {
        return;
    };
    let http = local.nodes()[0]["http"].as_str().expect("an address");
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
        browser.look(width, dark);
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
