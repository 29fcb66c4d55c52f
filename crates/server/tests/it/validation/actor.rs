//! A client that executes random commands on tables and joins, and records its reads and writes for
//! `larder-validate`.

use std::io;
use std::net::SocketAddr;
use std::time::Instant;

use larder_protocol::resp::client::Reply;
use larder_validate::Span;
use larder_validate::record::{END_STATE, Outcome, Record, RecordKind};
use larder_validate::set::Sketch;

use super::link::{Link, had_no_effect};

/// The seed of the sketches.
pub const SEED: u64 = 7;

/// The joins. Each output is on another core than some of its sources.
pub const JOINS: [(&str, &str); 5] = [
    ("votes", "votes|<thing> = count vote|<thing>|<voter>"),
    ("by", "by|<voter>|<thing> = copy vote|<thing>|<voter>"),
    (
        "tline",
        "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>",
    ),
    ("board", "board|<owner>|<thing> = copy note|<thing>|<owner>"),
    ("sum", "sum|<account> = sum in|<account>|<n>"),
];

/// The number of things, voters and authors; small, so that concurrent calls conflict.
const FEW: u64 = 6;

/// The kinds of items, in the highest 8 bits of an item's id.
#[derive(Clone, Copy)]
enum Kind {
    /// The voters of a thing: rows of `vote`, which `votes` counts.
    Voters = 1,
    /// The things that a voter voted for: a copied list.
    By,
    /// The posts of a timeline.
    Timeline,
    /// The text of a note, in its own row and on its board.
    Note,
    /// Two numbers of one account that transactions change together.
    Given,
    Taken,
}

impl Kind {
    fn of(self, id: u64) -> u64 {
        (self as u64) << 56 | id
    }
}

pub struct Actor {
    addr: SocketAddr,
    link: Link,
    clock: Instant,
    session: u32,
    random: u64,
    notes: u64,
    /// One in this many writes is sent without reading its reply; 0 disables this.
    lose: u64,
    /// In a cluster, keys that change together have a common hash tag, and WATCH is not used, because nodes do not
    /// execute one transaction together.
    is_of_cluster: bool,
    pub records: Vec<Record>,
}

/// Returns the authors that a user follows, which never change.
fn follows(user: u64) -> [u64; 2] {
    [user, (user + 1) % FEW]
}

/// Creates the joins and the subscriptions of each user.
pub fn prepare(addr: SocketAddr) {
    let mut link = Link::connect(addr).expect("connected");
    let mut ask = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        let reply = link.call(&[words]).expect("answered");
        assert_eq!(reply, Reply::Simple("OK".to_owned()));
    };
    for (name, definition) in JOINS {
        ask(&["JOIN.CREATE", name, definition]);
    }
    for user in 0..FEW {
        for author in follows(user) {
            ask(&["SET", &format!("sub|{user}|{author}"), "1"]);
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

fn transaction(lines: &[String]) -> Vec<Vec<String>> {
    let all = ["MULTI".to_owned()]
        .into_iter()
        .chain(lines.iter().cloned());
    let all = all.chain(["EXEC".to_owned()]);
    all.map(|line| words(&line)).collect()
}

impl Actor {
    /// All actors of a history share `clock`; `session` is unique.
    pub fn connect(addr: SocketAddr, clock: Instant, session: u32, lose: u64) -> Actor {
        Actor {
            addr,
            link: Link::connect(addr).expect("connected"),
            clock,
            session,
            random: u64::from(session) * 0x9e37_79b9 + 1,
            notes: 0,
            lose,
            is_of_cluster: false,
            records: Vec::new(),
        }
    }

    /// Like [`Actor::connect`], to a node of a cluster.
    pub fn in_cluster(addr: SocketAddr, clock: Instant, session: u32, lose: u64) -> Actor {
        Actor {
            is_of_cluster: true,
            ..Actor::connect(addr, clock, session, lose)
        }
    }

    /// Continues on a connection to another node.
    ///
    /// # Errors
    ///
    /// The node cannot be reached. The existing connection is kept.
    pub fn move_to(&mut self, addr: SocketAddr) -> io::Result<()> {
        self.link = Link::connect(addr)?;
        self.addr = addr;
        Ok(())
    }

    /// Returns the keys of two numbers that change together.
    fn pair(&self, thing: u64) -> [String; 2] {
        if self.is_of_cluster {
            [format!("in|{{{thing}}}a|1"), format!("out|{{{thing}}}")]
        } else {
            [format!("in|a{thing}|1"), format!("out|{thing}")]
        }
    }

    fn sum(&self, thing: u64) -> String {
        if self.is_of_cluster {
            format!("sum|{{{thing}}}a")
        } else {
            format!("sum|a{thing}")
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = self.random.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }

    /// Executes one random call.
    ///
    /// # Errors
    ///
    /// The connection was lost, or the cluster cannot answer. The call's writes are recorded as unknown, unless the
    /// error guarantees that they did not happen.
    pub fn act(&mut self) -> io::Result<()> {
        let (thing, voter, time) = (self.below(FEW), self.below(FEW), self.below(10));
        let put = self.below(2) == 0;
        let verb = |key: String| {
            if put {
                format!("SET {key} 1")
            } else {
                format!("DEL {key}")
            }
        };
        match self.below(13) {
            0 | 1 => {
                let line = verb(format!("vote|{thing}|{voter}"));
                self.write(vec![words(&line)], vote(thing, voter, put))
            }
            2 if !self.is_of_cluster => {
                // Writes two votes in one transaction, on two cores or one.
                let other = (thing + 1 + time % (FEW - 1)) % FEW;
                let lines = [thing, other].map(|it| verb(format!("vote|{it}|{voter}")));
                let both = [vote(thing, voter, put), vote(other, voter, put)].concat();
                self.write(transaction(&lines), both)
            }
            3 => {
                let (author, key) = (thing, format!("post|{thing}|{time}"));
                let line = verb(key);
                let readers = (0..FEW).filter(|user| follows(*user).contains(&author));
                let changes = readers.map(|user| {
                    let item = Kind::Timeline.of(user);
                    (item, element(put, time * FEW + author))
                });
                let changes = changes.collect();
                self.write(vec![words(&line)], changes)
            }
            4 => {
                self.notes += 1;
                let content = u64::from(self.session) << 32 | self.notes;
                let line = format!("SET note|{thing}|{} {content}", thing % 3);
                let what = RecordKind::WriteContent(content);
                self.write(vec![words(&line)], vec![(Kind::Note.of(thing), what)])
            }
            5 => {
                let by = 1 + self.below(3) as i32;
                let [given, taken] = self.pair(thing);
                let lines = [
                    format!("INCRBY {given} {by}"),
                    format!("DECRBY {taken} {by}"),
                ];
                let changes = vec![
                    (Kind::Given.of(thing), RecordKind::AddCount(by)),
                    (Kind::Taken.of(thing), RecordKind::AddCount(-by)),
                ];
                self.write(transaction(&lines), changes)
            }
            6 => self.read(vec![words(&format!("GET votes|{thing}"))], |reply| {
                vec![(Kind::Voters.of(thing), RecordKind::ReadCount(count(reply)))]
            }),
            7 => {
                let keys = self.pair(thing);
                let ask = if put {
                    vec![words(&format!("MGET {} {}", keys[0], keys[1]))]
                } else {
                    transaction(&keys.map(|key| format!("GET {key}")))
                };
                self.read(ask, |reply| {
                    let Reply::Array(all) = reply else {
                        panic!("{reply:?}");
                    };
                    vec![
                        (Kind::Given.of(thing), RecordKind::ReadCount(count(&all[0]))),
                        (Kind::Taken.of(thing), RecordKind::ReadCount(count(&all[1]))),
                    ]
                })
            }
            8 => self.read(vec![words(&format!("GET {}", self.sum(thing)))], |reply| {
                vec![(Kind::Given.of(thing), RecordKind::ReadCount(count(reply)))]
            }),
            9 => {
                let key = if put {
                    format!("note|{thing}|{}", thing % 3)
                } else {
                    format!("board|{}|{thing}", thing % 3)
                };
                self.read(vec![words(&format!("GET {key}"))], |reply| {
                    let content = count(reply) as u64;
                    vec![(Kind::Note.of(thing), RecordKind::ReadContent(content))]
                })
            }
            10 => {
                let item = Kind::By.of(voter);
                let prefix = format!("by|{voter}");
                match time % 2 {
                    0 => self.list(item, &prefix, number),
                    _ => {
                        let ask = format!("RANGECOUNT {prefix}| {prefix}}}");
                        self.read(vec![words(&ask)], |reply| {
                            vec![(item, RecordKind::ReadCount(count(reply)))]
                        })
                    }
                }
            }
            11 if put => {
                let prefix = format!("vote|{thing}");
                self.list(Kind::Voters.of(thing), &prefix, number)
            }
            12 if !self.is_of_cluster => self.read_and_write(thing, 1 + time as i32 % 3),
            _ => self.list(Kind::Timeline.of(voter), &format!("tline|{voter}"), posted),
        }
    }

    /// Changes two numbers together with optimistic locking: watches and reads them, and retries if another client
    /// wrote them before EXEC.
    fn read_and_write(&mut self, thing: u64, by: i32) -> io::Result<()> {
        let keys = [format!("in|a{thing}|1"), format!("out|{thing}")];
        loop {
            self.link
                .call(&[words(&format!("WATCH {} {}", keys[0], keys[1]))])?;
            let read = words(&format!("MGET {} {}", keys[0], keys[1]));
            let Reply::Array(both) = self.link.call(&[read])? else {
                panic!("{keys:?}");
            };
            let by_both = [
                count(&both[0]) + i64::from(by),
                count(&both[1]) - i64::from(by),
            ];
            let lines = [0, 1].map(|at| format!("SET {} {}", keys[at], by_both[at]));
            let start = self.now();
            let answered = self.link.call(&transaction(&lines));
            let end = self.now();
            let outcome = match &answered {
                Ok(Reply::Null) => continue,
                Ok(_) => Outcome::Done,
                Err(_) => Outcome::Unknown,
            };
            let changes = vec![
                (Kind::Given.of(thing), RecordKind::AddCount(by)),
                (Kind::Taken.of(thing), RecordKind::AddCount(-by)),
            ];
            self.record(start, end, outcome, changes);
            return answered.map(|_| ());
        }
    }

    /// Executes one read.
    ///
    /// # Errors
    ///
    /// As for [`Actor::act`].
    pub fn read_once(&mut self) -> io::Result<()> {
        let id = self.below(FEW);
        self.list(Kind::Voters.of(id), &format!("vote|{id}"), number)
    }

    /// Reads everything once, as the end state.
    pub fn read_end_state(&mut self) {
        let from = self.records.len();
        self.read_all().expect("the server answers");
        for record in &mut self.records[from..] {
            record.action = END_STATE;
        }
    }

    fn read_all(&mut self) -> io::Result<()> {
        for id in 0..FEW {
            self.list(Kind::Voters.of(id), &format!("vote|{id}"), number)?;
            self.list(Kind::By.of(id), &format!("by|{id}"), number)?;
            self.list(Kind::Timeline.of(id), &format!("tline|{id}"), posted)?;
            let [given, taken] = self.pair(id);
            for (key, item) in [
                (format!("votes|{id}"), Kind::Voters),
                (self.sum(id), Kind::Given),
                (given, Kind::Given),
                (taken, Kind::Taken),
            ] {
                self.read(vec![words(&format!("GET {key}"))], |reply| {
                    vec![(item.of(id), RecordKind::ReadCount(count(reply)))]
                })?;
            }
            for key in [
                format!("note|{id}|{}", id % 3),
                format!("board|{}|{id}", id % 3),
            ] {
                self.read(vec![words(&format!("GET {key}"))], |reply| {
                    let content = count(reply) as u64;
                    vec![(Kind::Note.of(id), RecordKind::ReadContent(content))]
                })?;
            }
        }
        Ok(())
    }

    /// Reads the rows of a leading column as the elements of a set.
    fn list(&mut self, item: u64, prefix: &str, element: fn(&str) -> u64) -> io::Result<()> {
        let ask = format!("RANGE {prefix}| {prefix}}} KEYSONLY");
        self.read(vec![words(&ask)], |reply| {
            let Reply::Array(keys) = reply else {
                panic!("{reply:?}");
            };
            let elements = keys.iter().map(|key| match key {
                Reply::Bulk(key) => element(&text(key)[prefix.len() + 1..]),
                other => panic!("{other:?}"),
            });
            vec![(item, RecordKind::ReadSet(Sketch::of(SEED, item, elements)))]
        })
    }

    fn read(
        &mut self,
        ask: Vec<Vec<String>>,
        saw: impl FnOnce(&Reply) -> Vec<(u64, RecordKind)>,
    ) -> io::Result<()> {
        let start = self.now();
        let reply = self.link.call(&ask)?;
        let end = self.now();
        self.record(start, end, Outcome::Done, saw(&reply));
        Ok(())
    }

    fn write(&mut self, ask: Vec<Vec<String>>, changes: Vec<(u64, RecordKind)>) -> io::Result<()> {
        let start = self.now();
        if self.lose > 0 && self.below(self.lose) == 0 {
            self.link.send(&ask)?;
            // Closes the connection with the reply unread.
            self.link = Link::connect(self.addr)?;
            let end = self.now();
            self.record(start, end, Outcome::Unknown, changes);
            return Ok(());
        }
        let answered = self.link.call(&ask);
        let outcome = match &answered {
            Ok(Reply::Null) => panic!("{ask:?}"),
            Ok(_) => Outcome::Done,
            // The write is not recorded. If it happened nevertheless, the validator reports reads of a value that no
            // client wrote.
            Err(error) if had_no_effect(error) => return answered.map(|_| ()),
            Err(_) => Outcome::Unknown,
        };
        let end = self.now();
        self.record(start, end, outcome, changes);
        answered.map(|_| ())
    }

    fn record(&mut self, start: u64, end: u64, outcome: Outcome, changes: Vec<(u64, RecordKind)>) {
        let span = Span::new(start, end).expect("the clock never goes back");
        let session = self.session;
        self.records
            .extend(changes.into_iter().map(|(item, what)| Record {
                item,
                span,
                session,
                action: 0,
                outcome,
                what,
            }));
    }
}

fn vote(thing: u64, voter: u64, put: bool) -> Vec<(u64, RecordKind)> {
    vec![
        (Kind::Voters.of(thing), element(put, voter)),
        (Kind::By.of(voter), element(put, thing)),
    ]
}

fn element(put: bool, element: u64) -> RecordKind {
    if put {
        RecordKind::PutElement(element)
    } else {
        RecordKind::RemoveElement(element)
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Parses `time|author`.
fn posted(rest: &str) -> u64 {
    let (time, author) = rest.split_once('|').expect("two columns");
    number(time) * FEW + number(author)
}

/// Returns a number; an absent value counts as 0.
fn count(reply: &Reply) -> i64 {
    match reply {
        Reply::Null => 0,
        Reply::Integer(number) => *number,
        Reply::Bulk(digits) => text(digits).parse().expect("a number"),
        other => panic!("{other:?}"),
    }
}

fn text(bytes: &[u8]) -> &str {
    str::from_utf8(bytes).expect("text")
}
