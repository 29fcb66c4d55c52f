//! Keeps a copy of a set of keys fresh: reads them, watches them, and periodically checks whether the watch lost an event.
//!
//! ```text
//!           ┌──────────── compacted, or the copy disagrees ──────────────┐
//!           ▼                                                            │
//!   read everything ──► watch after the copy's revision ──► events: apply│
//!           ▲                    ▲           │                           │
//!           └─ failed: wait ─────┘           ├─ ended: watch again, and ─┤
//!                                            └─ every few seconds: ──────┘ compare by revision
//! ```
//!
//! A watch alone is not sufficient. It may be silent because nothing changes, because its etcd member is stopped, or because of a
//! defect of etcd around compaction. The comparison is sent to whichever member answers, transfers no values, and distinguishes
//! the three cases.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep_until};

use super::{Coordination, Error, KeyEvent, Keys, Mirror, WatchItem, boot_ms};

/// The pause after a failure, doubled each time up to the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub struct Follower {
    coordination: Arc<dyn Coordination>,
    mirror: Mirror,
    check_every: Duration,
    watch: Option<BoxStream<'static, WatchItem>>,
    must_read: bool,
    check_at: Instant,
    /// No request is sent before this time.
    retry_at: Instant,
    pause: Duration,
    confirmed_at_ms: Option<u64>,
    last_error: Option<Error>,
    reads: u64,
}

impl Follower {
    /// Follows a set of keys, and compares the copy with the service at the given interval.
    pub fn new(coordination: Arc<dyn Coordination>, keys: Keys, check_every: Duration) -> Follower {
        let now = Instant::now();
        Follower {
            coordination,
            mirror: Mirror::new(keys),
            check_every,
            watch: None,
            must_read: true,
            check_at: now,
            retry_at: now,
            pause: PAUSE_FIRST,
            confirmed_at_ms: None,
            last_error: None,
            reads: 0,
        }
    }

    pub fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    /// The copy contains all changes made before this time of [`boot_ms`]; `None` before the first read.
    pub fn confirmed_at_ms(&self) -> Option<u64> {
        self.confirmed_at_ms
    }

    /// The error of the last request; `None` if it succeeded.
    pub fn last_error(&self) -> Option<&Error> {
        self.last_error.as_ref()
    }

    /// The number of complete reads, including the first.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Waits for changes and returns them. Returns an empty list when the copy was compared, or when the service did not answer.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Vec<KeyEvent> {
        match self.step().await {
            Ok(events) => events,
            Err(error) => {
                self.last_error = Some(error);
                self.back_off();
                Vec::new()
            }
        }
    }

    /// Waits until the copy has been read and satisfies the predicate.
    pub async fn wait_until(&mut self, mut holds: impl FnMut(&Mirror) -> bool) {
        while self.confirmed_at_ms.is_none() || !holds(&self.mirror) {
            self.next().await;
        }
    }

    async fn step(&mut self) -> Result<Vec<KeyEvent>, Error> {
        sleep_until(self.retry_at).await;
        if self.must_read {
            return self.read().await;
        }
        let (keys, revision) = (self.mirror.keys(), self.mirror.revision());
        let watch = (self.watch).get_or_insert_with(|| self.coordination.watch(keys, revision));
        tokio::select! {
            biased;
            watched = watch.next() => match watched {
                Some(WatchItem::Events(events)) => {
                    self.pause = PAUSE_FIRST;
                    Ok(self.mirror.apply_events(events))
                }
                Some(WatchItem::Compacted) => {
                    self.must_read = true;
                    self.read().await
                }
                None => {
                    self.watch = None;
                    self.back_off();
                    self.check().await
                }
            },
            () = sleep_until(self.check_at) => self.check().await,
        }
    }

    async fn read(&mut self) -> Result<Vec<KeyEvent>, Error> {
        let sent_at_ms = boot_ms();
        let snapshot = self.coordination.read(self.mirror.keys()).await?;
        let (known, now) = (self.mirror.revision(), snapshot.revision);
        if now < known {
            // A linearizable read contains every earlier answer, so this is different data. `Map::check_follows` decides from its
            // contents whether it may be applied.
            self.mirror.reset();
        }
        self.watch = None;
        self.must_read = false;
        self.reads += 1;
        let events = self.mirror.apply_snapshot(snapshot);
        self.record_confirmation(sent_at_ms);
        Ok(events)
    }

    /// Receives no watch events meanwhile, as [`Mirror::agrees`] requires.
    async fn check(&mut self) -> Result<Vec<KeyEvent>, Error> {
        let sent_at_ms = boot_ms();
        let request = self
            .coordination
            .recent_writes(self.mirror.keys(), self.mirror.checked_revision());
        let recent = request.await?;
        if !self.mirror.matches(&recent) {
            self.must_read = true;
            return self.read().await;
        }
        self.record_confirmation(sent_at_ms);
        Ok(Vec::new())
    }

    fn record_confirmation(&mut self, sent_at_ms: u64) {
        self.confirmed_at_ms = Some(sent_at_ms);
        self.last_error = None;
        self.check_at = Instant::now() + self.check_every;
    }

    fn back_off(&mut self) {
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use futures::stream;

    use super::super::{RecentWrites, Request, Response, Revision, Snapshot};
    use super::*;

    /// A service without keys, at a revision that the test sets, whose watches end immediately.
    struct FixedRevision(AtomicU64);

    impl Coordination for FixedRevision {
        fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
            let revision = Revision(self.0.load(Ordering::Relaxed));
            let response = match request {
                Request::Read { .. } => Response::Read(Snapshot {
                    revision,
                    ..Snapshot::default()
                }),
                _ => Response::RecentWrites(RecentWrites {
                    revision,
                    ..RecentWrites::default()
                }),
            };
            async move { Ok(response) }.boxed()
        }

        fn watch(&self, _: &Keys, _: Revision) -> BoxStream<'static, WatchItem> {
            stream::empty().boxed()
        }
    }

    #[tokio::test]
    async fn data_of_a_lower_revision_replaces_the_copy() {
        let service = Arc::new(FixedRevision(AtomicU64::new(10)));
        let every = Duration::from_millis(5);
        let mut follower = Follower::new(service.clone(), Keys::with_prefix(""), every);
        follower.wait_until(|_| true).await;
        service.0.store(4, Ordering::Relaxed);
        follower
            .wait_until(|mirror| mirror.revision() == Revision(4))
            .await;
        assert_eq!(follower.last_error(), None);
        assert_eq!(follower.reads(), 2);
    }
}
