//! The kinds of commands that are measured, and how often each contains the steps that have a cost.
//!
//! They resemble typical queries: a tag and a range, a large range, the first twenty results; and variants without one
//! of their steps.

use super::commands::{GROUP, INDEXES, NOTHING, NOTHING_BY_TWO, NOWHERE, Objects, many, search};
use super::workbench::CLIENTS;

pub struct Kind {
    pub steps: Vec<(&'static str, f64)>,
    /// Returns the command with a given number.
    pub words: Box<dyn Fn(u64) -> Vec<String> + Sync>,
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
struct Work {
    /// Conditions after the first.
    further: f64,
    candidates: f64,
    scanned: f64,
    matches: f64,
    /// Objects that servers visit in order to find those that they return, instead of ranking all.
    passed: f64,
    /// Number of requested rows.
    rows: u64,
    is_long: bool,
}

impl Work {
    /// The work of finding this share of a group.
    fn of_group(share: f64) -> Work {
        Work {
            matches: share * GROUP as f64,
            ..Work::default()
        }
    }
}

/// Rows of a page.
const PAGE: u64 = 20;

/// A space to search, and the contacts of its searches.
#[derive(Clone, Copy)]
pub struct Searched {
    pub space: &'static str,
    pub objects: Objects,
    pub contact: Contact,
}

impl Searched {
    fn kind(self, work: Work, query: impl Fn(Objects, u64) -> String + Sync + 'static) -> Kind {
        let Searched {
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
                if work.passed > 0.0 {
                    ("walk_us", work.passed)
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
        Kind {
            steps,
            words: Box::new(move |at| search(space, &query(objects, at), work.rows)),
        }
    }

    fn nothing(self, query: impl Fn(Objects) -> String + Sync + 'static) -> Kind {
        self.kind(Work::default(), move |objects, _| query(objects))
    }

    /// A search for a complete group that returns `rows` rows.
    fn group(self, rows: u64) -> Kind {
        let work = Work {
            rows,
            ..Work::of_group(1.0)
        };
        self.kind(work, Objects::short)
    }

    /// Searches for a group, which an index lists, and for a part of it.
    fn groups(self) -> Vec<Kind> {
        let some = |share: f64| {
            let work = Work {
                further: 1.0,
                candidates: GROUP as f64,
                rows: PAGE,
                ..Work::of_group(share)
            };
            self.kind(work, move |objects, at| objects.of_group(at, share))
        };
        vec![self.group(PAGE), some(0.02), some(0.3)]
    }

    /// Searches for a range with `candidates` objects, of which half match.
    fn half(self, candidates: u64, rows: u64) -> Kind {
        let work = Work {
            further: 1.0,
            candidates: candidates as f64,
            matches: candidates as f64 / 2.0,
            rows,
            ..Work::default()
        };
        self.kind(work, move |objects, at| objects.half(at, candidates))
    }

    /// Searches for a range with `matches` objects, which all match.
    fn listed(self, matches: u64) -> Kind {
        let work = Work {
            matches: matches as f64,
            rows: PAGE,
            ..Work::default()
        };
        self.kind(work, move |objects, at| objects.listed(at, matches))
    }

    /// Searches for a range with this share of all objects, so large that a server visits its objects in order.
    fn walked(self, share: f64) -> Kind {
        let matches = (self.objects.count() as f64 * share) as u64;
        let work = Work {
            matches: matches as f64,
            passed: self.contact.servers as f64 * PAGE as f64 / share,
            rows: PAGE,
            ..Work::default()
        };
        self.kind(work, move |objects, at| objects.listed(at, matches))
    }

    /// Searches in a space without subspaces.
    pub fn all(self) -> Vec<Kind> {
        let two = Work {
            further: 1.0,
            ..Work::default()
        };
        let long = |rows: u64| {
            let work = Work {
                is_long: true,
                rows,
                ..Work::of_group(1.0)
            };
            self.kind(work, Objects::long)
        };
        let scanned = Work {
            scanned: self.objects.count() as f64,
            ..two
        };
        // A share so small that a server visits the maximum number of objects for one page. If it expects to rank
        // fewer, it ranks all.
        let few = 7.0 / (self.objects.count() as f64 / self.contact.servers as f64).sqrt();
        let mut kinds = vec![
            self.nothing(|_| NOTHING.to_owned()),
            self.kind(two, |_, _| NOTHING_BY_TWO.to_owned()),
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
            self.kind(scanned, |_, at| many(at)),
        ];
        kinds.extend(self.groups());
        kinds
    }

    /// Searches in a space with one subspace, of which each contacts one region; with one range search that contacts
    /// `far`, and one search that contacts the `owners`.
    pub fn of_regions(self, far: Contact, owners: Contact) -> Vec<Kind> {
        let two = Work {
            further: 1.0,
            ..Work::default()
        };
        let far = Searched {
            contact: far,
            ..self
        };
        let owners = Searched {
            contact: owners,
            ..self
        };
        let mut kinds = vec![
            self.nothing(|_| NOTHING.to_owned()),
            far.kind(two, |objects, _| objects.wide()),
            owners.nowhere(),
        ];
        kinds.extend(self.groups());
        kinds
    }

    /// A search that cannot use the subspace, and matches nothing.
    pub fn nowhere(self) -> Kind {
        self.nothing(|_| NOWHERE.to_owned())
    }

    /// Searches for a group, with `updates` of ten commands replaced by updates of one attribute.
    pub fn mixed(self, updates: u64) -> Kind {
        let share = updates as f64 / 10.0;
        let servers = self.contact.servers as f64;
        let under_way = CLIENTS as f64 * share / servers;
        let search = self.group(PAGE);
        let searched = search.steps.into_iter();
        let waits = ("beside_us", servers * (1.0 - (-under_way).exp()));
        let searched = searched
            .chain([waits])
            .map(|(name, times)| (name, times * (1.0 - share)));
        let updated = of_update(1, 0, under_way).into_iter();
        let updated = updated.map(|(name, times)| (name, times * share));
        let (words, objects) = (search.words, self.objects);
        Kind {
            steps: searched.chain(updated).collect(),
            // Interleaved, because consecutive updates would wait together.
            words: Box::new(move |at| {
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
fn of_update(attributes: u64, copies: u64, under_way: f64) -> Vec<(&'static str, f64)> {
    // Each changed value removes an index entry and adds one, at the owner and in each copy.
    let entries = 2 * attributes * (1 + copies);
    vec![
        ("write_us", 1.0),
        ("commit_us", 1.0 / under_way.max(1.0)),
        ("stage_us", copies as f64),
        ("index_entry_us", entries as f64),
    ]
}

/// Updates of objects with `copies` copies in regions: of one attribute, and of five. All clients send only these.
pub fn updates(objects: Objects, copies: u64, servers: u64) -> [Kind; 2] {
    let of = |fields: &'static [&'static str]| Kind {
        steps: of_update(fields.len() as u64, copies, CLIENTS as f64 / servers as f64),
        words: Box::new(move |at| objects.change(at, fields)),
    };
    [of(&["n1"]), of(&["n1", "n2", "n3", "n4", "n5"])]
}

/// An update that moves the only copy to another of the servers, whenever the next value is on another one.
pub fn moves(objects: Objects, servers: u64) -> Kind {
    let other = (servers - 1) as f64 / servers as f64;
    let [mut kind, _] = updates(objects, 0, servers);
    let entries = 2.0 + 2.0 * (other * INDEXES + 1.0 - other);
    kind.steps.retain(|step| step.0 != "index_entry_us");
    kind.steps.extend([
        ("stage_us", 1.0),
        ("move_us", other),
        ("index_entry_us", entries),
    ]);
    kind.words = Box::new(move |at| objects.change(at, &["k"]));
    kind
}
