//! Calls the data store: timestamps each call, limits its duration, measures and records it, and updates the state of
//! the members.
//!
//! The start timestamp also decides whether a call is made: a call that would start after the end of the trial is not
//! made ([`TrialEnded`]). Therefore every call that the data store receives in the measured time is measured.

use std::future::poll_fn;
use std::task::Poll;

use larder_validate::Span;
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::set::Sketch;

use super::in_flight::CallEpoch;
use super::worker::RunWorker;
use crate::model::action::Action;
use crate::model::item::Kind;
use crate::model::population::walls;
use crate::model::state::{Change, MemberGuard, Relation};
use crate::stores::contract::{Client, Failure, People, Reply};
use crate::verdict::trace;

/// The trial was over when a call was due, so no call was made.
#[derive(Clone, Copy, Debug)]
pub struct TrialEnded;

/// The session of a call and the scheduled start of the call. With no scheduled start, the actual start counts.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    session: u32,
    scheduled_start: Option<u64>,
}

impl Turn {
    /// Returns the turn of the next call of the same session, which starts when the previous call has ended.
    pub fn next(self) -> Turn {
        Turn {
            scheduled_start: None,
            ..self
        }
    }
}

/// Number of low bits of a session number that count sessions; the bits above them identify the worker.
const SESSION_BITS: u32 = 26;

impl RunWorker {
    pub fn turn(&self, scheduled_start: Option<u64>) -> Turn {
        let count = self.sessions.get();
        self.sessions.set(count.wrapping_add(1));
        Turn {
            session: (self.index as u32) << SESSION_BITS | count & ((1 << SESSION_BITS) - 1),
            scheduled_start,
        }
    }

    pub async fn view_profile(
        &self,
        turn: Turn,
        requester: u32,
        owner: u32,
    ) -> Result<(), TrialEnded> {
        let action = Action::ViewProfile;
        let call = self.call(action, turn, |client| client.view_profile(requester, owner));
        let (span, result) = call.await?;
        let (read, friends, invitations) = match &result {
            Ok(profile) => {
                let resources = profile.resources == u64::from(self.setup.population.resources);
                self.record_wrong_content(action, turn, span, profile.wrong > 0 || !resources);
                (Outcome::Done, profile.friends, profile.invitations)
            }
            Err(failure) => (outcome_of(failure), 0, None),
        };
        let own = (requester == owner).then_some(Kind::Invitations);
        let counts = [(Some(Kind::Friends), Some(friends)), (own, invitations)];
        for (kind, count) in counts {
            let (Some(kind), Some(count)) = (kind, count) else {
                continue;
            };
            let what = RecordKind::ReadCount(count as i64);
            self.record(kind.item(owner.into()), span, turn, action, read, what);
        }
        Ok(())
    }

    pub async fn list_friends(
        &self,
        turn: Turn,
        requester: u32,
        owner: u32,
    ) -> Result<(), TrialEnded> {
        let action = Action::ListFriends;
        let call = self.call(action, turn, |client| client.list_friends(requester, owner));
        let (span, result) = call.await?;
        self.record_people(action, turn, Kind::Friends.item(owner.into()), span, result);
        Ok(())
    }

    pub async fn view_friend_requests(&self, turn: Turn, member: u32) -> Result<(), TrialEnded> {
        let action = Action::ViewFriendRequests;
        let call = self.call(action, turn, |client| client.view_friend_requests(member));
        let (span, result) = call.await?;
        let item = Kind::Invitations.item(member.into());
        self.record_people(action, turn, item, span, result);
        Ok(())
    }

    fn record_people(
        &self,
        action: Action,
        turn: Turn,
        item: u64,
        span: Span,
        result: Result<People, Failure>,
    ) {
        let wrong = result.as_ref().is_ok_and(|people| people.wrong > 0);
        self.record_wrong_content(action, turn, span, wrong);
        let elements = result.map(|people| people.members.into_iter().map(u64::from));
        self.record_list(action, turn, item, span, elements);
    }

    pub async fn view_top_resources(
        &self,
        turn: Turn,
        requester: u32,
        owner: u32,
    ) -> Result<(), TrialEnded> {
        let action = Action::ViewTopResources;
        let top = self.run_options().top;
        let call = self.call(action, turn, |client| {
            client.view_top_resources(requester, owner, top)
        });
        let (span, result) = call.await?;
        let (read, content) = match result {
            Ok(found) => {
                self.record_wrong_content(action, turn, span, found.wrong > 0);
                (
                    Outcome::Done,
                    walls::content_of(found.resources.into_iter()),
                )
            }
            Err(failure) => (outcome_of(&failure), 0),
        };
        let item = Kind::Wall.item(owner.into());
        self.record(
            item,
            span,
            turn,
            action,
            read,
            RecordKind::ReadContent(content),
        );
        Ok(())
    }

    pub async fn view_comments(
        &self,
        turn: Turn,
        requester: u32,
        resource: u64,
    ) -> Result<(), TrialEnded> {
        let action = Action::ViewComments;
        let call = self.call(action, turn, |client| {
            client.view_comments(requester, resource)
        });
        let (span, result) = call.await?;
        let wrong = result.as_ref().is_ok_and(|found| found.wrong > 0);
        self.record_wrong_content(action, turn, span, wrong);
        let elements = result.map(|found| found.comments.into_iter());
        self.record_list(action, turn, Kind::Comments.item(resource), span, elements);
        Ok(())
    }

    pub async fn post_comment(
        &self,
        turn: Turn,
        member: u32,
        resource: u64,
    ) -> Result<(), TrialEnded> {
        let action = Action::PostComment;
        let comment = self.state.comments().next_number(resource);
        let call = self.call(action, turn, |client| {
            client.post_comment(member, resource, comment)
        });
        let (span, result) = call.await?;
        let written = result.as_ref().map_or_else(outcome_of, |()| Outcome::Done);
        match written {
            Outcome::Done => self.state.comments().add(resource, comment),
            Outcome::NotDone => {}
            Outcome::Unknown => self.state.comments().retire(resource, comment, true),
        }
        let item = Kind::Comments.item(resource);
        let what = RecordKind::PutElement(comment);
        self.record(item, span, turn, action, written, what);
        Ok(())
    }

    /// Deletes a comment that was taken from the state before.
    pub async fn delete_comment(
        &self,
        turn: Turn,
        member: u32,
        resource: u64,
        comment: u64,
    ) -> Result<(), TrialEnded> {
        let action = Action::DeleteComment;
        let call = self.call(action, turn, |client| {
            client.delete_comment(member, resource, comment)
        });
        let (span, result) = match call.await {
            Ok(called) => called,
            Err(ended) => {
                self.state.comments().add(resource, comment);
                return Err(ended);
            }
        };
        let written = result.as_ref().map_or_else(outcome_of, |()| Outcome::Done);
        match written {
            Outcome::Done => {}
            Outcome::NotDone => self.state.comments().add(resource, comment),
            Outcome::Unknown => self.state.comments().retire(resource, comment, false),
        }
        let item = Kind::Comments.item(resource);
        let what = RecordKind::RemoveElement(comment);
        self.record(item, span, turn, action, written, what);
        Ok(())
    }

    /// Posts or shares. The data store treats both as a post.
    pub async fn post_to_feed(
        &self,
        turn: Turn,
        action: Action,
        member: u32,
    ) -> Result<(), TrialEnded> {
        let post = self.state.posts().next_post(member);
        let call = self.call(action, turn, |client| client.post_to_feed(member, post));
        if let (_, Ok(())) = call.await? {
            self.state.posts().acknowledge(post);
        }
        Ok(())
    }

    /// Views a feed and validates the answer immediately. If no order of the writes explains the answer, the record
    /// refers to content that was never written, so it counts as unpredictable.
    pub async fn view_feed(&self, turn: Turn, own: &MemberGuard<'_>) -> Result<(), TrialEnded> {
        let action = Action::ViewFeed;
        let (member, top) = (own.member(), self.run_options().top);
        let expected = self.state.posts().expectation(&own.relations());
        let call = self.call(action, turn, |client| client.view_feed(member, top));
        let (span, result) = call.await?;
        let (read, content) = match result {
            Ok(feed) => {
                self.record_wrong_content(action, turn, span, feed.wrong > 0);
                let owns = |author| self.setup.drawing.owns(author);
                let posts = self.state.posts();
                let explained = posts.explains(&expected, &feed.posts, top, owns);
                (Outcome::Done, u64::from(!explained))
            }
            Err(failure) => (outcome_of(&failure), 0),
        };
        let item = Kind::Posts.item(member.into());
        self.record(
            item,
            span,
            turn,
            action,
            read,
            RecordKind::ReadContent(content),
        );
        Ok(())
    }

    pub async fn invite(
        &self,
        turn: Turn,
        own: &MemberGuard<'_>,
        other: &MemberGuard<'_>,
    ) -> Result<(), TrialEnded> {
        let (member, invitee) = (own.member(), other.member());
        let call = self.call(Action::InviteFriend, turn, |client| {
            client.invite_friend(member, invitee)
        });
        let (span, result) = call.await?;
        let change = (Relation::None, Relation::Invited);
        self.record_relation(Action::InviteFriend, turn, span, result, own, other, change);
        Ok(())
    }

    /// Accepts or rejects an invitation.
    pub async fn answer_invitation(
        &self,
        turn: Turn,
        action: Action,
        own: &MemberGuard<'_>,
        other: &MemberGuard<'_>,
    ) -> Result<(), TrialEnded> {
        let (member, inviter) = (own.member(), other.member());
        let accepts = action == Action::AcceptFriendRequest;
        let call = self.call(action, turn, |client| {
            if accepts {
                client.accept_friend_request(member, inviter)
            } else {
                client.reject_friend_request(member, inviter)
            }
        });
        let (span, result) = call.await?;
        let after = if accepts {
            Relation::Friend
        } else {
            Relation::None
        };
        let change = (Relation::Inviter, after);
        self.record_relation(action, turn, span, result, own, other, change);
        Ok(())
    }

    pub async fn thaw_friendship(
        &self,
        turn: Turn,
        own: &MemberGuard<'_>,
        other: &MemberGuard<'_>,
    ) -> Result<(), TrialEnded> {
        let (member, friend) = (own.member(), other.member());
        let call = self.call(Action::ThawFriendship, turn, |client| {
            client.thaw_friendship(member, friend)
        });
        let (span, result) = call.await?;
        let change = (Relation::Friend, Relation::None);
        self.record_relation(
            Action::ThawFriendship,
            turn,
            span,
            result,
            own,
            other,
            change,
        );
        Ok(())
    }

    /// Records, for both members, that the relation of a pair changed from `before` to `after`.
    #[expect(clippy::too_many_arguments)]
    fn record_relation(
        &self,
        action: Action,
        turn: Turn,
        span: Span,
        result: Result<(), Failure>,
        own: &MemberGuard<'_>,
        other: &MemberGuard<'_>,
        (before, after): (Relation, Relation),
    ) {
        let written = result.as_ref().map_or_else(outcome_of, |()| Outcome::Done);
        let ends = [
            (own, other.member(), before, after),
            (other, own.member(), before.mirrored(), after.mirrored()),
        ];
        for (hold, other, before, after) in ends {
            for change in Change::for_relation(hold.member(), other, before, after) {
                let what = trace::record_kind(change);
                self.record(change.item, span, turn, action, written, what);
            }
            match written {
                Outcome::Done => hold.relations().set(other, before, after),
                Outcome::NotDone => {}
                Outcome::Unknown => hold.relations().retire(other, before, after),
            }
        }
    }

    /// Makes a call unless the trial is over. Returns its start and end times and its result.
    async fn call<'a, T>(
        &'a self,
        action: Action,
        turn: Turn,
        make: impl FnOnce(&'a dyn Client) -> Reply<'a, T>,
    ) -> Result<(Span, Result<T, Failure>), TrialEnded> {
        let began = self.count_call_start();
        let limit = self.run_options().timeout;
        let clock = self.schedule.clock;
        let start = clock.now();
        if self.stopped.get() || start >= self.schedule.end {
            self.stopped.set(true);
            self.count_call_end(began);
            self.record_missed_start(turn);
            return Err(TrialEnded);
        }
        if !self.may_start(start) {
            self.count_call_end(began);
            return Err(TrialEnded);
        }
        let mut reply = make(&*self.client);
        // An answer that is ready on the first poll needs no timer.
        let result = match poll_fn(|context| Poll::Ready(reply.as_mut().poll(context))).await {
            Poll::Ready(result) => result,
            Poll::Pending => {
                self.instant.set(0);
                match tokio::time::timeout(limit, &mut reply).await {
                    Ok(result) => result,
                    Err(_) => Err(Failure::Unknown(format!("no answer in {limit:?}"))),
                }
            }
        };
        let end = clock.now();
        drop(reply);
        self.count_call_end(began);
        self.measure(
            action,
            turn.scheduled_start.unwrap_or(start),
            end,
            result.as_ref().err(),
        );
        let span = Span::new(start, end).expect("the clock never goes back");
        Ok((span, result))
    }

    /// Takes an action due now from the budget, if the trial has one. If none is left, ends the trial for all workers.
    pub fn may_start(&self, now: u64) -> bool {
        let Some(budget) = &self.budget else {
            return true;
        };
        if now < self.schedule.measured_from || budget.take() {
            return true;
        }
        self.stopped.set(true);
        self.spent.notify_one();
        false
    }

    /// Returns whether the trial ended because it reached its number of actions. In that case no scheduled start counts
    /// as missed.
    pub fn is_budget_spent(&self) -> bool {
        self.budget.as_ref().is_some_and(|it| it.is_spent())
    }

    fn count_call_start(&self) -> CallEpoch {
        self.calls.set(self.calls.get() + 1);
        self.in_flight.begin()
    }

    fn count_call_end(&self, began: CallEpoch) {
        self.calls.set(self.calls.get() - 1);
        self.in_flight.end(began);
        if self.stopped.get() && self.calls.get() == 0 {
            self.idle.notify_one();
        }
    }

    /// Counts a scheduled start of an open loop that was due before the end of the trial but whose call was not made.
    pub fn record_missed_start(&self, turn: Turn) {
        if self.is_budget_spent() {
            return;
        }
        let due = turn
            .scheduled_start
            .is_some_and(|it| self.schedule.covers(it));
        self.interval.borrow_mut().measured.missed_starts += u64::from(due);
    }

    fn measure(&self, action: Action, start: u64, end: u64, failure: Option<&Failure>) {
        if end >= self.schedule.end {
            // No further call starts, even if the worker's own task notices the end late.
            self.stopped.set(true);
        }
        let mut interval = self.interval.borrow_mut();
        if let Some(failure) = failure {
            interval.count_failure(&failure.to_string());
        }
        // A call that starts during the warm-up and ends in the measured time counts for neither.
        if self.schedule.covers(start) || end < self.schedule.measured_from {
            interval.measured.actions[action as usize].record(end.saturating_sub(start), failure);
        }
    }

    /// Counts an answer whose bytes differ from those stored.
    fn record_wrong_content(&self, action: Action, turn: Turn, span: Span, wrong: bool) {
        let start = turn.scheduled_start.unwrap_or(span.start());
        if wrong && self.schedule.covers(start) && !self.setup.store.skips_validation() {
            let mut interval = self.interval.borrow_mut();
            interval.measured.actions[action as usize].wrong += 1;
        }
    }

    /// Records a list that was read, as a sketch.
    fn record_list(
        &self,
        action: Action,
        turn: Turn,
        item: u64,
        span: Span,
        elements: Result<impl Iterator<Item = u64>, Failure>,
    ) {
        if self.recorder.borrow().is_none() {
            return;
        }
        let seed = self.setup.population.seed;
        let (read, sketch) = match elements {
            Ok(elements) => (Outcome::Done, Sketch::of(seed, item, elements)),
            Err(failure) => (outcome_of(&failure), Sketch::default()),
        };
        self.record(item, span, turn, action, read, RecordKind::ReadSet(sketch));
    }

    fn record(
        &self,
        item: u64,
        span: Span,
        turn: Turn,
        action: Action,
        outcome: Outcome,
        what: RecordKind,
    ) {
        if let Some(recorder) = &mut *self.recorder.borrow_mut() {
            recorder.push(Record {
                item,
                span,
                session: turn.session,
                action: action as u8,
                outcome,
                what,
            });
        }
    }
}

fn outcome_of(failure: &Failure) -> Outcome {
    match failure {
        Failure::Refused(_) => Outcome::NotDone,
        Failure::Unknown(_) => Outcome::Unknown,
    }
}
