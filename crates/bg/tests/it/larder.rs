//! Tests of the store `larder` with a server in this process.

use larder_bg::stores::Options;
use larder_protocol::config::{Fsync, ServerConfig};
use larder_server::Server;
use tempfile::TempDir;

use crate::conformance::{conforms, open};

/// A server that is stopped when dropped.
pub struct Larder {
    runtime: tokio::runtime::Runtime,
    server: Option<Server>,
    _folder: TempDir,
}

impl Larder {
    pub fn start(threads: u32) -> Larder {
        let folder = tempfile::tempdir().expect("a folder");
        let mut config = ServerConfig::default();
        config.server.data = folder.path().join("data");
        config.server.resp = "127.0.0.1:0".to_owned();
        config.server.http = "127.0.0.1:0".to_owned();
        config.server.threads = threads;
        config.server.stop_timeout_seconds = 1;
        config.tables.fsync = Fsync::No;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let server = runtime.block_on(Server::start(config)).expect("it starts");
        Larder {
            runtime,
            server: Some(server),
            _folder: folder,
        }
    }

    pub fn address(&self) -> String {
        let server = self.server.as_ref().expect("it runs");
        server.resp_addr().to_string()
    }

    /// Returns the ports of Redis clients and of HTTP.
    pub fn ports(&self) -> (u16, u16) {
        let server = self.server.as_ref().expect("it runs");
        (server.resp_addr().port(), server.http_addr().port())
    }

    fn options(&self, connections: usize) -> Options {
        Options {
            address: Some(self.address()),
            connections: Some(connections),
            ..Options::default()
        }
    }
}

impl Drop for Larder {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            let stopped = self.runtime.block_on(server.stop());
            stopped.expect("it stops cleanly");
        }
    }
}

#[test]
fn larder_conforms() {
    let server = Larder::start(1);
    conforms(&*open("larder", &server.options(1)));
}

#[test]
fn larder_on_several_cores_conforms() {
    let server = Larder::start(3);
    conforms(&*open("larder", &server.options(4)));
}
