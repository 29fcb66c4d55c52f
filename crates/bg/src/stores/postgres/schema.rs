//! The tables, and the statement of each action.
//!
//! | table | row | primary key | other indexes |
//! |---|---|---|---|
//! | members | attributes, thumbnail and image; in the aggregate layout also counts | id | |
//! | friendships | with two rows: one for each of the two members; with one row: the lower number first | (member, friend) | one row: (friend) |
//! | invitations | unanswered | (invitee, inviter) | |
//! | resources | | id | (wall, id), (creator) |
//! | comments | | (resource, number) | |
//! | posts | | (author, number) | (author, time) |
//! | notes | about the stored data | name | |
//!
//! The ten attributes of a profile are concatenated in one column. Every action needs all of them, and PostgreSQL is
//! faster this way.

use crate::model::population::Population;

/// The source of counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each query counts rows by an index.
    Basic,
    /// Columns of the member's row, updated in the transaction that changes the counted rows.
    Aggregate,
}

/// The number of rows of a friendship.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    One,
    Two,
}

pub fn create_statements(layout: Layout, population: &Population) -> String {
    let counts = match layout {
        Layout::Basic => "",
        Layout::Aggregate => {
            ", friends bigint NOT NULL, invitations bigint NOT NULL, resources bigint NOT NULL"
        }
    };
    // Leave room on the page for the next version of a row with counts, so that its indexes need not change.
    let fill = match layout {
        Layout::Basic => 100,
        Layout::Aggregate => 50,
    };
    // Random bytes do not compress. The thumbnail stays in the row, which lists read; the image is stored out of line.
    let images = match population.image_size {
        None => "",
        Some(_) => {
            "ALTER TABLE members ALTER thumbnail SET STORAGE EXTERNAL;
             ALTER TABLE members ALTER image SET STORAGE EXTERNAL;
             ALTER TABLE members SET (toast_tuple_target = 4096);"
        }
    };
    format!(
        "DROP SCHEMA IF EXISTS bg CASCADE;
         CREATE SCHEMA bg;
         SET search_path = bg;
         CREATE TABLE members (id int PRIMARY KEY, profile text NOT NULL, thumbnail bytea, image bytea{counts})
             WITH (fillfactor = {fill});
         {images}
         CREATE TABLE friendships (member int, friend int, PRIMARY KEY (member, friend));
         CREATE TABLE invitations (invitee int, inviter int, PRIMARY KEY (invitee, inviter));
         CREATE TABLE resources (id bigint PRIMARY KEY, creator int NOT NULL, wall int NOT NULL, body text NOT NULL);
         CREATE TABLE comments (resource bigint, number bigint, creator int NOT NULL, body text NOT NULL,
             PRIMARY KEY (resource, number));
         CREATE TABLE posts (author int, number bigint, time bigint NOT NULL, body text NOT NULL,
             PRIMARY KEY (author, number));
         CREATE INDEX posts_by_time ON posts (author, time);
         CREATE TABLE notes (name text PRIMARY KEY, body text NOT NULL);"
    )
}

pub const NOTE: &str = "SELECT body FROM notes WHERE name = $1";
pub const PUT_NOTE: &str = "INSERT INTO notes (name, body) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET body = excluded.body";
pub const PUT_NOTE_IF_ABSENT: &str =
    "INSERT INTO notes (name, body) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";

/// Returns the statements to execute after all rows are loaded, one at a time. Creating an index is faster than
/// maintaining it, and index-only counting needs the visibility map.
pub fn finish_statements(rows: Rows) -> Vec<&'static str> {
    let mut statements = vec![
        "CREATE INDEX IF NOT EXISTS resources_by_wall ON resources (wall, id)",
        "CREATE INDEX IF NOT EXISTS resources_by_creator ON resources (creator)",
    ];
    if rows == Rows::One {
        statements.push(
            "CREATE INDEX IF NOT EXISTS friendships_by_friend ON friendships (friend, member)",
        );
    }
    statements.push("VACUUM ANALYZE members, friendships, invitations, resources, comments, posts");
    statements
}

/// The statements that every connection prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Query {
    OwnProfile,
    OtherProfile,
    Friends,
    Invitations,
    Invite,
    Accept,
    Reject,
    Thaw,
    TopResources,
    Comments,
    PostComment,
    DeleteComment,
    Post,
    Feed,
}

impl Query {
    pub const ALL: [Query; 14] = [
        Query::OwnProfile,
        Query::OtherProfile,
        Query::Friends,
        Query::Invitations,
        Query::Invite,
        Query::Accept,
        Query::Reject,
        Query::Thaw,
        Query::TopResources,
        Query::Comments,
        Query::PostComment,
        Query::DeleteComment,
        Query::Post,
        Query::Feed,
    ];

    pub fn sql(self, layout: Layout, rows: Rows) -> String {
        match self {
            Query::OwnProfile => profile_query(layout, rows, true),
            Query::OtherProfile => profile_query(layout, rows, false),
            Query::Friends => format!(
                "SELECT id, profile, thumbnail FROM ({}) AS friends JOIN members ON id = friend",
                friends_query(rows)
            ),
            Query::Invitations => {
                "SELECT id, profile, thumbnail FROM invitations JOIN members ON id = inviter WHERE invitee = $1".into()
            }
            Query::Invite => change_with_count(
                layout,
                "INSERT INTO invitations (inviter, invitee) VALUES ($1, $2) RETURNING invitee",
                "invitations = invitations + 1",
            ),
            Query::Accept => {
                let pair = match rows {
                    Rows::Two => "invitee, inviter FROM deleted UNION ALL SELECT inviter, invitee FROM deleted",
                    Rows::One => "least(invitee, inviter), greatest(invitee, inviter) FROM deleted",
                };
                let created = format!("INSERT INTO friendships (member, friend) SELECT {pair}");
                let deleted = "DELETE FROM invitations WHERE invitee = $1 AND inviter = $2 RETURNING invitee, inviter";
                match layout {
                    Layout::Basic => format!("WITH deleted AS ({deleted}) {created}"),
                    Layout::Aggregate => format!(
                        "WITH {LOCKED}, deleted AS ({deleted}), created AS ({created})
                         UPDATE members SET friends = friends + 1, invitations = invitations - (members.id = invitee)::int
                         FROM locked, deleted WHERE members.id = locked.id"
                    ),
                }
            }
            Query::Reject => change_with_count(
                layout,
                "DELETE FROM invitations WHERE invitee = $1 AND inviter = $2 RETURNING invitee",
                "invitations = invitations - 1",
            ),
            Query::Thaw => {
                let which = match rows {
                    Rows::Two => "(member = $1 AND friend = $2) OR (member = $2 AND friend = $1)",
                    Rows::One => "member = least($1::int, $2::int) AND friend = greatest($1::int, $2::int)",
                };
                match layout {
                    Layout::Basic => format!("DELETE FROM friendships WHERE {which}"),
                    Layout::Aggregate => format!(
                        "WITH {LOCKED}, deleted AS (DELETE FROM friendships WHERE {which} RETURNING member),
                         either AS (SELECT 1 FROM deleted LIMIT 1)
                         UPDATE members SET friends = friends - 1 FROM locked, either WHERE members.id = locked.id"
                    ),
                }
            }
            Query::TopResources => {
                "SELECT id, body FROM resources WHERE wall = $1 ORDER BY id DESC LIMIT $2".into()
            }
            Query::Comments => "SELECT number, body FROM comments WHERE resource = $1".into(),
            Query::PostComment => {
                "INSERT INTO comments (resource, number, creator, body) VALUES ($1, $2, $3, $4)".into()
            }
            Query::DeleteComment => "DELETE FROM comments WHERE resource = $1 AND number = $2".into(),
            Query::Post => "INSERT INTO posts (author, number, time, body) VALUES ($1, $2, $3, $4)".into(),
            Query::Feed => format!(
                "SELECT author, number, time, body FROM ({}) AS friends,
                     LATERAL (SELECT author, number, time, body FROM posts WHERE author = friend ORDER BY time DESC LIMIT $2) AS newest
                 ORDER BY time DESC LIMIT $2",
                friends_query(rows)
            ),
        }
    }
}

/// Locks the rows of both members, lower number first. Concurrent statements that change the same members cannot
/// deadlock.
const LOCKED: &str =
    "locked AS (SELECT id FROM members WHERE id IN ($1, $2) ORDER BY id FOR NO KEY UPDATE)";

/// Returns a query for the friends of `$1`, as a column `friend`.
fn friends_query(rows: Rows) -> &'static str {
    match rows {
        Rows::Two => "SELECT friend FROM friendships WHERE member = $1",
        Rows::One => {
            "SELECT friend FROM friendships WHERE member = $1 UNION ALL SELECT member FROM friendships WHERE friend = $1"
        }
    }
}

fn profile_query(layout: Layout, rows: Rows, own: bool) -> String {
    let (counted, basic) = ("friends, resources", layout == Layout::Basic);
    let counts = if basic {
        format!(
            "(SELECT count(*) FROM ({}) AS friends), (SELECT count(*) FROM resources WHERE creator = $1)",
            friends_query(rows)
        )
    } else {
        counted.to_owned()
    };
    let invitations = match (own, basic) {
        (false, _) => "NULL::bigint",
        (true, false) => "invitations",
        (true, true) => "(SELECT count(*) FROM invitations WHERE invitee = $1)",
    };
    format!("SELECT profile, image, {counts}, {invitations} FROM members WHERE id = $1")
}

/// Returns a change of one row with the corresponding change of the invitee's count.
fn change_with_count(layout: Layout, change: &str, set: &str) -> String {
    match layout {
        Layout::Basic => change.to_owned(),
        Layout::Aggregate => {
            format!(
                "WITH changed AS ({change}) UPDATE members SET {set} FROM changed WHERE id = invitee"
            )
        }
    }
}
