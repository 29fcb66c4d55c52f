//! Custom certificates for HTTP servers that no public authority certifies, such as those of one's own cluster.

use reqwest::{Certificate, Identity};

use crate::error::{Error, Result};

/// The authorities for checking a server's certificate, and the client certificate.
#[derive(Clone)]
pub struct Certificates {
    pub(crate) authorities: Vec<Certificate>,
    pub(crate) own: Option<Identity>,
}

impl Certificates {
    /// Parses the contents of PEM files. Without authorities, those of the system are used. `own` is a certificate
    /// followed by its key.
    ///
    /// # Errors
    /// `BadLocation`, with the part that cannot be parsed.
    pub fn from_pem(authorities: &[u8], own: Option<&[u8]>) -> Result<Certificates> {
        let wrong = |what: &str, why: reqwest::Error| Error::BadLocation {
            text: what.to_owned(),
            reason: format!("it cannot be read: {why}"),
        };
        let authorities = Certificate::from_pem_bundle(authorities)
            .map_err(|why| wrong("the authorities' certificates", why))?;
        let own = own.map(Identity::from_pem).transpose();
        let own = own.map_err(|why| wrong("the own certificate", why))?;
        Ok(Certificates { authorities, own })
    }
}
