//! The actions of members: the eleven of the report (its Table 2), and the three feed actions that it plans.

/// One call of a data store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Action {
    ViewProfile,
    ListFriends,
    ViewFriendRequests,
    InviteFriend,
    AcceptFriendRequest,
    RejectFriendRequest,
    ThawFriendship,
    ViewTopResources,
    ViewComments,
    PostComment,
    DeleteComment,
    PostToFeed,
    ViewFeed,
    Share,
}

impl Action {
    pub const COUNT: usize = 14;

    pub const ALL: [Action; Action::COUNT] = [
        Action::ViewProfile,
        Action::ListFriends,
        Action::ViewFriendRequests,
        Action::InviteFriend,
        Action::AcceptFriendRequest,
        Action::RejectFriendRequest,
        Action::ThawFriendship,
        Action::ViewTopResources,
        Action::ViewComments,
        Action::PostComment,
        Action::DeleteComment,
        Action::PostToFeed,
        Action::ViewFeed,
        Action::Share,
    ];

    /// Returns the name in mix files and reports.
    pub fn name(self) -> &'static str {
        match self {
            Action::ViewProfile => "view-profile",
            Action::ListFriends => "list-friends",
            Action::ViewFriendRequests => "view-friend-requests",
            Action::InviteFriend => "invite-friend",
            Action::AcceptFriendRequest => "accept-friend-request",
            Action::RejectFriendRequest => "reject-friend-request",
            Action::ThawFriendship => "thaw-friendship",
            Action::ViewTopResources => "view-top-resources",
            Action::ViewComments => "view-comments",
            Action::PostComment => "post-comment",
            Action::DeleteComment => "delete-comment",
            Action::PostToFeed => "post-to-feed",
            Action::ViewFeed => "view-feed",
            Action::Share => "share",
        }
    }

    pub fn is_write(self) -> bool {
        matches!(
            self,
            Action::InviteFriend
                | Action::AcceptFriendRequest
                | Action::RejectFriendRequest
                | Action::ThawFriendship
                | Action::PostComment
                | Action::DeleteComment
                | Action::PostToFeed
                | Action::Share
        )
    }

    /// Returns whether the action concerns a member's resources.
    pub fn needs_resources(self) -> bool {
        matches!(
            self,
            Action::ViewTopResources
                | Action::ViewComments
                | Action::PostComment
                | Action::DeleteComment
        )
    }
}
