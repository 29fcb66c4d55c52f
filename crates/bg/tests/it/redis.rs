//! Tests of the store `redis`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use larder_bg::model::population::Population;
use larder_bg::stores::Options;
use larder_bg::stores::contract::Post;

use crate::conformance::{conforms, open, run};
use crate::servers;

#[test]
fn redis_conforms() {
    let Some(server) = servers::redis() else {
        return;
    };
    for connections in [1, 3] {
        let options = Options {
            address: Some(server.address()),
            connections: Some(connections),
            ..Options::default()
        };
        conforms(&*open("redis", &options));
    }
}

/// A restarted server or a promoted replica has lost the scripts.
#[test]
fn scripts_lost_by_the_server_are_sent_again() {
    let Some(server) = servers::redis() else {
        return;
    };
    let options = Options {
        address: Some(server.address()),
        ..Options::default()
    };
    let store = open("redis", &options);
    let population = Arc::new(Population {
        members: 30,
        friends: 6,
        resources: 2,
        ..Population::default()
    });
    let post = Post {
        author: 1,
        number: 1,
        time: 10,
    };
    run(async {
        store.create(&population).await.expect("created");
        let client = store.connect(population.clone()).await.expect("connected");
        client.load(0..30).await.expect("loaded");
        let forget = || {
            let mut stream = TcpStream::connect(server.address()).expect("it is there");
            stream.write_all(b"SCRIPT FLUSH\r\n").expect("sent");
            let mut reply = [0; 5];
            stream.read_exact(&mut reply).expect("answered");
            assert_eq!(&reply, b"+OK\r\n");
        };
        forget();
        client.invite_friend(0, 15).await.expect("invited");
        forget();
        client.accept_friend_request(15, 0).await.expect("accepted");
        forget();
        client.post_to_feed(1, post).await.expect("posted");
        assert_eq!(
            client
                .list_friends(0, 0)
                .await
                .expect("a list")
                .members
                .len(),
            7
        );
    });
}
