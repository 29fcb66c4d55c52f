//! Stock clients of Redis Cluster in Java and JavaScript, from `.cluster-clients`, which `scripts/setup test` makes.

use std::path::{Path, PathBuf};
use std::process::Command;

use larder_protocol::config::ClusterMode;

use crate::resp::server_with;

/// A client, which says whether it is content with the server at an address.
pub struct Client {
    name: &'static str,
    command: fn(&Path) -> Command,
}

pub const ALL: [Client; 2] = [
    Client {
        name: "jedis",
        command: |clients| {
            let mut java = Command::new("java");
            java.arg("-cp").arg(clients.join("java/*"));
            java.arg(program("Cluster.java"));
            java
        },
    },
    Client {
        name: "ioredis",
        command: |clients| {
            let mut node = Command::new("node");
            node.env("NODE_PATH", clients.join("node_modules"));
            node.arg(program("cluster.js"));
            node
        },
    },
];

fn program(name: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.join("tests/it/cluster_clients").join(name)
}

impl Client {
    /// Whether it is content; `None` if it is not installed, which is said.
    pub fn is_content(&self, address: &str) -> Option<()> {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let clients = here.join("../../.cluster-clients");
        if !clients.join("installed.txt").is_file() {
            larder_testing::missing(self.name);
            return None;
        }
        let output = (self.command)(&clients).arg(address).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let told = String::from_utf8_lossy(&output.stdout);
        let wrong = String::from_utf8_lossy(&output.stderr);
        assert_eq!(told.trim(), "content", "{}: {wrong}", self.name);
        Some(())
    }
}

#[test]
fn clients_of_a_cluster_are_content_with_one_node() {
    let server = server_with(|config| {
        config.server.threads = 2;
        config.cluster.mode = ClusterMode::One;
    });
    let address = server.server().resp_addr().to_string();
    for client in ALL {
        client.is_content(&address);
    }
}
