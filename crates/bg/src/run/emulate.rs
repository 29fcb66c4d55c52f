//! One emulated thread: draws an action or a session, performs it and thinks, until the trial stops it.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::act::SessionTargets;
use super::call::{TrialEnded, Turn};
use super::worker::RunWorker;
use crate::model::mix::Activity;
use crate::model::session::{Session, Step};
use crate::model::state::{MemberGuard, Relation};

/// After this many consecutive calls that completed on the first poll, the task yields to others.
const INSTANT_MAX: u32 = 32;

pub async fn emulate(worker: Rc<RunWorker>, place: u32) {
    let between = worker.run_options().between;
    while !worker.stopped.get() && place < worker.threads.get() {
        if between > Duration::ZERO {
            sleep(between).await;
        }
        let scheduled_start = worker.pace.wait_for_start(worker.schedule.clock).await;
        let turn = worker.turn(scheduled_start);
        if worker.stopped.get() {
            worker.record_missed_start(turn);
            break;
        }
        let doing = worker.setup.mix.draw(&mut worker.random.borrow_mut());
        let result = match doing {
            Activity::Action(action) => worker.perform_action(action, turn).await,
            Activity::Session(session) => run_session(&worker, session, turn).await,
        };
        if let Err(TrialEnded) = result {
            break;
        }
        worker.instant.set(worker.instant.get() + 1);
        if worker.instant.get() >= INSTANT_MAX {
            worker.instant.set(0);
            yield_now().await;
        }
    }
}

/// Performs the actions of a session as one member. If an action cannot be carried out because the member has no
/// friend, invitation or comment, that action and those after it are skipped.
async fn run_session(
    worker: &RunWorker,
    session: Session,
    mut turn: Turn,
) -> Result<(), TrialEnded> {
    let steps = session.steps();
    let Some(own) = worker.lock_member_for(session) else {
        return worker.skip_all(steps.iter().map(|step| step.action()), turn);
    };
    let targets = worker.draw_targets(session, &own);
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            if worker.stopped.get() {
                return Err(TrialEnded);
            }
            turn = turn.next();
            if worker.run_options().think > Duration::ZERO {
                sleep(worker.run_options().think).await;
            }
        }
        if !perform(worker, *step, turn, &own, &targets).await? {
            return worker.skip_all(steps[index..].iter().map(|step| step.action()), turn);
        }
    }
    let now = worker.schedule.clock.now();
    worker.interval.borrow_mut().measured.sessions += u64::from(worker.schedule.covers(now));
    Ok(())
}

/// Performs one action of a session. Returns false if the member or object that it needs does not exist.
async fn perform(
    worker: &RunWorker,
    step: Step,
    turn: Turn,
    own: &MemberGuard<'_>,
    targets: &SessionTargets,
) -> Result<bool, TrialEnded> {
    let member = own.member();
    match step {
        Step::ViewProfileOfSelf => worker.view_profile(turn, member, member).await?,
        Step::ViewTopOfSelf => worker.view_top_resources(turn, member, member).await?,
        Step::ListFriendsOfSelf => worker.list_friends(turn, member, member).await?,
        Step::ViewOwnRequests => worker.view_friend_requests(turn, member).await?,
        Step::ViewProfileOfOther => match targets.member {
            Some(other) => worker.view_profile(turn, member, other).await?,
            None => return Ok(false),
        },
        Step::ViewTopOfOther => match targets.member {
            Some(other) => worker.view_top_resources(turn, member, other).await?,
            None => return Ok(false),
        },
        Step::ViewComments => match targets.resource {
            Some(resource) => worker.view_comments(turn, member, resource).await?,
            None => return Ok(false),
        },
        Step::PostComment => match targets.resource {
            Some(resource) => worker.post_comment(turn, member, resource).await?,
            None => return Ok(false),
        },
        Step::DeleteComment => {
            let Some(resource) = targets.resource else {
                return Ok(false);
            };
            let Some(comment) = worker.take_comment(resource) else {
                return Ok(false);
            };
            let call = worker.delete_comment(turn, member, resource, comment);
            call.await?;
        }
        Step::Invite => match worker.lock_stranger(own) {
            Some(other) => worker.invite(turn, own, &other).await?,
            None => return Ok(false),
        },
        Step::Accept | Step::Reject => match worker.lock_partner(own, Relation::Inviter) {
            Some(other) => {
                worker
                    .answer_invitation(turn, step.action(), own, &other)
                    .await?
            }
            None => return Ok(false),
        },
        Step::Thaw => match worker.lock_partner(own, Relation::Friend) {
            Some(other) => worker.thaw_friendship(turn, own, &other).await?,
            None => return Ok(false),
        },
    }
    Ok(true)
}
