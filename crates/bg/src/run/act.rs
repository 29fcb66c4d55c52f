//! Chooses the participants of an action: members drawn and held, partners, resources. An action that cannot be carried
//! out is skipped and counted.

use super::call::{Over, Turn};
use super::worker::Worker;
use crate::model::action::Action;
use crate::model::session::Session;
use crate::model::state::{Hold, Relation};

/// Maximum number of draws to find a member that is not held.
const FREE_TRIES: u32 = 100;

/// Maximum number of draws to find a member to invite, or a partner that is not held.
const PARTNER_TRIES: u32 = 32;

/// The other member and the resource of a session. A field is None if the session needs none or none exists.
pub struct Others {
    pub member: Option<u32>,
    pub resource: Option<u64>,
}

impl Worker {
    /// Performs a single action that belongs to no session, for members drawn for it.
    pub async fn act(&self, action: Action, turn: Turn) -> Result<(), Over> {
        if !action.is_write() {
            return self.look(action, turn).await;
        }
        for _ in 0..self.conduct().tries.max(1) {
            let Some(own) = self.hold_drawn() else { break };
            match action {
                Action::InviteFriend => {
                    if let Some(other) = self.stranger(&own) {
                        return self.invite(turn, &own, &other).await;
                    }
                }
                Action::AcceptFriendRequest | Action::RejectFriendRequest => {
                    if let Some(other) = self.partner(&own, Relation::Inviter) {
                        return self.answer(turn, action, &own, &other).await;
                    }
                }
                Action::ThawFriendship => {
                    if let Some(other) = self.partner(&own, Relation::Friend) {
                        return self.thaw(turn, &own, &other).await;
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
    async fn look(&self, action: Action, turn: Turn) -> Result<(), Over> {
        // The possible contents of a feed depend on the member's friendships, so these must not change during the read.
        let held = if self.conduct().unique_reads || action == Action::ViewFeed {
            match self.hold_drawn() {
                Some(held) => Some(held),
                None => return self.skip(action, turn),
            }
        } else {
            None
        };
        if let (Action::ViewFeed, Some(own)) = (action, &held) {
            return self.view_feed(turn, own).await;
        }
        let own = held.as_ref().map_or_else(|| self.drawn(), Hold::member);
        match action {
            Action::ViewProfile => self.view_profile(turn, own, self.drawn()).await,
            Action::ListFriends => self.list_friends(turn, own, self.drawn()).await,
            Action::ViewFriendRequests => self.view_friend_requests(turn, own).await,
            Action::ViewTopResources => self.view_top_resources(turn, own, self.drawn()).await,
            Action::ViewComments => {
                let resource = self.resource_of(self.drawn());
                self.view_comments(turn, own, resource).await
            }
            write => unreachable!("{} is no read", write.name()),
        }
    }

    /// Counts a draw that cannot be carried out.
    pub fn skip(&self, action: Action, turn: Turn) -> Result<(), Over> {
        self.skip_all([action].into_iter(), turn)
    }

    /// Counts the actions of one draw that cannot be carried out.
    pub fn skip_all(&self, actions: impl Iterator<Item = Action>, turn: Turn) -> Result<(), Over> {
        let now = self.schedule.clock.now();
        if now >= self.schedule.end {
            self.too_late(turn);
            return Err(Over);
        }
        for action in actions {
            if !self.may_begin(now) {
                return Err(Over);
            }
            let mut interval = self.interval.borrow_mut();
            interval.measured.actions[action as usize].skipped += 1;
        }
        Ok(())
    }

    /// Draws a member to view or to act as the viewer, and counts the draw.
    fn drawn(&self) -> u32 {
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
    pub fn hold_drawn(&self) -> Option<Hold<'_>> {
        let held = (0..FREE_TRIES).find_map(|_| self.state.hold(self.draw()))?;
        self.count(held.member());
        Some(held)
    }

    /// Holds a member that can complete the session. After `Conduct::tries` draws, holds one that cannot.
    pub fn hold_for(&self, session: Session) -> Option<Hold<'_>> {
        let can = |own: &Hold| match session {
            Session::ViewFriend | Session::Thaw => own.has(Relation::Friend),
            Session::Accept | Session::Reject => own.has(Relation::Inviter),
            _ => true,
        };
        for _ in 1..self.conduct().tries {
            let held = self.hold_drawn()?;
            if can(&held) {
                return Some(held);
            }
        }
        self.hold_drawn()
    }

    /// Holds a member with this relation to `own`, chosen at random from those that belong to this client and are not
    /// held.
    pub fn partner(&self, own: &Hold, relation: Relation) -> Option<Hold<'_>> {
        if !own.has(relation) {
            return None;
        }
        let known = own.relations();
        let list = known.with(relation);
        let mut random = self.random.borrow_mut();
        (0..PARTNER_TRIES)
            .map(|_| list[random.index(list.len())])
            .filter(|other| self.setup.drawing.owns(*other))
            .find_map(|other| self.state.hold(other))
    }

    /// Holds a member with no relation to `own`. Members are invited as often as they are drawn, so that members that
    /// are often drawn to answer have invitations. If [`PARTNER_TRIES`] draws find none, it draws uniformly.
    pub fn stranger(&self, own: &Hold) -> Option<Hold<'_>> {
        let known = own.relations();
        let mut random = self.random.borrow_mut();
        (0..2 * PARTNER_TRIES)
            .map(|attempt| {
                if attempt < PARTNER_TRIES {
                    self.setup.drawing.draw(&mut random)
                } else {
                    self.setup.drawing.any(&mut random)
                }
            })
            .filter(|other| *other != own.member() && !known.knows(*other))
            .find_map(|other| self.state.hold(other))
    }

    /// Returns one of the resources that a member created.
    pub fn resource_of(&self, member: u32) -> u64 {
        let all = self.setup.population.resources_of(member);
        let size = (all.end - all.start) as usize;
        all.start + self.random.borrow_mut().index(size) as u64
    }

    /// Returns the other member and the resource of a session, besides the member that performs it.
    pub fn others_for(&self, session: Session, own: &Hold) -> Others {
        let member = match session {
            Session::ViewFriend => self.friend_of(own),
            Session::CommentOnResource => Some(self.drawn()),
            _ => None,
        };
        let resource = match session {
            Session::CommentOnResource => {
                member.and_then(|member| self.resource_on_wall(member, |_| true))
            }
            Session::DeleteOwnComment => {
                self.resource_on_wall(own.member(), |resource| self.state.comments().has(resource))
            }
            _ => None,
        };
        Others { member, resource }
    }

    /// Returns one of the first resources on a member's wall that `fits`. The creators of these resources belong to the
    /// member's community, so their comments belong to this client.
    fn resource_on_wall(&self, member: u32, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let top = self.conduct().top as usize;
        let wall = self.state.walls().descending(member).take(top);
        let fitting: Vec<u64> = wall.filter(|resource| fits(*resource)).collect();
        match fitting.len() {
            0 => None,
            size => Some(fitting[self.random.borrow_mut().index(size)]),
        }
    }

    /// Returns one of a member's friends that belong to this client.
    fn friend_of(&self, own: &Hold) -> Option<u32> {
        let known = own.relations();
        let list = known.with(Relation::Friend);
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
