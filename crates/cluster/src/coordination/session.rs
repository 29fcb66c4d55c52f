//! Renews a lease, and lets the threads of the process check with one atomic load whether it is certainly held.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::{Coordination, Error, Lease, LeaseId, boot_ms};

/// The pause between a failed keepalive and the next.
const PAUSE: Duration = Duration::from_millis(100);

/// The time until which the lease is certainly held: see [`Lease`]. Shared between threads.
#[derive(Clone, Debug)]
pub struct LeaseHandle(Arc<AtomicU64>);

impl LeaseHandle {
    /// A handle for a node that needs no lease.
    pub fn unlimited() -> LeaseHandle {
        LeaseHandle(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// A handle for a node that has lost its lease.
    pub fn expired() -> LeaseHandle {
        LeaseHandle(Arc::default())
    }

    /// `now_ms` is [`boot_ms`], read after the decision that depends on the answer.
    #[inline]
    pub fn is_certainly_held(&self, now_ms: u64) -> bool {
        now_ms < self.0.load(Ordering::Acquire)
    }

    pub fn until_ms(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// One lease, from its grant to its end.
pub struct Session {
    coordination: Arc<dyn Coordination>,
    lease: Lease,
    handle: LeaseHandle,
    last_error: Option<Error>,
}

impl Session {
    /// # Errors
    /// The errors of [`Coordination::call`]. A lease that was granted nevertheless expires.
    pub async fn begin(
        coordination: Arc<dyn Coordination>,
        ttl_seconds: u32,
    ) -> Result<Session, Error> {
        let sent_at_ms = boot_ms();
        let (id, ttl_seconds) = coordination.grant(ttl_seconds).await?;
        let lease = Lease::new(id, ttl_seconds, sent_at_ms);
        let held = LeaseHandle(Arc::new(AtomicU64::new(lease.held_until_ms())));
        Ok(Session {
            coordination,
            lease,
            handle: held,
            last_error: None,
        })
    }

    pub fn id(&self) -> LeaseId {
        self.lease.id()
    }

    pub fn lease_handle(&self) -> LeaseHandle {
        self.handle.clone()
    }

    /// The error of the last keepalive, if it failed.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    /// Renews the lease until the service reports its end. Then no key bound to it exists any more, and the node begins a new
    /// session. Does not return while the service does not answer; [`HeldCopy`] shows whether the lease is still held. Cancel-safe.
    pub async fn run(&mut self) {
        while !self.lease.has_ended() {
            let wait_ms = self.lease.renewal_at_ms().saturating_sub(boot_ms());
            sleep(Duration::from_millis(wait_ms)).await;
            self.renew().await;
            if self.last_error.is_some() {
                sleep(PAUSE).await;
            }
        }
    }

    async fn renew(&mut self) {
        let sent_at_ms = boot_ms();
        match self.coordination.keep_alive(self.lease.id()).await {
            Ok(ttl_seconds) => {
                self.lease.record_reply(sent_at_ms, ttl_seconds);
                self.last_error = None;
            }
            Err(error) => self.last_error = Some(error),
        }
        self.handle
            .0
            .store(self.lease.held_until_ms(), Ordering::Release);
    }

    /// Stops relying on the lease, although it has not ended.
    pub fn relinquish(&self) {
        self.handle.0.store(0, Ordering::Release);
    }

    /// Ends the lease now, on a graceful shutdown. It is not held from this call on.
    ///
    /// # Errors
    /// The errors of [`Coordination::call`]; the lease then expires.
    pub async fn end(self) -> Result<(), Error> {
        self.relinquish();
        self.coordination.revoke(self.lease.id()).await
    }
}
