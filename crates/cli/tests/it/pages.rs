//! Executes the commands of the README and of the guides from top to bottom, and compares their output with the pages.
//!
//! The tests of `larder-bg` execute the pages about `bg`.

use std::path::Path;

use larder_testing::pages::{self, Reader};

/// Defines a test for each page, and `PAGES`, the list of their paths.
macro_rules! pages {
    ($($name:ident: $page:literal $(, |$reader:ident| $prepare:expr)?;)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                let Some(reader) = &mut reader() else {
                    return;
                };
                $(let $reader = &mut *reader; $prepare;)?
                reader.check($page);
            }
        )*
    };
}

fn reader() -> Option<Reader> {
    let reader = Reader::new()?;
    reader.program("larder", Path::new(env!("CARGO_BIN_EXE_larder")));
    Some(reader)
}

pages! {
    readme: "README.md", |reader| reader.skip_section("Rating a data store");
    clients: "docs/guide/clients.md";
    increments: "docs/guide/increments.md";
    joins: "docs/guide/joins.md";
    objects: "docs/guide/objects.md";
    quality: "docs/guide/quality.md";
    redis_clients: "docs/guide/redis-clients.md";
    spaces: "docs/guide/spaces.md";
    spaces_differences: "docs/guide/spaces-differences.md";
    spaces_plan: "docs/guide/spaces-plan.md", |reader| reader.replace("--seconds 10", "--seconds 1");
    spark: "docs/guide/spark.md";
    stores: "docs/guide/stores.md";
}

#[test]
fn caching() {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    if !python.is_file() {
        larder_testing::report_missing("redis-py");
        return;
    }
    if let Some(reader) = reader() {
        reader.check("docs/guide/caching.md");
    }
}

#[test]
fn cluster() {
    let Some(mut reader) = reader() else {
        return;
    };
    if larder_testing::etcd::program().is_none() {
        larder_testing::report_missing("etcd");
        return;
    }
    reader.map_cluster_ports();
    reader.check("docs/guide/cluster.md");
}

#[test]
fn postgres() {
    let Some(mut reader) = reader() else {
        return;
    };
    let Some(server) = larder_testing::postgres::start(&["wal_level=logical"]) else {
        return;
    };
    // `sudo -u postgres` runs the program as the administrator of the test's own server.
    let port = server.port;
    let connection = format!("PGHOST=127.0.0.1 PGPORT={port} PGUSER=postgres");
    reader.script("sudo", &format!("shift 2; {connection} exec \"$@\""));
    reader.map_port(5432, port);
    reader.check("docs/guide/postgres.md");
}

#[test]
fn spaces_on_one_core_and_on_two() {
    for threads in ["1", "2"] {
        let Some(mut reader) = reader() else {
            return;
        };
        reader.set("LARDER_SERVER_THREADS", threads);
        reader.check("docs/guide/spaces.md");
    }
}

#[test]
fn every_page_has_a_test() {
    for page in pages::all() {
        let is_about_bg = page.contains("/bg") || page.ends_with("/validation.md");
        let is_other = ["caching", "cluster", "postgres"]
            .map(|name| format!("docs/guide/{name}.md"))
            .contains(&page);
        let has_test = PAGES.contains(&&*page) || is_other;
        assert!(is_about_bg || has_test, "{page}");
    }
}
