//! `larder cluster certs`: nodes and clients accept its certificates, and it never overwrites existing files.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use larder_cluster::map::Incarnation;
use larder_server::cluster::{PeerIdentity, Tls, TlsFiles};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

use crate::support::{run_failing, run_ok};

struct Certs(TempDir);

impl Certs {
    fn new() -> Certs {
        Certs(tempfile::tempdir().expect("a folder"))
    }

    fn out(&self) -> String {
        let out = self.0.path().join("certs");
        out.to_str().expect("text").to_owned()
    }

    #[track_caller]
    fn make(&self, arguments: &[&str]) -> String {
        let out = self.out();
        run_ok([&["cluster", "certs", "--out", &out], arguments].concat())
    }

    #[track_caller]
    fn refused(&self, code: i32, arguments: &[&str]) -> String {
        let out = self.out();
        run_failing(
            code,
            [&["cluster", "certs", "--out", &out], arguments].concat(),
        )
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(Path::new(&self.out()).join(file)).expect(file)
    }

    fn tls(&self, node: &str) -> Tls {
        let folder = Path::new(&self.out()).join(node);
        let files = TlsFiles {
            authority: folder.join("ca.pem"),
            certificate: folder.join("cert.pem"),
            key: folder.join("key.pem"),
        };
        Tls::open(&files).expect("the files fit")
    }
}

/// Connects two nodes, and returns the error if one does not accept the other.
fn connect_nodes(from: &Tls, to: &Tls, known: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("bound");
        let known = PeerIdentity {
            name: known.to_owned(),
            incarnation: Incarnation(1),
            address: addr.to_string(),
        };
        let connect = async {
            let socket = TcpStream::connect(addr).await?;
            from.connect(&known, socket).await.map(drop)
        };
        let accept = async {
            let (socket, _) = listener.accept().await?;
            to.accept(socket).await.map(drop)
        };
        let (connected, accepted) = tokio::join!(connect, accept);
        connected.and(accepted).map_err(|error| error.to_string())
    })
}

#[test]
fn nodes_accept_only_certificates_of_the_same_authority() {
    let (certs, others) = (Certs::new(), Certs::new());
    let output = certs.make(&["a=10.0.0.1", "b"]);
    assert!(
        output.contains("tls_ca") && output.contains("a node, as 10.0.0.1"),
        "{output}"
    );
    others.make(&["a", "b"]);
    let [a, b] = ["a", "b"].map(|node| certs.tls(node));
    assert_eq!(connect_nodes(&a, &b, "b"), Ok(()));
    let wrong = connect_nodes(&a, &b, "c").expect_err("b is not c");
    assert!(wrong.contains("not valid for"), "{wrong}");
    connect_nodes(&a, &others.tls("b"), "b").expect_err("it is another authority's");
    connect_nodes(&others.tls("a"), &b, "b").expect_err("it is another authority's");

    // The certificate of a node that joins later, and a renewed certificate, are signed by the same authority.
    certs.make(&["d"]);
    certs.make(&["--renew", "a"]);
    assert_eq!(connect_nodes(&certs.tls("a"), &certs.tls("d"), "d"), Ok(()));
    assert_eq!(connect_nodes(&certs.tls("d"), &b, "b"), Ok(()));
}

#[test]
fn a_client_certificate_is_rejected_as_a_node_certificate() {
    let certs = Certs::new();
    let output = certs.make(&["a", "--client", "backup"]);
    assert!(output.contains("redis-cli --tls"), "{output}");
    let [a, client] = ["a", "backup"].map(|name| certs.tls(name));
    assert_eq!(
        connect_nodes(&client, &a, "a"),
        Ok(()),
        "it shows that it may connect"
    );
    connect_nodes(&a, &client, "backup").expect_err("it is no server");
    let wrong = certs.refused(2, &["--client", "more=10.0.0.1"]);
    assert!(wrong.contains("a name only"), "{wrong}");
}

#[test]
fn files_are_private_and_never_overwritten() {
    let certs = Certs::new();
    certs.make(&["a=10.0.0.1,db.example.com", "b"]);
    let mut seen = 0;
    let mut folders = vec![certs.out()];
    while let Some(folder) = folders.pop() {
        let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
        assert_eq!(mode(Path::new(&folder)), 0o700, "{folder}");
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path.to_str().expect("text").to_owned())
            } else {
                assert_eq!(mode(&path), 0o600, "{}", path.display())
            }
            seen += 1;
        }
    }
    assert_eq!(seen, 2 + 2 + 2 * 4, "no file is left that was in between");

    let before = [certs.read("a/cert.pem"), certs.read("a/key.pem")];
    let wrong = certs.refused(4, &["c", "a"]);
    assert!(
        wrong.contains("a exists already") && wrong.contains("--renew"),
        "{wrong}"
    );
    assert!(
        !Path::new(&certs.out()).join("c").exists(),
        "nothing is half done"
    );
    assert_eq!(before, [certs.read("a/cert.pem"), certs.read("a/key.pem")]);

    let output = certs.make(&["--renew", "a"]);
    assert!(
        output.contains("renewed for a node, as 10.0.0.1, db.example.com"),
        "{output}"
    );
    assert_ne!(before, [certs.read("a/cert.pem"), certs.read("a/key.pem")]);
    let wrong = certs.refused(3, &["--renew", "c"]);
    assert!(wrong.contains("cannot be renewed"), "{wrong}");
    let wrong = certs.refused(4, &["--renew", "--client", "b"]);
    assert!(wrong.contains("not that of a client"), "{wrong}");
}

#[test]
fn a_missing_or_wrong_authority_key_is_rejected() {
    let (certs, others) = (Certs::new(), Certs::new());
    certs.make(&["a"]);
    others.make(&["a"]);
    let key = Path::new(&certs.out()).join("ca.key");
    std::fs::copy(Path::new(&others.out()).join("ca.key"), &key).expect("copied");
    let wrong = certs.refused(1, &["b"]);
    assert!(wrong.contains("does not belong to"), "{wrong}");
    std::fs::remove_file(&key).expect("it was there");
    let wrong = certs.refused(3, &["b"]);
    assert!(
        wrong.contains("ca.key does not exist") && wrong.contains("restore it"),
        "{wrong}"
    );
    assert!(!Path::new(&certs.out()).join("b").exists());
    for (wrong, words) in [
        (&["a=10.0.0.1:7380"][..], "without a port"),
        (&["c", "c"], "given twice"),
        (&["c", "--days", "0"], "from 1 to"),
        (&[], "required"),
    ] {
        let output = certs.refused(2, wrong);
        assert!(output.contains(words), "{output}");
    }
}
