//! Chooses the participants of an action: members drawn and held, partners, resources. An action that cannot be carried
//! out is skipped and counted.

use super::call::{TrialEnded, Turn};
use super::worker::RunWorker;
use crate::model::action::Action;
use crate::model::session::Session;
use crate::model::state::{MemberGuard, Relation};

/// Maximum number of draws to find a member that is not held.
const FREE_TRIES: u32 = 100;

/// Maximum number of draws to find a member to invite, or a partner that is not held.
const PARTNER_TRIES: u32 = 32;

/// The other member and the resource of a session. A field is None if the session needs none or none exists.
pub struct SessionTargets {
    pub member: Option<u32>,
    pub resource: Option<u64>,
}

impl RunWorker {
    /// Performs a single action that belongs to no session, for members drawn for it.
    pub async fn perform_action(&self, action: Action, turn: Turn) -> Result<(), TrialEnded> {
        if !action.is_write() {
            return self.perform_read(action, turn).await;
        }
        for _ in 0..self.run_options().tries.max(1) {
            let Some(own) = self.lock_random_member() else {
                break;
            };
            match action {
                Action::InviteFriend => {
                    if let Some(other) = self.lock_stranger(&own) {
                        return self.invite(turn, &own, &other).await;
                    }
                }
                Action::AcceptFriendRequest | Action::RejectFriendRequest => {
                    if let Some(other) = self.lock_partner(&own, Relation::Inviter) {
                        return self.answer_invitation(turn, action, &own, &other).await;
                    }
                }
                Action::ThawFriendship => {
                    if let Some(other) = self.lock_partner(&own, Relation::Friend) {
                        return self.thaw_friendship(turn, &own, &other).await;
                    }
                }
                Action::PostComment => {
                    let resource = self.resource_of(own.member());
                    return self.post_comment(turn, own.member(), resource).await;
                }
                Action::DeleteComment => {
                    let resource = self.resource_of(own.member());
                    if let Some(comment) = self.take_comment(resource) {
                        let call = self.delete_comment(turn, own.member(), resource, comment);
                        return call.await;
                    }
                }
                _ => return self.post_to_feed(turn, action, own.member()).await,
            }
        }
        self.skip(action, turn)
    }

    /// Performs a read. Holds the viewing member if each member acts for one thread at a time.
    async fn perform_read(&self, action: Action, turn: Turn) -> Result<(), TrialEnded> {
        // The possible contents of a feed depend on the member's friendships, so these must not change during the read.
        let held = if self.run_options().unique_reads || action == Action::ViewFeed {
            match self.lock_random_member() {
                Some(held) => Some(held),
                None => return self.skip(action, turn),
            }
        } else {
            None
        };
        if let (Action::ViewFeed, Some(own)) = (action, &held) {
            return self.view_feed(turn, own).await;
        }
        let own = held
            .as_ref()
            .map_or_else(|| self.draw_counted(), MemberGuard::member);
        match action {
            Action::ViewProfile => self.view_profile(turn, own, self.draw_counted()).await,
            Action::ListFriends => self.list_friends(turn, own, self.draw_counted()).await,
            Action::ViewFriendRequests => self.view_friend_requests(turn, own).await,
            Action::ViewTopResources => {
                self.view_top_resources(turn, own, self.draw_counted())
                    .await
            }
            Action::ViewComments => {
                let resource = self.resource_of(self.draw_counted());
                self.view_comments(turn, own, resource).await
            }
            write => unreachable!("{} is not a read", write.name()),
        }
    }

    /// Counts a draw that cannot be carried out.
    pub fn skip(&self, action: Action, turn: Turn) -> Result<(), TrialEnded> {
        self.skip_all([action].into_iter(), turn)
    }

    /// Counts the actions of one draw that cannot be carried out.
    pub fn skip_all(
        &self,
        actions: impl Iterator<Item = Action>,
        turn: Turn,
    ) -> Result<(), TrialEnded> {
        let now = self.schedule.clock.now();
        if now >= self.schedule.end {
            self.record_missed_start(turn);
            return Err(TrialEnded);
        }
        for action in actions {
            if !self.may_start(now) {
                return Err(TrialEnded);
            }
            let mut interval = self.interval.borrow_mut();
            interval.measured.actions[action as usize].skipped += 1;
        }
        Ok(())
    }

    /// Draws a member to view or to act as the viewer, and counts the draw.
    fn draw_counted(&self) -> u32 {
        let member = self.draw();
        self.count(member);
        member
    }

    fn draw(&self) -> u32 {
        self.setup.drawing.draw(&mut self.random.borrow_mut())
    }

    fn count(&self, member: u32) {
        let mut interval = self.interval.borrow_mut();
        self.cells.count(&mut interval.measured.drawn, member);
    }

    /// Holds the first drawn member that is not held, and counts the draw. None if every drawn member is held.
    pub fn lock_random_member(&self) -> Option<MemberGuard<'_>> {
        let held = (0..FREE_TRIES).find_map(|_| self.state.try_lock(self.draw()))?;
        self.count(held.member());
        Some(held)
    }

    /// Holds a member that can complete the session. After `RunOptions::tries` draws, holds one that cannot.
    pub fn lock_member_for(&self, session: Session) -> Option<MemberGuard<'_>> {
        let can = |own: &MemberGuard| match session {
            Session::ViewFriend | Session::Thaw => own.has(Relation::Friend),
            Session::Accept | Session::Reject => own.has(Relation::Inviter),
            _ => true,
        };
        for _ in 1..self.run_options().tries {
            let held = self.lock_random_member()?;
            if can(&held) {
                return Some(held);
            }
        }
        self.lock_random_member()
    }

    /// Holds a member with this relation to `own`, chosen at random from those that belong to this client and are not
    /// held.
    pub fn lock_partner(&self, own: &MemberGuard, relation: Relation) -> Option<MemberGuard<'_>> {
        if !own.has(relation) {
            return None;
        }
        let known = own.relations();
        let list = known.members_with(relation);
        let mut random = self.random.borrow_mut();
        (0..PARTNER_TRIES)
            .map(|_| list[random.index(list.len())])
            .filter(|other| self.setup.drawing.owns(*other))
            .find_map(|other| self.state.try_lock(other))
    }

    /// Holds a member with no relation to `own`. Members are invited as often as they are drawn, so that members that
    /// are often drawn to answer have invitations. If [`PARTNER_TRIES`] draws find none, it draws uniformly.
    pub fn lock_stranger(&self, own: &MemberGuard) -> Option<MemberGuard<'_>> {
        let known = own.relations();
        let mut random = self.random.borrow_mut();
        (0..2 * PARTNER_TRIES)
            .map(|attempt| {
                if attempt < PARTNER_TRIES {
                    self.setup.drawing.draw(&mut random)
                } else {
                    self.setup.drawing.draw_uniform(&mut random)
                }
            })
            .filter(|other| *other != own.member() && !known.is_related(*other))
            .find_map(|other| self.state.try_lock(other))
    }

    /// Returns one of the resources that a member created.
    pub fn resource_of(&self, member: u32) -> u64 {
        let all = self.setup.population.resources_of(member);
        let size = (all.end - all.start) as usize;
        all.start + self.random.borrow_mut().index(size) as u64
    }

    /// Returns the other member and the resource of a session, besides the member that performs it.
    pub fn draw_targets(&self, session: Session, own: &MemberGuard) -> SessionTargets {
        let member = match session {
            Session::ViewFriend => self.friend_of(own),
            Session::CommentOnResource => Some(self.draw_counted()),
            _ => None,
        };
        let resource = match session {
            Session::CommentOnResource => {
                member.and_then(|member| self.resource_on_wall(member, |_| true))
            }
            Session::DeleteOwnComment => self.resource_on_wall(own.member(), |resource| {
                self.state.comments().has_any(resource)
            }),
            _ => None,
        };
        SessionTargets { member, resource }
    }

    /// Returns one of the first resources on a member's wall that `fits`. The creators of these resources belong to the
    /// member's community, so their comments belong to this client.
    fn resource_on_wall(&self, member: u32, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let top = self.run_options().top as usize;
        let wall = self.state.walls().descending(member).take(top);
        let fitting: Vec<u64> = wall.filter(|resource| fits(*resource)).collect();
        match fitting.len() {
            0 => None,
            size => Some(fitting[self.random.borrow_mut().index(size)]),
        }
    }

    /// Returns one of a member's friends that belong to this client.
    fn friend_of(&self, own: &MemberGuard) -> Option<u32> {
        let known = own.relations();
        let list = known.members_with(Relation::Friend);
        let mut random = self.random.borrow_mut();
        (0..PARTNER_TRIES)
            .filter(|_| !list.is_empty())
            .map(|_| list[random.index(list.len())])
            .find(|other| self.setup.drawing.owns(*other))
    }

    pub fn take_comment(&self, resource: u64) -> Option<u64> {
        let mut random = self.random.borrow_mut();
        self.state.comments().take(resource, &mut random)
    }
}
