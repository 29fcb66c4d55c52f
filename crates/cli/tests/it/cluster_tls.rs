//! A cluster whose nodes speak TLS to each other, by configuration and with what `larder cluster certs` makes.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use larder_testing::etcd::Etcd;
use larder_testing::free_port;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::support::{Server, run_ok, spawn_server_with, write_csv};

/// Longer than anything takes that ends.
const HANG: Duration = Duration::from_secs(60);

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

    /// A node whose certificates are in `certs/<name>`; clients get HTTPS and TLS too.
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

    /// The certificate that a node shows to another one, `as_node`.
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
        assert!(began.elapsed() < HANG, "it does not come about that {what}");
        std::thread::yield_now();
    }
}

#[test]
fn nodes_speak_tls_to_each_other_take_renewed_certificates_and_tell_of_a_stranger() {
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

    // Rows go from node to node, and so do versions where the source is gone.
    let rows = (0..200).map(|row| (row.to_string(), format!("value {row}")));
    let input = write_csv(scene.folder.path(), "in.csv", rows);
    let push = ["push", input.to_str().expect("text"), "--store", "s"];
    let how = ["--key", "key", "--value", "value", "--partitions", "16"];
    scene.larder(&a, &[&push[..], &how].concat());
    // What was built for the push has gone with it.
    let c = scene.serve("c", "certs");
    wait_for("c has a share of the version", || {
        let told = scene.larder(&c, &["cluster", "status", "--wait", "--json"]);
        let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        let members = told["members"].as_array().cloned().unwrap_or_default();
        let lacking = told["stores"][0]["lacking"].as_array().map(Vec::len);
        members.len() == 3 && lacking == Some(0)
    });
    let own = scene.path("data-certs-c/stores/s");
    assert!(own.is_dir(), "c has pulled its part over HTTPS");
    for row in [0, 50, 100, 150] {
        let told = scene.larder(&c, &["store", "get", "s", &row.to_string()]);
        assert_eq!(told, format!("value {row}\n"));
    }

    // A renewed certificate is used by new connections.
    let certificate = scene.path("certs/a/cert.pem");
    let before = scene.shown(&a, "b");
    assert_eq!(before, on_disk(&certificate));
    scene.certs("certs", &["--renew", "a"]);
    assert_ne!(on_disk(&certificate), before);
    wait_for("the renewed one is shown", || {
        scene.shown(&a, "b") == on_disk(&certificate)
    });

    // Who has another authority's certificate is told of by all.
    let d = scene.serve("d", "others");
    wait_for("it is told", || {
        let told = scene.larder(&b, &["cluster", "status"]);
        told.contains("! node d is in touch with etcd, and cannot be reached by a, b, c: ")
            && told.contains("signed by another authority")
    });
    for node in [d, a, b, c] {
        node.server.kill();
    }
}
