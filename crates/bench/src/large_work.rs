//! The effect of one client's large work on others, apart from first fills: replies and removals of a million rows,
//! joins computed on each read, and drops of large tables. `first_fill` provides the million rows and the measuring
//! client.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use larder_client::RespClient;

use crate::Result;
use crate::first_fill::{AUTHORS, command, load_posts};

/// One piece of work.
pub struct Case {
    pub name: &'static str,
    /// The table that the measuring client writes to: `own|`, which the work does not use, or a table that it reads.
    pub beside: &'static str,
    pub joins: &'static [&'static str],
    /// The preparation, which is not timed.
    pub before: fn(&RespClient, u64) -> Result<()>,
    pub work: &'static [&'static str],
    /// True if the original rows must be loaded again afterwards.
    pub reloads: bool,
}

const ONE: &str = "t|<user>|<time:8>|<poster:4> = check s|<user>|<poster> copy p|<poster>|<time>";
const MANY: &str = "m|<user>|<row:8>|<author:4> = check f|<user>|<author> copy q|<author>|<row>";

pub const EMPTY: Case = Case {
    name: "",
    beside: "own|",
    joins: &[],
    before: |_, _| Ok(()),
    work: &[],
    reloads: false,
};

pub const CASES: &[Case] = &[
    Case {
        name: "all rows of a table, while others write there",
        beside: "q|0500|9",
        work: &["RANGE", "q|", "q}"],
        ..EMPTY
    },
    Case {
        name: "all rows of a filled timeline, while others post to it",
        beside: "q|0500|9",
        joins: &[MANY],
        before: |client, _| command(client, &["RANGECOUNT", "m|ann|", "m|ann}"]),
        work: &["RANGE", "m|ann|", "m|ann}"],
        ..EMPTY
    },
    Case {
        name: "pull: a count of all votes",
        joins: &["n|all = pull count vote|<row:8>|<author:4>"],
        work: &["GET", "n|all"],
        ..EMPTY
    },
    Case {
        name: "pull: 10 rows of a timeline of 1,000 authors",
        joins: &[
            "m|<user>|<row:8>|<author:4> = pull check f|<user>|<author> copy q|<author>|<row>",
        ],
        work: &["RANGE", "m|ann|", "m|ann}", "LIMIT", "10"],
        ..EMPTY
    },
    Case {
        name: "snapshot: a count of all votes",
        joins: &["n|all = snapshot 60 count vote|<row:8>|<author:4>"],
        work: &["GET", "n|all"],
        ..EMPTY
    },
    Case {
        name: "snapshot: 10 rows of a timeline of 1,000 authors",
        joins: &[
            "m|<user>|<row:8>|<author:4> = snapshot 60 check f|<user>|<author> copy q|<author>|<row>",
        ],
        work: &["RANGE", "m|ann|", "m|ann}", "LIMIT", "10"],
        ..EMPTY
    },
    Case {
        name: "the greatest of all votes, when those known are gone",
        joins: &["g|all = max vote|<row:8>|<author:4>"],
        before: |client, rows| {
            command(client, &["GET", "g|all"])?;
            command(client, &["RANGEDEL", "vote|", "vote|00000100"])?;
            let last = format!("vote|{:08}", rows.saturating_sub(100));
            command(client, &["RANGEDEL", &last, "vote}"])
        },
        work: &["GET", "g|all"],
        reloads: true,
        ..EMPTY
    },
    Case {
        name: "JOIN.DROP: a timeline of one author with all posts",
        joins: &[ONE],
        before: |client, _| command(client, &["RANGECOUNT", "t|ann|", "t|ann}"]),
        work: &["JOIN.DROP", "j0"],
        ..EMPTY
    },
    Case {
        name: "JOIN.DROP: a timeline of 1,000 authors, and its count",
        joins: &[MANY, "c|<user> = count m|<user>|<row:8>|<author:4>"],
        before: |client, _| command(client, &["GET", "c|ann"]),
        work: &["JOIN.DROP", "j0", "CASCADE"],
        ..EMPTY
    },
    Case {
        name: "JOIN.DROP: 200,000 ranges of a row each",
        joins: &["one|<row:8> = count vote|<row:8>|<author:4>"],
        before: |client, rows| {
            each(
                rows.min(200_000),
                |row, words| {
                    words.push(vec![b"GET".to_vec(), format!("one|{row:08}").into_bytes()])
                },
                client,
            )
        },
        work: &["JOIN.DROP", "j0"],
        ..EMPTY
    },
    Case {
        name: "RANGEDEL: all posts of a filled timeline",
        joins: &[ONE],
        before: |client, _| command(client, &["RANGECOUNT", "t|ann|", "t|ann}"]),
        work: &["RANGEDEL", "p|", "p}"],
        reloads: true,
        ..EMPTY
    },
    Case {
        name: "rows that are counted expire together",
        joins: &["n|all = count x|<row:8>"],
        before: expire_soon,
        work: &["RANGECOUNT", "x|", "x}"],
        ..EMPTY
    },
    Case {
        name: "a timeline is filled, and another one goes for want of memory",
        joins: &[ONE, MANY],
        before: |client, _| command(client, &["RANGECOUNT", "t|ann|", "t|ann}"]),
        work: &["RANGE", "m|ann|", "m|ann}", "LIMIT", "10"],
        ..EMPTY
    },
];

/// Loads the rows that a case removed.
pub fn put_back(client: &RespClient, case: &Case, rows: u64) -> Result<()> {
    if case.reloads {
        load_posts(client, rows)
    } else {
        Ok(())
    }
}

fn each(rows: u64, add: impl Fn(u64, &mut Vec<Vec<Vec<u8>>>), client: &RespClient) -> Result<()> {
    for start in (0..rows).step_by(500) {
        let mut commands = Vec::new();
        (start..rows.min(start + 500)).for_each(|row| add(row, &mut commands));
        let words: Vec<Vec<&[u8]>> = commands
            .iter()
            .map(|words| words.iter().map(Vec::as_slice).collect())
            .collect();
        client.pipeline(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Writes rows that expire together, shortly after this returns.
fn expire_soon(client: &RespClient, rows: u64) -> Result<()> {
    let now = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    };
    let at = now() + Duration::from_micros(8 * rows) + Duration::from_secs(1);
    let deadline = at.as_millis().to_string().into_bytes();
    each(
        rows,
        |row, words| {
            let key = format!("x|{row:08}").into_bytes();
            words.push(
                [&b"SET"[..], &key, b"1", b"PXAT", &deadline]
                    .map(<[u8]>::to_vec)
                    .to_vec(),
            );
        },
        client,
    )?;
    command(client, &["GET", "n|all"])?;
    std::thread::sleep((at + Duration::from_millis(5)).saturating_sub(now()));
    Ok(())
}

/// The names of the cases contain the number of authors with posts.
const _: () = assert!(
    AUTHORS == 1_000,
    "the names of the cases contain this number"
);
