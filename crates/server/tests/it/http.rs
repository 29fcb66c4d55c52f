//! The responses of the HTTP API, byte for byte where clients depend on it.

use serde_json::{Value, json};

use crate::resp::Client;
use crate::support::{TestServer, build, build_rows};

fn server_with_two_versions() -> (TestServer, tempfile::TempDir) {
    let versions = tempfile::tempdir().unwrap();
    let server = TestServer::start();
    let rows = |range: std::ops::Range<u32>, value: &str| {
        let value = value.to_owned();
        range.map(move |i| (format!("k{i}"), value.clone()))
    };
    let old = versions.path().join("old");
    build_rows(
        &old,
        "pymk",
        rows(0..10, "same").chain(rows(10..15, "old")),
        2,
    );
    server.pull_from("pymk", old.to_str().unwrap());
    let new = versions.path().join("new");
    let changed = rows(12..15, "new").chain(rows(15..20, "new"));
    build_rows(&new, "pymk", rows(0..10, "same").chain(changed), 2);
    server.pull_from("pymk", new.to_str().unwrap());
    (server, versions)
}

#[test]
fn versions_are_compared_sampled_and_dumped() {
    let (server, _versions) = server_with_two_versions();
    let (_, diff) = server.get("/v1/stores/pymk/diff?limit=3");
    assert_eq!(
        (
            &diff["added"],
            &diff["removed"],
            &diff["changed"],
            &diff["unchanged"]
        ),
        (&json!(5), &json!(2), &json!(3), &json!(10)),
        "{diff}"
    );
    assert_eq!(diff["changes"].as_array().unwrap().len(), 3);
    let (_, back) = server.get("/v1/stores/pymk/diff?from=2&to=1");
    assert_eq!((&back["added"], &back["removed"]), (&json!(2), &json!(5)));
    let (_, sample) = server.get("/v1/stores/pymk/sample?n=4");
    assert_eq!(sample["records"].as_array().unwrap().len(), 4);
    let (_, dump) = server.get("/v1/stores/pymk/dump?version=1");
    let mut lines: Vec<Value> = dump
        .as_str()
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    lines.sort_by_key(|record| record["key"].as_str().unwrap()[1..].parse::<u32>().unwrap());
    assert_eq!(lines.len(), 15);
    assert_eq!(lines[14], json!({"key": "k14", "value": "old"}));
    assert_eq!(server.get("/v1/stores/pymk/sample?nn=4").0, 400);
    assert_eq!(server.get("/v1/stores/pymk/dump?version=7").0, 404);
}

#[test]
fn an_absent_key_store_and_path_return_different_errors() {
    let (server, _versions) = server_with_two_versions();
    for (path, code) in [
        ("/v1/stores/pymk/keys/none", "ABSENT_KEY"),
        ("/v1/stores/none/keys/k1", "NO_SUCH_STORE"),
        ("/v1/stores/none", "NO_SUCH_STORE"),
        ("/v1/pulls/none", "NO_SUCH_PULL"),
        ("/v1/none", "BAD_REQUEST"),
    ] {
        let (status, error) = server.get(path);
        assert_eq!(
            (status, &error["error"]["code"]),
            (404, &json!(code)),
            "{path}"
        );
        assert_eq!(error["error"]["retry"], false);
    }
    let response = ureq::get(server.url("/v1/stores/pymk/keys/k12"))
        .call()
        .unwrap();
    assert_eq!(response.headers()["x-larder-version"], "2");
}

#[test]
fn changes_require_a_header_that_other_sites_cannot_send() {
    let (server, _versions) = server_with_two_versions();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let url = server.url("/v1/stores/pymk/rollback");
    let plain = agent
        .post(&url)
        .content_type("text/plain")
        .send("{}")
        .unwrap();
    assert_eq!(plain.status(), 403);
    let foreign = agent
        .post(&url)
        .header("Origin", "http://evil.example")
        .send_json(json!({}));
    assert_eq!(foreign.unwrap().status(), 403);
    let rebound = agent
        .get(server.url("/v1/stores"))
        .header("Host", "evil.example")
        .call();
    assert_eq!(rebound.unwrap().status(), 403);
    assert_eq!(server.get("/v1/stores/pymk").1["live"], 2);
}

#[test]
fn the_api_describes_itself_and_every_path_it_lists_exists() {
    let server = TestServer::start();
    let (status, api) = server.get("/v1/openapi.json");
    assert_eq!(status, 200);
    let paths = api["paths"].as_object().unwrap();
    assert!(paths.len() >= 18, "{}", paths.len());
    for (path, methods) in paths {
        if methods.get("get").is_none() {
            continue;
        }
        let concrete = path
            .replace("{store}", "none")
            .replace("{id}", "none")
            .replace("{version}", "1")
            .replace("{file}", "manifest.json")
            .replace("{key}", "k")
            .replace("{join}", "none")
            .replace("{space}", "none");
        let (status, answer) = server.get(&concrete);
        let unknown = answer["error"]["message"]
            .as_str()
            .unwrap_or("")
            .contains("no such path");
        assert!(status != 405 && !unknown, "{path}: {status} {answer}");
    }
}

#[test]
fn metrics_and_the_console_are_served() {
    let versions = tempfile::tempdir().unwrap();
    build(versions.path(), "pymk", 10, "v");
    let server = TestServer::start();
    server.pull_from("pymk", versions.path().to_str().unwrap());
    server.check_value("pymk", "k1", "v");
    let (status, metrics) = server.get("/metrics");
    assert_eq!(status, 200);
    let metrics = metrics.as_str().unwrap();
    for line in [
        "larder_store_live_version{store=\"pymk\"} 1",
        "larder_store_records{store=\"pymk\"} 10",
        "larder_pulls_total{store=\"pymk\",state=\"done\"} 1",
        "larder_keys_total{store=\"pymk\",command=\"HTTP.GET\"} 1",
        "larder_request_duration_seconds_bucket{le=\"+Inf\",store=\"pymk\",command=\"HTTP.GET\"} 1",
        "# EOF",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let (status, page) = server.get("/");
    assert_eq!(status, 200);
    assert!(page.as_str().unwrap().contains("<title>larder</title>"));
    let (_, stats) = server.get("/v1/stats");
    assert!(stats["uptime_seconds"].is_u64(), "{stats}");
    // `stats` lists every command that was called, on stores and tables. Until there is a second sample, the values
    // cover the time since the start.
    assert!(
        stats["commands"]["HTTP.GET"]["latency_us_p99"].is_f64(),
        "{stats}"
    );
}

#[test]
fn spaces_are_listed_with_their_regions_and_the_regions_that_a_query_contacts() {
    let server = TestServer::with(|config| config.server.threads = 2);
    assert_eq!(server.get("/v1/spaces"), (200, json!({ "spaces": [] })));
    assert_eq!(server.get("/v1/spaces/none").0, 404);
    let mut client = Client::connect(&server);
    let mut command = |line: &str| client.call(line);
    command(
        "FT.CREATE hotels PREFIX 1 hotel: SUBSPACES 1 city REGIONS 8 SCHEMA city TAG price NUMERIC",
    );
    for number in 0..100 {
        command(&format!(
            "HSET hotel:{number} city town{} price {number}",
            number % 20
        ));
    }
    let (status, list) = server.get("/v1/spaces");
    assert_eq!(status, 200, "{list}");
    assert_eq!(list["spaces"][0]["name"], "hotels");
    assert_eq!(list["spaces"][0]["objects"], 100.0);
    assert_eq!(list["spaces"][0]["subspaces"], json!(["city"]));
    let (status, space) = server.get("/v1/spaces/hotels?query=%40city%3A%7Btown7%7D");
    assert_eq!(status, 200, "{space}");
    let region = &space["regions"][0];
    assert_eq!(region["attributes"][0]["attribute"], "city");
    let copies: Vec<f64> = serde_json::from_value(region["copies"].clone()).unwrap();
    assert_eq!(
        (copies.len(), copies.iter().sum::<f64>()),
        (8, 100.0),
        "{space}"
    );
    // Two regions match: that of the city, and that of objects without a city or with several.
    let asked: Vec<f64> = serde_json::from_value(region["asked"].clone()).unwrap();
    assert!((1..=2).contains(&asked.len()), "{space}");
    assert_eq!(region["filled"], region["of"], "{space}");
    assert!(
        space["asks"]
            .as_str()
            .unwrap()
            .starts_with("subspace city: "),
        "{space}"
    );
    let (status, refused) = server.get("/v1/spaces/hotels?query=%40price");
    assert_eq!(status, 400, "{refused}");
    assert_eq!(
        server.get("/v1/spaces/hotels").1["regions"][0]["asked"],
        json!(null)
    );
}

#[test]
fn every_path_except_health_checks_requires_the_password() {
    let server = TestServer::with(|config| config.server.password = "open sesame".to_owned());
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .build()
        .into();
    let ask = |path: &str, authorization: Option<&str>| {
        let mut request = agent.get(server.url(path));
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization);
        }
        request.call().unwrap()
    };
    let (_, api) = TestServer::start().get("/v1/openapi.json");
    let listed = api["paths"].as_object().unwrap().keys().cloned();
    for path in listed.chain(["/", "/no such path"].map(str::to_owned)) {
        let path = path.replace(['{', '}', ' '], "");
        let open = ["/healthz", "/readyz"].contains(&path.as_str());
        let answer = ask(&path, None);
        assert_eq!(answer.status() != 401, open, "{path}: {}", answer.status());
        assert_eq!(
            answer.headers().contains_key("www-authenticate"),
            !open,
            "{path}"
        );
    }
    // `default:open sesame`, in the encoding that a browser sends.
    assert_eq!(
        ask("/", Some("Basic ZGVmYXVsdDpvcGVuIHNlc2FtZQ==")).status(),
        200
    );
    assert_eq!(ask("/v1/stores", Some("Bearer open sesame")).status(), 200);
    let mut wrong = ask("/v1/stores", Some("Bearer open"));
    let body: Value = wrong.body_mut().read_json().unwrap();
    assert_eq!(
        (wrong.status().as_u16(), &body["error"]["code"]),
        (401, &json!("WRONGPASS"))
    );
    let change = agent
        .post(server.url("/v1/stores/s/rollback"))
        .send_json(json!({}));
    assert_eq!(change.unwrap().status(), 401);
}

#[test]
fn excess_connections_receive_an_error_and_others_continue() {
    use std::io::{Read, Write};
    let server = TestServer::with(|config| config.server.max_http_connections = 2);
    let connect = || std::net::TcpStream::connect(server.server().http_addr()).unwrap();
    let ask = |stream: &mut std::net::TcpStream| {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut begin = [0; 12];
        stream.read_exact(&mut begin).unwrap();
        String::from_utf8_lossy(&begin).into_owned()
    };
    let (mut first, mut second) = (connect(), connect());
    assert_eq!(ask(&mut first), "HTTP/1.1 200");
    assert_eq!(ask(&mut second), "HTTP/1.1 200");
    let mut third = connect();
    third
        .write_all(b"GET /v1/stores HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    third.read_to_string(&mut reply).unwrap();
    assert!(
        reply.starts_with("HTTP/1.1 503") && reply.contains("MAX_CLIENTS"),
        "{reply}"
    );
    assert_eq!(ask(&mut connect()), "HTTP/1.1 200", "health is answered");
    drop(second);
    // The server learns of the close a moment later; until then it still refuses.
    let mut third = loop {
        let mut stream = connect();
        let mut begin = [0; 12];
        let asked = stream.write_all(b"GET /v1/stores HTTP/1.1\r\nHost: localhost\r\n\r\n");
        if asked.and_then(|()| stream.read_exact(&mut begin)).is_ok() && begin.ends_with(b"200") {
            break stream;
        }
    };
    third.shutdown(std::net::Shutdown::Write).unwrap();
    third.read_to_end(&mut Vec::new()).unwrap();
}
