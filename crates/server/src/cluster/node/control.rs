//! Runs the controller on the node with the oldest candidacy: decides, writes, and decides again.
//!
//! Each change compares the map's revision and this candidacy, so that of two presumed leaders one loses. A decision based on the
//! local copy of the keys is still valid when it is written: the copy is their state at one revision, and a node that has since
//! registered with a new incarnation owns nothing before the map contains it. In case a watch lost an event, a change that
//! removes members also compares their registrations.

use std::sync::Arc;
use std::time::Duration;

use larder_cluster::controller::{ControllerRequest, Decision, Inputs, decide, next_map};
use larder_cluster::coordination::{
    Change, Coordination, Error, LeaseId, OPERATIONS_MAX, Outcome, Revision, Writer,
};
use larder_cluster::map::{self, ChangeId, Map, RequestId};
use tokio::sync::watch;
use tokio::time::sleep;

use super::coordination_state::{
    ANSWERS, ASKS, BLOCKED, CoordinationState, MAP, NODES, OperatorRequest, RevisionedMap,
};
use super::write::settle;
use crate::clock::unix_ms;
use crate::log_limit::LogLimit;

/// Maximum time to wait for the newer state after a conflict.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum time between two decisions.
const DECISION_INTERVAL_MAX: Duration = Duration::from_secs(60);

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
    unconfirmed_map: Option<RevisionedMap>,
    answered: Option<RequestId>,
    /// The offset from this node's clock to the cluster's time, in milliseconds; see [`behind`].
    clock_offset_ms: Option<i64>,
    failure_log: LogLimit,
}

/// Acts as the controller whenever this candidacy is the oldest, during one incarnation; returns when it has ended.
pub async fn run(
    service: Arc<dyn Coordination>,
    mut updates: watch::Receiver<CoordinationState>,
    writer: Writer,
    candidacy: Candidacy,
) {
    let mut controller = Controller {
        service,
        writer,
        candidacy,
        changes: 0,
        unconfirmed_map: None,
        answered: None,
        clock_offset_ms: None,
        failure_log: LogLimit::default(),
    };
    let mut leads = false;
    loop {
        let state = updates.borrow_and_update().clone();
        if controller.is_leader(&state) != leads {
            leads = !leads;
            controller.clock_offset_ms = None;
            if leads {
                tracing::info!("this node is the cluster's controller")
            } else {
                tracing::info!("this node is not the cluster's controller any more")
            }
        }
        let wait = if leads {
            match controller.decide_once(state).await {
                Ok(wait) => wait,
                Err(Error::LeaseEnded(_)) => return,
                Err(error) => {
                    if let Some(times) = controller.failure_log.note() {
                        tracing::error!(%error, times, "the controller cannot write to etcd");
                    }
                    PAUSE
                }
            }
        } else {
            DECISION_INTERVAL_MAX
        };
        if wait.is_zero() {
            // Lets other parts of this task run in between.
            tokio::task::yield_now().await;
            continue;
        }
        tokio::select! {
            changed = updates.changed() => if changed.is_err() {
                return;
            },
            () = sleep(wait) => {}
        }
    }
}

impl Controller {
    fn is_leader(&self, state: &CoordinationState) -> bool {
        state.leader.as_ref().is_some_and(|leader| {
            leader.key == self.candidacy.key && leader.created == self.candidacy.created
        })
    }

    /// Makes one decision. Returns how long to wait for a change before the next.
    async fn decide_once(&mut self, mut state: CoordinationState) -> Result<Duration, Error> {
        if let Some(ahead) = &self.unconfirmed_map {
            let is_heard = state
                .map
                .as_ref()
                .is_some_and(|it| it.revision >= ahead.revision);
            if is_heard {
                self.unconfirmed_map = None
            } else {
                state.map = Some(ahead.clone())
            }
        }
        let Some(RevisionedMap { map, revision }) = state.map.clone() else {
            return Ok(DECISION_INTERVAL_MAX);
        };
        let clock_ms = unix_ms();
        let behind_ms = *self
            .clock_offset_ms
            .get_or_insert_with(|| clock_offset(&map, clock_ms));
        let now_ms = clock_ms.saturating_add_signed(behind_ms);
        let open = state
            .requests
            .iter()
            .filter(|request| Some(&request.id) != self.answered.as_ref());
        let requests: Vec<(RequestId, ControllerRequest)> = open
            .map(|request| (request.id.clone(), request.request.clone()))
            .collect();
        let world = Inputs {
            map: &map,
            now_ms,
            registered: &state.registered,
            reports: &state.reports,
            requests: &requests,
        };
        match decide(&world) {
            Decision::Change {
                change,
                why,
                request: id,
            } => {
                let request = state
                    .requests
                    .iter()
                    .find(|request| Some(&request.id) == id.as_ref());
                let mut write = self.fenced_change();
                if let Some(OperatorRequest { id, token, .. }) = request {
                    write = write.if_unchanged(format!("{ASKS}{id}"), token.modified);
                }
                self.write_change(&state, &world, revision, &change, &why, write)
                    .await
            }
            Decision::Answer {
                request: id,
                answer,
            } => {
                let request = state.requests.iter().find(|request| request.id == id);
                match request {
                    Some(request) => self.write_answer(request, answer, revision).await,
                    None => Ok(PAUSE),
                }
            }
            Decision::Wait {
                wake_at_ms: look_again_at_ms,
                blocked,
            } => {
                self.publish_blocked(&state, blocked).await?;
                let wait_ms = look_again_at_ms.map(|at| at.saturating_sub(now_ms).max(10));
                Ok(wait_ms
                    .map_or(DECISION_INTERVAL_MAX, Duration::from_millis)
                    .min(DECISION_INTERVAL_MAX))
            }
        }
    }

    async fn write_change(
        &mut self,
        state: &CoordinationState,
        world: &Inputs<'_>,
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
                if let Some(times) = self.failure_log.note() {
                    tracing::error!(%refused, why, times, "the map rejects a change of the controller");
                }
                return Ok(PAUSE);
            }
        };
        let mut write = write.if_unchanged(MAP, revision).put(MAP, next.to_text());
        if let map::Change::MembersLost { nodes, .. } = change
            && nodes.len() + 8 < OPERATIONS_MAX
        {
            for name in nodes
                .iter()
                .filter_map(|node| Some(map.member(*node)?.name()))
            {
                let created = state
                    .registration(name)
                    .map_or(Revision(0), |(_, token)| token.created);
                write = write.if_created_at(format!("{NODES}{name}"), created);
            }
        }
        match settle(&*self.service, &write).await? {
            Outcome::Done(revision) => {
                tracing::info!(epoch = %next.epoch(), why, change = change_name(change), "the cluster's map is changed");
                self.unconfirmed_map = Some(RevisionedMap {
                    map: Arc::new(next),
                    revision,
                });
                Ok(Duration::ZERO)
            }
            Outcome::Conflict(_) => Ok(PAUSE),
        }
    }

    async fn write_answer(
        &mut self,
        request: &OperatorRequest,
        answer: Result<String, String>,
        map: Revision,
    ) -> Result<Duration, Error> {
        let OperatorRequest { id, token, .. } = request;
        let key = format!("{ASKS}{id}");
        let text = serde_json::to_vec(&answer).expect("texts become JSON");
        let drop = self
            .fenced_change()
            .if_unchanged(MAP, map)
            .if_unchanged(&key, token.modified)
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
                tracing::info!(request = %id, operation = ?request.request, words, "an operator request is granted")
            }
            (Outcome::Done(_), Err(why)) => {
                tracing::info!(request = %id, operation = ?request.request, why, "an operator request is rejected")
            }
            (Outcome::Conflict(_), _) => return Ok(PAUSE),
        }
        self.answered = Some(id.clone());
        Ok(Duration::ZERO)
    }

    /// Publishes the problems that need an operator.
    async fn publish_blocked(
        &mut self,
        state: &CoordinationState,
        blocked: Vec<String>,
    ) -> Result<(), Error> {
        if *state.blocked == blocked {
            return Ok(());
        }
        for why in blocked.iter().filter(|why| !state.blocked.contains(why)) {
            tracing::warn!("{why}");
        }
        let write = self
            .fenced_change()
            .if_unchanged(BLOCKED, state.blocked_at());
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
    fn fenced_change(&mut self) -> Change {
        let Candidacy { key, created, .. } = &self.candidacy;
        self.writer.change().if_created_at(key, *created)
    }
}

/// Returns the offset by which a new controller adjusts its clock, so that times of the previous controller keep their meaning:
/// clocks of two machines may differ by hours. Time never goes back. It stands still while there is no controller, because a push
/// would otherwise be aborted for a silence that did not occur.
fn clock_offset(map: &Map, clock_ms: u64) -> i64 {
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
fn change_name(change: &map::Change) -> String {
    let text = format!("{change:?}");
    let end = text.find(|it: char| !it.is_ascii_alphanumeric());
    text[..end.unwrap_or(text.len())].to_owned()
}

#[cfg(test)]
mod tests {
    use larder_cluster::map::{
        Change, ChangeId, Incarnation, NodeId, Registration, Roles, Settings,
    };

    use super::{Map, RequestId, clock_offset};

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
        assert_eq!(clock_offset(&map, HOUR + 5), 0);
        assert_eq!(clock_offset(&map, 10), HOUR as i64 - 10);
        assert_eq!(clock_offset(&map, 9 * HOUR), 0, "nothing is under way");
    }

    #[test]
    fn a_push_is_not_aborted_because_the_next_controllers_clock_is_ahead() {
        let push = Change::PushBegun {
            store: "s".parse().unwrap(),
            request: RequestId("1".to_owned()),
            source: "/v".to_owned(),
            digest: "d".to_owned(),
            allow_missing_replicas: 0,
            options: Default::default(),
            at_ms: HOUR + 1_000,
        };
        let map = with_member().apply(&push, &ChangeId::default()).unwrap();
        assert_eq!(clock_offset(&map, HOUR + 2_000), 0);
        let late = 2 * HOUR;
        assert_eq!(
            late.saturating_add_signed(clock_offset(&map, late)),
            HOUR + 1_000
        );
    }
}
