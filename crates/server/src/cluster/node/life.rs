//! The sequence of this node's incarnations.

use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::Ask;
use larder_cluster::coordination::{
    Coordination, Error as ServiceError, Keys, Outcome, Revision, Session, Writer, boot_ms,
    candidacy,
};
use larder_cluster::map::{
    ClusterId, Incarnation, Map, NodeId, NodeName, Registration, Settings, State,
};
use larder_cluster::replication::recovery::Identity;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use super::ability;
use super::asks::{self, Wanted};
use super::control::{self, Candidacy};
use super::disk::{Begun, Disk};
use super::ears::{Ears, Said};
use super::known::{Known, MAP, NEWER, NODES, Newer};
use super::reports::{Reporter, Reports};
use super::slots::SlotWriter;
use super::write::settle;
use super::{GIVE_AWAY, STOP, Start, Tell, random};
use crate::ability::Ability;
use crate::cluster::Life;
use crate::cluster::slot_asks::SlotAsks;
use crate::cluster::{MARGIN_MS, SUBSCRIPTION_MS_MAX};

/// The pause between attempts at operations that need an operator's action.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause before a node checks again whether its mark is in etcd.
const MARK_AGAIN: Duration = Duration::from_secs(10);

pub struct Node {
    service: Arc<dyn Coordination>,
    ears: Ears,
    /// This node's registration; the incarnation and the disk are the current ones.
    registration: Registration,
    settings: Settings,
    cluster: String,
    disk: Disk,
    own_asks: mpsc::UnboundedSender<Wanted>,
    asks: mpsc::UnboundedReceiver<Wanted>,
    reports: Arc<Reports>,
    slot_asks: Arc<SlotAsks>,
    ability: Arc<Ability>,
    /// No incarnation of this process has begun.
    is_first: bool,
    /// A time by which the last incarnation of this folder had ended: the start of this process, or the end of its own last
    /// incarnation.
    last_life_ended_ms: u64,
}

enum End {
    /// Its lease has ended, or another process has taken the name.
    Over,
    /// It gave up its lease because it cannot serve.
    Unable,
    Stopped,
}

/// An incarnation that has registered.
struct Registered {
    session: Session,
    created: Revision,
}

impl Node {
    pub fn new(start: Start, said: Said, reports: Arc<Reports>, tell: Tell) -> Node {
        let name = start.registration.name.clone();
        let copies = (start.map_copy, start.known);
        Node {
            ears: Ears::new(start.service.clone(), name, copies, start.view, said, tell),
            service: start.service,
            registration: start.registration,
            settings: start.settings,
            cluster: start.cluster,
            disk: start.disk,
            own_asks: start.own_asks,
            asks: start.asks,
            reports,
            slot_asks: start.slot_asks,
            ability: start.ability,
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
            match self.live(registered, stop).await {
                End::Stopped => break,
                // The reason has been logged.
                End::Unable => {}
                End::Over => tracing::warn!(
                    "this node's lease has ended: others have taken over what they could; it returns in a new life"
                ),
            }
        }
        self.ears.set_life(None);
        self.disk
    }

    /// All steps up to the registration, however long they take.
    async fn prepare(&mut self) -> Registered {
        loop {
            self.wait_until_able().await;
            self.find_map().await;
            self.wait_for_name().await;
            let Some(begun) = self.begin_life().await else {
                continue;
            };
            if let Some(registered) = self.register(begun).await {
                self.is_first = false;
                return registered;
            }
        }
    }

    async fn wait_until_able(&mut self) {
        let mut was_unable = false;
        while let Some(inability) = self.ability.inability() {
            was_unable = true;
            self.refuse(format!("this node cannot serve: {}", inability.why));
            self.ears.until(sleep(ability::LOOK_EVERY)).await;
        }
        if was_unable {
            self.ears.say(|standing| standing.refused = None);
        }
    }

    /// Waits for a map that this node may apply. Creates the map of a new cluster if there is none and never was one.
    async fn find_map(&mut self) {
        loop {
            self.ears.until_known(|_| true).await;
            if let Some(mark) = self.ears.known.mark_to_leave() {
                self.leave_mark(mark).await;
            }
            let known = &self.ears.known;
            if let Some(trouble) = known.map_trouble.clone() {
                let is_other = |known: &Known| known.map_trouble.as_ref() != Some(&trouble);
                // Retries a mark that is not in etcd.
                let _ = timeout(MARK_AGAIN, self.ears.until_known(is_other)).await;
                continue;
            }
            if known.map.is_some() {
                return;
            }
            let map = Map::new(&self.cluster, self.settings.clone());
            let map = map.with_id(ClusterId(random().max(1)));
            if let Some(wrong) = map.settings().out_of_bounds() {
                self.refuse(format!("the cluster cannot be founded: {wrong}"));
                self.ears.until_known(|known| known.map.is_some()).await;
                return;
            }
            let mut writer = Writer::new(self.mark("found"), random());
            let change = writer
                .change()
                .unless_changed(MAP, Revision(0))
                .put(MAP, map.to_text());
            let service = self.service.clone();
            match self
                .ears
                .until(async { settle(&*service, &change).await })
                .await
            {
                Ok(Outcome::Done(_)) => {
                    tracing::info!(cluster = self.cluster, "a new cluster is founded")
                }
                Ok(Outcome::Conflict(_)) => {}
                Err(error) => {
                    self.refuse(format!(
                        "the cluster's map cannot be written to etcd: {error}"
                    ));
                    self.ears.until(sleep(PAUSE)).await;
                    continue;
                }
            }
            self.ears
                .until_known(|known| known.map.is_some() || known.map_trouble.is_some())
                .await;
        }
    }

    /// Records in etcd that this node's copy of the map is newer. A node with an older copy, or none, must not apply etcd's map.
    async fn leave_mark(&mut self, mark: Newer) {
        let name = &self.registration.name;
        if self.ears.known.mark_of(name) == Some(mark) {
            return;
        }
        let key = format!("{NEWER}{name}");
        let text = serde_json::to_vec(&mark).expect("plain structs become JSON");
        let mut writer = Writer::new(self.mark("newer"), random());
        let service = self.service.clone();
        let write = async {
            let now = service.read(&Keys::one(&key)).await?;
            let at = now.entries.first().map_or(Revision(0), |it| it.modified);
            let change = writer.change().unless_changed(&key, at).put(&key, text);
            settle(&*service, &change).await
        };
        if let Err(error) = self.ears.until(write).await {
            tracing::warn!(%error, "the mark that this node has a newer map is not written to etcd");
        }
    }

    /// Waits until no other process is registered under this name. Ends an earlier incarnation of this folder: its process is
    /// gone, or is this one.
    async fn wait_for_name(&mut self) {
        let name = self.registration.name.clone();
        let mut is_told = false;
        while let Some((other, token)) = self.ears.known.registration(&name) {
            if self.disk.was(other) {
                self.wait_while_trusted().await;
                if let Some(lease) = token.lease {
                    let service = self.service.clone();
                    let ended = self.ears.until(async { service.revoke(lease).await }).await;
                    if let Err(error) = ended {
                        tracing::info!(%error, "the lease of this node's earlier life ends by itself");
                    }
                }
            } else {
                let why = format!(
                    "another process is node {name} of cluster {} (clients reach it at {}): give each node a name of its own \
                     (cluster.node), or stop that one; if it has died, its lease ends in some seconds, and this one takes its place",
                    self.cluster, other.resp
                );
                if !is_told {
                    tracing::error!("{why}");
                    is_told = true;
                }
                self.refuse(why);
            }
            let is_gone = |known: &Known| {
                known
                    .registration(&name)
                    .is_none_or(|(_, now)| now != token)
            };
            let waited = self.ears.until_known(is_gone);
            // Retries if the lease could not be ended.
            let _ = timeout(Duration::from_secs(10), waited).await;
        }
        self.ears.say(|standing| standing.refused = None);
    }

    /// If there are joins, other nodes may compute from rows that they received in this node's earlier incarnation. A node that
    /// was disconnected at its end trusts them for some time, and no other node may accept writes to them before that has passed;
    /// waiting before the lease is ended ensures this.
    async fn wait_while_trusted(&mut self) {
        let known = self.ears.known.map.as_ref();
        if known.is_none_or(|known| known.map.joins().is_empty()) {
            return;
        }
        let trusted_until_ms = self.last_life_ended_ms + SUBSCRIPTION_MS_MAX + MARGIN_MS;
        let left_ms = trusted_until_ms.saturating_sub(boot_ms());
        if left_ms > 0 {
            tracing::info!(
                left_ms,
                "rows of this node's earlier life may still be trusted"
            );
            self.ears.until(sleep(Duration::from_millis(left_ms))).await;
        }
    }

    /// Writes the new incarnation to disk before it is announced.
    async fn begin_life(&mut self) -> Option<Begun> {
        let map = self.ears.known.map.as_ref()?;
        let member = map.map.member_named(&self.registration.name);
        let known = member.map(|it| Identity {
            disk: it.registration.disk,
            incarnation: it.registration.incarnation,
        });
        match self.disk.begin_life(known) {
            Ok(begun) => {
                if let (Some(why), Some(_)) = (begun.unproven, known) {
                    tracing::warn!(
                        ?why,
                        "what the data folder has of tables does not count any more; the node is filled anew"
                    );
                }
                if begun.may_lack_the_end {
                    tracing::warn!(
                        "this machine was started anew: the last writes before may not be on disk, as tables.fsync says; where other nodes have them, they are copied from there"
                    );
                }
                Some(begun)
            }
            Err(error) => {
                tracing::error!(%error, "a new life cannot be noted in the data folder");
                self.refuse(format!("this node cannot join: {error}"));
                self.ears.until(sleep(PAUSE)).await;
                None
            }
        }
    }

    /// Returns `None` if the attempt must start again.
    async fn register(&mut self, begun: Begun) -> Option<Registered> {
        let settings = self.ears.known.map.as_ref()?.map.settings().clone();
        if self.is_first && settings != self.settings {
            tracing::info!(of_the_cluster = ?settings, configured = ?self.settings, "the cluster goes by the settings of its map, not by this node's configuration");
        }
        let ttl_seconds = settings
            .lease_ms
            .div_ceil(1000)
            .try_into()
            .unwrap_or(u32::MAX);
        let service = self.service.clone();
        let began = self.ears.until(Session::begin(service, ttl_seconds)).await;
        let session = match began {
            Ok(session) => session,
            Err(error) => {
                tracing::warn!(%error, "etcd grants no lease");
                self.ears.until(sleep(PAUSE)).await;
                return None;
            }
        };
        self.registration.incarnation = begun.identity.incarnation;
        self.registration.disk = begun.identity.disk;
        let (lease, name) = (session.id(), self.registration.name.clone());
        let key = format!("{NODES}{name}");
        let text = serde_json::to_vec(&self.registration).expect("plain structs become JSON");
        let mut writer = Writer::new(self.mark("node"), lease.0);
        let change =
            writer
                .change()
                .unless_changed(&key, Revision(0))
                .put_bound(&key, text, Some(lease));
        let change = candidacy(change, lease, name.as_str());
        // Set before it is visible to other nodes, because their next map may contain it.
        self.ears.set_life(Some(Life {
            incarnation: begun.identity.incarnation,
            disk: begun.identity.disk,
            held: session.held(),
            unproven: begun.unproven,
        }));
        let service = self.service.clone();
        let made = self
            .ears
            .until(async { settle(&*service, &change).await })
            .await;
        match made {
            Ok(Outcome::Done(created)) => {
                self.disk.note_registered(begun.identity);
                tracing::info!(%name, incarnation = %begun.identity.incarnation, %lease, "registered in the cluster");
                self.ears.say(|standing| {
                    standing.refused = None;
                    standing.is_registered = true;
                });
                Some(Registered { session, created })
            }
            Ok(Outcome::Conflict(_)) | Err(ServiceError::LeaseEnded(_)) => {
                self.ears.set_life(None);
                // If there is no answer, the lease expires.
                let _ = self.ears.until(session.end()).await;
                self.ears.until(sleep(PAUSE / 10)).await;
                None
            }
            Err(error) => {
                self.ears.set_life(None);
                self.refuse(format!("etcd refuses this node's registration: {error}"));
                self.ears.until(sleep(PAUSE)).await;
                None
            }
        }
    }

    async fn live(&mut self, registered: Registered, stop: impl Future<Output = ()>) -> End {
        let Registered {
            mut session,
            created,
        } = registered;
        let (lease, news) = (session.id(), self.ears.news());
        let service = self.service.clone();
        let writer = |of: &str| Writer::new(self.mark(of), lease.0);
        let candidacy = Candidacy {
            key: format!("controller/{lease}"),
            lease,
            created,
        };
        let name = self.registration.name.clone();
        let registration = (format!("{NODES}{name}"), created);
        let control = control::run(service.clone(), news.clone(), writer("control"), candidacy);
        let slots = SlotWriter {
            service: &*service,
            writer: writer("slots"),
            name: &name,
            registration: registration.clone(),
            asks: self.slot_asks.clone(),
            reports: self.reports.clone(),
        };
        let slots = slots.run(news.clone());
        let incarnation = self.registration.incarnation;
        let reports = self.reports.clone();
        let report = reports.run(Reporter {
            service: &*service,
            writer: writer("report"),
            name: &name,
            lease,
            incarnation,
            registration,
            news: news.clone(),
        });
        let dropped = dropped(news.clone(), &name, incarnation);
        let unable = ability::until_unable(&self.ability, &self.reports, &name, news.clone());
        let set_back = set_back(news.clone());
        let (own_asks, told) = (self.own_asks.clone(), news.clone());
        let left = async {
            stop.await;
            let given = give_away(&own_asks, &name, told);
            if timeout(GIVE_AWAY, given).await.is_err() {
                tracing::warn!(
                    "this node stops before others own all of its slots: they do when its lease has ended"
                );
            }
        };
        let ask = asks::run(&*service, writer("asks"), lease, news, &mut self.asks);
        let end = {
            let all = async {
                tokio::select! {
                    biased;
                    () = left => End::Stopped,
                    () = session.run() => End::Over,
                    inability = unable => {
                        let why = inability.why;
                        tracing::error!(why, "this node cannot serve, and leaves its slots to other nodes; it returns when it can");
                        End::Unable
                    }
                    () = dropped => End::Over,
                    () = set_back => End::Over,
                    () = control => End::Over,
                    () = report => End::Over,
                    () = ask => End::Over,
                    () = slots => End::Over,
                }
            };
            self.ears.until(all).await
        };
        self.ears.say(|standing| {
            standing.is_registered = false;
            if let End::Stopped = end {
                standing.refused = Some("this node is stopping".to_owned());
            }
        });
        self.ears.set_life(None);
        session.give_up();
        self.last_life_ended_ms = boot_ms();
        if let End::Unable = end {
            // Other nodes take over when the lease ends. A node that stops gracefully has already waited until they owned its
            // slots.
            self.wait_while_trusted().await;
        }
        // If there is no answer, the lease expires.
        let ended = timeout(STOP, session.end()).await;
        if let (End::Stopped, Ok(Ok(()))) = (&end, ended) {
            self.wait_until_down().await;
        }
        end
    }

    /// Waits until the other nodes, if any, no longer wait for this node, whose replicas have acknowledged their changes so far.
    async fn wait_until_down(&mut self) {
        let name = self.registration.name.clone();
        let is_over = |known: &Known| {
            let map = known.map.as_ref().map(|it| &it.map);
            let own = map.and_then(|map| map.member_named(&name));
            own.is_none_or(|own| own.state == State::Down) || known.registered.is_empty()
        };
        let _ = timeout(STOP, self.ears.until_known(is_over)).await;
    }

    fn refuse(&self, why: String) {
        self.ears.say(|standing| standing.refused = Some(why));
    }

    /// The name of a writer of this node: one for each task that writes.
    fn mark(&self, of: &str) -> String {
        format!("{}/{of}", self.registration.name)
    }
}

/// Requests that other nodes take over this node's slots, as far as they have all changes. Returns when they have.
async fn give_away(
    asks: &mpsc::UnboundedSender<Wanted>,
    name: &NodeName,
    mut news: watch::Receiver<Known>,
) {
    let shares = |known: &Known| {
        let map = known.map.as_ref().map(|it| &it.map);
        map.is_some_and(|map| shares_slots(map, name))
    };
    if !shares(&news.borrow()) {
        return;
    }
    if let Err(why) = asks::ask(asks, Ask::Stop { node: name.clone() }).await {
        return tracing::warn!(why, "this node cannot give its slots away before it stops");
    }
    // An error means that this incarnation is over.
    if news.wait_for(|known| !shares(known)).await.is_ok() {
        tracing::info!("others own what this node did, as far as they have it; it stops");
    }
}

/// Returns whether a node owns slots with in-sync replicas on nodes that are not stopping.
fn shares_slots(map: &Map, name: &NodeName) -> bool {
    let Some(me) = map.member_named(name) else {
        return false;
    };
    let goes_on = |node: &NodeId| !map.is_stopping(*node);
    let mut own = (map.slots().runs().iter()).filter(|run| run.placed.owner == Some(me.id));
    own.any(|run| run.placed.in_sync.iter().any(goes_on))
}

/// Waits until the map has this incarnation as down. The controller saw no lease of it, because there is none or it was not
/// visible; a node that is down in the map would never receive slots again.
async fn dropped(mut news: watch::Receiver<Known>, name: &NodeName, incarnation: Incarnation) {
    let is_down = |known: &Known| {
        let map = known.map.as_ref().map(|known| &known.map);
        let own = map.and_then(|map| map.member_named(name));
        own.is_some_and(|own| {
            own.state == State::Down && own.registration.incarnation == incarnation
        })
    };
    if news.wait_for(is_down).await.is_err() {
        // The receiver is closed.
        std::future::pending::<()>().await;
    }
}

/// Waits until the map is lost or has gone back. A node that continued to serve under the previous map would do so concurrently
/// with nodes that use the older one.
async fn set_back(mut news: watch::Receiver<Known>) {
    if news.wait_for(|known| known.is_set_back).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use larder_cluster::map::{Change, ChangeId, DiskId, Roles};

    use super::*;
    use crate::cluster::node::KnownMap;

    #[test]
    fn a_life_ends_when_the_map_has_it_as_down_and_not_for_an_earlier_one() {
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
        let (tell, news) = watch::channel(Known::default());
        let mut change = |change: Change| {
            map = map.apply(&change, &ChangeId::default()).unwrap();
            let (map, revision) = (Arc::new(map.clone()), Revision(map.epoch().0));
            tell.send_modify(|known| known.map = Some(KnownMap { map, revision }));
        };
        let name = registration(1).name;
        let is_over =
            |life: u64| dropped(news.clone(), &name, Incarnation(life)).now_or_never() == Some(());
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
