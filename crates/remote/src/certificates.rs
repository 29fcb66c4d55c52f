//! Certificates of the caller's own, for HTTP servers that no public authority knows: those of one's own cluster.

use reqwest::{Certificate, Identity};

use crate::error::{Error, Result};

/// What a server's certificate is checked by, and what is shown to it.
#[derive(Clone)]
pub struct Certificates {
    pub(crate) authorities: Vec<Certificate>,
    pub(crate) own: Option<Identity>,
}

impl Certificates {
    /// Of PEM files' bytes. Without authorities those of the system are asked. `own`: a certificate and its key, one after the other.
    ///
    /// # Errors
    /// `BadLocation`, which says what cannot be read.
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
