//! Runs the controller on the node with the oldest candidacy: decides, writes, and decides again.
//!
//! Each change compares the map's revision and this candidacy, so that of two presumed leaders one loses. A decision based on the
//! local copy of the keys is still valid when it is written: the copy is their state at one revision, and a node that has since
//! registered with a new incarnation owns nothing before the map contains it. In case a watch lost an event, a change that
//! removes members also compares their registrations.

use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::{Ask, Decision, World, decide, next_map};
use larder_cluster::coordination::{
    Change, Coordination, Error, LeaseId, OPERATIONS_MAX, Outcome, Revision, Writer,
};
use larder_cluster::map::{self, AskId, ChangeId, Map};
use tokio::sync::watch;
use tokio::time::sleep;

use super::known::{ANSWERS, ASKS, Asked, BLOCKED, Known, KnownMap, MAP, NODES};
use super::write::settle;
use crate::clock::unix_ms;
use crate::log_limit::LogLimit;

/// Maximum time to wait for the newer state after a conflict.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum time between two decisions.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// This node's candidate key.
pub struct Candidacy {
    pub key: String,
    pub lease: LeaseId,
    pub created: Revision,
}

struct Controller {
    service: Arc<dyn Coordination>,
    writer: Writer,
    candidacy: Candidacy,
    changes: u64,
    /// The map that this controller wrote last, if it has not been received yet.
    ahead: Option<KnownMap>,
    answered: Option<AskId>,
    /// The offset from this node's clock to the cluster's time, in milliseconds; see [`behind`].
    behind_ms: Option<i64>,
    refused: LogLimit,
}

/// Acts as the controller whenever this candidacy is the oldest, during one incarnation; returns when it has ended.
pub async fn run(
    service: Arc<dyn Coordination>,
    mut news: watch::Receiver<Known>,
    writer: Writer,
    candidacy: Candidacy,
) {
    let mut controller = Controller {
        service,
        writer,
        candidacy,
        changes: 0,
        ahead: None,
        answered: None,
        behind_ms: None,
        refused: LogLimit::default(),
    };
    let mut leads = false;
    loop {
        let known = news.borrow_and_update().clone();
        if controller.leads(&known) != leads {
            leads = !leads;
            controller.behind_ms = None;
            if leads {
                tracing::info!("this node is the cluster's controller")
            } else {
                tracing::info!("this node is not the cluster's controller any more")
            }
        }
        let wait = if leads {
            match controller.turn(known).await {
                Ok(wait) => wait,
                Err(Error::LeaseEnded(_)) => return,
                Err(error) => {
                    if let Some(times) = controller.refused.note() {
                        tracing::error!(%error, times, "the controller cannot write to etcd");
                    }
                    PAUSE
                }
            }
        } else {
            LOOK_AGAIN
        };
        if wait.is_zero() {
            // Lets other parts of this task run in between.
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            changed = news.changed() => if changed.is_err() {
                return;
            },
            () = sleep(wait) => {}
        }
    }
}

impl Controller {
    fn leads(&self, known: &Known) -> bool {
        known.leader.as_ref().is_some_and(|leader| {
            leader.key == self.candidacy.key && leader.created == self.candidacy.created
        })
    }

    /// Makes one decision. Returns how long to wait for a change before the next.
    async fn turn(&mut self, mut known: Known) -> Result<Duration, Error> {
        if let Some(ahead) = &self.ahead {
            let is_heard = known
                .map
                .as_ref()
                .is_some_and(|it| it.revision >= ahead.revision);
            if is_heard {
                self.ahead = None
            } else {
                known.map = Some(ahead.clone())
            }
        }
        let Some(KnownMap { map, revision }) = known.map.clone() else {
            return Ok(LOOK_AGAIN);
        };
        let clock_ms = unix_ms();
        let behind_ms = *self.behind_ms.get_or_insert_with(|| behind(&map, clock_ms));
        let now_ms = clock_ms.saturating_add_signed(behind_ms);
        let open = known
            .asks
            .iter()
            .filter(|asked| Some(&asked.id) != self.answered.as_ref());
        let asks: Vec<(AskId, Ask)> = open
            .map(|asked| (asked.id.clone(), asked.ask.clone()))
            .collect();
        let world = World {
            map: &map,
            now_ms,
            registered: &known.registered,
            reports: &known.reports,
            asks: &asks,
        };
        match decide(&world) {
            Decision::Change { change, why, ask } => {
                let asked = known
                    .asks
                    .iter()
                    .find(|asked| Some(&asked.id) == ask.as_ref());
                let mut write = self.fenced();
                if let Some(Asked { id, token, .. }) = asked {
                    write = write.unless_changed(format!("{ASKS}{id}"), token.modified);
                }
                self.change(&known, &world, revision, &change, &why, write)
                    .await
            }
            Decision::Answer { ask, answer } => {
                let asked = known.asks.iter().find(|asked| asked.id == ask);
                match asked {
                    Some(asked) => self.answer(asked, answer, revision).await,
                    None => Ok(PAUSE),
                }
            }
            Decision::Nothing {
                look_again_at_ms,
                blocked,
            } => {
                self.block(&known, blocked).await?;
                let wait_ms = look_again_at_ms.map(|at| at.saturating_sub(now_ms).max(10));
                Ok(wait_ms
                    .map_or(LOOK_AGAIN, Duration::from_millis)
                    .min(LOOK_AGAIN))
            }
        }
    }

    async fn change(
        &mut self,
        known: &Known,
        world: &World<'_>,
        revision: Revision,
        change: &map::Change,
        why: &str,
        write: Change,
    ) -> Result<Duration, Error> {
        let map = world.map;
        self.changes += 1;
        let id = ChangeId(format!("{}-{}", self.candidacy.lease, self.changes));
        let next = match next_map(world, change, &id) {
            Ok(next) => next,
            Err(refused) => {
                if let Some(times) = self.refused.note() {
                    tracing::error!(%refused, why, times, "the controller wants what the map does not allow");
                }
                return Ok(PAUSE);
            }
        };
        let mut write = write.unless_changed(MAP, revision).put(MAP, next.to_text());
        if let map::Change::MembersLost { nodes, .. } = change
            && nodes.len() + 8 < OPERATIONS_MAX
        {
            for name in nodes
                .iter()
                .filter_map(|node| Some(map.member(*node)?.name()))
            {
                let created = known
                    .registration(name)
                    .map_or(Revision(0), |(_, token)| token.created);
                write = write.while_since(format!("{NODES}{name}"), created);
            }
        }
        match settle(&*self.service, &write).await? {
            Outcome::Done(revision) => {
                tracing::info!(epoch = %next.epoch(), why, change = kind(change), "the cluster's map is changed");
                self.ahead = Some(KnownMap {
                    map: Arc::new(next),
                    revision,
                });
                Ok(Duration::ZERO)
            }
            Outcome::Conflict(_) => Ok(PAUSE),
        }
    }

    async fn answer(
        &mut self,
        asked: &Asked,
        answer: Result<String, String>,
        map: Revision,
    ) -> Result<Duration, Error> {
        let Asked { id, token, .. } = asked;
        let key = format!("{ASKS}{id}");
        let text = serde_json::to_vec(&answer).expect("texts become JSON");
        let drop = self
            .fenced()
            .unless_changed(MAP, map)
            .unless_changed(&key, token.modified)
            .delete(&key);
        let answered = drop
            .clone()
            .put_bound(format!("{ANSWERS}{id}"), text, token.lease);
        let outcome = match settle(&*self.service, &answered).await {
            // The requesting node's lease has ended, so no one reads the answer.
            Err(Error::LeaseEnded(_)) => Outcome::Conflict(Vec::new()),
            other => other?,
        };
        match (&outcome, &answer) {
            (Outcome::Done(_), Ok(words)) => {
                tracing::info!(wish = %id, ask = ?asked.ask, words, "a wish is granted")
            }
            (Outcome::Done(_), Err(why)) => {
                tracing::info!(wish = %id, ask = ?asked.ask, why, "a wish is refused")
            }
            (Outcome::Conflict(_), _) => return Ok(PAUSE),
        }
        self.answered = Some(id.clone());
        Ok(Duration::ZERO)
    }

    /// Publishes the problems that need an operator.
    async fn block(&mut self, known: &Known, blocked: Vec<String>) -> Result<(), Error> {
        if *known.blocked == blocked {
            return Ok(());
        }
        for why in blocked.iter().filter(|why| !known.blocked.contains(why)) {
            tracing::warn!("{why}");
        }
        let write = self.fenced().unless_changed(BLOCKED, known.blocked_at());
        let text = serde_json::to_vec(&blocked).expect("texts become JSON");
        let write = if blocked.is_empty() {
            write.delete(BLOCKED)
        } else {
            write.put_bound(BLOCKED, text, Some(self.candidacy.lease))
        };
        settle(&*self.service, &write).await?;
        Ok(())
    }

    /// A change that only the leader may make.
    fn fenced(&mut self) -> Change {
        let Candidacy { key, created, .. } = &self.candidacy;
        self.writer.change().while_since(key, *created)
    }
}

/// Returns the offset by which a new controller adjusts its clock, so that times of the previous controller keep their meaning:
/// clocks of two machines may differ by hours. Time never goes back. It stands still while there is no controller, because a push
/// would otherwise be aborted for a silence that did not occur.
fn behind(map: &Map, clock_ms: u64) -> i64 {
    let pushes = map
        .stores()
        .values()
        .filter_map(|store| store.push.as_ref());
    let pushed = pushes.map(|push| push.progress_ms).max();
    let members = map.members().iter().map(|member| member.since_ms);
    let latest = members.chain(pushed).max().unwrap_or(0);
    let silence = map.settings().push_silence_ms / 2;
    let would_end = pushed.is_some() && clock_ms.saturating_sub(latest) > silence;
    if clock_ms < latest || would_end {
        latest as i64 - clock_ms as i64
    } else {
        0
    }
}

/// The change's name, without its lists.
fn kind(change: &map::Change) -> String {
    let text = format!("{change:?}");
    let end = text.find(|it: char| !it.is_ascii_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use larder_cluster::map::{
        Change, ChangeId, Incarnation, NodeId, Registration, Roles, Settings,
    };

    use super::{AskId, Map, behind};

    const HOUR: u64 = 3_600_000;

    /// A map with a node that has been a member since one hour after time zero.
    fn with_member() -> Map {
        let registration = Registration {
            name: "a".parse().unwrap(),
            incarnation: Incarnation(1),
            disk: Default::default(),
            resp: String::new(),
            http: String::new(),
            peer: String::new(),
            hostname: None,
            cores: 1,
            zone: String::new(),
            weight: 1,
            roles: Roles::Both,
        };
        let map = Map::new("c", Settings::default());
        let at_ms = HOUR;
        let nodes = vec![NodeId(1)];
        let changes = [
            Change::MemberAdded {
                registration,
                at_ms,
            },
            Change::MembersAdmitted { nodes, at_ms },
        ];
        changes.iter().fold(map, |map, change| {
            map.apply(change, &ChangeId::default()).unwrap()
        })
    }

    #[test]
    fn time_never_goes_back_when_one_controller_follows_another() {
        let map = with_member();
        assert_eq!(behind(&map, HOUR + 5), 0);
        assert_eq!(behind(&map, 10), HOUR as i64 - 10);
        assert_eq!(behind(&map, 9 * HOUR), 0, "nothing is under way");
    }

    #[test]
    fn a_push_is_not_given_up_because_the_next_controllers_clock_is_ahead() {
        let push = Change::PushBegun {
            store: "s".parse().unwrap(),
            ask: AskId("1".to_owned()),
            source: "/v".to_owned(),
            digest: "d".to_owned(),
            allow_missing_replicas: 0,
            options: Default::default(),
            at_ms: HOUR + 1_000,
        };
        let map = with_member().apply(&push, &ChangeId::default()).unwrap();
        assert_eq!(behind(&map, HOUR + 2_000), 0);
        let late = 2 * HOUR;
        assert_eq!(late.saturating_add_signed(behind(&map, late)), HOUR + 1_000);
    }
}
