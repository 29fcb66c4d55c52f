//! Maintains this node's copy of the keys, publishes a view for each map, and updates the node's status.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use larder_cluster::coordination::{Coordination, Follower, Keys, boot_ms};
use larder_cluster::map::{Map, NodeId, NodeName};
use tokio::sync::watch;

use super::known::Known;
use super::map_copy::MapCopy;
use super::{Standing, Tell};
use crate::cluster::{Life, View};
use crate::log_limit::LogLimit;

/// The interval at which the watch is checked for lost events, and etcd for answers.
const CHECK_EVERY: Duration = Duration::from_secs(2);

pub struct Ears {
    follower: Follower,
    pub known: Known,
    told: watch::Sender<Known>,
    name: NodeName,
    life: Option<Life>,
    copy: MapCopy,
    view: Arc<ArcSwap<View>>,
    tell: Tell,
    said: Said,
    silent: LogLimit,
    unsure: LogLimit,
}

/// This node's status, as read by other threads.
pub struct Said {
    pub standing: Arc<ArcSwap<Standing>>,
    pub is_refusing: Arc<AtomicBool>,
}

impl Ears {
    pub fn new(
        service: Arc<dyn Coordination>,
        name: NodeName,
        (copy, known): (MapCopy, Known),
        view: Arc<ArcSwap<View>>,
        said: Said,
        tell: Tell,
    ) -> Ears {
        let (told, _) = watch::channel(known.clone());
        Ears {
            follower: Follower::new(service, Keys::below(""), CHECK_EVERY),
            known,
            told,
            name,
            life: None,
            copy,
            view,
            tell,
            said,
            silent: LogLimit::default(),
            unsure: LogLimit::default(),
        }
    }

    /// A receiver of changes of the known state.
    pub fn news(&self) -> watch::Receiver<Known> {
        self.told.subscribe()
    }

    /// Processes events until `what` completes.
    pub async fn until<T>(&mut self, what: impl Future<Output = T>) -> T {
        tokio::pin!(what);
        loop {
            tokio::select! {
                biased;
                done = &mut what => return done,
                () = self.hear() => {}
            }
        }
    }

    /// Processes events until the known state satisfies the predicate.
    pub async fn until_known(&mut self, holds: impl Fn(&Known) -> bool) {
        while !(self.has_read() && holds(&self.known)) {
            self.hear().await;
        }
    }

    /// Returns whether the keys have been read.
    pub fn has_read(&self) -> bool {
        self.follower.confirmed_at_ms().is_some()
    }

    /// Waits for the next events, or for a check without any. Cancel-safe.
    async fn hear(&mut self) {
        let events = self.follower.next().await;
        if !self.has_read() {
            return self.stand();
        }
        let was_set_back = self.known.is_set_back;
        let is_map_new = self.known.take(&events, self.follower.mirror());
        if is_map_new {
            if let Some(known) = &self.known.map {
                self.copy.keep(known.map.clone());
            }
            self.publish();
        }
        if self.known.is_set_back
            && !was_set_back
            && let Some(why) = &self.known.map_trouble
        {
            tracing::error!("the cluster's map in etcd cannot be used: {why}");
        }
        if !events.is_empty() || was_set_back != self.known.is_set_back {
            self.told.send_replace(self.known.clone());
        }
        self.stand();
    }

    /// Sets the current incarnation, if any: assignments of the map to other incarnations no longer count.
    pub fn set_life(&mut self, life: Option<Life>) {
        self.life = life;
        self.publish();
        self.stand();
    }

    fn publish(&self) {
        let before = self.view.load_full();
        let map: Arc<Map> = match &self.known.map {
            Some(known) => known.map.clone(),
            None => before.map.clone(),
        };
        let me = map.member_named(&self.name).map_or(NodeId(0), |it| it.id);
        if map.epoch() != before.map.epoch() {
            tracing::debug!(epoch = %map.epoch(), "the cluster has a new map");
        }
        let view = Arc::new(before.after(map, me, self.life.clone()));
        self.view.store(view.clone());
        (self.tell)(view);
    }

    /// Changes this node's status.
    pub fn say(&self, change: impl FnOnce(&mut Standing)) {
        let Said {
            standing,
            is_refusing,
        } = &self.said;
        let mut now = Standing::clone(&standing.load());
        change(&mut now);
        let refuses = now.refusal(&self.view.load()).is_some();
        standing.store(Arc::new(now));
        is_refusing.store(refuses, Ordering::Relaxed);
    }

    /// Logs when etcd stops answering, and when it answers again.
    fn stand(&self) {
        let trouble = self.follower.trouble().map(ToString::to_string);
        let before = self.said.standing.load_full();
        match (&before.trouble, &trouble) {
            (None, None) => {}
            (Some(_), None) => tracing::info!("etcd answers again"),
            (_, Some(why)) => {
                if let Some(times) = self.silent.note() {
                    tracing::warn!(
                        why,
                        times,
                        etcd = before.endpoints,
                        "etcd does not answer; what this node knows goes on, and it is asked all the while"
                    );
                }
                let held = self.life.as_ref().map(|life| &life.held);
                if held.is_some_and(|held| !held.is_held_surely(boot_ms()))
                    && let Some(times) = self.unsure.note()
                {
                    tracing::warn!(
                        times,
                        "this node's lease may have ended: it takes no writes of tables until etcd answers; reads of stores go on"
                    );
                }
            }
        }
        self.say(|standing| {
            standing.trouble = trouble;
            standing.confirmed_at_ms = self.follower.confirmed_at_ms();
            standing.known = self.known.clone();
        });
    }
}
