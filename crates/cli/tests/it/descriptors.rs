//! A server with a low limit of open files.

use std::io::Read;
use std::net::TcpStream;

use larder_client::Reply;

use crate::support::{run_ok, spawn_server_with, text, through_shell};

/// When clients have opened all connections that the limit allows, writes, reads and HTTP keep working.
#[test]
fn clients_never_take_the_descriptors_that_the_journal_and_http_need() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = spawn_server_with(folder.path(), |command| {
        through_shell(command, "ulimit -n 256; exec \"$@\"");
    });
    let client = server.resp();
    let limit = client.command(&[b"CONFIG", b"GET", b"maxclients"]);
    let Ok(Reply::Array(pair)) = limit else {
        panic!("{limit:?}");
    };
    let Some(Reply::Bulk(allowed)) = pair.last() else {
        panic!("{pair:?}");
    };
    let allowed: usize = text(allowed).parse().expect("a number");
    assert!((50..160).contains(&allowed), "{allowed} of 256");
    let mut silent: Vec<TcpStream> = (0..400)
        .map(|_| TcpStream::connect(&server.resp).expect("the backlog takes it"))
        .collect();
    // Further connections are rejected with an error.
    let mut refused = String::new();
    let last = silent.last_mut().expect("there are some");
    last.read_to_string(&mut refused).expect("it is closed");
    assert_eq!(refused, "-ERR max number of clients reached\r\n");
    // Enough data to start another log file and a snapshot.
    let value = vec![b'v'; 1 << 20];
    for i in 0..80 {
        let key = format!("t|{i}");
        let set = client.command(&[b"SET", key.as_bytes(), &value]);
        assert_eq!(set, Ok(Reply::Simple("OK".to_owned())));
    }
    run_ok(["store", "list", "--server", &server.http]);
}
