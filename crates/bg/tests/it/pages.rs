//! Executes the commands of the pages about bg from top to bottom, and compares their output with the pages.
//!
//! The populations are smaller and the trials shorter than on the pages. The server runs in the test's process, because
//! this crate does not build `larder`.

use larder_testing::pages::{self, Reader};

use crate::larder::Larder;

const PAGES: [&str; 6] = [
    "docs/guide/bg.md",
    "docs/guide/bg-add-a-store.md",
    "docs/guide/bg-deck.md",
    "docs/guide/bg-rating.md",
    "docs/guide/bg-stores.md",
    "docs/guide/validation.md",
];

#[track_caller]
fn check(page: &str, section: Option<&'static str>) {
    let Some(mut reader) = Reader::new() else {
        return;
    };
    let server = Larder::start(1);
    let (resp, http) = server.ports();
    reader.map_port(7379, resp);
    reader.map_port(7070, http);
    reader.script("larder", "exec tail -f /dev/null");
    // On a busy machine, no load may meet the agreement: status 1.
    let bg = format!(
        "case $1 in load | run | rate | deck) set -- \"$@\" --friends 10 --resources 5 ;; esac\n\
         case $1 in rate) set -- \"$@\" --within 3s ;; esac\n\
         case \"$*\" in *'--store larder'*) set -- \"$@\" --at \"$LARDER_SERVER_RESP\" ;; esac\n\
         [ \"$1\" = rate ] || exec {0} \"$@\"\n\
         {0} \"$@\"; status=$?\n\
         case $1$status in rate1) exit 0 ;; esac\n\
         exit $status",
        env!("CARGO_BIN_EXE_bg")
    );
    reader.script("bg", &bg);
    for (duration, short) in [
        ("--members 1000", "--members 200"),
        ("--trial 3s", "--trial 100ms"),
        ("--trial 1s", "--trial 100ms"),
        (", 60s'", ", 500ms'"),
        (", 10s'", ", 500ms'"),
        (", 5s", ", 500ms"),
        ("--duration 5s", "--duration 500ms"),
    ] {
        reader.replace(duration, short);
    }
    if let Some(section) = section {
        reader.only_section(section);
    }
    reader.check(page);
}

#[test]
fn bg() {
    check(PAGES[0], None);
}

#[test]
fn bg_add_a_store() {
    check(PAGES[1], None);
}

#[test]
fn bg_deck() {
    check(PAGES[2], None);
}

#[test]
fn bg_rating() {
    check(PAGES[3], None);
}

#[test]
fn bg_stores() {
    check(PAGES[4], None);
}

#[test]
fn validation() {
    check(PAGES[5], None);
}

#[test]
fn the_ratings_of_the_readme() {
    check("README.md", Some("Rating a data store"));
}

#[test]
fn every_page_about_bg_has_a_test() {
    for page in pages::all() {
        let is_about_bg = page.contains("/bg") || page.ends_with("/validation.md");
        assert!(!is_about_bg || PAGES.contains(&&*page), "{page}");
    }
}
