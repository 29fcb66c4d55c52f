//! A server, or the nodes of its cluster, over RESP: where that is, its HTTP says.

use larder_client::{ClusterClient, ClusterOptions, Reply, Tls, TlsFiles};

use crate::connection::ServerArgs;
use crate::failure::Failure;

/// Commands to whichever node has the key; to any node where there is no key.
pub struct Nodes {
    client: ClusterClient,
}

impl Nodes {
    /// # Errors
    /// No server answers at the address.
    pub fn of(args: &ServerArgs) -> Result<Nodes, Failure> {
        let admin = args.admin()?;
        let address = admin.resp_address()?;
        let files = TlsFiles {
            authority: args.ca.clone(),
            certificate: args.tls_cert.clone(),
            key: args.tls_key.clone(),
        };
        let tls = match admin.url().starts_with("https") {
            true => Some(Tls::open(&files)?),
            false => None,
        };
        let options = ClusterOptions {
            password: args.password.clone(),
            tls,
            ..ClusterOptions::default()
        };
        Ok(Nodes {
            client: ClusterClient::with_options([address], options),
        })
    }

    /// Sends one command, name first.
    ///
    /// # Errors
    /// An error reply, or no reply.
    pub fn command(&self, parts: &[&[u8]]) -> Result<Reply, Failure> {
        Ok(self.client.command(parts)?)
    }

    /// The same, of words.
    ///
    /// # Errors
    /// As [`Nodes::command`].
    pub fn words(&self, parts: &[&str]) -> Result<Reply, Failure> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
        self.command(&parts)
    }
}
