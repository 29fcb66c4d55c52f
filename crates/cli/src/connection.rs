//! The connection options of a command.

use std::path::PathBuf;

use clap::Args;
use larder_client::{AdminClient, TlsFiles};

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
    /// The server's password, if it requires one; prefer the environment variable, because other users
    /// of this machine can see flags
    #[arg(
        long,
        value_name = "TEXT",
        env = "LARDER_PASSWORD",
        hide_env_values = true
    )]
    pub password: Option<String>,
    /// For an https:// address: the file with the certificate of the authority that signed the
    /// server's certificate [default: the authorities that the system trusts]
    #[arg(long, value_name = "FILE", env = "LARDER_CA")]
    pub ca: Option<PathBuf>,
    /// The file with the client certificate, for a server that requires one (server.tls_client_ca)
    #[arg(
        long,
        value_name = "FILE",
        env = "LARDER_TLS_CERT",
        requires = "tls_key"
    )]
    pub tls_cert: Option<PathBuf>,
    /// The file with the private key of --tls-cert
    #[arg(
        long,
        value_name = "FILE",
        env = "LARDER_TLS_KEY",
        requires = "tls_cert"
    )]
    pub tls_key: Option<PathBuf>,
}

impl ServerArgs {
    pub fn admin(&self) -> Result<AdminClient, Failure> {
        let files = TlsFiles {
            authority: self.ca.clone(),
            certificate: self.tls_cert.clone(),
            key: self.tls_key.clone(),
        };
        let admin = AdminClient::with_tls(&self.server, &files)?;
        Ok(match &self.password {
            Some(password) => admin.with_password(password),
            None => admin,
        })
    }
}
