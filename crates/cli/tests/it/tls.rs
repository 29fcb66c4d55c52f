//! TLS for clients: both ports and all commands accept the certificates of `larder cluster certs`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use larder_client::{
    AdminClient, ClusterClient, ClusterOptions, Error, Reply, RespClient, RespOptions, Tls,
    TlsFiles,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::support::{Server, run_failing, run_ok, spawn_server, spawn_server_with, write_csv};

/// A folder with certificates of node `a` and of client `ops`.
struct Scene(TempDir);

impl Scene {
    fn new() -> Scene {
        let scene = Scene(tempfile::tempdir().expect("a folder"));
        scene.certs(&["a=127.0.0.1,localhost", "--client", "ops"]);
        scene
    }

    fn certs(&self, arguments: &[&str]) {
        let out = self.file("certs");
        run_ok([&["cluster", "certs", "--out", &out], arguments].concat());
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("text").to_owned()
    }

    fn serve(&self, settings: &[&str]) -> Server {
        let of_node = |name: &str| self.file(&format!("certs/a/{name}"));
        spawn_server_with(&self.path("data"), |command| {
            command.env("LARDER_SERVER_TLS_CERT", of_node("cert.pem"));
            command.env("LARDER_SERVER_TLS_KEY", of_node("key.pem"));
            for setting in settings {
                command.args(["--set", setting]);
            }
        })
    }

    fn authority(&self) -> TlsFiles {
        TlsFiles {
            authority: Some(self.path("certs/ca.pem")),
            ..TlsFiles::default()
        }
    }

    fn ops(&self) -> TlsFiles {
        TlsFiles {
            certificate: Some(self.path("certs/ops/cert.pem")),
            key: Some(self.path("certs/ops/key.pem")),
            ..self.authority()
        }
    }
}

fn resp(server: &Server, files: &TlsFiles) -> RespClient {
    let options = RespOptions {
        tls: Some(Tls::open(files).expect("files that fit")),
        ..RespOptions::default()
    };
    RespClient::with_options(&server.resp, options)
}

fn stores(server: &Server, files: &TlsFiles) -> Result<usize, Error> {
    let admin = AdminClient::with_tls(&server.http, files)?;
    admin.stores().map(|stores| stores.len())
}

#[test]
fn both_ports_and_the_commands_use_tls() {
    let scene = Scene::new();
    let server = scene.serve(&[]);
    assert!(
        server.http.starts_with("https://127.0.0.1:"),
        "{}",
        server.http
    );
    let rows = [("1".to_owned(), "ann".to_owned())];
    let input = write_csv(scene.0.path(), "in.csv", rows);
    let ca = scene.file("certs/ca.pem");
    let at = ["--server", &server.http, "--ca", &ca];
    let push = [
        "push",
        input.to_str().expect("text"),
        "--store",
        "s",
        "--key",
        "key",
    ];
    run_ok([&push[..], &["--value", "value"], &at].concat());
    assert_eq!(
        run_ok([&["store", "get", "s", "1"][..], &at].concat()),
        "ann\n"
    );
    let client = resp(&server, &scene.authority());
    assert_eq!(client.get("s:1").expect("a value"), Some(b"ann".to_vec()));

    // The replies are far larger than the buffers between server and client, and the client sends all requests before
    // it reads.
    let long = vec![b'x'; 100_000];
    client.command(&[b"SET", b"t|1", &long]).expect("written");
    let get: &[&[u8]] = &[b"GET", b"t|1"];
    let answers = client.pipeline(&vec![get; 300]).expect("all");
    let complete = Reply::Bulk(long);
    assert!(answers.len() == 300 && answers.iter().all(|it| *it == complete));

    let Some(redis_cli) = larder_testing::find("redis-cli") else {
        larder_testing::report_missing("redis-cli");
        return;
    };
    let (host, port) = server.resp.split_once(':').expect("host:port");
    let told = Command::new(redis_cli)
        .args([
            "-h", host, "-p", port, "--tls", "--cacert", &ca, "GET", "s:1",
        ])
        .output()
        .expect("it runs");
    assert_eq!(String::from_utf8_lossy(&told.stdout), "ann\n", "{told:?}");
}

#[test]
fn plaintext_to_a_tls_port_and_tls_to_a_plaintext_port_are_reported() {
    let scene = Scene::new();
    let server = scene.serve(&[]);
    let plain = RespClient::new(&server.resp)
        .get("s:1")
        .expect_err("it is plain");
    assert!(
        plain.to_string().contains("redis-cli --tls --cacert"),
        "{plain}"
    );
    let http = server.http.replace("https", "http");
    let plain = run_failing(1, ["store", "list", "--server", &http]);
    assert!(plain.contains("use https:// instead of http://"), "{plain}");
    let strange = run_failing(1, ["store", "list", "--server", &server.http]);
    assert!(strange.contains("--ca FILE or LARDER_CA"), "{strange}");
    let by_other_name = AdminClient::with_tls(
        &server.http.replace("127.0.0.1", "127.0.0.2"),
        &scene.authority(),
    );
    // Nothing listens at this address on systems where only 127.0.0.1 is a loopback address.
    let wrong = by_other_name.expect("an address").stores().expect_err("no");
    assert!(
        matches!(wrong, Error::Tls { .. } | Error::NoServer { .. }),
        "{wrong}"
    );
    let wrong = run_failing(
        2,
        [
            "store",
            "list",
            "--server",
            &server.http,
            "--ca",
            "no-such-file",
        ],
    );
    assert!(
        wrong.contains("no-such-file cannot be used for TLS"),
        "{wrong}"
    );
    server.stop();

    let server = spawn_server(&scene.path("plain"));
    let https = server.http.replace("http", "https");
    let wrong = AdminClient::with_tls(&https, &scene.authority());
    let wrong = wrong
        .expect("an address")
        .stores()
        .expect_err("it is plain");
    assert!(
        wrong.to_string().contains("use http:// instead of"),
        "{wrong}"
    );
    let wrong = resp(&server, &scene.authority())
        .get("s:1")
        .expect_err("it is plain");
    assert!(matches!(&wrong, Error::Tls { .. }), "{wrong}");
    // The first bytes of a TLS handshake of any version. The server responds immediately instead of waiting for the
    // end of a line.
    let mut socket = TcpStream::connect(&server.resp).expect("it listens");
    socket.write_all(&[0x16, 3, 1, 2, 0]).expect("sent");
    let mut output = String::new();
    socket.read_to_string(&mut output).expect("the end");
    assert!(
        output.contains("this is TLS") && output.contains("server.tls_cert"),
        "{output}"
    );
}

#[test]
fn a_required_client_certificate_must_be_of_the_authority() {
    let (scene, others) = (Scene::new(), Scene::new());
    let authority = scene.file("certs/ca.pem");
    let server = scene.serve(&[&format!("server.tls_client_ca={authority}")]);
    assert_eq!(stores(&server, &scene.ops()), Ok(0));
    resp(&server, &scene.ops())
        .command(&[b"PING"])
        .expect("it may");
    let strangers = TlsFiles {
        certificate: others.ops().certificate,
        key: others.ops().key,
        ..scene.authority()
    };
    for files in [scene.authority(), strangers] {
        let refused = stores(&server, &files).expect_err("it may not");
        assert!(
            refused.to_string().contains("--tls-cert and --tls-key"),
            "{refused}"
        );
        let refused = resp(&server, &files)
            .command(&[b"PING"])
            .expect_err("it may not");
        assert!(
            matches!(refused, Error::Tls { .. } | Error::Broken { .. }),
            "{refused}"
        );
    }
}

#[test]
fn renewed_files_are_used_without_a_restart_and_invalid_ones_are_not() {
    let scene = Scene::new();
    let server = scene.serve(&[]);
    let (certificate, before) = (scene.path("certs/a/cert.pem"), shown(&scene, &server.resp));
    assert_eq!(before, on_disk(&certificate));
    let pem = std::fs::read(&certificate).expect("a file");
    std::fs::write(&certificate, "cut off").expect("written");
    assert_eq!(shown(&scene, &server.resp), before);
    std::fs::write(&certificate, pem).expect("written");
    scene.certs(&["--renew", "a"]);
    let renewed = on_disk(&certificate);
    assert_ne!(renewed, before);
    let http = server.http.trim_start_matches("https://");
    while shown(&scene, &server.resp) != renewed || shown(&scene, http) != renewed {}
}

#[test]
fn a_server_does_not_start_with_invalid_tls_files() {
    let scene = Scene::new();
    let serve = |settings: &[&str]| {
        let data = scene.file("data");
        let base = [
            "serve",
            "--data",
            &data,
            "--resp",
            "127.0.0.1:0",
            "--http",
            "127.0.0.1:0",
        ];
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let output = crate::support::larder()
            .args(base)
            .args(settings)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let certificate = format!("server.tls_cert={}", scene.file("certs/a/cert.pem"));
    let other_key = format!("server.tls_key={}", scene.file("certs/ops/key.pem"));
    let stdout = serve(&[&certificate, &other_key]);
    assert!(stdout.contains("cannot be used together"), "{stdout}");
    let stdout = serve(&[&certificate]);
    assert!(stdout.contains("a certificate needs its key"), "{stdout}");
    let stdout = serve(&["server.tls_client_ca=x"]);
    assert!(stdout.contains("server.tls_client_ca"), "{stdout}");
}

fn on_disk(certificate: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(certificate).expect("a certificate")
}

/// Returns the certificate that a port presents.
fn shown(scene: &Scene, address: &str) -> CertificateDer<'static> {
    let mut roots = RootCertStore::empty();
    roots
        .add(on_disk(&scene.path("certs/ca.pem")))
        .expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let socket = TcpStream::connect(address).expect("it listens");
    let mut stream = StreamOwned::new(connection, socket);
    stream.conn.complete_io(&mut stream.sock).expect("shaken");
    let shown = stream.conn.peer_certificates().expect("certificates");
    shown[0].clone().into_owned()
}

#[test]
fn a_cluster_client_uses_tls_to_discovered_nodes() {
    let scene = Scene::new();
    let ca = scene.file("certs/ca.pem");
    let asks = format!("server.tls_client_ca={ca}");
    let server = scene.serve(&["cluster.mode=one", &asks]);
    let client = |files: &TlsFiles| {
        let options = ClusterOptions {
            tls: Some(Tls::open(files).expect("files that fit")),
            ..ClusterOptions::default()
        };
        ClusterClient::with_options([server.resp.clone()], options)
    };
    let own = client(&scene.ops());
    // Larger than the buffers in both directions, over reused connections.
    let long = vec![b'x'; 1_000_000];
    for n in 0..20 {
        let key = format!("t|u{n}|1");
        own.command(&[b"SET", key.as_bytes(), &long])
            .expect("written");
        assert_eq!(own.get(&key).expect("a value").as_deref(), Some(&long[..]));
    }
    let keys: Vec<String> = (0..20).map(|n| format!("t|u{n}|1")).collect();
    assert!(own.mget(&keys).expect("values").iter().all(Option::is_some));
    assert_eq!(own.counts().retries, 0);
    assert_eq!(own.nodes().expect("nodes")[0].slots, 16_384);

    for (files, advice) in [
        (TlsFiles::default(), "--ca FILE"),
        (scene.authority(), "--tls-cert"),
    ] {
        match client(&files).get("t|u1|1") {
            Err(Error::Tls { detail, .. }) => assert!(detail.contains(advice), "{detail}"),
            other => panic!("{other:?}"),
        }
    }
}
