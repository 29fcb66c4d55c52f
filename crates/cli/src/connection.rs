//! The server that a command talks to.

use clap::Args;
use larder_client::AdminClient;

use crate::failure::Failure;

#[derive(Args, Debug, Clone)]
pub struct ServerArgs {
    /// The server's HTTP address
    #[arg(
        long,
        value_name = "URL",
        env = "LARDER_SERVER",
        default_value = "http://127.0.0.1:7070"
    )]
    pub server: String,
}

impl ServerArgs {
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        Ok(AdminClient::new(&self.server)?)
    }
}
