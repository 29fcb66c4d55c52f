//! TLS to PostgreSQL, with the tests' own certificates.

use larder_testing::certificates::{Authority, Signed, date_time_ymd, self_signed};

use super::cluster::{Cluster, Sql};
use super::{SCHEMA, TABLES, server};
use crate::resp::Client;

/// Writes a file and returns its path for use in a URL.
fn file(authority: &Authority, name: &str, text: &str) -> String {
    authority.file(name, text).display().to_string()
}

fn root(authority: &Authority) -> String {
    authority.path("ca.pem").display().to_string()
}

/// Starts a PostgreSQL that requires TLS and a password for the role `larder`, and a client certificate for the role
/// `certified`.
fn start_with_tls(root: &str) -> Option<(Cluster, Sql)> {
    let cluster = Cluster::start(&[])?;
    let mut sql = cluster.database("blog");
    sql.run(SCHEMA);
    sql.run(
        "CREATE ROLE larder LOGIN REPLICATION PASSWORD 'secret'; CREATE ROLE certified LOGIN REPLICATION;
        GRANT SELECT ON posts, subs TO larder, certified;
        INSERT INTO posts SELECT 'a' || n, 1, 'one' FROM generate_series(1, 100) n",
    );
    let rules = "hostnossl all postgres 127.0.0.1/32 trust
        hostssl all larder 127.0.0.1/32 scram-sha-256
        hostssl all certified 127.0.0.1/32 cert";
    cluster.put("pg_hba.conf", rules);
    cluster.put("root.crt", root);
    Some((cluster, sql))
}

/// Makes PostgreSQL present this certificate.
fn present_certificate(cluster: &Cluster, sql: &mut Sql, shown: &Signed) {
    cluster.put("server.crt", &shown.certificate);
    cluster.put("server.key", &shown.key);
    // Two calls, because ALTER SYSTEM cannot run in a transaction block.
    sql.run("ALTER SYSTEM SET ssl = on");
    sql.run("ALTER SYSTEM SET ssl_ca_file = 'root.crt'");
    reload(cluster, sql);
}

/// Reloads the configuration, and waits until new connections use it.
fn reload(cluster: &Cluster, sql: &mut Sql) {
    let since = sql.one("SELECT pg_conf_load_time()");
    sql.run("SELECT pg_reload_conf()");
    let began = std::time::Instant::now();
    while Sql::to(cluster.port(), "blog").one("SELECT pg_conf_load_time()") == since {
        assert!(began.elapsed().as_secs() < 20, "never loaded");
    }
}

/// Checks that larder can read through this URL and follows a change.
#[track_caller]
fn check_reads(sql: &mut Sql, url: &str) {
    let server = server(url, TABLES);
    let mut client = Client::connect(&server);
    sql.run("UPDATE posts SET body = 'one'");
    client.check("GET post|a1|0000000001", "$3|one");
    sql.run("UPDATE posts SET body = 'two'");
    client.catch_up(sql);
    client.check("GET post|a1|0000000001", "$3|two");
    let connections = |which: &str| {
        format!(
            "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'larder' AND {which}"
        )
    };
    assert_eq!(sql.one(&connections("NOT ssl")), "0");
    // The stream of the previous server may end a moment later.
    let streams = connections("ssl AND backend_type = 'walsender'");
    client.wait_until("one stream", |_| sql.one(&streams) == "1");
}

#[track_caller]
fn check_rejected(url: &str, why: &str) {
    let server = server(url, TABLES);
    let mut client = Client::connect(&server);
    let answer = client.call("GET post|a1|0000000001");
    assert!(
        answer.starts_with("-SOURCE ") && answer.contains(why),
        "{answer}"
    );
}

#[test]
fn connections_follow_the_sslmode_of_the_address() {
    let authority = Authority::new();
    let root = root(&authority);
    let Some((cluster, mut sql)) = start_with_tls(&authority.pem()) else {
        return;
    };
    let url = |rest: &str| {
        let port = cluster.port();
        format!("postgres://larder:secret@127.0.0.1:{port}/blog{rest}")
    };
    reload(&cluster, &mut sql);
    // The server does not support TLS yet.
    check_rejected(&url("?sslmode=require"), "it does not support TLS");
    check_rejected(&url(""), "no pg_hba.conf entry");

    let here = authority.sign("127.0.0.1");
    present_certificate(&cluster, &mut sql, &here);
    check_rejected(&url("?sslmode=disable"), "no encryption");
    for mode in ["", "?sslmode=prefer", "?sslmode=require"] {
        check_reads(&mut sql, &url(mode));
    }
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = url(&format!("?sslmode={mode}&sslrootcert={root}"));
        check_reads(&mut sql, &url);
    }
    // The system's authorities do not include the test's, and another authority did not sign the certificate.
    check_rejected(&url("?sslmode=verify-full"), "UnknownIssuer");
    let other = Authority::new().pem();
    let other = file(&authority, "other.crt", &other);
    for mode in ["require", "verify-ca", "verify-full"] {
        let url = url(&format!("?sslmode={mode}&sslrootcert={other}"));
        check_rejected(&url, "invalid peer certificate");
    }

    // The certificate of another host.
    present_certificate(&cluster, &mut sql, &authority.sign("db.example"));
    let full = url(&format!("?sslmode=verify-full&sslrootcert={root}"));
    check_reads(
        &mut sql,
        &url(&format!("?sslmode=verify-ca&sslrootcert={root}")),
    );
    check_rejected(&full, "not valid for name");
    // A corrected certificate is accepted without a restart.
    let larder = server(&full, TABLES);
    let mut client = Client::connect(&larder);
    assert!(
        client
            .call("GET post|a2|0000000001")
            .starts_with("-SOURCE ")
    );
    present_certificate(&cluster, &mut sql, &here);
    client.wait_until("mended", |client| {
        client.call("GET post|a2|0000000001") == "$3|two"
    });
    drop(larder);

    // An expired certificate.
    let old = authority.sign_with("127.0.0.1", |params| {
        params.not_after = date_time_ymd(2001, 1, 1);
    });
    present_certificate(&cluster, &mut sql, &old);
    check_reads(&mut sql, &url("?sslmode=require"));
    check_rejected(&full, "expired");

    // A self-signed certificate, which is valid if it is itself trusted.
    let own = self_signed("127.0.0.1");
    present_certificate(&cluster, &mut sql, &own);
    check_rejected(&full, "invalid peer certificate");
    let itself = file(&authority, "itself.crt", &own.certificate);
    for mode in ["verify-ca", "verify-full"] {
        let url = url(&format!("?sslmode={mode}&sslrootcert={itself}"));
        check_reads(&mut sql, &url);
    }
}

#[test]
fn larder_presents_its_client_certificate() {
    let authority = Authority::new();
    let Some((cluster, mut sql)) = start_with_tls(&authority.pem()) else {
        return;
    };
    present_certificate(&cluster, &mut sql, &authority.sign("127.0.0.1"));
    let url = format!(
        "postgres://certified@127.0.0.1:{}/blog?sslmode=verify-full&sslrootcert={}",
        cluster.port(),
        root(&authority)
    );
    check_rejected(&url, "certificate");
    let own = authority.sign("certified");
    let certificate = file(&authority, "larder.crt", &own.certificate);
    let key = file(&authority, "larder.key", &own.key);
    check_reads(
        &mut sql,
        &format!("{url}&sslcert={certificate}&sslkey={key}"),
    );
}
