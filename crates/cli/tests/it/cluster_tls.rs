//! A cluster with TLS between its nodes, with the certificates of `larder cluster certs`.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_client::{Reply, RespClient, RespOptions, Tls, TlsFiles};
use larder_testing::etcd::Etcd;
use larder_testing::free_port;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::support::{Server, run_ok, spawn_server_with, write_csv};

/// Longer than any successful step takes.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

struct Scene {
    folder: TempDir,
    etcd: Etcd,
}

struct Node {
    server: Server,
    peer: String,
}

impl Scene {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    fn certs(&self, out: &str, arguments: &[&str]) {
        let out = self.file(out);
        run_ok([&["cluster", "certs", "--out", &out], arguments].concat());
    }

    /// Starts a node with the certificates in `certs/<name>`. Its ports for clients use TLS as well.
    fn serve(&self, name: &str, certs: &str) -> Node {
        let peer = format!("127.0.0.1:{}", free_port());
        let of_node = |file: &str| self.file(&format!("{certs}/{name}/{file}"));
        let settings = [
            ("CLUSTER_MODE", "etcd".to_owned()),
            ("CLUSTER_NODE", name.to_owned()),
            ("CLUSTER_ETCD", self.etcd.endpoint(0)),
            ("CLUSTER_PEER", peer.clone()),
            ("CLUSTER_LEASE_SECONDS", "2".to_owned()),
            ("CLUSTER_START_NODES", "2".to_owned()),
            ("CLUSTER_TLS_CA", of_node("ca.pem")),
            ("CLUSTER_TLS_CERT", of_node("cert.pem")),
            ("CLUSTER_TLS_KEY", of_node("key.pem")),
            ("TABLES_REPLICAS", "2".to_owned()),
            ("SERVER_TLS_CERT", of_node("cert.pem")),
            ("SERVER_TLS_KEY", of_node("key.pem")),
        ];
        let server = spawn_server_with(&self.path(&format!("data-{certs}-{name}")), |command| {
            for (key, value) in &settings {
                command.env(format!("LARDER_{key}"), value);
            }
        });
        Node { server, peer }
    }

    fn larder(&self, node: &Node, arguments: &[&str]) -> String {
        let ca = self.file("certs/ca.pem");
        let at = ["--server", &node.server.http, "--ca", &ca];
        run_ok([arguments, &at].concat())
    }

    /// Returns the certificate that a node presents to another one, `as_node`.
    fn shown(&self, to: &Node, as_node: &str) -> CertificateDer<'static> {
        let folder = self.path(&format!("certs/{as_node}"));
        let mut roots = RootCertStore::empty();
        let authority = on_disk(&folder.join("ca.pem"));
        roots.add(authority).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).expect("a key");
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![on_disk(&folder.join("cert.pem"))], key)
            .expect("they fit");
        let name = ServerName::try_from("127.0.0.1").expect("a name");
        let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
        let socket = TcpStream::connect(&to.peer).expect("it listens");
        let mut stream = StreamOwned::new(connection, socket);
        stream.conn.complete_io(&mut stream.sock).expect("shaken");
        let shown = stream.conn.peer_certificates().expect("certificates");
        shown[0].clone().into_owned()
    }
}

fn on_disk(certificate: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(certificate).expect("a certificate")
}

#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(
            began.elapsed() < STEP_TIMEOUT,
            "timed out waiting until {what}"
        );
        std::thread::yield_now();
    }
}

/// Returns the owners in `CLUSTER SHARDS`: first and last slot, and the TLS address.
fn shards(client: &RespClient) -> Vec<(i64, i64, String)> {
    let field = |of: &Reply, name: &str| -> Reply {
        let Reply::Array(fields) = of else {
            panic!("{of:?}");
        };
        let is_it = |at: &Reply| matches!(at, Reply::Bulk(text) if text == name.as_bytes());
        let at = fields.iter().step_by(2).position(is_it);
        let at = at.unwrap_or_else(|| panic!("no {name} in {fields:?}"));
        fields[at * 2 + 1].clone()
    };
    let output = client.command(&[b"CLUSTER", b"SHARDS"]);
    let Ok(Reply::Array(output)) = output else {
        panic!("{output:?}");
    };
    let mut shards = Vec::new();
    for shard in &output {
        let (Reply::Array(slots), Reply::Array(nodes)) =
            (field(shard, "slots"), field(shard, "nodes"))
        else {
            panic!("{shard:?}");
        };
        let master = &nodes[0];
        assert!(
            !format!("{master:?}").contains(&format!("{:?}", b"port".to_vec())),
            "no port without TLS: {master:?}"
        );
        let (Reply::Bulk(host), Reply::Integer(port)) =
            (field(master, "endpoint"), field(master, "tls-port"))
        else {
            panic!("{master:?}");
        };
        let address = format!("{}:{port}", String::from_utf8_lossy(&host));
        for range in slots.chunks(2) {
            let [Reply::Integer(first), Reply::Integer(last)] = range else {
                panic!("{slots:?}");
            };
            shards.push((*first, *last, address.clone()));
        }
    }
    shards
}

#[test]
fn clients_find_nodes_by_their_tls_ports_while_slots_move() {
    let Some(etcd) = Etcd::start(1) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let scene = Scene { folder, etcd };
    scene.certs("certs", &["a=127.0.0.1", "b=127.0.0.1", "c=127.0.0.1"]);
    let (a, b) = (scene.serve("a", "certs"), scene.serve("b", "certs"));
    scene.larder(&a, &["cluster", "status", "--wait"]);
    let tls = TlsFiles {
        authority: Some(scene.path("certs/ca.pem")),
        ..TlsFiles::default()
    };
    let connect = |address: &str| {
        let options = RespOptions {
            tls: Some(Tls::open(&tls).expect("files that fit")),
            ..RespOptions::default()
        };
        RespClient::with_options(address, options)
    };
    let keys: Vec<String> = (0..40).map(|user| format!("t|{{u{user}}}|k")).collect();
    let through_a = connect(&a.server.resp);
    let mut number = 0;
    let mut write_all = || {
        number += 1;
        for key in &keys {
            let output =
                through_a.command(&[b"SET", key.as_bytes(), number.to_string().as_bytes()]);
            assert!(
                matches!(&output, Ok(Reply::Simple(ok)) if ok == "OK"),
                "{key}: {output:?}"
            );
        }
        number
    };
    write_all();
    let c = scene.serve("c", "certs");
    let shown = connect(&b.server.resp);
    wait_for("c owns slots", || {
        write_all();
        shards(&shown).iter().any(|(.., at)| *at == c.server.resp)
    });
    scene.larder(&a, &["cluster", "status", "--wait"]);
    let last = write_all().to_string();
    // Each owner serves its own keys over TLS without forwarding.
    let output = shards(&shown);
    for key in &keys {
        let slot = i64::from(larder_types::slot_of(key.as_bytes()));
        let of = |it: &&(i64, i64, String)| (it.0..=it.1).contains(&slot);
        let (.., owner) = output.iter().find(of).expect("the key has an owner");
        assert_eq!(
            connect(owner).get(key).expect("answered"),
            Some(last.clone().into_bytes())
        );
    }
    for node in [a, b, c] {
        let info = connect(&node.server.resp).command(&[b"INFO", b"commandstats"]);
        let Ok(Reply::Bulk(info)) = info else {
            panic!("{info:?}");
        };
        let info = String::from_utf8_lossy(&info);
        let gets = info.lines().find(|line| line.starts_with("cmdstat_get:"));
        assert!(
            gets.is_some_and(|line| line.ends_with("forwarded=0")),
            "{info}"
        );
        node.server.kill();
    }
}

#[test]
fn nodes_use_tls_reload_certificates_and_report_an_untrusted_peer() {
    let Some(etcd) = Etcd::start(1) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let scene = Scene { folder, etcd };
    let nodes = ["a=127.0.0.1", "b=127.0.0.1", "c=127.0.0.1"];
    scene.certs("certs", &nodes);
    scene.certs("others", &["d=127.0.0.1"]);
    let (a, b) = (scene.serve("a", "certs"), scene.serve("b", "certs"));
    scene.larder(&a, &["cluster", "status", "--wait"]);

    // Nodes send rows to each other, and also versions whose source is gone.
    let rows = (0..200).map(|row| (row.to_string(), format!("value {row}")));
    let input = write_csv(scene.folder.path(), "in.csv", rows);
    let push = ["push", input.to_str().expect("text"), "--store", "s"];
    let how = ["--key", "key", "--value", "value", "--partitions", "16"];
    scene.larder(&a, &[&push[..], &how].concat());
    // The version that the push built was deleted after it.
    let c = scene.serve("c", "certs");
    wait_for("c has a share of the version", || {
        let output = scene.larder(&c, &["cluster", "status", "--wait", "--json"]);
        let output: serde_json::Value = serde_json::from_str(&output).expect("JSON");
        let members = output["members"].as_array().cloned().unwrap_or_default();
        let missing = output["stores"][0]["lacking"].as_array().map(Vec::len);
        members.len() == 3 && missing == Some(0)
    });
    let own = scene.path("data-certs-c/stores/s");
    assert!(own.is_dir(), "c has pulled its part over HTTPS");
    for row in [0, 50, 100, 150] {
        let output = scene.larder(&c, &["store", "get", "s", &row.to_string()]);
        assert_eq!(output, format!("value {row}\n"));
    }

    // New connections use a renewed certificate.
    let certificate = scene.path("certs/a/cert.pem");
    let before = scene.shown(&a, "b");
    assert_eq!(before, on_disk(&certificate));
    scene.certs("certs", &["--renew", "a"]);
    assert_ne!(on_disk(&certificate), before);
    wait_for("the renewed one is shown", || {
        scene.shown(&a, "b") == on_disk(&certificate)
    });

    // All nodes report a node whose certificate is from another authority.
    let d = scene.serve("d", "others");
    wait_for("it is told", || {
        let output = scene.larder(&b, &["cluster", "status"]);
        output.contains("! node d is connected to etcd, and cannot be reached by a, b, c: ")
            && output.contains("signed by an authority that this node does not trust")
    });
    for node in [d, a, b, c] {
        node.server.kill();
    }
}
