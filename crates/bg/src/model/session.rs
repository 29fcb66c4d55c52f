//! Sessions: sequences of actions by one member (the report's Table 4), executed by one emulated thread from start to
//! end.

use crate::model::action::Action;

/// The report's eight sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Session {
    ViewSelf,
    ViewFriend,
    CommentOnResource,
    DeleteOwnComment,
    Invite,
    Accept,
    Reject,
    Thaw,
}

/// One action of a session. *Self* is the member of the session. *Other* is a member drawn at its start: a friend if
/// the session needs one, otherwise any member. The *resource* is drawn from the top of the wall that was viewed last:
/// the other member's to comment on it, the member's own to delete a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    ViewProfileOfSelf,
    ViewProfileOfOther,
    ViewTopOfSelf,
    ViewTopOfOther,
    ListFriendsOfSelf,
    ViewOwnRequests,
    ViewComments,
    PostComment,
    DeleteComment,
    Invite,
    Accept,
    Reject,
    Thaw,
}

impl Session {
    pub const ALL: [Session; 8] = [
        Session::ViewSelf,
        Session::ViewFriend,
        Session::CommentOnResource,
        Session::DeleteOwnComment,
        Session::Invite,
        Session::Accept,
        Session::Reject,
        Session::Thaw,
    ];

    /// Returns the name in mix files.
    pub fn name(self) -> &'static str {
        match self {
            Session::ViewSelf => "view-self",
            Session::ViewFriend => "view-friend",
            Session::CommentOnResource => "comment-on-resource",
            Session::DeleteOwnComment => "delete-own-comment",
            Session::Invite => "invite",
            Session::Accept => "accept",
            Session::Reject => "reject",
            Session::Thaw => "thaw",
        }
    }

    /// Returns the steps, in order. After an invitation, the report's formula views the invited member's requests, and
    /// its prose the member's own. Only the latter is an action that the report defines, so it is used here.
    pub fn steps(self) -> &'static [Step] {
        use Step::*;
        match self {
            Session::ViewSelf => &[ViewProfileOfSelf, ViewTopOfSelf],
            Session::ViewFriend => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ListFriendsOfSelf,
                ViewProfileOfOther,
                ViewTopOfOther,
            ],
            Session::CommentOnResource => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ViewProfileOfOther,
                ViewTopOfOther,
                ViewComments,
                PostComment,
                ViewComments,
            ],
            Session::DeleteOwnComment => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ViewComments,
                DeleteComment,
                ViewComments,
            ],
            Session::Invite => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ListFriendsOfSelf,
                Invite,
                ViewOwnRequests,
            ],
            Session::Accept => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ListFriendsOfSelf,
                ViewOwnRequests,
                Accept,
                ViewOwnRequests,
                ListFriendsOfSelf,
            ],
            Session::Reject => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ListFriendsOfSelf,
                ViewOwnRequests,
                Reject,
                ViewOwnRequests,
                ListFriendsOfSelf,
            ],
            Session::Thaw => &[
                ViewProfileOfSelf,
                ViewTopOfSelf,
                ListFriendsOfSelf,
                Thaw,
                ListFriendsOfSelf,
            ],
        }
    }
}

impl Step {
    pub fn action(self) -> Action {
        match self {
            Step::ViewProfileOfSelf | Step::ViewProfileOfOther => Action::ViewProfile,
            Step::ViewTopOfSelf | Step::ViewTopOfOther => Action::ViewTopResources,
            Step::ListFriendsOfSelf => Action::ListFriends,
            Step::ViewOwnRequests => Action::ViewFriendRequests,
            Step::ViewComments => Action::ViewComments,
            Step::PostComment => Action::PostComment,
            Step::DeleteComment => Action::DeleteComment,
            Step::Invite => Action::InviteFriend,
            Step::Accept => Action::AcceptFriendRequest,
            Step::Reject => Action::RejectFriendRequest,
            Step::Thaw => Action::ThawFriendship,
        }
    }
}
