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

use super::{Coordination, Error, Event, Keys, Mirror, Watched, boot_ms};

/// The pause after a failure, doubled each time up to the maximum.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LAST: Duration = Duration::from_secs(1);

pub struct Follower {
    coordination: Arc<dyn Coordination>,
    mirror: Mirror,
    check_every: Duration,
    watch: Option<BoxStream<'static, Watched>>,
    must_read: bool,
    check_at: Instant,
    /// No request is sent before this time.
    retry_at: Instant,
    pause: Duration,
    confirmed_at_ms: Option<u64>,
    trouble: Option<Error>,
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
            trouble: None,
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
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref()
    }

    /// The number of complete reads, including the first.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Waits for changes and returns them. Returns an empty list when the copy was compared, or when the service did not answer.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Vec<Event> {
        match self.step().await {
            Ok(news) => news,
            Err(error) => {
                self.trouble = Some(error);
                self.pause_longer();
                Vec::new()
            }
        }
    }

    /// Waits until the copy has been read and satisfies the predicate.
    pub async fn until(&mut self, mut holds: impl FnMut(&Mirror) -> bool) {
        while self.confirmed_at_ms.is_none() || !holds(&self.mirror) {
            self.next().await;
        }
    }

    async fn step(&mut self) -> Result<Vec<Event>, Error> {
        sleep_until(self.retry_at).await;
        if self.must_read {
            return self.read().await;
        }
        let (keys, revision) = (self.mirror.keys(), self.mirror.revision());
        let watch = (self.watch).get_or_insert_with(|| self.coordination.watch(keys, revision));
        tokio::select! {
            biased;
            watched = watch.next() => match watched {
                Some(Watched::Events(events)) => {
                    self.pause = PAUSE_FIRST;
                    Ok(self.mirror.take(events))
                }
                Some(Watched::Compacted) => {
                    self.must_read = true;
                    self.read().await
                }
                None => {
                    self.watch = None;
                    self.pause_longer();
                    self.check().await
                }
            },
            () = sleep_until(self.check_at) => self.check().await,
        }
    }

    async fn read(&mut self) -> Result<Vec<Event>, Error> {
        let sent_at_ms = boot_ms();
        let snapshot = self.coordination.read(self.mirror.keys()).await?;
        let (known, now) = (self.mirror.revision(), snapshot.revision);
        if now < known {
            // A linearizable read contains every earlier answer, so this is different data. `Map::check_follows` decides from its
            // contents whether it may be applied.
            self.mirror.begin_again();
        }
        self.watch = None;
        self.must_read = false;
        self.reads += 1;
        let news = self.mirror.take_all(snapshot);
        self.confirmed(sent_at_ms);
        Ok(news)
    }

    /// Receives no watch events meanwhile, as [`Mirror::agrees`] requires.
    async fn check(&mut self) -> Result<Vec<Event>, Error> {
        let sent_at_ms = boot_ms();
        let asked = self
            .coordination
            .recent(self.mirror.keys(), self.mirror.checked());
        let recent = asked.await?;
        if !self.mirror.agrees(&recent) {
            self.must_read = true;
            return self.read().await;
        }
        self.confirmed(sent_at_ms);
        Ok(Vec::new())
    }

    fn confirmed(&mut self, sent_at_ms: u64) {
        self.confirmed_at_ms = Some(sent_at_ms);
        self.trouble = None;
        self.check_at = Instant::now() + self.check_every;
    }

    fn pause_longer(&mut self) {
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_LAST);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use futures::FutureExt;
    use futures::future::BoxFuture;
    use futures::stream;

    use super::super::{Recent, Request, Response, Revision, Snapshot};
    use super::*;

    /// A service without keys, at a revision that the test sets, whose watches end immediately.
    struct At(AtomicU64);

    impl Coordination for At {
        fn call(&self, request: Request) -> BoxFuture<'_, Result<Response, Error>> {
            let revision = Revision(self.0.load(Ordering::Relaxed));
            let response = match request {
                Request::Read { .. } => Response::Read(Snapshot {
                    revision,
                    ..Snapshot::default()
                }),
                _ => Response::Recent(Recent {
                    revision,
                    ..Recent::default()
                }),
            };
            async move { Ok(response) }.boxed()
        }

        fn watch(&self, _: &Keys, _: Revision) -> BoxStream<'static, Watched> {
            stream::empty().boxed()
        }
    }

    #[tokio::test]
    async fn data_of_a_lower_revision_replaces_the_copy() {
        let service = Arc::new(At(AtomicU64::new(10)));
        let every = Duration::from_millis(5);
        let mut follower = Follower::new(service.clone(), Keys::below(""), every);
        follower.until(|_| true).await;
        service.0.store(4, Ordering::Relaxed);
        follower
            .until(|mirror| mirror.revision() == Revision(4))
            .await;
        assert_eq!(follower.trouble(), None);
        assert_eq!(follower.reads(), 2);
    }
}
