//! The sequence of this node's incarnations.

use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::ControllerRequest;
use larder_cluster::coordination::{
    Coordination, Error as ServiceError, Keys, Outcome, Revision, Session, Writer, boot_ms,
    put_candidate,
};
use larder_cluster::map::{
    ClusterId, Incarnation, Map, MemberState, NodeId, NodeName, Registration, Settings,
};
use larder_cluster::replication::recovery::Identity;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::control::{self, Candidacy};
use super::coordination_state::{CoordinationState, MAP, NEWER, NODES, NewerMapMark};
use super::disk::{Disk, StartedIncarnation};
use super::fault_watch;
use super::map_watcher::{MapWatcher, SharedHealth};
use super::reports::{Reporter, Reports};
use super::requests::{self, QueuedRequest};
use super::slot_writer::SlotWriter;
use super::write::settle;
use super::{HAND_OVER_MAX, INCARNATION_END_MAX, Start, ViewCallback, random};
use crate::cluster::Life;
use crate::cluster::slot_requests::SlotRequests;
use crate::cluster::{MARGIN_MS, SUBSCRIPTION_MS_MAX};
use crate::fault_monitor::FaultMonitor;

/// The pause between attempts at operations that need an operator's action.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause before a node checks again whether its mark is in etcd.
const MARK_RETRY: Duration = Duration::from_secs(10);

pub struct NodeLifecycle {
    service: Arc<dyn Coordination>,
    watcher: MapWatcher,
    /// This node's registration; the incarnation and the disk are the current ones.
    registration: Registration,
    settings: Settings,
    cluster: String,
    disk: Disk,
    request_sender: mpsc::UnboundedSender<QueuedRequest>,
    requests: mpsc::UnboundedReceiver<QueuedRequest>,
    reports: Arc<Reports>,
    slot_requests: Arc<SlotRequests>,
    fault_monitor: Arc<FaultMonitor>,
    /// No incarnation of this process has begun.
    is_first: bool,
    /// A time by which the last incarnation of this folder had ended: the start of this process, or the end of its own last
    /// incarnation.
    last_life_ended_ms: u64,
}

enum IncarnationEnd {
    /// Its lease has ended, or another process has taken the name.
    LeaseEnded,
    /// It gave up its lease because it cannot serve.
    Unable,
    Stopped,
}

/// An incarnation that has registered.
struct Registered {
    session: Session,
    created: Revision,
}

impl NodeLifecycle {
    pub fn new(
        start: Start,
        health: SharedHealth,
        reports: Arc<Reports>,
        on_view: ViewCallback,
    ) -> NodeLifecycle {
        let name = start.registration.name.clone();
        let copies = (start.map_copy, start.state);
        NodeLifecycle {
            watcher: MapWatcher::new(
                start.service.clone(),
                name,
                copies,
                start.view,
                health,
                on_view,
            ),
            service: start.service,
            registration: start.registration,
            settings: start.settings,
            cluster: start.cluster,
            disk: start.disk,
            request_sender: start.request_sender,
            requests: start.requests,
            reports,
            slot_requests: start.slot_requests,
            fault_monitor: start.fault_monitor,
            is_first: true,
            last_life_ended_ms: boot_ms(),
        }
    }

    /// Runs until stopped. Returns the folder's identity, so that the caller can record a graceful end.
    pub async fn run(mut self, mut stopped: watch::Receiver<bool>) -> Disk {
        loop {
            let registered = tokio::select! {
                // An error means that the server is gone.
                _ = stopped.wait_for(|stop| *stop) => break,
                registered = self.prepare() => registered,
            };
            let mut stopping = stopped.clone();
            let stop = async move {
                let _ = stopping.wait_for(|stop| *stop).await;
            };
            match self.run_incarnation(registered, stop).await {
                IncarnationEnd::Stopped => break,
                // The reason has been logged.
                IncarnationEnd::Unable => {}
                IncarnationEnd::LeaseEnded => tracing::warn!(
                    "this node's lease has expired: other nodes have taken over its slots as far as possible; it returns with a new incarnation"
                ),
            }
        }
        self.watcher.set_life(None);
        self.disk
    }

    /// All steps up to the registration, however long they take.
    async fn prepare(&mut self) -> Registered {
        loop {
            self.wait_until_able().await;
            self.load_or_create_map().await;
            self.wait_for_name().await;
            let Some(started) = self.begin_incarnation().await else {
                continue;
            };
            if let Some(registered) = self.register(started).await {
                self.is_first = false;
                return registered;
            }
        }
    }

    async fn wait_until_able(&mut self) {
        let mut was_unable = false;
        while let Some(fault) = self.fault_monitor.fault() {
            was_unable = true;
            self.set_operator_error(format!("this node cannot serve: {}", fault.why));
            self.watcher
                .run_until(sleep(fault_watch::CHECK_EVERY))
                .await;
        }
        if was_unable {
            self.watcher
                .update_health(|health| health.operator_error = None);
        }
    }

    /// Waits for a map that this node may apply. Creates the map of a new cluster if there is none and never was one.
    async fn load_or_create_map(&mut self) {
        loop {
            self.watcher.wait_for_state(|_| true).await;
            if let Some(mark) = self.watcher.state.plan_mark() {
                self.write_mark(mark).await;
            }
            let state = &self.watcher.state;
            if let Some(trouble) = state.map_error.clone() {
                let is_other =
                    |state: &CoordinationState| state.map_error.as_ref() != Some(&trouble);
                // Retries a mark that is not in etcd.
                let _ = timeout(MARK_RETRY, self.watcher.wait_for_state(is_other)).await;
                continue;
            }
            if state.map.is_some() {
                return;
            }
            let map = Map::new(&self.cluster, self.settings.clone());
            let map = map.with_id(ClusterId(random().max(1)));
            if let Some(wrong) = map.settings().out_of_bounds() {
                self.set_operator_error(format!("the cluster cannot be created: {wrong}"));
                self.watcher
                    .wait_for_state(|state| state.map.is_some())
                    .await;
                return;
            }
            let mut writer = Writer::new(self.writer_name("found"), random());
            let change = writer
                .change()
                .if_unchanged(MAP, Revision(0))
                .put(MAP, map.to_text());
            let service = self.service.clone();
            match self
                .watcher
                .run_until(async { settle(&*service, &change).await })
                .await
            {
                Ok(Outcome::Done(_)) => {
                    tracing::info!(cluster = self.cluster, "a new cluster is created")
                }
                Ok(Outcome::Conflict(_)) => {}
                Err(error) => {
                    self.set_operator_error(format!(
                        "the cluster's map cannot be written to etcd: {error}"
                    ));
                    self.watcher.run_until(sleep(PAUSE)).await;
                    continue;
                }
            }
            self.watcher
                .wait_for_state(|state| state.map.is_some() || state.map_error.is_some())
                .await;
        }
    }

    /// Records in etcd that this node's copy of the map is newer. A node with an older copy, or none, must not apply etcd's map.
    async fn write_mark(&mut self, mark: NewerMapMark) {
        let name = &self.registration.name;
        if self.watcher.state.mark_of(name) == Some(mark) {
            return;
        }
        let key = format!("{NEWER}{name}");
        let text = serde_json::to_vec(&mark).expect("plain structs become JSON");
        let mut writer = Writer::new(self.writer_name("newer"), random());
        let service = self.service.clone();
        let write = async {
            let now = service.read(&Keys::one(&key)).await?;
            let at = now.entries.first().map_or(Revision(0), |it| it.modified);
            let change = writer.change().if_unchanged(&key, at).put(&key, text);
            settle(&*service, &change).await
        };
        if let Err(error) = self.watcher.run_until(write).await {
            tracing::warn!(%error, "the mark of this node's newer map cannot be written to etcd");
        }
    }

    /// Waits until no other process is registered under this name. Ends an earlier incarnation of this folder: its process is
    /// gone, or is this one.
    async fn wait_for_name(&mut self) {
        let name = self.registration.name.clone();
        let mut is_logged = false;
        while let Some((other, token)) = self.watcher.state.registration(&name) {
            if self.disk.is_earlier_incarnation(other) {
                self.wait_for_trust_to_expire().await;
                if let Some(lease) = token.lease {
                    let service = self.service.clone();
                    let ended = self
                        .watcher
                        .run_until(async { service.revoke(lease).await })
                        .await;
                    if let Err(error) = ended {
                        tracing::info!(%error, "the lease of this node's earlier incarnation cannot be revoked; it expires by itself");
                    }
                }
            } else {
                let why = format!(
                    "another process is node {name} of cluster {} (clients reach it at {}): give each node its own name \
                     (cluster.node), or stop that one; if it has died, its lease expires within seconds, and this node takes its place",
                    self.cluster, other.resp
                );
                if !is_logged {
                    tracing::error!("{why}");
                    is_logged = true;
                }
                self.set_operator_error(why);
            }
            let is_gone = |state: &CoordinationState| {
                state
                    .registration(&name)
                    .is_none_or(|(_, now)| now != token)
            };
            let waited = self.watcher.wait_for_state(is_gone);
            // Retries if the lease could not be ended.
            let _ = timeout(Duration::from_secs(10), waited).await;
        }
        self.watcher
            .update_health(|health| health.operator_error = None);
    }

    /// If there are joins, other nodes may compute from rows that they received in this node's earlier incarnation. A node that
    /// was disconnected at its end trusts them for some time, and no other node may accept writes to them before that has passed;
    /// waiting before the lease is ended ensures this.
    async fn wait_for_trust_to_expire(&mut self) {
        let state = self.watcher.state.map.as_ref();
        if state.is_none_or(|state| state.map.joins().is_empty()) {
            return;
        }
        let trusted_until_ms = self.last_life_ended_ms + SUBSCRIPTION_MS_MAX + MARGIN_MS;
        let left_ms = trusted_until_ms.saturating_sub(boot_ms());
        if left_ms > 0 {
            tracing::info!(
                left_ms,
                "other nodes may still trust rows of this node's earlier incarnation"
            );
            self.watcher
                .run_until(sleep(Duration::from_millis(left_ms)))
                .await;
        }
    }

    /// Writes the new incarnation to disk before it is announced.
    async fn begin_incarnation(&mut self) -> Option<StartedIncarnation> {
        let map = self.watcher.state.map.as_ref()?;
        let member = map.map.member_named(&self.registration.name);
        let registered = member.map(|it| Identity {
            disk: it.registration.disk,
            incarnation: it.registration.incarnation,
        });
        match self.disk.begin_incarnation(registered) {
            Ok(started) => {
                if let (Some(why), Some(_)) = (started.unproven, registered) {
                    tracing::warn!(
                        ?why,
                        "the rows in the data folder are not valid any more; other nodes fill this node again"
                    );
                }
                if started.may_lack_tail {
                    tracing::warn!(
                        "this machine was restarted: its last writes may not be on disk, depending on tables.fsync; other nodes that have them copy them back"
                    );
                }
                Some(started)
            }
            Err(error) => {
                tracing::error!(%error, "a new incarnation cannot be recorded in the data folder");
                self.set_operator_error(format!("this node cannot join: {error}"));
                self.watcher.run_until(sleep(PAUSE)).await;
                None
            }
        }
    }

    /// Returns `None` if the attempt must start again.
    async fn register(&mut self, started: StartedIncarnation) -> Option<Registered> {
        let settings = self.watcher.state.map.as_ref()?.map.settings().clone();
        if self.is_first && settings != self.settings {
            tracing::info!(map_settings = ?settings, configured = ?self.settings, "the cluster uses the settings of its map, which differ from this node's configuration");
        }
        let ttl_seconds = settings
            .lease_ms
            .div_ceil(1000)
            .try_into()
            .unwrap_or(u32::MAX);
        let service = self.service.clone();
        let began = self
            .watcher
            .run_until(Session::begin(service, ttl_seconds))
            .await;
        let session = match began {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "etcd grants no lease");
                self.watcher.run_until(sleep(PAUSE)).await;
                return None;
            }
        };
        self.registration.incarnation = started.identity.incarnation;
        self.registration.disk = started.identity.disk;
        let (lease, name) = (session.id(), self.registration.name.clone());
        let key = format!("{NODES}{name}");
        let text = serde_json::to_vec(&self.registration).expect("plain structs become JSON");
        let mut writer = Writer::new(self.writer_name("node"), lease.0);
        let change =
            writer
                .change()
                .if_unchanged(&key, Revision(0))
                .put_bound(&key, text, Some(lease));
        let change = put_candidate(change, lease, name.as_str());
        // Set before it is visible to other nodes, because their next map may contain it.
        self.watcher.set_life(Some(Life {
            incarnation: started.identity.incarnation,
            disk: started.identity.disk,
            held: session.lease_handle(),
            unproven: started.unproven,
        }));
        let service = self.service.clone();
        let made = self
            .watcher
            .run_until(async { settle(&*service, &change).await })
            .await;
        match made {
            Ok(Outcome::Done(created)) => {
                self.disk.record_registration(started.identity);
                tracing::info!(%name, incarnation = %started.identity.incarnation, %lease, "registered in the cluster");
                self.watcher.update_health(|health| {
                    health.operator_error = None;
                    health.is_registered = true;
                });
                Some(Registered { session, created })
            }
            Ok(Outcome::Conflict(_)) | Err(ServiceError::LeaseEnded(_)) => {
                self.watcher.set_life(None);
                // If there is no answer, the lease expires.
                let _ = self.watcher.run_until(session.end()).await;
                self.watcher.run_until(sleep(PAUSE / 10)).await;
                None
            }
            Err(error) => {
                self.watcher.set_life(None);
                self.set_operator_error(format!("etcd rejects this node's registration: {error}"));
                self.watcher.run_until(sleep(PAUSE)).await;
                None
            }
        }
    }

    async fn run_incarnation(
        &mut self,
        registered: Registered,
        stop: impl Future<Output = ()>,
    ) -> IncarnationEnd {
        let Registered {
            mut session,
            created,
        } = registered;
        let (lease, updates) = (session.id(), self.watcher.subscribe());
        let service = self.service.clone();
        let writer = |of: &str| Writer::new(self.writer_name(of), lease.0);
        let candidacy = Candidacy {
            key: format!("controller/{lease}"),
            lease,
            created,
        };
        let name = self.registration.name.clone();
        let registration = (format!("{NODES}{name}"), created);
        let control = control::run(
            service.clone(),
            updates.clone(),
            writer("control"),
            candidacy,
        );
        let slots = SlotWriter {
            service: &*service,
            writer: writer("slots"),
            name: &name,
            registration: registration.clone(),
            requests: self.slot_requests.clone(),
            reports: self.reports.clone(),
        };
        let slots = slots.run(updates.clone());
        let incarnation = self.registration.incarnation;
        let reports = self.reports.clone();
        let report = reports.run(Reporter {
            service: &*service,
            writer: writer("report"),
            name: &name,
            lease,
            incarnation,
            registration,
            updates: updates.clone(),
        });
        let dropped = wait_until_marked_down(updates.clone(), &name, incarnation);
        let unable =
            fault_watch::until_unable(&self.fault_monitor, &self.reports, &name, updates.clone());
        let set_back = wait_until_map_set_back(updates.clone());
        let (request_sender, state_updates) = (self.request_sender.clone(), updates.clone());
        let left = async {
            stop.await;
            let handed_over = hand_over_slots(&request_sender, &name, state_updates);
            if timeout(HAND_OVER_MAX, handed_over).await.is_err() {
                tracing::warn!(
                    "this node stops before other nodes own all of its slots: they take over when its lease has ended"
                );
            }
        };
        let request_task = requests::run(
            &*service,
            writer("asks"),
            lease,
            updates,
            &mut self.requests,
        );
        let end = {
            let all = async {
                tokio::select! {
                    biased;
                    () = left => IncarnationEnd::Stopped,
                    () = session.run() => IncarnationEnd::LeaseEnded,
                    fault = unable => {
                        let why = fault.why;
                        tracing::error!(why, "this node cannot serve and gives up its slots; it returns when it can serve again");
                        IncarnationEnd::Unable
                    }
                    () = dropped => IncarnationEnd::LeaseEnded,
                    () = set_back => IncarnationEnd::LeaseEnded,
                    () = control => IncarnationEnd::LeaseEnded,
                    () = report => IncarnationEnd::LeaseEnded,
                    () = request_task => IncarnationEnd::LeaseEnded,
                    () = slots => IncarnationEnd::LeaseEnded,
                }
            };
            self.watcher.run_until(all).await
        };
        self.watcher.update_health(|health| {
            health.is_registered = false;
            if let IncarnationEnd::Stopped = end {
                health.operator_error = Some("this node is stopping".to_owned());
            }
        });
        self.watcher.set_life(None);
        session.relinquish();
        self.last_life_ended_ms = boot_ms();
        if let IncarnationEnd::Unable = end {
            // Other nodes take over when the lease ends. A node that stops gracefully has already waited until they owned its
            // slots.
            self.wait_for_trust_to_expire().await;
        }
        // If there is no answer, the lease expires.
        let ended = timeout(INCARNATION_END_MAX, session.end()).await;
        if let (IncarnationEnd::Stopped, Ok(Ok(()))) = (&end, ended) {
            self.wait_until_down().await;
        }
        end
    }

    /// Waits until the other nodes, if any, no longer wait for this node, whose replicas have acknowledged their changes so far.
    async fn wait_until_down(&mut self) {
        let name = self.registration.name.clone();
        let is_over = |state: &CoordinationState| {
            let map = state.map.as_ref().map(|it| &it.map);
            let own = map.and_then(|map| map.member_named(&name));
            own.is_none_or(|own| own.state == MemberState::Down) || state.registered.is_empty()
        };
        let _ = timeout(INCARNATION_END_MAX, self.watcher.wait_for_state(is_over)).await;
    }

    fn set_operator_error(&self, why: String) {
        self.watcher
            .update_health(|health| health.operator_error = Some(why));
    }

    /// The name of a writer of this node: one for each task that writes.
    fn writer_name(&self, of: &str) -> String {
        format!("{}/{of}", self.registration.name)
    }
}

/// Requests that other nodes take over this node's slots, as far as they have all changes. Returns when they have.
async fn hand_over_slots(
    requests: &mpsc::UnboundedSender<QueuedRequest>,
    name: &NodeName,
    mut updates: watch::Receiver<CoordinationState>,
) {
    let shares = |state: &CoordinationState| {
        let map = state.map.as_ref().map(|it| &it.map);
        map.is_some_and(|map| has_transferable_slots(map, name))
    };
    if !shares(&updates.borrow()) {
        return;
    }
    if let Err(why) = requests::send(requests, ControllerRequest::Stop { node: name.clone() }).await
    {
        return tracing::warn!(why, "this node cannot hand over its slots before it stops");
    }
    // An error means that this incarnation is over.
    if updates.wait_for(|state| !shares(state)).await.is_ok() {
        tracing::info!(
            "other nodes own this node's slots, as far as they have copies; this node stops"
        );
    }
}

/// Returns whether a node owns slots with in-sync replicas on nodes that are not stopping.
fn has_transferable_slots(map: &Map, name: &NodeName) -> bool {
    let Some(me) = map.member_named(name) else {
        return false;
    };
    let is_staying = |node: &NodeId| !map.is_stopping(*node);
    let mut own = (map.slots().runs().iter()).filter(|run| run.placement.owner == Some(me.id));
    own.any(|run| run.placement.in_sync.iter().any(is_staying))
}

/// Waits until the map has this incarnation as down. The controller saw no lease of it, because there is none or it was not
/// visible; a node that is down in the map would never receive slots again.
async fn wait_until_marked_down(
    mut updates: watch::Receiver<CoordinationState>,
    name: &NodeName,
    incarnation: Incarnation,
) {
    let is_down = |state: &CoordinationState| {
        let map = state.map.as_ref().map(|it| &it.map);
        let own = map.and_then(|map| map.member_named(name));
        own.is_some_and(|own| {
            own.state == MemberState::Down && own.registration.incarnation == incarnation
        })
    };
    if updates.wait_for(is_down).await.is_err() {
        // The receiver is closed.
        std::future::pending::<()>().await;
    }
}

/// Waits until the map is lost or has gone back. A node that continued to serve under the previous map would do so concurrently
/// with nodes that use the older one.
async fn wait_until_map_set_back(mut updates: watch::Receiver<CoordinationState>) {
    if updates.wait_for(|state| state.is_set_back).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use larder_cluster::map::{Change, ChangeId, DiskId, Roles};

    use super::*;
    use crate::cluster::node::RevisionedMap;

    #[test]
    fn an_incarnation_ends_only_when_the_map_marks_that_incarnation_as_down() {
        let registration = |incarnation: u64| Registration {
            name: "a".parse().unwrap(),
            incarnation: Incarnation(incarnation),
            disk: DiskId(1),
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores: 1,
            zone: String::new(),
            weight: 1,
            roles: Roles::Both,
        };
        let mut map = Map::new("test", Settings::default());
        let (sender, updates) = watch::channel(CoordinationState::default());
        let mut change = |change: Change| {
            map = map.apply(&change, &ChangeId::default()).unwrap();
            let (map, revision) = (Arc::new(map.clone()), Revision(map.epoch().0));
            sender.send_modify(|state| state.map = Some(RevisionedMap { map, revision }));
        };
        let name = registration(1).name;
        let is_over = |life: u64| {
            wait_until_marked_down(updates.clone(), &name, Incarnation(life)).now_or_never()
                == Some(())
        };
        change(Change::MemberAdded {
            registration: registration(1),
            at_ms: 0,
        });
        change(Change::MembersAdmitted {
            nodes: vec![NodeId(1)],
            at_ms: 0,
        });
        assert!(!is_over(1));
        change(Change::MembersLost {
            nodes: vec![NodeId(1)],
            owners: Vec::new(),
            at_ms: 0,
        });
        assert!(is_over(1));
        assert!(!is_over(2), "it is about to return");
        change(Change::MemberReturned {
            node: NodeId(1),
            registration: registration(2),
            at_ms: 0,
        });
        assert!(!is_over(2));
    }
}
