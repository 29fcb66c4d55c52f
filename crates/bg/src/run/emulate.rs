//! One emulated thread: draws an action or a session, performs it and thinks, until the trial stops it.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::act::Others;
use super::call::{Over, Turn};
use super::worker::Worker;
use crate::model::mix::Doing;
use crate::model::session::{Session, Step};
use crate::model::state::{Hold, Relation};

/// After this many consecutive calls that completed on the first poll, the task yields to others.
const INSTANT_MAX: u32 = 32;

pub async fn emulate(worker: Rc<Worker>, place: u32) {
    let between = worker.conduct().between;
    while !worker.stopped.get() && place < worker.threads.get() {
        if between > Duration::ZERO {
            sleep(between).await;
        }
        let moment = worker.pace.moment(worker.schedule.clock).await;
        let turn = worker.turn(moment);
        if worker.stopped.get() {
            worker.too_late(turn);
            break;
        }
        let doing = worker.setup.mix.draw(&mut worker.random.borrow_mut());
        let done = match doing {
            Doing::Action(action) => worker.act(action, turn).await,
            Doing::Session(session) => hold_session(&worker, session, turn).await,
        };
        if let Err(Over) = done {
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
async fn hold_session(worker: &Worker, session: Session, mut turn: Turn) -> Result<(), Over> {
    let steps = session.steps();
    let Some(own) = worker.hold_for(session) else {
        return worker.skip_all(steps.iter().map(|step| step.action()), turn);
    };
    let others = worker.others_for(session, &own);
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            if worker.stopped.get() {
                return Err(Over);
            }
            turn = turn.next();
            if worker.conduct().think > Duration::ZERO {
                sleep(worker.conduct().think).await;
            }
        }
        if !perform(worker, *step, turn, &own, &others).await? {
            return worker.skip_all(steps[index..].iter().map(|step| step.action()), turn);
        }
    }
    let now = worker.schedule.clock.now();
    worker.interval.borrow_mut().measured.sessions += u64::from(worker.schedule.covers(now));
    Ok(())
}

/// Performs one action of a session. Returns false if the member or object that it needs does not exist.
async fn perform(
    worker: &Worker,
    step: Step,
    turn: Turn,
    own: &Hold<'_>,
    others: &Others,
) -> Result<bool, Over> {
    let member = own.member();
    match step {
        Step::ViewProfileOfSelf => worker.view_profile(turn, member, member).await?,
        Step::ViewTopOfSelf => worker.view_top_resources(turn, member, member).await?,
        Step::ListFriendsOfSelf => worker.list_friends(turn, member, member).await?,
        Step::ViewOwnRequests => worker.view_friend_requests(turn, member).await?,
        Step::ViewProfileOfOther => match others.member {
            Some(other) => worker.view_profile(turn, member, other).await?,
            None => return Ok(false),
        },
        Step::ViewTopOfOther => match others.member {
            Some(other) => worker.view_top_resources(turn, member, other).await?,
            None => return Ok(false),
        },
        Step::ViewComments => match others.resource {
            Some(resource) => worker.view_comments(turn, member, resource).await?,
            None => return Ok(false),
        },
        Step::PostComment => match others.resource {
            Some(resource) => worker.post_comment(turn, member, resource).await?,
            None => return Ok(false),
        },
        Step::DeleteComment => {
            let Some(resource) = others.resource else {
                return Ok(false);
            };
            let Some(comment) = worker.take_comment(resource) else {
                return Ok(false);
            };
            let call = worker.delete_comment(turn, member, resource, comment);
            call.await?;
        }
        Step::Invite => match worker.stranger(own) {
            Some(other) => worker.invite(turn, own, &other).await?,
            None => return Ok(false),
        },
        Step::Accept | Step::Reject => match worker.partner(own, Relation::Inviter) {
            Some(other) => worker.answer(turn, step.action(), own, &other).await?,
            None => return Ok(false),
        },
        Step::Thaw => match worker.partner(own, Relation::Friend) {
            Some(other) => worker.thaw(turn, own, &other).await?,
            None => return Ok(false),
        },
    }
    Ok(true)
}
