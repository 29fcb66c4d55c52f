//! Retries a change until its outcome is known.

use std::time::Duration;

use larder_cluster::coordination::{Change, Coordination, Error, Outcome};

const PAUSE: Duration = Duration::from_millis(100);

/// Sends a change repeatedly until its outcome is known, however long the service is unavailable.
///
/// # Errors
/// [`Error::Refused`] and [`Error::LeaseEnded`]: it was not made.
pub async fn settle(service: &dyn Coordination, change: &Change) -> Result<Outcome, Error> {
    loop {
        match service.change(change).await {
            Err(error @ (Error::Refused(_) | Error::LeaseEnded(_))) => return Err(error),
            Err(_) => tokio::time::sleep(PAUSE).await,
            Ok(outcome) => return Ok(outcome),
        }
    }
}
