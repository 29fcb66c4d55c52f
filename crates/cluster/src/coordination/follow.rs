//! Keeps a copy of some keys fresh: reads, watches, and looks every few seconds whether the watch lost something.
//!
//! ```text
//!           ┌──────────── compacted, or the copy disagrees ─────────────┐
//!           ▼                                                           │
//!   read everything ──► watch after the copy's revision ──► heard: take │
//!           ▲                    ▲           │                          │
//!           └─ it failed: wait ──┘           ├─ cut: watch again, and ──┤
//!                                            └─ every few seconds: ──────┘ compare by revision
//! ```
//!
//! A watch is never trusted alone: it may be silent because nothing changes, because its member of etcd is stopped, or by one of etcd's
//! defects around compaction. The comparison goes to whichever member answers, carries no values, and tells all three apart.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::{Instant, sleep_until};

use super::{Coordination, Error, Event, Keys, Mirror, Watched, boot_ms};

/// After something failed: doubled each time, up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_LAST: Duration = Duration::from_secs(1);

pub struct Follower {
    coordination: Arc<dyn Coordination>,
    mirror: Mirror,
    check_every: Duration,
    watch: Option<BoxStream<'static, Watched>>,
    must_read: bool,
    check_at: Instant,
    /// Nothing is asked before.
    retry_at: Instant,
    pause: Duration,
    confirmed_at_ms: Option<u64>,
    trouble: Option<Error>,
    reads: u64,
}

impl Follower {
    /// Follows some keys; whether the watch lost something is looked at as often as this says.
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

    /// The copy holds all that was changed before this time, of [`boot_ms`]; `None` before the first read.
    pub fn confirmed_at_ms(&self) -> Option<u64> {
        self.confirmed_at_ms
    }

    /// Why the service does not answer; `None` if it did the last time.
    pub fn trouble(&self) -> Option<&Error> {
        self.trouble.as_ref()
    }

    /// How often everything was read, the first time included.
    pub fn reads(&self) -> u64 {
        self.reads
    }

    /// Waits until something changed, and gives that; or until the copy was compared, or the service did not answer, and gives
    /// nothing. May be dropped while it waits: nothing is lost.
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

    /// Waits until the copy was read and is as this says.
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
            // A read holds all that was answered before, so this is not what was followed until now.
            // Whether that may be acted on is decided by what is in it: see `Map::check_follows`.
            self.mirror.begin_again();
        }
        self.watch = None;
        self.must_read = false;
        self.reads += 1;
        let news = self.mirror.take_all(snapshot);
        self.confirmed(sent_at_ms);
        Ok(news)
    }

    /// The watch is not heard meanwhile, as [`Mirror::agrees`] asks.
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

    /// A service at a revision that the test sets, with no keys, whose watches break at once.
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
