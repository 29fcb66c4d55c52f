//! The client of a real etcd: certificates, passwords, addresses.

#![expect(
    clippy::disallowed_methods,
    reason = "a port without a listener, and a server that sends wrong replies"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use larder_cluster::coordination::{
    Coordination, Error, Etcd, EtcdConfig, Keys, LeaseId, Outcome, Revision, Session, TlsFiles,
    Writer,
};
use larder_testing::certificates::Authority;
use larder_testing::etcd::Etcd as Server;

use super::with_timeout;

fn service(config: EtcdConfig) -> Arc<dyn Coordination> {
    Arc::new(Etcd::new(config).expect("it can be used"))
}

async fn works(service: &Arc<dyn Coordination>, writer: &mut Writer) {
    let before = service.read(&Keys::one("map")).await.expect("an answer");
    let at = before
        .entries
        .first()
        .map_or(Revision(0), |entry| entry.modified);
    let change = writer.change().if_unchanged("map", at).put("map", "x");
    let outcome = service.change(&change).await.expect("an answer");
    assert!(matches!(outcome, Outcome::Done(_)));
}

/// Writes `NAME.pem` and `NAME.key`.
fn sign(authority: &Authority, name: &str) {
    let signed = authority.sign("127.0.0.1");
    authority.file(&format!("{name}.pem"), &signed.certificate);
    authority.file(&format!("{name}.key"), &signed.key);
}

#[tokio::test]
async fn members_and_clients_authenticate_by_certificates() {
    let authority = Authority::new();
    sign(&authority, "server");
    sign(&authority, "node");
    let option = |name: &str, file: &str| format!("--{name}={}", authority.path(file).display());
    let options = [
        option("cert-file", "server.pem"),
        option("key-file", "server.key"),
        option("trusted-ca-file", "ca.pem"),
        "--client-cert-auth".to_owned(),
    ];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let Some(etcd) = Server::start_with(1, &options) else {
        return;
    };
    let with = |certificate: bool, authority_file: Option<PathBuf>| EtcdConfig {
        endpoints: etcd.endpoints(),
        prefix: "/larder/tls/".to_owned(),
        tls: TlsFiles {
            authority: authority_file,
            certificate: certificate.then(|| authority.path("node.pem")),
            key: certificate.then(|| authority.path("node.key")),
        },
        ..EtcdConfig::default()
    };
    let mut writer = Writer::new("a", 1);
    let known = service(with(true, Some(authority.path("ca.pem"))));
    with_timeout(works(&known, &mut writer)).await;
    let mut watch = known.watch(&Keys::one("map"), Revision(0));
    assert!(
        with_timeout(futures::StreamExt::next(&mut watch))
            .await
            .is_some()
    );

    let keys = Keys::one("map");
    let with_short_timeout = |config: EtcdConfig| {
        let request_timeout = Some(Duration::from_secs(1));
        service(EtcdConfig {
            request_timeout,
            ..config
        })
    };
    let unverified = with_short_timeout(with(false, Some(authority.path("ca.pem"))));
    let other = Authority::new();
    let trusting_another = with_short_timeout(with(true, Some(other.path("ca.pem"))));
    let (one, two) =
        with_timeout(async { tokio::join!(unverified.read(&keys), trusting_another.read(&keys)) })
            .await;
    assert!(one.is_err());
    let why = two.expect_err("the member is not who it says").to_string();
    assert!(
        why.contains("cannot connect: invalid peer certificate"),
        "{why}"
    );
}

/// Root has all permissions, larder those for keys below `/larder/a/`.
fn with_users(etcd: &Server) {
    let b64 = |text: &str| BASE64_STANDARD.encode(text);
    let grant = format!(
        r#"{{"name":"larder","perm":{{"permType":"READWRITE","key":"{}","range_end":"{}"}}}}"#,
        b64("/larder/a/"),
        b64("/larder/a0")
    );
    for (path, body) in [
        ("auth/user/add", r#"{"name":"root","password":"r"}"#),
        ("auth/user/grant", r#"{"user":"root","role":"root"}"#),
        ("auth/role/add", r#"{"name":"larder"}"#),
        ("auth/role/grant", &grant),
        ("auth/user/add", r#"{"name":"larder","password":"secret"}"#),
        ("auth/user/grant", r#"{"user":"larder","role":"larder"}"#),
        ("auth/enable", "{}"),
    ] {
        let answer = etcd.post(0, path, body).expect("an answer");
        assert!(answer.contains("header"), "{path}: {answer}");
    }
}

#[tokio::test]
async fn a_password_is_sent_and_its_token_renewed() {
    let Some(mut etcd) = Server::start(1) else {
        return;
    };
    with_users(&etcd);
    let as_user = |prefix: &str, user: Option<(&str, &str)>| {
        service(EtcdConfig {
            endpoints: etcd.endpoints(),
            prefix: prefix.to_owned(),
            user: user.map(|(name, password)| (name.to_owned(), password.to_owned())),
            ..EtcdConfig::default()
        })
    };
    let larder = as_user("/larder/a/", Some(("larder", "secret")));
    let mut writer = Writer::new("a", 1);
    with_timeout(works(&larder, &mut writer)).await;
    let session = with_timeout(Session::begin(larder.clone(), 5))
        .await
        .expect("granted");
    assert!(
        with_timeout(larder.keep_alive(session.id()))
            .await
            .expect("an answer")
            .is_some()
    );

    let refused = async |service: Arc<dyn Coordination>| match service.read(&Keys::one("map")).await
    {
        Err(Error::Refused(why)) => why,
        other => panic!("it is refused: {other:?}"),
    };
    let elsewhere = as_user("/larder/b/", Some(("larder", "secret")));
    assert!(
        with_timeout(refused(elsewhere))
            .await
            .contains("permission denied")
    );
    let wrong = as_user("/larder/a/", Some(("larder", "wrong")));
    assert!(
        with_timeout(refused(wrong))
            .await
            .contains("authentication failed")
    );
    let anonymous = as_user("/larder/a/", None);
    assert!(
        with_timeout(refused(anonymous))
            .await
            .contains("user name is empty")
    );

    // A restarted member does not know tokens from before.
    etcd.kill(0);
    etcd.start_all().expect("it starts again");
    with_timeout(works(&larder, &mut writer)).await;
}

#[tokio::test]
async fn a_user_without_authentication_in_etcd_is_reported() {
    let Some(etcd) = Server::start(1) else {
        return;
    };
    let config = EtcdConfig {
        endpoints: etcd.endpoints(),
        prefix: "/larder/a/".to_owned(),
        user: Some(("larder".to_owned(), "secret".to_owned())),
        ..EtcdConfig::default()
    };
    let why = with_timeout(service(config).read(&Keys::one("map")))
        .await
        .expect_err("refused")
        .to_string();
    assert!(why.contains("authentication is not enabled"), "{why}");
}

#[tokio::test]
async fn an_unreachable_etcd_executes_nothing() {
    let address = format!("http://127.0.0.1:{}", larder_testing::free_port());
    let config = EtcdConfig {
        endpoints: vec![address.clone()],
        prefix: "/larder/a/".to_owned(),
        request_timeout: Some(Duration::from_millis(300)),
        ..EtcdConfig::default()
    };
    let change = Writer::new("a", 1)
        .change()
        .if_unchanged("map", Revision(0))
        .put("map", "x");
    match with_timeout(service(config).change(&change)).await {
        Err(Error::NotDone(why)) => {
            let expected = format!("etcd did not answer within 0.3 s ({address}: cannot connect: ");
            assert!(why.starts_with(&expected), "{why}");
        }
        other => panic!("it was not done: {other:?}"),
    }
}

#[test]
fn an_invalid_configuration_is_rejected_early() {
    let refused = |endpoint: &str, prefix: &str, tls: TlsFiles| {
        let config = EtcdConfig {
            endpoints: if endpoint.is_empty() {
                Vec::new()
            } else {
                vec![endpoint.to_owned()]
            },
            prefix: prefix.to_owned(),
            tls,
            ..EtcdConfig::default()
        };
        match Etcd::new(config) {
            Err(Error::Refused(why)) => why,
            _ => panic!("{endpoint} {prefix} is refused"),
        }
    };
    let plain = |endpoint: &str| refused(endpoint, "/larder/a/", TlsFiles::default());
    assert_eq!(plain(""), "etcd: no address of a member is given");
    assert_eq!(
        plain("localhost:2379"),
        "etcd: the address \"localhost:2379\" must begin with http:// or https://"
    );
    assert_eq!(
        plain("http://h:2379/v3"),
        "etcd: the address \"http://h:2379/v3\" must be like http://HOST:2379, without a path or a user"
    );
    assert_eq!(
        refused("http://h:2379", "larder", TlsFiles::default()),
        "\"larder\" is not a valid prefix of etcd keys; it must be like /larder/main/"
    );
    let missing = TlsFiles {
        authority: Some(Path::new("/no/such").to_owned()),
        ..TlsFiles::default()
    };
    let why = refused("https://h:2379", "/larder/a/", missing);
    assert!(
        why.starts_with("TLS to etcd: /no/such cannot be read"),
        "{why}"
    );
}

/// Acts as an etcd member whose leadership ended: it renews leases in an old term while another member is the leader.
fn deposed(keepalive_terms: &'static [u64], read_term: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        let mut terms = keepalive_terms.iter();
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.expect("a connection"));
            let (mut request, mut line) = (String::new(), String::new());
            while reader.read_line(&mut line).is_ok_and(|length| length > 2) {
                request.push_str(&std::mem::take(&mut line));
            }
            let body = if request.contains("/v3/lease/keepalive") {
                let term = terms.next().expect("another keepalive");
                format!(r#"{{"result":{{"header":{{"raft_term":"{term}"}},"ID":"7","TTL":"5"}}}}"#)
            } else {
                format!(r#"{{"header":{{"raft_term":"{read_term}"}}}}"#)
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
            // Only the part of the request is read that its sender waits for; the rest is discarded with the connection.
            let mut rest = [0; 4096];
            let _ = reader.read(&mut rest);
            let _ = reader.get_mut().write_all(answer.as_bytes());
        }
    });
    address
}

#[tokio::test]
async fn a_keepalive_that_a_deposed_leader_answered_does_not_count() {
    let to = |address: String| {
        service(EtcdConfig {
            endpoints: vec![address],
            prefix: "/larder/a/".to_owned(),
            ..EtcdConfig::default()
        })
    };
    let stuck = to(deposed(&[2, 2, 2], 3));
    match with_timeout(stuck.keep_alive(LeaseId(7))).await {
        Err(Error::Unknown(why)) => {
            assert!(why.contains("leader changed during each of 3"), "{why}")
        }
        other => panic!("the state of the lease is unknown: {other:?}"),
    }
    let found_out = to(deposed(&[2, 3], 3));
    assert_eq!(
        with_timeout(found_out.keep_alive(LeaseId(7))).await,
        Ok(Some(5))
    );
}
