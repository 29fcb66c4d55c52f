//! The store `redis`.

use larder_bg::stores::Options;

use crate::conformance::{conforms, open};
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
