//! Connects to a server, or to the nodes of its cluster, over RESP. The server's HTTP API returns the address.

use std::time::Duration;

use larder_client::{ClusterClient, ClusterOptions, Reply, RespClient, RespOptions, Tls, TlsFiles};

use crate::connection::ServerArgs;
use crate::failure::Failure;

/// Timeout of a command. A large search may take long.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Sends commands to the node that owns the key, or to any node if there is no key.
pub struct Nodes {
    client: ClusterClient,
    one: RespClient,
    options: RespOptions,
    /// The address and options of the cluster client.
    found_by: (String, ClusterOptions),
}

impl Nodes {
    /// # Errors
    /// No server answers at the address.
    pub fn connect(args: &ServerArgs) -> Result<Nodes, Failure> {
        let admin = args.admin()?;
        let address = admin.resp_address()?;
        let files = TlsFiles {
            authority: args.ca.clone(),
            certificate: args.tls_cert.clone(),
            key: args.tls_key.clone(),
        };
        let tls = if admin.url().starts_with("https") {
            Some(Tls::open(&files)?)
        } else {
            None
        };
        let options = ClusterOptions {
            password: args.password.clone(),
            tls,
            ..ClusterOptions::default()
        };
        let one = RespOptions {
            timeout: COMMAND_TIMEOUT,
            password: options.password.clone(),
            tls: options.tls.clone(),
            ..RespOptions::default()
        };
        Ok(Nodes {
            one: RespClient::with_options(address.clone(), one.clone()),
            options: one,
            client: ClusterClient::with_options([address.clone()], options.clone()),
            found_by: (address, options),
        })
    }

    /// The client for commands that one node must execute, such as those on a cursor.
    pub fn single_node(&self) -> &RespClient {
        &self.one
    }

    pub fn client(&self) -> &ClusterClient {
        &self.client
    }

    /// Creates a client with separate connections.
    pub fn another_client(&self) -> ClusterClient {
        let (address, options) = self.found_by.clone();
        ClusterClient::with_options([address], options)
    }

    /// Creates a client for each node.
    ///
    /// # Errors
    /// The nodes are unknown.
    pub fn connect_each(&self) -> Result<Vec<RespClient>, Failure> {
        let nodes = self.client.nodes()?.into_iter();
        let clients = nodes.map(|it| RespClient::with_options(it.address, self.options.clone()));
        Ok(clients.collect())
    }

    /// Sends one command that may take long, given as texts.
    ///
    /// # Errors
    /// An error reply, or no reply.
    pub fn long_command(&self, parts: &[&str]) -> Result<Reply, Failure> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        Ok(self.single_node().command(&parts)?)
    }

    /// Sends one command.
    ///
    /// # Errors
    /// An error reply, or no reply.
    pub fn command(&self, parts: &[&[u8]]) -> Result<Reply, Failure> {
        Ok(self.client.command(parts)?)
    }

    /// Sends one command, given as texts.
    ///
    /// # Errors
    /// As [`Nodes::command`].
    pub fn text_command(&self, parts: &[&str]) -> Result<Reply, Failure> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        self.command(&parts)
    }
}
