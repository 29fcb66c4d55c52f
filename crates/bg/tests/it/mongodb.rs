//! Tests of the store `mongodb` with a server that implements its protocol.

use larder_bg::stores::{self, Options};

use crate::conformance::{conforms, open};
use crate::servers;

#[test]
fn mongodb_conforms() {
    let Some(server) = servers::mongo() else {
        return;
    };
    for connections in [1, 3] {
        let options = Options {
            address: Some(server.address()),
            connections: Some(connections),
            ..Options::default()
        };
        conforms(&*open("mongodb", &options));
        let options = Options {
            settings: vec![("comments".to_owned(), "embedded".to_owned())],
            ..options
        };
        conforms(&*open("mongodb", &options));
    }
}

#[test]
fn an_address_is_a_host_and_a_port() {
    let rejection = |address: &str| {
        let known = stores::find("mongodb").expect("known");
        let opened = (known.open)(&Options {
            address: Some(address.to_owned()),
            ..Options::default()
        });
        opened.err()
    };
    for good in ["127.0.0.1:27017", "mongodb://example.org:1/social"] {
        assert_eq!(rejection(good), None);
    }
    for bad in ["localhost", "mongodb://host/social", "me:secret@host:1"] {
        let why = rejection(bad).expect("no address");
        assert!(why.contains("must be host:port"), "{why}");
    }
}
