//! The guarantees of every implementation of the coordination service, as cases that run against each: the file, the simulated
//! etcd and a real one.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use larder_cluster::coordination::{
    Change, Coordination, Embedded, Entry, Error, Follower, KeyEvent, Keys, LeaseId, Mirror,
    Outcome, Revision, WatchItem, Writer, leader, model::Faults, put_candidate,
};

use super::simulated::Simulated;
use super::{client, with_timeout};

/// A service under test.
struct Tried {
    service: Arc<dyn Coordination>,
    /// Compacts the revisions before this one.
    compact: Option<Box<dyn Fn(Revision)>>,
    /// True if leases expire without keepalives.
    leases_end: bool,
}

#[tokio::test]
async fn the_file_conforms() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Arc::new(Embedded::open(folder.path()).expect("it opens"));
    let tried = Tried {
        service,
        compact: None,
        leases_end: false,
    };
    with_timeout(tried.all()).await;
}

#[tokio::test]
async fn the_simulated_etcd_conforms() {
    for seed in 0..20 {
        let slow = Faults {
            latency_ms: 30,
            watch_late_ms: 500,
            leases_late_ms: 2000,
            members_late_ms: 300,
            ..Faults::none()
        };
        let faults = if seed % 2 == 0 { Faults::none() } else { slow };
        let simulated = Simulated::new(seed, 3, faults);
        let compacted = simulated.clone();
        let tried = Tried {
            service: Arc::new(simulated),
            compact: Some(Box::new(move |revision| compacted.compact_before(revision))),
            leases_end: true,
        };
        with_timeout(tried.all()).await;
    }
}

#[tokio::test]
async fn a_real_etcd_conforms() {
    let Some(etcd) = larder_testing::etcd::Etcd::start(1) else {
        return;
    };
    let tried = Tried {
        service: Arc::new(client(etcd.endpoints(), "conformance")),
        compact: Some(Box::new(move |revision| etcd.compact(0, revision.0))),
        leases_end: true,
    };
    with_timeout(tried.all()).await;
}

impl Tried {
    async fn all(&self) {
        self.written_values_are_read().await;
        self.a_failed_comparison_changes_nothing().await;
        self.a_retried_change_is_applied_once().await;
        self.a_recreated_key_has_a_new_creation_revision().await;
        self.a_change_is_one_revision_for_watchers().await;
        self.a_watch_receives_all_changes_after_its_revision().await;
        self.recent_writes_are_listed_without_values().await;
        self.a_change_that_is_too_large_is_rejected().await;
        self.keys_are_deleted_with_their_lease().await;
        self.an_ended_lease_binds_no_keys().await;
        self.the_oldest_candidate_leads_and_its_fence_ends_with_it()
            .await;
        if self.compact.is_some() {
            self.a_watch_below_the_compacted_revision_reports_it().await;
        }
        if self.leases_end {
            self.a_lease_without_keepalives_ends().await;
        }
        self.a_follower_holds_the_current_entries().await;
    }

    async fn make(&self, change: &Change) -> Outcome {
        self.service.change(change).await.expect("an answer")
    }

    async fn done(&self, change: &Change) -> Revision {
        self.make(change)
            .await
            .done()
            .expect("nothing is in its way")
    }

    async fn get(&self, key: &str) -> Option<Entry> {
        let snapshot = self.service.read(&Keys::one(key)).await.expect("an answer");
        snapshot.entries.into_iter().next()
    }

    async fn written_values_are_read(&self) {
        let mut writer = Writer::new("written", 1);
        assert_eq!(self.get("written").await, None);
        let bytes: Vec<u8> = (0..=255).collect();
        let change = writer
            .change()
            .if_unchanged("written", Revision(0))
            .put("written", bytes.clone());
        let revision = self.done(&change).await;
        let entry = self.get("written").await.expect("it is there");
        let expected = Entry {
            key: "written".to_owned(),
            value: bytes.into(),
            created: revision,
            modified: revision,
            lease: None,
        };
        assert_eq!(entry, expected);
        let change = writer
            .change()
            .if_unchanged("written", revision)
            .put("written", "");
        let second = self.done(&change).await;
        let entry = self.get("written").await.expect("it is there");
        assert_eq!(
            (entry.created, entry.modified, entry.value),
            (revision, second, Bytes::new())
        );
        assert!(second > revision);
        let change = writer
            .change()
            .if_unchanged("written", second)
            .delete("written");
        self.done(&change).await;
        assert_eq!(self.get("written").await, None);
    }

    async fn a_failed_comparison_changes_nothing(&self) {
        let (mut a, mut b) = (Writer::new("holds/a", 1), Writer::new("holds/b", 1));
        let first = a
            .change()
            .if_unchanged("holds", Revision(0))
            .put("holds", "a");
        let revision = self.done(&first).await;
        let late = b
            .change()
            .if_unchanged("holds", Revision(0))
            .if_unchanged("not there", Revision(0));
        let late = late.put("holds", "b").put("other", "b");
        let Outcome::Conflict(seen) = self.make(&late).await else {
            panic!("it was changed before");
        };
        assert_eq!(seen.len(), 2);
        let holds = seen[0].as_ref().expect("it is there");
        assert_eq!((&holds.value[..], holds.modified), (&b"a"[..], revision));
        assert_eq!(seen[1], None);
        assert_eq!(self.get("other").await, None);
        assert_eq!(self.get("marks/holds/b").await, None);
    }

    async fn a_retried_change_is_applied_once(&self) {
        let mut writer = Writer::new("once", 1);
        let first = writer
            .change()
            .if_unchanged("once", Revision(0))
            .put("once", "1");
        let revision = self.done(&first).await;
        assert_eq!(self.done(&first).await, revision);
        // This also holds if another writer has overwritten the value since.
        let mut other = Writer::new("twice", 1);
        let over = other
            .change()
            .if_unchanged("once", revision)
            .put("once", "2");
        self.done(&over).await;
        assert_eq!(self.done(&first).await, revision);
        assert_eq!(
            &self.get("once").await.expect("it is there").value[..],
            b"2"
        );
        // The same contents with another id are another change.
        let again = Writer::new("once", 2)
            .change()
            .if_unchanged("once", Revision(0))
            .put("once", "1");
        assert!(matches!(self.make(&again).await, Outcome::Conflict(_)));
    }

    async fn a_recreated_key_has_a_new_creation_revision(&self) {
        let mut writer = Writer::new("again", 1);
        let change = writer
            .change()
            .if_unchanged("again", Revision(0))
            .put("again", "1");
        let created = self.done(&change).await;
        let fenced = |writer: &mut Writer, at: Revision| {
            writer
                .change()
                .if_created_at("again", created)
                .if_unchanged("fenced", at)
                .put("fenced", "x")
        };
        let change = fenced(&mut writer, Revision(0));
        let fenced_at = self.done(&change).await;
        let gone = writer
            .change()
            .if_unchanged("again", created)
            .delete("again");
        let gone = self.done(&gone).await;
        let change = fenced(&mut writer, fenced_at);
        assert!(matches!(self.make(&change).await, Outcome::Conflict(_)));
        let change = writer
            .change()
            .if_unchanged("again", Revision(0))
            .put("again", "1");
        assert!(self.done(&change).await > gone);
        let change = fenced(&mut writer, fenced_at);
        assert!(matches!(self.make(&change).await, Outcome::Conflict(_)));
    }

    async fn a_change_is_one_revision_for_watchers(&self) {
        let before = self
            .service
            .read(&Keys::with_prefix("one/"))
            .await
            .expect("an answer")
            .revision;
        let mut watch = self.service.watch(&Keys::with_prefix("one/"), before);
        let mut writer = Writer::new("one", 1);
        let change = writer.change().if_unchanged("one/1", Revision(0));
        let change = change.put("one/1", "1").put("one/2", "2").put("two", "2");
        let revision = self.done(&change).await;
        let Some(WatchItem::Events(events)) = watch.next().await else {
            panic!("the watch returns both changes");
        };
        let changes: Vec<_> = events
            .iter()
            .map(|event| (event.key.as_str(), event.revision))
            .collect();
        assert_eq!(changes, [("one/1", revision), ("one/2", revision)]);
    }

    async fn a_watch_receives_all_changes_after_its_revision(&self) {
        let mut writer = Writer::new("watched", 1);
        let mut at = Revision(0);
        let mut revisions = Vec::new();
        for value in 0..5u8 {
            let change = writer
                .change()
                .if_unchanged("watched/a", at)
                .put("watched/a", vec![value]);
            // An adjacent key that differs only in the last byte of the prefix.
            let change = change.put("heard0", vec![value]);
            at = self.done(&change).await;
            revisions.push(at);
        }
        let change = writer
            .change()
            .if_unchanged("watched/a", at)
            .delete("watched/a");
        revisions.push(self.done(&change).await);
        for keys in [Keys::with_prefix("watched/"), Keys::one("watched/a")] {
            let mut watch = self.service.watch(&keys, revisions[1]);
            let mut events: Vec<KeyEvent> = Vec::new();
            while events.len() < 4 {
                match watch.next().await {
                    Some(WatchItem::Events(more)) => events.extend(more),
                    other => panic!("the watch ended: {other:?}"),
                }
            }
            let changes: Vec<_> = events.iter().map(|event| event.revision).collect();
            assert_eq!(changes, revisions[2..]);
            let values: Vec<_> = events
                .iter()
                .map(|event| event.entry.as_ref().map(|entry| entry.value[0]))
                .collect();
            assert_eq!(values, [Some(2), Some(3), Some(4), None]);
            assert!(events.iter().all(|event| event.key == "watched/a"));
        }
    }

    async fn recent_writes_are_listed_without_values(&self) {
        let mut writer = Writer::new("since", 1);
        let change = writer
            .change()
            .if_unchanged("since/a", Revision(0))
            .put("since/a", "a");
        let first = self.done(&change).await;
        let change = writer
            .change()
            .if_unchanged("since/b", Revision(0))
            .put("since/b", "b");
        let second = self.done(&change).await;
        let recent = self
            .service
            .recent_writes(&Keys::with_prefix("since/"), first)
            .await
            .expect("an answer");
        assert_eq!(
            (recent.count, recent.written),
            (2, vec![("since/b".to_owned(), second)])
        );
        assert!(recent.revision >= second);
    }

    async fn a_change_that_is_too_large_is_rejected(&self) {
        let mut writer = Writer::new("large", 1);
        let base = writer.change().if_unchanged("large/0", Revision(0));
        let refused = |error: Result<Outcome, Error>| match error {
            Err(Error::Refused(why)) => why,
            other => panic!("it is refused before it is sent: {other:?}"),
        };
        let many = (0..127).fold(base.clone(), |change, at| {
            change.put(format!("large/{at}"), "x")
        });
        assert!(refused(self.service.change(&many).await).contains("at most 127"));
        let long = base.clone().put("large/0", vec![b'x'; 1_560_000]);
        assert!(refused(self.service.change(&long).await).contains("at most 1556480"));
        let most = (1..126).fold(base, |change, at| change.put(format!("large/{at}"), "x"));
        let most = most.put("large/0", vec![b'x'; 1_540_000]);
        self.done(&most).await;
        assert_eq!(
            self.get("large/0").await.expect("it is there").value.len(),
            1_540_000
        );
    }

    async fn granted(&self) -> LeaseId {
        self.service.grant(5).await.expect("an answer").0
    }

    async fn keys_are_deleted_with_their_lease(&self) {
        let (lease, other) = (self.granted().await, self.granted().await);
        assert_ne!(lease, other);
        let mut writer = Writer::new("bound", lease.0);
        let change = writer.change().if_unchanged("bound/a", Revision(0));
        let change =
            change
                .put_bound("bound/a", "a", Some(lease))
                .put_bound("bound/b", "b", Some(other));
        let revision = self.done(&change.put("bound/c", "c")).await;
        assert_eq!(
            self.get("bound/a").await.expect("it is there").lease,
            Some(lease)
        );
        assert!(
            self.service
                .keep_alive(lease)
                .await
                .expect("an answer")
                .is_some()
        );
        let mut watch = self.service.watch(&Keys::with_prefix("bound/"), revision);
        self.service.revoke(lease).await.expect("an answer");
        let Some(WatchItem::Events(events)) = watch.next().await else {
            panic!("the watch returns the deletion");
        };
        assert_eq!(
            (events.len(), events[0].key.as_str(), &events[0].entry),
            (1, "bound/a", &None)
        );
        assert_eq!(self.get("bound/a").await, None);
        assert!(self.get("bound/b").await.is_some() && self.get("bound/c").await.is_some());
    }

    async fn an_ended_lease_binds_no_keys(&self) {
        let lease = self.granted().await;
        self.service.revoke(lease).await.expect("an answer");
        self.service.revoke(lease).await.expect("again is as well");
        assert_eq!(
            self.service.keep_alive(lease).await.expect("an answer"),
            None
        );
        let mut writer = Writer::new("dead", lease.0);
        let change =
            writer
                .change()
                .if_unchanged("dead", Revision(0))
                .put_bound("dead", "x", Some(lease));
        assert_eq!(
            self.service.change(&change).await,
            Err(Error::LeaseEnded(lease))
        );
        assert_eq!(self.get("dead").await, None);
    }

    async fn the_oldest_candidate_leads_and_its_fence_ends_with_it(&self) {
        let (first, second) = (self.granted().await, self.granted().await);
        let (mut a, mut b) = (
            Writer::new("lead/a", first.0),
            Writer::new("lead/b", second.0),
        );
        let fence = self.done(&put_candidate(a.change(), first, "a")).await;
        self.done(&put_candidate(b.change(), second, "b")).await;
        let candidates = Keys::with_prefix("controller/");
        let mut mirror = Mirror::new(candidates.clone());
        mirror.apply_snapshot(self.service.read(&candidates).await.expect("an answer"));
        let leads = leader(&mirror).expect("one of both");
        assert_eq!((&leads.value[..], leads.created), (&b"a"[..], fence));
        let own = leads.key.clone();
        let change = a
            .change()
            .if_created_at(&own, fence)
            .if_unchanged("led", Revision(0))
            .put("led", "a");
        let led = self.done(&change).await;
        self.service.revoke(first).await.expect("an answer");
        mirror.apply_snapshot(self.service.read(&candidates).await.expect("an answer"));
        assert_eq!(&leader(&mirror).expect("the other").value[..], b"b");
        let change = a
            .change()
            .if_created_at(&own, fence)
            .if_unchanged("led", led)
            .put("led", "late");
        assert!(matches!(self.make(&change).await, Outcome::Conflict(_)));
        self.service.revoke(second).await.expect("an answer");
    }

    async fn a_watch_below_the_compacted_revision_reports_it(&self) {
        let mut writer = Writer::new("kept", 1);
        let mut at = Revision(0);
        let first = self
            .service
            .read(&Keys::one("kept"))
            .await
            .expect("an answer")
            .revision;
        for _ in 0..3 {
            let change = writer.change().if_unchanged("kept", at).put("kept", "x");
            at = self.done(&change).await;
        }
        self.compact.as_ref().expect("it can")(at);
        let mut watch = self.service.watch(&Keys::one("kept"), first);
        assert_eq!(watch.next().await, Some(WatchItem::Compacted));
        assert_eq!(watch.next().await, None);
        assert!(self.get("kept").await.is_some());
    }

    async fn a_lease_without_keepalives_ends(&self) {
        let (lease, ttl_seconds) = self.service.grant(1).await.expect("an answer");
        assert!(ttl_seconds >= 1);
        let mut writer = Writer::new("ends", lease.0);
        let change =
            writer
                .change()
                .if_unchanged("ends", Revision(0))
                .put_bound("ends", "x", Some(lease));
        let revision = self.done(&change).await;
        let mut watch = self.service.watch(&Keys::one("ends"), revision);
        let Some(WatchItem::Events(events)) = watch.next().await else {
            panic!("the watch returns the end of the lease");
        };
        assert_eq!(events[0].entry, None);
        assert_eq!(
            self.service.keep_alive(lease).await.expect("an answer"),
            None
        );
    }

    async fn a_follower_holds_the_current_entries(&self) {
        let keys = Keys::with_prefix("");
        let mut follower = Follower::new(
            self.service.clone(),
            keys.clone(),
            Duration::from_millis(20),
        );
        follower.wait_until(|_| true).await;
        let mut writer = Writer::new("followed", 1);
        let mut at = Revision(0);
        for value in 0..10u8 {
            let change = writer
                .change()
                .if_unchanged("followed", at)
                .put("followed", vec![value]);
            at = self.done(&change).await;
        }
        follower
            .wait_until(|mirror| {
                mirror
                    .get("followed")
                    .is_some_and(|entry| entry.modified == at)
            })
            .await;
        let truth = self.service.read(&keys).await.expect("an answer");
        assert!(follower.mirror().entries().eq(&truth.entries));
        assert_eq!(follower.last_error(), None);
    }
}
