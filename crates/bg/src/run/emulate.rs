//! One emulated thread: draws what to do, does it, thinks, until it is told to end.

use std::rc::Rc;
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::call::{Over, Turn};
use super::worker::Worker;
use crate::model::mix::Doing;
use crate::model::session::{Session, Step};
use crate::model::state::{Hold, Relation};

/// After so many calls in a row that were answered at once, others get their turn.
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

/// All actions of a session, as one member; a session that cannot be done is a draw skipped of the action that it is about.
async fn hold_session(worker: &Worker, session: Session, mut turn: Turn) -> Result<(), Over> {
    let Some(own) = worker.hold_for(session) else {
        return worker.skip(session.about(), turn);
    };
    let member = own.member();
    let Some(others) = worker.others_for(session, &own) else {
        return worker.skip(session.about(), turn);
    };
    for (index, step) in session.steps().iter().enumerate() {
        if index > 0 {
            if worker.stopped.get() {
                return Err(Over);
            }
            turn = turn.next();
            if worker.conduct().think > Duration::ZERO {
                sleep(worker.conduct().think).await;
            }
        }
        let done = match step {
            Step::ViewProfileOfSelf => worker.view_profile(turn, member, member).await,
            Step::ViewProfileOfOther => worker.view_profile(turn, member, others.member).await,
            Step::ViewTopOfSelf => worker.view_top_resources(turn, member, member).await,
            Step::ViewTopOfOther => {
                let call = worker.view_top_resources(turn, member, others.member);
                call.await
            }
            Step::ListFriendsOfSelf => worker.list_friends(turn, member, member).await,
            Step::ViewOwnRequests => worker.view_friend_requests(turn, member).await,
            Step::ViewComments => worker.view_comments(turn, member, others.resource).await,
            step => write(worker, *step, turn, &own, others.resource).await,
        };
        done?;
    }
    let now = worker.schedule.clock.now();
    worker.interval.borrow_mut().measured.sessions += u64::from(worker.schedule.covers(now));
    Ok(())
}

/// The write of a session, unless it has become impossible since the session began.
async fn write(
    worker: &Worker,
    step: Step,
    turn: Turn,
    own: &Hold<'_>,
    resource: u64,
) -> Result<(), Over> {
    let action = step.action();
    match step {
        Step::PostComment => worker.post_comment(turn, own.member(), resource).await,
        Step::DeleteComment => match worker.take_comment(resource) {
            Some(comment) => {
                let call = worker.delete_comment(turn, own.member(), resource, comment);
                call.await
            }
            None => worker.skip(action, turn),
        },
        Step::Invite => match worker.stranger(own) {
            Some(other) => worker.invite(turn, own, &other).await,
            None => worker.skip(action, turn),
        },
        Step::Accept | Step::Reject => match worker.partner(own, Relation::Inviter) {
            Some(other) => worker.answer(turn, action, own, &other).await,
            None => worker.skip(action, turn),
        },
        _ => match worker.partner(own, Relation::Friend) {
            Some(other) => worker.thaw(turn, own, &other).await,
            None => worker.skip(action, turn),
        },
    }
}
