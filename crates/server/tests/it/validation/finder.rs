//! A client of a space. It changes random objects, reads them and searches for them, and translates the replies for
//! `larder_validate::objects`.
//!
//! It performs no I/O, so that it works with a server over sockets and with a simulated one
//! (`crates/server/src/resp/simulation`).
//!
//! An object is a hash with three fields: `city`, a tag; `n`, a number; and `note`, which is not an attribute and has
//! a new value in each write. A search that returns an object's fields therefore identifies the state that it saw.

use larder_protocol::resp::client::Reply;
use larder_validate::Span;
use larder_validate::objects::{Call, Condition, Event, ObjectWrite, State, expiry, search};

const FIELDS: [&str; 3] = ["city", "n", "note"];
const CITIES: u16 = 5;
const NUMBERS: u16 = 16;
/// Rows per read of a cursor; few, so that large results take several reads.
const CURSOR_ROWS: usize = 3;

/// Returns the command that creates the space, with the given clause for its subspaces.
pub fn declaration(subspaces: &str) -> Vec<String> {
    let line =
        format!("FT.CREATE things PREFIX 1 thing: {subspaces} SCHEMA city TAG n NUMERIC SORTABLE");
    line.split_whitespace().map(str::to_owned).collect()
}

/// Clauses for `FT.CREATE` and `FT.ALTER`: subspaces of one attribute and of both, with few regions and with many.
pub const SUBSPACES: [&str; 4] = [
    "SUBSPACES 2 city n REGIONS 16",
    "SUBSPACES 1 city,n REGIONS 64",
    "SUBSPACES 2 n city,n REGIONS 16",
    "SUBSPACES 1 city REGIONS 4",
];

/// The state of one client.
#[derive(Clone)]
pub struct Finder {
    random: u64,
    objects: u32,
    session: u16,
    notes: u16,
    timers: u16,
    /// True if objects get expiry times.
    expires: bool,
    /// The open cursor, which the next request continues.
    cursor: Option<Cursor>,
}

/// An open cursor and the rows that it has returned so far.
#[derive(Clone)]
struct Cursor {
    number: i64,
    condition: Condition,
    from: u64,
    found: Vec<(u32, Option<State>)>,
}

/// The meaning of a request.
#[derive(Clone, Debug)]
enum Kind {
    Change {
        object: u32,
        change: ObjectWrite,
        answer: ReplyInfo,
    },
    Read {
        object: u32,
    },
    Search {
        condition: Condition,
        shows: bool,
    },
    Cursor {
        condition: Condition,
    },
}

/// The information that a write's reply contains about its condition.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReplyInfo {
    Nothing,
    /// 0 if the condition did not hold.
    Held,
}

/// A request and its meaning.
#[derive(Clone, Debug)]
pub struct Request {
    pub words: Vec<String>,
    kind: Kind,
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

impl Finder {
    /// Creates a client of the objects numbered from 0. `session` must be unique and less than 60.
    pub fn new(session: u16, objects: u32, seed: u64) -> Finder {
        assert!(session < 60);
        Finder {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(session) << 40 | 1),
            objects,
            session,
            notes: 0,
            timers: 0,
            expires: true,
            cursor: None,
        }
    }

    /// Disables expiry, for an environment without a clock.
    #[allow(dead_code, reason = "one of two programs uses it")]
    pub fn without_time(self) -> Finder {
        Finder {
            expires: false,
            ..self
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn random_number(&mut self, n: u16) -> u16 {
        1 + self.below(n.into()) as u16
    }

    /// Returns a number that identifies a change among those of all clients. A client's numbers repeat after 1000.
    fn next_unique_number(session: u16, last: &mut u16) -> u16 {
        *last = *last % 1000 + 1;
        session * 1000 + *last
    }

    fn values(&mut self, which: u64) -> [Option<u16>; 3] {
        let note = Finder::next_unique_number(self.session, &mut self.notes);
        let all = [
            self.random_number(CITIES),
            self.random_number(NUMBERS),
            note,
        ];
        [0, 1, 2].map(|at| (which >> at & 1 == 1).then_some(all[at]))
    }

    /// Returns the next request.
    pub fn next(&mut self) -> Request {
        if let Some(cursor) = &self.cursor {
            let condition = cursor.condition;
            return Request {
                words: words(&format!("FT.CURSOR READ things {}", cursor.number)),
                kind: Kind::Cursor { condition },
            };
        }
        let object = self.below(self.objects.into()) as u32;
        match self.below(20) {
            0..=5 => self.put(object),
            6 => self.remove_fields(object),
            7 => self.remove(object),
            8 | 9 => self.put_if(object),
            10 if self.expires => self.expire(object),
            11..=13 => Finder::read(object),
            14 => self.aggregate(),
            _ => self.search(),
        }
    }

    /// Returns the final reads, for after all writes have ended: each object by its key, and all objects by each kind
    /// of search.
    pub fn final_reads(objects: u32) -> Vec<Request> {
        let keys = (0..objects).map(Finder::read);
        let cities = (1..=CITIES)
            .map(|city| Finder::search_for(&format!("@city:{{c{city}}}"), is(0, city, city)));
        let numbers =
            (1..=NUMBERS).map(|n| Finder::search_for(&format!("@n:[{n} {n}]"), is(1, n, n)));
        let all = Finder::search_for("*", Condition::any());
        keys.chain(cities).chain(numbers).chain([all]).collect()
    }

    fn put(&mut self, object: u32) -> Request {
        let which = 1 + self.below(7);
        let sets = self.values(which);
        Request {
            words: words(&format!("HSET thing:{object}{}", fields(&sets, " "))),
            kind: Kind::Change {
                object,
                change: ObjectWrite {
                    sets,
                    ..ObjectWrite::default()
                },
                answer: ReplyInfo::Nothing,
            },
        }
    }

    fn remove_fields(&mut self, object: u32) -> Request {
        let at = self.below(3) as usize;
        let mut sets = [None; 3];
        sets[at] = Some(0);
        Request {
            words: words(&format!("HDEL thing:{object} {}", FIELDS[at])),
            kind: Kind::Change {
                object,
                change: ObjectWrite {
                    sets,
                    ..ObjectWrite::default()
                },
                answer: ReplyInfo::Nothing,
            },
        }
    }

    fn remove(&mut self, object: u32) -> Request {
        let (line, only_if) = match self.below(2) {
            0 => (format!("DEL thing:{object}"), Condition::any()),
            _ => (
                format!("OBJ.CHANGE thing:{object} IF PRESENT DO DELETE"),
                Condition::any(),
            ),
        };
        Request {
            words: words(&line),
            kind: Kind::Change {
                object,
                change: ObjectWrite {
                    only_if: Some(only_if),
                    ..ObjectWrite::removal()
                },
                answer: ReplyInfo::Held,
            },
        }
    }

    fn put_if(&mut self, object: u32) -> Request {
        let which = 1 + self.below(7);
        let sets = self.values(which);
        let (query, condition) = self.query();
        let (words_of, only_if) = match self.below(4) {
            0 => (vec!["ABSENT".to_owned()], Condition::absent()),
            1 => (vec!["PRESENT".to_owned()], Condition::any()),
            2 => (vec![query, "IN".to_owned(), "things".to_owned()], condition),
            _ => {
                let schema = words("SCHEMA city TAG n NUMERIC");
                ([vec![query], schema].concat(), condition)
            }
        };
        let head = words(&format!("OBJ.CHANGE thing:{object} IF"));
        let does = words(&format!("DO{}", fields(&sets, " PUT ")));
        Request {
            words: [head, words_of, does].concat(),
            kind: Kind::Change {
                object,
                change: ObjectWrite {
                    only_if: Some(only_if),
                    sets,
                    ..ObjectWrite::default()
                },
                answer: ReplyInfo::Held,
            },
        }
    }

    fn expire(&mut self, object: u32) -> Request {
        let (line, timer) = match self.below(4) {
            0 => (format!("PERSIST thing:{object}"), 0),
            _ => {
                let timer = Finder::next_unique_number(self.session, &mut self.timers);
                let ms = 1 + self.below(200);
                (format!("PEXPIRE thing:{object} {ms}"), timer)
            }
        };
        let change = ObjectWrite {
            only_if: Some(Condition::any()),
            timer: Some(timer),
            ..ObjectWrite::default()
        };
        let answer = match timer {
            // PERSIST also returns 0 for an object without an expiry time.
            0 => ReplyInfo::Nothing,
            _ => ReplyInfo::Held,
        };
        Request {
            words: words(&line),
            kind: Kind::Change {
                object,
                change,
                answer,
            },
        }
    }

    fn read(object: u32) -> Request {
        Request {
            words: words(&format!("HMGET thing:{object} city n note")),
            kind: Kind::Read { object },
        }
    }

    /// Returns a random query and the equivalent condition.
    fn query(&mut self) -> (String, Condition) {
        let (city, n) = (self.random_number(CITIES), self.random_number(NUMBERS));
        let (to, until) = ((city + 1).min(CITIES), n + self.below(4) as u16);
        match self.below(9) {
            0 | 1 => (format!("@city:{{c{city}}}"), is(0, city, city)),
            2 => (format!("@city:{{c{city}|c{to}}}"), is(0, city, to)),
            3 => (format!("@n:[{n} {n}]"), is(1, n, n)),
            4 => (format!("@n:[{n} {until}]"), is(1, n, until)),
            5 | 6 => (
                format!("@city:{{c{city}|c{to}}} @n:[{n} {until}]"),
                is(0, city, to).within(1, n, until),
            ),
            7 => (format!("-@city:{{c{city}}}"), is(0, city, city).negated()),
            _ => ("*".to_owned(), Condition::any()),
        }
    }

    fn search(&mut self) -> Request {
        let (query, condition) = self.query();
        let mut request = Finder::search_for(&query, condition);
        match self.below(4) {
            0 => {
                request.words.push("NOCONTENT".to_owned());
                request.kind = Kind::Search {
                    condition,
                    shows: false,
                };
            }
            1 => request.words.extend(words("SORTBY n DESC")),
            _ => {}
        }
        request
    }

    fn search_for(query: &str, condition: Condition) -> Request {
        let head = ["FT.SEARCH", "things", query].map(str::to_owned);
        let limit = words("LIMIT 0 10000");
        Request {
            words: [&head[..], &limit].concat(),
            kind: Kind::Search {
                condition,
                shows: true,
            },
        }
    }

    fn aggregate(&mut self) -> Request {
        let (query, condition) = self.query();
        let head = ["FT.AGGREGATE", "things", &query].map(str::to_owned);
        let rest = format!("LOAD 4 @__key @city @n @note WITHCURSOR COUNT {CURSOR_ROWS}");
        Request {
            words: [&head[..], &words(&rest)].concat(),
            kind: Kind::Cursor { condition },
        }
    }

    /// Translates a reply that arrived within `span`. Returns no events while a cursor has more rows.
    pub fn record_reply(&mut self, request: &Request, span: Span, reply: &Reply) -> Vec<Event> {
        match &request.kind {
            Kind::Change {
                object,
                change,
                answer,
            } => {
                let held = match (answer, reply) {
                    (ReplyInfo::Held, Reply::Integer(held)) => Some(*held != 0),
                    (ReplyInfo::Nothing, Reply::Integer(_)) => None,
                    _ => panic!("{request:?}: {reply:?}"),
                };
                changed(*object, span, *change, held)
            }
            Kind::Read { object } => {
                let Reply::Array(values) = reply else {
                    panic!("{request:?}: {reply:?}");
                };
                let values = [0, 1, 2].map(|at| number(&values[at]));
                let call = Call::Read(State::of(values));
                vec![Event {
                    object: *object,
                    span,
                    call,
                }]
            }
            Kind::Search { condition, shows } => {
                let found = found(request, reply, *shows);
                self.found(span, *condition, &found)
            }
            Kind::Cursor { condition } => self.record_cursor_page(request, *condition, span, reply),
        }
    }

    /// Translates a request that got no reply.
    pub fn record_lost(&mut self, request: &Request, begun: u64) -> Vec<Event> {
        self.cursor = None;
        match &request.kind {
            Kind::Change { object, change, .. } => {
                changed(*object, Span::unanswered(begun), *change, None)
            }
            _ => Vec::new(),
        }
    }

    /// Handles a request that was rejected and had no effect.
    #[allow(dead_code, reason = "one of two programs uses it")]
    pub fn record_rejected(&mut self) {
        self.cursor = None;
    }

    fn record_cursor_page(
        &mut self,
        request: &Request,
        condition: Condition,
        span: Span,
        reply: &Reply,
    ) -> Vec<Event> {
        let both = match reply {
            Reply::Array(both) => &both[..],
            other => panic!("{request:?}: {other:?}"),
        };
        let [Reply::Array(rows), Reply::Integer(number)] = both else {
            panic!("{request:?}: {reply:?}");
        };
        let mut cursor = self.cursor.take().unwrap_or(Cursor {
            number: 0,
            condition,
            from: span.start(),
            found: Vec::new(),
        });
        // The first element is a count.
        let rows = rows[1..].iter().map(|row| {
            let Reply::Array(pairs) = row else {
                panic!("{request:?}: {reply:?}");
            };
            let named = |name: &str| {
                let mut pairs = pairs.chunks_exact(2);
                let pair = pairs.find(|pair| pair[0] == Reply::Bulk(name.into()));
                pair.map(|pair| &pair[1])
            };
            let key = object(named("__key").expect("every row has one"));
            let values = FIELDS.map(|name| named(name).map_or(0, self::number));
            (key, Some(State::of(values)))
        });
        cursor.found.extend(rows);
        cursor.number = *number;
        if *number != 0 {
            self.cursor = Some(cursor);
            return Vec::new();
        }
        ensure_once(request, &cursor.found);
        let span = Span::new(cursor.from, span.end()).expect("it began before");
        self.found(span, condition, &cursor.found)
    }

    /// Translates a search. Ignores objects beyond those of this client.
    fn found(
        &self,
        span: Span,
        condition: Condition,
        found: &[(u32, Option<State>)],
    ) -> Vec<Event> {
        let own = found.iter().filter(|(object, _)| *object < self.objects);
        let own: Vec<_> = own.copied().collect();
        search(span, condition, &own, self.objects)
    }
}

fn is(at: usize, first: u16, last: u16) -> Condition {
    Condition::any().within(at, first, last)
}

/// Returns names and values, with `before` in front of each pair.
fn fields(sets: &[Option<u16>; 3], before: &str) -> String {
    let pair = |(at, value): (usize, &Option<u16>)| {
        let value = (*value)?;
        let city = if at == 0 { "c" } else { "" };
        Some(format!("{before}{} {city}{value}", FIELDS[at]))
    };
    sets.iter().enumerate().filter_map(pair).collect()
}

fn changed(object: u32, span: Span, change: ObjectWrite, held: Option<bool>) -> Vec<Event> {
    let call = Call::Change { change, held };
    let goes = change
        .timer
        .filter(|timer| *timer > 0 && held != Some(false));
    // Clocks may differ slightly, so that the object may expire from the start of the call on.
    let goes = goes.map(|timer| expiry(object, timer, span.start()));
    [Event { object, span, call }]
        .into_iter()
        .chain(goes)
        .collect()
}

/// Returns the objects of a search result. Checks that each occurs once, and that the count is right.
fn found(request: &Request, reply: &Reply, shows: bool) -> Vec<(u32, Option<State>)> {
    let Reply::Array(all) = reply else {
        panic!("{request:?}: {reply:?}");
    };
    let rows = all[1..].chunks(if shows { 2 } else { 1 });
    let rows = rows.map(|row| {
        let state = row.get(1).map(|pairs| match pairs {
            Reply::Array(pairs) => {
                let values = FIELDS.map(|name| {
                    let mut pairs = pairs.chunks_exact(2);
                    let pair = pairs.find(|pair| pair[0] == Reply::Bulk(name.into()));
                    pair.map_or(0, |pair| number(&pair[1]))
                });
                State::of(values)
            }
            other => panic!("{request:?}: {other:?}"),
        });
        (object(&row[0]), state)
    });
    let found: Vec<_> = rows.collect();
    assert_eq!(
        all[0],
        Reply::Integer(found.len() as i64),
        "{request:?}: {reply:?}"
    );
    ensure_once(request, &found);
    found
}

fn ensure_once(request: &Request, found: &[(u32, Option<State>)]) {
    let mut keys: Vec<u32> = found.iter().map(|(object, _)| *object).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(
        keys.len(),
        found.len(),
        "{request:?} finds an object twice: {found:?}"
    );
}

fn text(reply: &Reply) -> &str {
    match reply {
        Reply::Bulk(bytes) => str::from_utf8(bytes).expect("text"),
        other => panic!("{other:?}"),
    }
}

fn object(key: &Reply) -> u32 {
    let number = text(key).strip_prefix("thing:").expect("a thing");
    number.parse().expect("a number")
}

/// Returns the value of a field, or 0 if it is absent.
fn number(value: &Reply) -> u16 {
    match value {
        Reply::Null => 0,
        value => text(value)
            .trim_start_matches('c')
            .parse()
            .expect("a number"),
    }
}
