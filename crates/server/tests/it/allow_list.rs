//! The sources that a pull may read, and the parts of their content that its messages may show.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use serde_json::{Value, json};

use crate::pipe::make_pipe;
use crate::source::Source;
use crate::support::{TestServer, build};

const SECRET: &str = "root:s3cret:0:0:";

fn allowing(entries: &[&str]) -> TestServer {
    let entries: Vec<String> = entries.iter().map(|&entry| entry.to_owned()).collect();
    TestServer::with(|config| config.fetch.allow = entries)
}

#[track_caller]
fn check_forbidden(server: &TestServer, source: &str) {
    let (status, error) = server.post("/v1/stores/pymk/pull", json!({ "source": source }));
    assert_eq!(
        (status, &error["error"]["code"]),
        (403, &json!("FORBIDDEN")),
        "{source}: {error}"
    );
    let message = error["error"]["message"].as_str().expect("a text");
    assert!(message.contains("fetch.allow"), "{message}");
}

/// Checks that a pull of `source` fails, and returns its error message.
#[track_caller]
fn failure(server: &TestServer, source: &str) -> String {
    let pull = server.pull_from("pymk", source);
    assert_eq!(
        (&pull["state"], &pull["error"]["code"]),
        (&json!("failed"), &json!("SOURCE")),
        "{pull}"
    );
    pull["error"]["message"]
        .as_str()
        .expect("a text")
        .to_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Starts a server that answers every request with a redirect to `target`, and returns its URL.
fn redirecting_to(target: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let answer = format!(
        "HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().expect("clone")).lines();
            lines
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .for_each(drop);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}

#[test]
fn a_pull_reads_allowed_folders_and_cannot_leave_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().canonicalize().expect("a path");
    let (inside, outside) = (folder.join("inside"), folder.join("outside"));
    build(&inside.join("v1"), "pymk", 10, "v");
    build(&outside.join("v1"), "pymk", 10, "v");
    symlink(outside.join("v1"), inside.join("linked")).expect("a link");
    std::fs::create_dir(inside.join("linked-file")).expect("a folder");
    symlink(
        outside.join("v1/manifest.json"),
        inside.join("linked-file/manifest.json"),
    )
    .expect("a link");
    let server = allowing(&[text(&inside)]);
    for source in [
        text(&outside.join("v1")),
        text(&inside.join("../outside/v1")),
        &format!("file://{}", text(&outside.join("v1"))),
        "/nothing/is/here",
        "http://example.com/v1",
        "s3://bucket/v1",
    ] {
        check_forbidden(&server, source);
    }
    for way in ["linked", "linked-file"] {
        let message = failure(&server, text(&inside.join(way)));
        assert!(message.contains("leads out"), "{message}");
    }
    let pull = server.pull_from("pymk", text(&inside.join("v1")));
    assert_eq!(pull["state"], "done", "{pull}");
}

/// The message must not depend on the link's target. Otherwise, a user who can start pulls could use links to find
/// out which files exist on the server's machine.
#[test]
fn links_out_of_allowed_folders_return_the_same_error_for_any_target() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path().canonicalize().expect("a path");
    let (inside, outside) = (folder.join("inside"), folder.join("outside"));
    std::fs::create_dir(&inside).expect("a folder");
    build(&outside.join("version"), "pymk", 10, "v");
    std::fs::create_dir_all(outside.join("folder/manifest.json")).expect("a folder");
    std::fs::create_dir(outside.join("socket")).expect("a folder");
    let _socket = UnixListener::bind(outside.join("socket/manifest.json")).expect("a socket");
    let server = allowing(&[text(&inside)]);
    for what in ["version", "folder", "socket", "nothing"] {
        symlink(outside.join(what), inside.join("link")).expect("a link");
        let said = failure(&server, text(&inside.join("link")));
        std::fs::remove_file(inside.join("link")).expect("removed");
        let expected = format!(
            "{}/link/manifest.json: a link leads out of the folders that may be read; see fetch.allow",
            text(&inside)
        );
        assert_eq!(said, expected, "{what}");
    }
    // For a path inside the allowed folder, the message names the actual error.
    let said = failure(&server, text(&inside.join("nothing")));
    assert!(!said.contains("leads out"), "{said}");
}

#[test]
fn loopback_addresses_are_rejected_as_sources_by_default() {
    let versions = tempfile::tempdir().expect("a folder");
    build(versions.path(), "pymk", 10, "v");
    let source = Source::serve(versions.path());
    let server = TestServer::with(|config| config.fetch = Default::default());
    let port = source.url().rsplit(':').next().expect("a port");
    for host in [
        "127.0.0.1",
        "[::1]",
        "0.0.0.0",
        "169.254.169.254",
        "[::ffff:127.0.0.1]",
        "2130706433",
    ] {
        check_forbidden(&server, &format!("http://{host}:{port}/"));
    }
    // The pull resolves a host name and checks its address only when it connects.
    let message = failure(&server, &format!("http://localhost:{port}/"));
    assert!(message.contains("fetch.allow"), "{message}");
    assert_eq!(source.requests("manifest.json"), [0; 0]);
    let named = allowing(&["http://localhost/"]);
    let pull = named.pull_from("pymk", &format!("http://localhost:{port}/"));
    assert_eq!(pull["state"], "done", "{pull}");
}

#[test]
fn redirects_to_forbidden_addresses_are_rejected() {
    let versions = tempfile::tempdir().expect("a folder");
    build(versions.path(), "pymk", 10, "v");
    let source = Source::serve(versions.path());
    for target in [
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]:1/",
        "https://example.com/",
        "file:///etc/passwd",
    ] {
        let server = allowing(&["http://127.0.0.1/", "http://"]);
        let message = failure(&server, &redirecting_to(target));
        assert!(!message.contains("meta-data"), "{message}");
    }
    let first = redirecting_to(&format!("{}/manifest.json", source.url()));
    let server = allowing(&[&first]);
    let message = failure(&server, &first);
    assert!(message.contains("fetch.allow"), "{message}");
    assert_eq!(
        source.requests("manifest.json"),
        [0; 0],
        "the other port was not asked"
    );
}

#[test]
fn a_failed_pull_discloses_no_content() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("passwd");
    std::fs::write(&secret, format!("{SECRET}/root")).expect("written");
    let linked = folder.path().join("linked");
    std::fs::create_dir(&linked).expect("a folder");
    symlink(&secret, linked.join("manifest.json")).expect("a link");
    let json = folder.path().join("json");
    std::fs::create_dir(&json).expect("a folder");
    let tricky = json!({ "format": SECRET }).to_string();
    std::fs::write(json.join("manifest.json"), tricky).expect("written");
    let server = TestServer::start();
    for source in [text(&linked), text(&json), Source::serve(&linked).url()] {
        let pull = server.pull_from("pymk", source);
        assert_eq!(pull["state"], "failed", "{pull}");
        let all = server.get("/v1/pulls").1.to_string();
        assert!(!all.contains("s3cret") && !all.contains("root"), "{all}");
    }
    // If a pull takes some file for a segment, its message must not even contain the file's digest, because a digest
    // would confirm guesses of the content.
    let version = folder.path().join("version");
    build(&version, "pymk", 10, "v");
    std::fs::write(version.join("p00000.segment"), SECRET).expect("written");
    let message = failure(&server, text(&version));
    assert!(!message.contains("s3cret"), "{message}");
}

#[test]
fn sources_must_be_regular_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = TestServer::start();
    let source = |name: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        path
    };
    let pipe = source("pipe");
    make_pipe(&pipe.join("manifest.json"));
    let socket = source("socket");
    let _listening = UnixListener::bind(socket.join("manifest.json")).expect("a socket");
    let device = source("device");
    symlink("/dev/zero", device.join("manifest.json")).expect("a link");
    let inner = source("inner");
    std::fs::create_dir(inner.join("manifest.json")).expect("a folder");
    for (path, what) in [
        (&pipe, "a pipe"),
        (&socket, "a socket"),
        (&device, "a device"),
        (&inner, "a folder"),
    ] {
        let message = failure(&server, text(path));
        assert!(message.contains(what), "{message}");
    }
    // A version in which one segment is a named pipe.
    let version = folder.path().join("version");
    build(&version, "pymk", 10, "v");
    std::fs::remove_file(version.join("p00001.segment")).expect("removed");
    make_pipe(&version.join("p00001.segment"));
    let message = failure(&server, text(&version));
    assert!(message.contains("a pipe"), "{message}");
}

/// The source accepts connections and never replies. If a cancel or the server's stop waited for it, this test would
/// not end.
#[test]
fn a_silent_source_delays_neither_cancel_nor_stop() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let server = TestServer::with(|config| config.fetch.stall_timeout_seconds = 3600);
    let start = |store: &str| -> Value {
        let started = server.post(
            &format!("/v1/stores/{store}/pull"),
            json!({ "source": url }),
        );
        let _asked = silent.accept().expect("it connects");
        // Closing the connection would make the pull retry.
        std::mem::forget(_asked);
        started.1
    };
    let cancelled = start("one");
    let id = cancelled["id"].as_str().expect("an id");
    assert_eq!(server.delete(&format!("/v1/pulls/{id}")).0, 200);
    assert_eq!(server.wait_for_pull(&cancelled)["state"], "cancelled");
    start("two");
    drop(server);
}

#[test]
fn invalid_allow_list_entries_are_rejected_at_startup() {
    let mut server = TestServer::start();
    let said = server.start_refused(|config| config.fetch.allow = vec!["gopher://x".to_owned()]);
    assert!(
        said.contains("fetch.allow") && said.contains("gopher"),
        "{said}"
    );
}
