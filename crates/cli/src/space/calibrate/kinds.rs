//! The kinds of commands that are measured, and how often each contains the steps that have a cost.
//!
//! They resemble typical queries: a tag and a range, a large range, the first twenty results; and variants without one
//! of their steps.

use super::commands::{
    GROUP, INDEXES, NO_MATCH, NO_MATCH_OUTSIDE_SUBSPACE, NO_MATCH_TWO_CONDITIONS, Objects,
    scan_query, search,
};
use super::workbench::CLIENTS;

pub struct CommandKind {
    pub steps: Vec<(&'static str, f64)>,
    /// Returns the command with a given number.
    pub command: Box<dyn Fn(u64) -> Vec<String> + Sync>,
}

/// The regions and servers that a search contacts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contact {
    pub subspaces: u64,
    pub regions: u64,
    pub servers: u64,
}

/// The work of a search, apart from contacting servers.
#[derive(Debug, Clone, Copy, Default)]
struct SearchWork {
    /// Conditions after the first.
    further: f64,
    candidates: f64,
    scanned: f64,
    matches: f64,
    /// Objects that servers visit in order to find those that they return, instead of ranking all.
    visited: f64,
    /// Number of requested rows.
    rows: u64,
    is_long: bool,
}

impl SearchWork {
    /// The work of finding this share of a group.
    fn of_group(share: f64) -> SearchWork {
        SearchWork {
            matches: share * GROUP as f64,
            ..SearchWork::default()
        }
    }
}

/// Rows of a page.
const PAGE: u64 = 20;

/// A space to search, and the contacts of its searches.
#[derive(Clone, Copy)]
pub struct SearchSetup {
    pub space: &'static str,
    pub objects: Objects,
    pub contact: Contact,
}

impl SearchSetup {
    fn kind(
        self,
        work: SearchWork,
        query: impl Fn(Objects, u64) -> String + Sync + 'static,
    ) -> CommandKind {
        let SearchSetup {
            space,
            objects,
            contact,
        } = self;
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
            // Each server returns up to the requested number of rows, if it finds them.
            let given = servers * (work.matches / servers).min(work.rows as f64);
            let sent = work.matches.min(work.rows as f64);
            let bytes = objects.bytes(work.is_long);
            steps.extend([
                if work.visited > 0.0 {
                    ("walk_us", work.visited)
                } else {
                    ("match_us", work.matches)
                },
                ("row_us", given),
                ("row_byte_us", given * bytes),
                ("result_us", sent),
                ("result_byte_us", sent * bytes),
                (
                    "found_us",
                    servers * (1.0 - (1.0 - 1.0 / servers).powf(work.matches)),
                ),
            ]);
        }
        CommandKind {
            steps,
            command: Box::new(move |at| search(space, &query(objects, at), work.rows)),
        }
    }

    fn no_match(self, query: impl Fn(Objects) -> String + Sync + 'static) -> CommandKind {
        self.kind(SearchWork::default(), move |objects, _| query(objects))
    }

    /// A search for a complete group that returns `rows` rows.
    fn group(self, rows: u64) -> CommandKind {
        let work = SearchWork {
            rows,
            ..SearchWork::of_group(1.0)
        };
        self.kind(work, Objects::short_group_query)
    }

    /// Searches for a group, which an index lists, and for a part of it.
    fn groups(self) -> Vec<CommandKind> {
        let some = |share: f64| {
            let work = SearchWork {
                further: 1.0,
                candidates: GROUP as f64,
                rows: PAGE,
                ..SearchWork::of_group(share)
            };
            self.kind(work, move |objects, at| {
                objects.group_share_query(at, share)
            })
        };
        vec![self.group(PAGE), some(0.02), some(0.3)]
    }

    /// Searches for a range with `candidates` objects, of which half match.
    fn half(self, candidates: u64, rows: u64) -> CommandKind {
        let work = SearchWork {
            further: 1.0,
            candidates: candidates as f64,
            matches: candidates as f64 / 2.0,
            rows,
            ..SearchWork::default()
        };
        self.kind(work, move |objects, at| {
            objects.half_matching_query(at, candidates)
        })
    }

    /// Searches for a range with `matches` objects, which all match.
    fn listed(self, matches: u64) -> CommandKind {
        let work = SearchWork {
            matches: matches as f64,
            rows: PAGE,
            ..SearchWork::default()
        };
        self.kind(work, move |objects, at| objects.range_query(at, matches))
    }

    /// Searches for a range with this share of all objects, so large that a server visits its objects in order.
    fn walked(self, share: f64) -> CommandKind {
        let matches = (self.objects.count() as f64 * share) as u64;
        let work = SearchWork {
            matches: matches as f64,
            visited: self.contact.servers as f64 * PAGE as f64 / share,
            rows: PAGE,
            ..SearchWork::default()
        };
        self.kind(work, move |objects, at| objects.range_query(at, matches))
    }

    /// Searches in a space without subspaces.
    pub fn without_subspaces(self) -> Vec<CommandKind> {
        let two = SearchWork {
            further: 1.0,
            ..SearchWork::default()
        };
        let long = |rows: u64| {
            let work = SearchWork {
                is_long: true,
                rows,
                ..SearchWork::of_group(1.0)
            };
            self.kind(work, Objects::long_group_query)
        };
        let scanned = SearchWork {
            scanned: self.objects.count() as f64,
            ..two
        };
        // A share so small that a server visits the maximum number of objects for one page. If it expects to rank
        // fewer, it ranks all.
        let few = 7.0 / (self.objects.count() as f64 / self.contact.servers as f64).sqrt();
        let mut kinds = vec![
            self.no_match(|_| NO_MATCH.to_owned()),
            self.kind(two, |_, _| NO_MATCH_TWO_CONDITIONS.to_owned()),
            self.group(0),
            self.group(1),
            self.group(GROUP),
            long(PAGE),
            long(GROUP),
            self.half(200, 0),
            self.half(200, PAGE),
            self.half(1_500, PAGE),
            self.listed(20),
            self.listed(500),
            self.walked(few),
            self.walked(0.3),
            self.kind(scanned, |_, at| scan_query(at)),
        ];
        kinds.extend(self.groups());
        kinds
    }

    /// Searches in a space with one subspace, of which each contacts one region; with one range search that contacts
    /// `far`, and one search that contacts the `owners`.
    pub fn with_subspace(self, far: Contact, owners: Contact) -> Vec<CommandKind> {
        let two = SearchWork {
            further: 1.0,
            ..SearchWork::default()
        };
        let far = SearchSetup {
            contact: far,
            ..self
        };
        let owners = SearchSetup {
            contact: owners,
            ..self
        };
        let mut kinds = vec![
            self.no_match(|_| NO_MATCH.to_owned()),
            far.kind(two, |objects, _| objects.many_regions_query()),
            owners.no_match_outside_subspace(),
        ];
        kinds.extend(self.groups());
        kinds
    }

    /// A search that cannot use the subspace, and matches nothing.
    pub fn no_match_outside_subspace(self) -> CommandKind {
        self.no_match(|_| NO_MATCH_OUTSIDE_SUBSPACE.to_owned())
    }

    /// Searches for a group, with `updates` of ten commands replaced by updates of one attribute.
    pub fn mixed(self, updates: u64) -> CommandKind {
        let share = updates as f64 / 10.0;
        let servers = self.contact.servers as f64;
        let in_flight = CLIENTS as f64 * share / servers;
        let search = self.group(PAGE);
        let searched = search.steps.into_iter();
        let waits = ("beside_us", servers * (1.0 - (-in_flight).exp()));
        let searched = searched
            .chain([waits])
            .map(|(name, times)| (name, times * (1.0 - share)));
        let updated = update_steps(1, 0, in_flight).into_iter();
        let updated = updated.map(|(name, times)| (name, times * share));
        let (words, objects) = (search.command, self.objects);
        CommandKind {
            steps: searched.chain(updated).collect(),
            // Interleaved, because consecutive updates would wait together.
            command: Box::new(move |at| {
                if at * 7 % 10 < updates {
                    objects.change(at, &["n1"])
                } else {
                    words(at)
                }
            }),
        }
    }
}

/// The steps of an update when one server has `under_way` updates at a time: `attributes` changed attributes, `copies`
/// copies in regions.
fn update_steps(attributes: u64, copies: u64, in_flight: f64) -> Vec<(&'static str, f64)> {
    // Each changed value removes an index entry and adds one, at the owner and in each copy.
    let entries = 2 * attributes * (1 + copies);
    vec![
        ("write_us", 1.0),
        ("commit_us", 1.0 / in_flight.max(1.0)),
        ("stage_us", copies as f64),
        ("index_entry_us", entries as f64),
    ]
}

/// Updates of objects with `copies` copies in regions: of one attribute, and of five. All clients send only these.
pub fn updates(objects: Objects, copies: u64, servers: u64) -> [CommandKind; 2] {
    let of = |fields: &'static [&'static str]| CommandKind {
        steps: update_steps(fields.len() as u64, copies, CLIENTS as f64 / servers as f64),
        command: Box::new(move |at| objects.change(at, fields)),
    };
    [of(&["n1"]), of(&["n1", "n2", "n3", "n4", "n5"])]
}

/// An update that moves the only copy to another of the servers, whenever the next value is on another one.
pub fn moves(objects: Objects, servers: u64) -> CommandKind {
    let other = (servers - 1) as f64 / servers as f64;
    let [mut kind, _] = updates(objects, 0, servers);
    let entries = 2.0 + 2.0 * (other * INDEXES + 1.0 - other);
    kind.steps.retain(|step| step.0 != "index_entry_us");
    kind.steps.extend([
        ("stage_us", 1.0),
        ("move_us", other),
        ("index_entry_us", entries),
    ]);
    kind.command = Box::new(move |at| objects.change(at, &["k"]));
    kind
}
