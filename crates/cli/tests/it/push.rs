//! Pushes of files, reads of the live version, and rollbacks, on a separate server.

use std::path::Path;

use larder_client::{RespClient, RespOptions};

use crate::support::{
    Server, larder, run_failing, run_ok, show, spawn_server, spawn_server_with, write_csv,
};

/// Pushes `count` rows whose values name the build, and returns the version.
fn push(server: &Server, folder: &Path, build: &str, count: u32) -> u64 {
    let rows = (0..count).map(|n| (n.to_string(), format!("{build}-{n}")));
    let input = write_csv(folder, &format!("{build}.csv"), rows);
    let printed = run_ok(words(server, &["push", input.to_str().unwrap(), "--json"]));
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(report["record_count"], count);
    report["version"].as_u64().unwrap()
}

/// Adds the store, its columns and the server to the arguments.
fn words(server: &Server, arguments: &[&str]) -> Vec<String> {
    let common: &[&str] = match arguments[0] {
        "push" => &[
            "--store",
            "s",
            "--key",
            "key",
            "--value",
            "value",
            "--server",
            &server.http,
        ],
        _ => &["--server", &server.http],
    };
    arguments
        .iter()
        .chain(common)
        .map(|word| (*word).to_owned())
        .collect()
}

#[test]
fn a_push_is_live_when_it_returns_and_a_rollback_undoes_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let client = server.resp();
    let first = push(&server, folder.path(), "one", 500);
    assert_eq!(client.get("s:7").unwrap().unwrap(), b"one-7");
    let second = push(&server, folder.path(), "two", 600);
    assert!(second > first);
    let values = client.mget(&["s:7", "s:599", "s:600"]).unwrap();
    assert_eq!(values[0].as_deref(), Some(&b"two-7"[..]));
    assert_eq!(values[1].as_deref(), Some(&b"two-599"[..]));
    assert_eq!(values[2], None);

    let output = run_ok(words(&server, &["store", "rollback", "s"]));
    assert!(
        output.starts_with(&format!("s version {first} is live again")),
        "{output}"
    );
    assert_eq!(client.get("s:7").unwrap().unwrap(), b"one-7");
    run_ok(words(&server, &["store", "swap", "s", &second.to_string()]));
    assert_eq!(client.get("s:7").unwrap().unwrap(), b"two-7");
    assert!(server.stop().success(), "SIGTERM stops a server cleanly");
}

#[test]
fn the_live_version_survives_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = spawn_server(&data);
    push(&server, folder.path(), "one", 100);
    server.kill();
    let server = spawn_server(&data);
    assert_eq!(server.resp().get("s:42").unwrap().unwrap(), b"one-42");
}

#[test]
fn the_store_commands_show_stores_versions_and_changes() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let say = |arguments: &[&str]| run_ok(words(&server, arguments));
    assert!(say(&["store", "list"]).contains("no stores yet"));
    let first = push(&server, folder.path(), "one", 300).to_string();
    let second = push(&server, folder.path(), "two", 301).to_string();

    let list = say(&["store", "list"]);
    assert!(list.contains("records") && list.contains("301"), "{list}");
    let info = say(&["store", "info", "s"]);
    assert!(
        info.contains(&format!(
            "version {second} is live; a rollback returns to {first}"
        )),
        "{info}"
    );
    assert_eq!(say(&["store", "get", "s", "300"]), "two-300\n");
    assert!(say(&["store", "verify", "s"]).contains("301 records"));
    let diff = say(&["store", "diff", "s", &first, &second, "--limit", "3"]);
    assert!(
        diff.contains("1 added, 0 removed, 300 changed, 0 the same"),
        "{diff}"
    );
    assert_eq!(
        say(&["store", "sample", "s", "--count", "4"])
            .lines()
            .count(),
        4
    );
    assert_eq!(say(&["store", "dump", "s"]).lines().count(), 301);
    assert!(say(&["store", "remove", "s", "--version", &first]).contains("is removed"));
    say(&["store", "remove", "s", "--all"]);
    let error = run_failing(3, words(&server, &["store", "info", "s"]));
    assert!(error.contains("no store is named"), "{error}");
}

#[test]
fn absent_keys_and_stores_exit_with_3() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    push(&server, folder.path(), "one", 10);
    run_failing(3, words(&server, &["store", "get", "s", "no such key"]));
    run_failing(3, words(&server, &["store", "get", "t", "1"]));
    // Over RESP, the key is only absent, because `t` may be a table without rows.
    assert_eq!(server.resp().get("t:1").unwrap(), None);
}

#[test]
fn a_failed_gate_keeps_the_live_version() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let first = push(&server, folder.path(), "one", 100);
    let fewer = write_csv(folder.path(), "few.csv", [("1".to_owned(), "v".to_owned())]);
    let canary = folder.path().join("canary.tsv");
    std::fs::write(&canary, "1\tanother value\n").unwrap();
    for gate in [
        ["--min-records", "50"],
        ["--max-shrink", "20%"],
        ["--canary", canary.to_str().unwrap()],
    ] {
        let mut arguments = words(&server, &["push", fewer.to_str().unwrap()]);
        arguments.extend(gate.map(str::to_owned));
        let error = run_failing(4, arguments);
        assert!(error.contains("did not go live"), "{gate:?}: {error}");
    }
    assert_eq!(
        server.admin().store(&"s".parse().unwrap()).unwrap().live,
        Some(first)
    );
    assert_eq!(server.resp().get("s:1").unwrap().unwrap(), b"one-1");
}

#[test]
fn a_built_version_is_pushed_and_no_activate_keeps_it_inactive() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let out = folder.path().join("built");
    run_ok([
        "build",
        input.to_str().unwrap(),
        "--store",
        "s",
        "--key",
        "key",
        "--value",
        "value",
        "--out",
        out.to_str().unwrap(),
    ]);
    let push = [
        "push",
        out.to_str().unwrap(),
        "--store",
        "s",
        "--server",
        &server.http,
        "--no-activate",
    ];
    let output = run_ok(push);
    assert!(output.contains("kept, not live"), "{output}");
    assert!(server.resp().get("s:k").is_err());
    run_ok(["store", "swap", "s", "1", "--server", &server.http]);
    assert_eq!(server.resp().get("s:k").unwrap().unwrap(), b"v");
}

#[test]
fn via_stages_the_version_until_it_is_pulled() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let staging = folder.path().join("staging");
    let mut arguments = words(&server, &["push", input.to_str().unwrap()]);
    arguments.extend(["--via".to_owned(), staging.to_str().unwrap().to_owned()]);
    run_ok(&arguments);
    assert_eq!(server.resp().get("s:k").unwrap().unwrap(), b"v");
    let staged = || std::fs::read_dir(staging.join("s")).unwrap().count();
    assert_eq!(staged(), 0, "the copy is removed");
    arguments.extend(["--min-records".to_owned(), "2".to_owned()]);
    let error = run_failing(4, arguments);
    assert!(error.contains("remains; remove it"), "{error}");
    assert_eq!(staged(), 1, "what was refused is left to be looked at");
}

#[test]
fn with_a_password_commands_and_clients_must_give_it() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server_with(&folder.path().join("data"), |command| {
        command.env("LARDER_SERVER_PASSWORD", "open sesame");
    });
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let push = words(&server, &["push", input.to_str().unwrap()]);
    let error = run_failing(1, push.clone());
    assert!(
        error.contains("requires a password") && error.contains("LARDER_PASSWORD"),
        "{error}"
    );
    let given = larder()
        .args(&push)
        .env("LARDER_PASSWORD", "open sesame")
        .output()
        .unwrap();
    assert!(given.status.success(), "{}", show(&given));
    let flag = ["--password", "open sesame"];
    let get = words(&server, &["store", "get", "s", "k"]);
    assert_eq!(run_ok(get.iter().map(String::as_str).chain(flag)), "v\n");
    let wrong = get
        .iter()
        .map(String::as_str)
        .chain(["--password", "close"]);
    let error = run_failing(1, wrong);
    assert!(error.contains("the password is wrong"), "{error}");

    assert_eq!(server.resp().get("s:k").unwrap_err().code(), Some("NOAUTH"));
    let client = |password: &str| {
        let password = Some(password.to_owned());
        let options = RespOptions {
            password,
            ..RespOptions::default()
        };
        RespClient::with_options(server.resp.clone(), options)
    };
    assert_eq!(client("open sesame").get("s:k").unwrap().unwrap(), b"v");
    assert_eq!(
        client("close").get("s:k").unwrap_err().code(),
        Some("WRONGPASS")
    );
}

#[test]
fn an_empty_version_replaces_records_only_with_allow_empty() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    push(&server, folder.path(), "one", 10);
    let header = write_csv(folder.path(), "header.csv", []);
    let header = header.to_str().unwrap();
    let error = run_failing(4, words(&server, &["push", header]));
    assert!(error.contains("the input has no rows"), "{error}");
    // For an empty version that was built elsewhere, the server's own gate applies.
    let built = folder.path().join("built");
    let build = [
        "build",
        header,
        "--store",
        "s",
        "--key",
        "key",
        "--allow-empty",
    ];
    run_ok(build.iter().chain(&["--out", built.to_str().unwrap()]));
    let built = ["push", built.to_str().unwrap(), "--store", "s"];
    let built = [&built[..], &["--server", &server.http]].concat();
    let error = run_failing(4, &built);
    assert!(
        error.contains("holds no records and live version 1 has 10"),
        "{error}"
    );
    assert_eq!(server.resp().get("s:1").unwrap().unwrap(), b"one-1");
    run_ok([&built[..], &["--allow-empty"]].concat());
    assert_eq!(server.resp().get("s:1").unwrap(), None);
    run_ok(words(&server, &["push", header, "--allow-empty"]));
    run_ok(words(&server, &["store", "rollback", "s", "1"]));
}

#[test]
fn build_options_are_rejected_with_a_built_version() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let out = folder.path().join("built");
    let out = out.to_str().unwrap();
    let build = ["build", input.to_str().unwrap(), "--out", out];
    run_ok(build.iter().chain(&["--store", "s", "--key", "key"]));
    let push = ["push", out, "--store", "s", "--server", &server.http];
    let with = [&push[..], &["--key", "value", "--compress", "zstd"]].concat();
    let error = run_failing(2, with);
    assert!(
        error.contains("is a built version, but --key, --compress apply only to a build"),
        "{error}"
    );
    run_ok(push);
}

#[test]
fn info_shows_the_files_that_were_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    push(&server, folder.path(), "one", 10);
    let input = folder.path().join("one.csv");
    let input = input.to_str().unwrap();
    let info = run_ok(words(&server, &["store", "info", "s"]));
    assert!(
        info.contains(&format!("from {input}; key key, value value")),
        "{info}"
    );
    assert!(
        !info.contains("larder-"),
        "no folder of the build's own: {info}"
    );
    let json = run_ok(words(&server, &["store", "info", "s", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["versions"][0]["built"]["inputs"][0], input);
    assert_eq!(json["versions"][0]["source"], input);
    // For a version that was built before the push, the source of the pull is still known.
    let built = folder.path().join("built");
    let built = built.to_str().unwrap();
    let build = [
        "build", input, "--store", "s", "--key", "key", "--out", built,
    ];
    run_ok(build);
    run_ok(["push", built, "--store", "s", "--server", &server.http]);
    let json = run_ok(words(&server, &["store", "info", "s", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["versions"][0]["source"], input);
    let pulled_from = json["versions"][0]["pulled_from"].as_str().unwrap();
    assert!(pulled_from.ends_with("/built"), "{pulled_from}");
}

#[test]
fn a_version_of_another_store_or_with_missing_files_is_rejected_before_the_pull() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let out = folder.path().join("built");
    let out = out.to_str().unwrap();
    let build = ["build", input.to_str().unwrap(), "--out", out];
    run_ok(build.iter().chain(&["--store", "s", "--key", "key"]));
    let push = |input: &str, store: &str, code: i32| {
        run_failing(
            code,
            ["push", input, "--store", store, "--server", &server.http],
        )
    };
    let error = push(out, "t", 2);
    assert!(
        error.contains("is a version of store s, so it cannot be pushed to another store"),
        "{error}"
    );
    let error = push(&format!("file://{out}"), "t", 2);
    assert!(error.contains("is a version of store s"), "{error}");
    std::fs::remove_file(format!("{out}/p00003.segment")).unwrap();
    let error = push(out, "s", 6);
    assert!(
        error.contains("its file p00003.segment is missing"),
        "{error}"
    );
}

/// A missing version must not be reported as missing options for rows.
#[test]
fn a_missing_version_is_reported_as_missing() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    let push = |input: &str, code: i32| {
        let words = ["push", input, "--store", "s", "--server", &server.http];
        run_failing(code, words)
    };
    let typo = folder.path().join("typo/");
    for input in [
        typo.display().to_string(),
        format!("file://{}", typo.display()),
        format!("{}/v1/stores/typo", server.http),
    ] {
        let error = push(&input, 3);
        assert!(error.contains("there is nothing at"), "{error}");
        assert!(!error.contains("--key"), "{error}");
    }
    let nobody = larder_testing::free_port();
    let error = push(&format!("http://127.0.0.1:{nobody}/built"), 1);
    assert!(error.contains("manifest.json"), "{error}");
    assert!(!error.contains("--key"), "{error}");
    // For existing rows, the missing option is reported.
    let input = write_csv(folder.path(), "in.csv", [("k".to_owned(), "v".to_owned())]);
    let error = push(input.to_str().unwrap(), 2);
    assert!(error.contains("--key is missing"), "{error}");
}

#[test]
fn swap_rollback_and_remove_name_versions_alike() {
    let folder = tempfile::tempdir().unwrap();
    let server = spawn_server(&folder.path().join("data"));
    for name in ["one", "two", "three"] {
        push(&server, folder.path(), name, 10);
    }
    let live = || server.admin().store(&"s".parse().unwrap()).unwrap().live;
    for (command, version, is_live) in [
        (&["swap"][..], "v1", 1),
        (&["rollback"], "3", 3),
        (&["rollback"], "previous", 1),
        (&["swap", "--version"], "v0000000002", 2),
        (&["rollback", "--version"], "1", 1),
    ] {
        let words_of = [&["store", command[0], "s"], &command[1..], &[version]].concat();
        run_ok(words(&server, &words_of));
        assert_eq!(live(), Some(is_live), "{command:?}");
    }
    let error = run_failing(2, words(&server, &["store", "swap", "s", "newest"]));
    assert!(
        error.contains("is not a version; write a number such as 7"),
        "{error}"
    );
    run_failing(4, words(&server, &["store", "remove", "s", "live"]));
    let get = |version: &str| {
        run_ok(words(
            &server,
            &["store", "get", "s", "7", "--version", version],
        ))
    };
    run_ok(words(&server, &["store", "swap", "s", "3"]));
    assert_eq!(get("2"), "two-7\n");
    assert_eq!(get("v1"), "one-7\n");
    assert_eq!(get("previous"), "one-7\n");
    assert_eq!(get("live"), "three-7\n");
    run_failing(
        3,
        words(&server, &["store", "get", "s", "7", "--version", "9"]),
    );
    // Messages contain the version's number, however the command names it.
    let output = run_ok(words(&server, &["store", "diff", "s", "previous"]));
    assert!(output.starts_with("s from version 1 to 3: "), "{output}");
    let output = run_ok(words(&server, &["store", "remove", "s", "previous"]));
    assert!(output.contains("s version 1 is removed"), "{output}");
    let output = run_ok(words(&server, &["store", "remove", "s", "v2", "--json"]));
    let output: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(output["removed"], 2);
    run_failing(2, words(&server, &["store", "remove", "s"]));
}

#[test]
fn a_dump_ended_by_damage_reports_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = spawn_server(&data);
    push(&server, folder.path(), "one", 5000);
    let segment = data.join("stores/s/v0000000001/p00000.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    let (begin, end) = (bytes.len() / 8, bytes.len() / 2);
    bytes[begin..end].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&segment, bytes).unwrap();
    let error = run_failing(6, words(&server, &["store", "dump", "s", "1"]));
    assert!(error.contains("s version 1 is incomplete"), "{error}");
    assert!(error.contains("p00000.segment, block"), "{error}");
    run_failing(6, words(&server, &["store", "verify", "s", "1"]));
}

#[test]
fn a_damaged_version_is_listed_and_rejected_by_rollback() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = spawn_server(&data);
    push(&server, folder.path(), "one", 10);
    push(&server, folder.path(), "two", 10);
    let segment = data.join("stores/s/v0000000001/p00000.segment");
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    run_failing(6, words(&server, &["store", "verify", "s", "previous"]));
    let info = run_ok(words(&server, &["store", "info", "s"]));
    assert!(info.contains("damaged"), "{info}");
    let error = run_failing(4, words(&server, &["store", "rollback", "s", "1"]));
    assert!(error.contains("--force"), "{error}");
    let error = run_failing(4, words(&server, &["store", "rollback", "s"]));
    assert!(error.contains("version 1 (damaged)"), "{error}");
    run_ok(words(&server, &["store", "rollback", "s", "1", "--force"]));
}

#[test]
fn a_key_is_accepted_in_the_form_of_a_redis_client() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = spawn_server(&data);
    push(&server, folder.path(), "one", 10);
    assert_eq!(run_ok(words(&server, &["store", "get", "s:7"])), "one-7\n");
    let error = run_failing(3, words(&server, &["store", "get", "s", "s:7"]));
    assert!(error.contains("without the store's name: 7"), "{error}");
    let error = run_failing(2, words(&server, &["store", "get", "s"]));
    assert!(error.contains("the key is missing"), "{error}");
    let stores = data.join("stores");
    let store = stores.join("s");
    let error = run_failing(3, ["get", store.to_str().unwrap(), "s:7"]);
    assert!(error.contains("without the store's name: 7"), "{error}");
    // If the path is a parent or a child of the right folder, the error names the right one.
    for folder in [&data, &stores] {
        let error = run_failing(3, ["get", folder.to_str().unwrap(), "7"]);
        assert!(
            error.contains(&format!("such as {}", store.display())),
            "{error}"
        );
    }
    let push = ["push", store.to_str().unwrap(), "--store", "s", "--server"];
    let error = run_failing(2, push.iter().chain(&[server.http.as_str()]));
    assert!(
        error.contains("push one of its versions, such as"),
        "{error}"
    );
}
