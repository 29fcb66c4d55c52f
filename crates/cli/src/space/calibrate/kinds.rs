//! The kinds of commands that are measured, and how often each has the steps that have a cost.
//!
//! They are as those of users: a tag and a range, a range of many, the first twenty of what is found; and what leaves out a step of these.

use super::CLIENTS;
use super::commands::{
    GROUP, INDEXES, NOTHING, NOTHING_BY_TWO, NOWHERE, OBJECTS, WIDE, bytes_of, change, half,
    listed, long, many, of_group, search, short,
};

pub struct Kind {
    pub steps: Vec<(&'static str, f64)>,
    /// The words of one, by its number.
    pub words: Box<dyn Fn(u64) -> Vec<String> + Sync>,
}

/// Whom a search asks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contact {
    pub subspaces: u64,
    pub regions: u64,
    pub servers: u64,
}

/// What a search has to do, beside whom it asks.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Conditions beyond the first.
    further: f64,
    candidates: f64,
    scanned: f64,
    matches: f64,
    /// Rows that it asks for.
    rows: u64,
    is_long: bool,
}

/// Rows of a page.
const PAGE: u64 = 20;

fn of_search(
    contact: Contact,
    work: Work,
    words: impl Fn(u64) -> Vec<String> + Sync + 'static,
) -> Kind {
    let servers = contact.servers as f64;
    let mut steps = vec![
        ("query_us", 1.0),
        ("subspace_us", contact.subspaces as f64),
        ("region_us", contact.regions as f64),
        ("server_us", servers),
        ("condition_us", work.further * servers),
        ("candidate_us", work.candidates),
        ("scan_us", work.scanned),
    ];
    if work.rows > 0 {
        // Each server sends as many as are asked for, if it finds them.
        let sent = servers * (work.matches / servers).min(work.rows as f64);
        let bytes = bytes_of(if work.is_long {
            OBJECTS - 1
        } else {
            OBJECTS / 2
        });
        steps.extend([
            ("match_us", work.matches),
            ("result_us", sent),
            ("result_byte_us", sent * bytes),
            (
                "found_us",
                servers * (1.0 - (1.0 - 1.0 / servers).powf(work.matches)),
            ),
        ]);
    }
    Kind {
        steps,
        words: Box::new(words),
    }
}

/// Searches of a group, which an index leads to, and of some of it.
fn of_groups(space: &'static str, contact: Contact) -> Vec<Kind> {
    let all = Work {
        matches: GROUP as f64,
        ..Work::default()
    };
    let some = |share: f64, rows: u64| {
        let work = Work {
            further: 1.0,
            candidates: GROUP as f64,
            matches: share * GROUP as f64,
            rows,
            ..Work::default()
        };
        of_search(contact, work, move |at| {
            search(space, &of_group(at, share), rows)
        })
    };
    let page = Work { rows: PAGE, ..all };
    vec![
        of_search(contact, page, move |at| search(space, &short(at), PAGE)),
        some(0.02, PAGE),
        some(0.3, PAGE),
    ]
}

/// Searches of a space without subspaces.
pub fn searches(space: &'static str, contact: Contact) -> Vec<Kind> {
    let none = Work::default();
    let two = Work {
        further: 1.0,
        ..none
    };
    let all = Work {
        matches: GROUP as f64,
        ..none
    };
    let (first, every) = (Work { rows: 1, ..all }, Work { rows: GROUP, ..all });
    let every_long = Work {
        is_long: true,
        ..every
    };
    let of_range = |objects: u64, rows: u64| {
        let work = Work {
            candidates: objects as f64,
            matches: objects as f64 / 2.0,
            rows,
            ..two
        };
        of_search(contact, work, move |at| {
            search(space, &half(at, objects), rows)
        })
    };
    let of_listed = |objects: u64| {
        let work = Work {
            matches: objects as f64,
            rows: PAGE,
            ..none
        };
        of_search(contact, work, move |at| {
            search(space, &listed(at, objects), PAGE)
        })
    };
    let scanned = Work {
        scanned: OBJECTS as f64,
        ..two
    };
    let mut kinds = vec![
        of_search(contact, none, move |_| search(space, NOTHING, 0)),
        of_search(contact, two, move |_| search(space, NOTHING_BY_TWO, 0)),
        of_search(contact, none, move |at| search(space, &short(at), 0)),
        of_search(contact, first, move |at| search(space, &short(at), 1)),
        of_search(contact, every, move |at| search(space, &short(at), GROUP)),
        of_search(contact, every_long, move |at| {
            search(space, &long(at), GROUP)
        }),
        of_range(200, 0),
        of_range(200, PAGE),
        of_range(1_500, PAGE),
        of_listed(20),
        of_listed(500),
        of_search(contact, scanned, move |at| search(space, &many(at), 0)),
    ];
    kinds.extend(of_groups(space, contact));
    kinds
}

/// Searches of a space with one subspace, of which one that asks one region, or a few, asks `near`, one of a range `far`, and all others the owners.
pub fn searches_of_regions(
    space: &'static str,
    near: Contact,
    far: Contact,
    owners: Contact,
) -> Vec<Kind> {
    let two = Work {
        further: 1.0,
        ..Work::default()
    };
    let mut kinds = vec![
        of_search(near, Work::default(), move |_| search(space, NOTHING, 0)),
        of_search(far, two, move |_| search(space, WIDE, 0)),
        nowhere(space, owners),
    ];
    kinds.extend(of_groups(space, near));
    kinds
}

/// One that no subspace helps, and that finds nothing.
pub fn nowhere(space: &'static str, owners: Contact) -> Kind {
    of_search(owners, Work::default(), move |_| search(space, NOWHERE, 0))
}

/// What an update takes of one server's `under_way` at a time: of so many attributes, with so many copies in regions.
fn of_update(attributes: u64, copies: u64, under_way: f64) -> Vec<(&'static str, f64)> {
    // Each value that changes leaves an entry and makes one, at the owner and in each copy.
    let entries = 2 * attributes * (1 + copies);
    vec![
        ("write_us", 1.0),
        ("commit_us", 1.0 / under_way.max(1.0)),
        ("stage_us", copies as f64),
        ("index_entry_us", entries as f64),
    ]
}

/// Updates of objects with so many copies in regions: of one attribute, and of five. All clients do nothing else.
pub fn updates(copies: u64, servers: u64) -> [Kind; 2] {
    let of = |fields: &'static [&'static str]| Kind {
        steps: of_update(fields.len() as u64, copies, CLIENTS as f64 / servers as f64),
        words: Box::new(move |at| change(at, fields)),
    };
    [of(&["n1"]), of(&["n1", "n2", "n3", "n4", "n5"])]
}

/// An update by which the one copy moves to another of so many servers, as often as the next value is on another one.
pub fn moves(servers: u64) -> Kind {
    let other = (servers - 1) as f64 / servers as f64;
    let [mut kind, _] = updates(0, servers);
    let entries = 2.0 + 2.0 * (other * INDEXES + 1.0 - other);
    kind.steps.retain(|step| step.0 != "index_entry_us");
    kind.steps.extend([
        ("stage_us", 1.0),
        ("move_us", other),
        ("index_entry_us", entries),
    ]);
    kind.words = Box::new(|at| change(at, &["k"]));
    kind
}

/// Searches of a group, and updates of one attribute: so many of ten.
pub fn mixed(space: &'static str, contact: Contact, updates: u64) -> Kind {
    let share = updates as f64 / 10.0;
    let servers = contact.servers as f64;
    let under_way = CLIENTS as f64 * share / servers;
    let mut kinds = of_groups(space, contact);
    let search = kinds.swap_remove(0);
    let searched = search.steps.into_iter();
    let waits = ("beside_us", servers * (1.0 - (-under_way).exp()));
    let searched = searched
        .chain([waits])
        .map(|(name, times)| (name, times * (1.0 - share)));
    let updated = of_update(1, 0, under_way).into_iter();
    let updated = updated.map(|(name, times)| (name, times * share));
    let words = search.words;
    Kind {
        steps: searched.chain(updated).collect(),
        words: Box::new(move |at| match at % 10 < updates {
            true => change(at, &["n1"]),
            false => words(at),
        }),
    }
}
