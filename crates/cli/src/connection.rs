//! The server that a command talks to.

use clap::Args;
use larder_client::AdminClient;

use crate::failure::Failure;

#[derive(Args, Clone)]
pub struct ServerArgs {
    /// The server's HTTP address
    #[arg(
        long,
        value_name = "URL",
        env = "LARDER_SERVER",
        default_value = "http://127.0.0.1:7070"
    )]
    pub server: String,
    /// The server's password, if it asks for one; other users of this machine see flags, so the
    /// variable is the better place
    #[arg(
        long,
        value_name = "TEXT",
        env = "LARDER_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,
}

impl ServerArgs {
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        let admin = AdminClient::new(&self.server)?;
        Ok(match &self.password {
            Some(password) => admin.with_password(password),
            None => admin,
        })
    }
}
