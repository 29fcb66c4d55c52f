//! A client that performs random actions on tables and joins of several cores, and records its writes and reads for
//! validation by `larder-validate`. It checks the atomicity of transactions itself.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use larder_sim::Random;
use larder_validate::Span;
use larder_validate::record::{END_STATE, Outcome, Record, RecordKind};
use larder_validate::set::Sketch;

use super::link::{Link, LinkReply};
use super::world::{Clock, CoreWorld, Cores};

/// The seed of the validator's sketches.
pub const SKETCHES: u64 = 7;

/// Each output is on another core than some of its sources.
const JOINS: [(&str, &str); 4] = [
    ("votes", "votes|<thing> = count vote|<thing>|<voter>"),
    ("by", "by|<voter>|<thing> = copy vote|<thing>|<voter>"),
    ("board", "board|<owner>|<thing> = copy note|<thing>|<owner>"),
    ("sum", "sum|<account> = sum in|<account>|<n>"),
];

/// Number of things, of voters and of accounts: small, so that calls conflict.
const ITEMS: u64 = 4;

/// Rows that one command writes together, on different cores if there are enough.
const TWINS: [&str; 3] = ["twin|a", "twin|b", "twin|c"];

/// The kinds of items. An item's highest 8 bits contain its kind.
#[derive(Clone, Copy)]
enum Kind {
    /// The voters for a thing: rows of `vote`, counted by `votes`.
    Voters = 1,
    /// The votes of a voter.
    VotesBy,
    /// The content of a note, read directly and from its board.
    Note,
    /// Two numbers of one account that transactions change together.
    Credits,
    Debits,
    /// The common content of all twins.
    Twins,
}

impl Kind {
    fn of(self, id: u64) -> u64 {
        (self as u64) << 56 | id
    }
}

/// The connection was lost, or a core has left.
struct ConnectionLost;

type CallResult<T> = Result<T, ConnectionLost>;
type Change = (u64, RecordKind);

/// The calls of all clients.
#[derive(Clone, Default)]
pub struct CallHistory {
    records: Rc<RefCell<Vec<Record>>>,
    /// Unfinished writes, by session.
    in_flight: Rc<RefCell<BTreeMap<u32, Vec<Record>>>>,
}

impl CallHistory {
    pub fn of(records: Vec<Record>) -> CallHistory {
        CallHistory {
            records: Rc::new(RefCell::new(records)),
            in_flight: Rc::default(),
        }
    }

    /// Returns all calls. The outcome of unfinished writes is unknown.
    pub fn take(&self) -> Vec<Record> {
        let left = self.in_flight.take().into_values().flatten();
        self.records.take().into_iter().chain(left).collect()
    }
}

pub struct TableClient {
    cores: Cores,
    clock: Clock,
    history: CallHistory,
    random: Random,
    /// The core to which the client is connected.
    core: usize,
    link: Option<Link>,
    session: u32,
    contents: u64,
    /// One of this many writes is sent without reading its reply; 0 for none.
    lost_one_in: u64,
    action: u8,
}

impl TableClient {
    pub fn new(world: &CoreWorld, history: &CallHistory, seed: u64, session: u32) -> TableClient {
        TableClient {
            cores: world.cores.clone(),
            clock: world.clock.clone(),
            history: history.clone(),
            random: Random::stream(seed, 100 + u64::from(session)),
            core: session as usize % world.cores.count(),
            link: None,
            session,
            contents: 0,
            lost_one_in: 0,
            action: 0,
        }
    }

    pub fn with_lost_replies(mut self, one_in: u64) -> TableClient {
        self.lost_one_in = one_in;
        self
    }

    /// Declares the joins.
    pub async fn prepare(mut self) {
        for (name, definition) in JOINS {
            // The server's parser joins the words of the definition again.
            let line = format!("JOIN.CREATE {name} {definition}");
            let Ok((_, replies)) = self.send_pipeline(&[line]).await else {
                panic!("no core has left");
            };
            assert_eq!(replies[0], LinkReply::Status("OK".to_owned()));
        }
    }

    /// Makes up to `calls` calls.
    pub async fn act(mut self, calls: u32) {
        for _ in 0..calls {
            if self.make_call().await.is_err() {
                if self.cores.has_any_left() {
                    return;
                }
                self.link = None;
            }
        }
    }

    /// Writes twins while `is_asked` is set.
    pub async fn write_twins_while(mut self, keeps_running: Rc<Cell<bool>>) {
        while keeps_running.get() {
            let written = self.write_twins(false).await;
            assert!(written.is_ok(), "no core has left");
        }
    }

    /// Reads everything once.
    pub async fn read_end_state(mut self) {
        self.action = END_STATE;
        assert!(self.read_all().await.is_ok(), "no core has left");
    }

    /// Sends requests as one pipeline. Returns their start time and the replies.
    async fn send_pipeline(&mut self, lines: &[String]) -> CallResult<(u64, Vec<LinkReply>)> {
        let started = self.clock.next();
        if self.link.is_none() {
            self.link = Some(Link::new(
                self.cores.connect(self.core).ok_or(ConnectionLost)?,
            ));
        }
        let link = self.link.as_mut().ok_or(ConnectionLost)?;
        link.send(lines).await.map_err(|_| ConnectionLost)?;
        let replies = link
            .replies(lines.len())
            .await
            .map_err(|_| ConnectionLost)?;
        let is_error = |reply: &LinkReply| matches!(reply, LinkReply::Error(_));
        if replies.iter().any(is_error) {
            assert!(self.cores.has_any_left(), "{lines:?}: {replies:?}");
            return Err(ConnectionLost);
        }
        Ok((started, replies))
    }

    async fn make_call(&mut self) -> CallResult<()> {
        let (thing, voter) = (self.random.below(ITEMS), self.random.below(ITEMS));
        let put = self.random.below(2) == 0;
        match self.random.below(14) {
            0 | 1 => {
                let line = vote_line(thing, voter, put);
                self.write(vec![line], vote(thing, voter, put)).await
            }
            2 => {
                // Votes for two things, on one core or two.
                let other = (thing + 1) % ITEMS;
                let lines = [thing, other].map(|it| vote_line(it, voter, put));
                let both = [vote(thing, voter, put), vote(other, voter, put)].concat();
                self.write(transaction(&lines), both).await
            }
            3 => {
                // A pipeline of several writes without a transaction, followed by a read.
                let mut lines: Vec<String> =
                    (0..ITEMS).map(|it| vote_line(it, voter, put)).collect();
                lines.push(format!("GET votes|{thing}"));
                let changes = (0..ITEMS).flat_map(|it| vote(it, voter, put));
                self.write(lines, changes.collect()).await
            }
            4 => {
                let by = 1 + self.random.below(3) as i32;
                let lines = [
                    format!("INCRBY in|a{thing}|1 {by}"),
                    format!("DECRBY out|{thing} {by}"),
                ];
                self.write(transaction(&lines), transfer(thing, by)).await
            }
            5 => self.read_both(thing, put).await,
            6 => self.read_and_write(thing).await,
            7 => {
                let (key, kind) = if put {
                    (format!("votes|{thing}"), Kind::Voters)
                } else {
                    (format!("sum|a{thing}"), Kind::Credits)
                };
                self.count(&format!("GET {key}"), kind.of(thing)).await
            }
            8 => self.read_votes(voter, put).await,
            9 => self.read_all_votes(put).await,
            10 => {
                let content = self.new_content();
                let line = format!("SET note|{thing}|{} {content}", thing % 2);
                let what = RecordKind::WriteContent(content);
                self.write(vec![line], vec![(Kind::Note.of(thing), what)])
                    .await
            }
            11 => self.read_note(thing, put).await,
            12 => {
                // The second is computed from the first, on another core.
                let lines = [vote_line(thing, voter, put), format!("GET votes|{thing}")];
                self.write(transaction(&lines), vote(thing, voter, put))
                    .await
            }
            _ if put => self.write_twins(voter == 0).await,
            _ => self.read_twins(thing).await,
        }
    }

    fn new_content(&mut self) -> u64 {
        self.contents += 1;
        u64::from(self.session) << 32 | self.contents
    }

    async fn write_twins(&mut self, in_transaction: bool) -> CallResult<()> {
        let content = self.new_content();
        let lines = if in_transaction {
            transaction(&TWINS.map(|key| format!("SET {key} {content}")))
        } else {
            let pairs = TWINS.map(|key| format!("{key} {content}"));
            vec![format!("MSET {}", pairs.join(" "))]
        };
        let what = RecordKind::WriteContent(content);
        self.write(lines, vec![(Kind::Twins.of(0), what)]).await
    }

    /// Checks that all twins have the same content, whichever way they are read.
    async fn read_twins(&mut self, how: u64) -> CallResult<()> {
        let lines = match how % 3 {
            0 => vec![format!("MGET {}", TWINS.join(" "))],
            1 => transaction(&TWINS.map(|key| format!("GET {key}"))),
            _ => vec!["RANGE twin| twin}".to_owned()],
        };
        let (started, replies) = self.send_pipeline(&lines).await?;
        let mut values = elements_of_last(&replies).to_vec();
        if how % 3 == 2 {
            // The reply has keys and values, or is empty before the first write.
            values = values.into_iter().skip(1).step_by(2).collect();
            values.resize(TWINS.len(), LinkReply::Nil);
        }
        let contents: Vec<i64> = values.iter().map(count).collect();
        assert!(
            self.cores.has_any_left() || contents.iter().all(|content| *content == contents[0]),
            "a transaction was partly visible: {lines:?} {contents:?}"
        );
        let what = RecordKind::ReadContent(contents[0] as u64);
        self.note(started, Outcome::Done, vec![(Kind::Twins.of(0), what)]);
        Ok(())
    }

    async fn read_both(&mut self, thing: u64, at_once: bool) -> CallResult<()> {
        let keys = [format!("in|a{thing}|1"), format!("out|{thing}")];
        let lines = if at_once {
            vec![format!("MGET {} {}", keys[0], keys[1])]
        } else {
            transaction(&keys.map(|key| format!("GET {key}")))
        };
        let (started, replies) = self.send_pipeline(&lines).await?;
        let both = elements_of_last(&replies);
        let saw = vec![
            (
                Kind::Credits.of(thing),
                RecordKind::ReadCount(count(&both[0])),
            ),
            (
                Kind::Debits.of(thing),
                RecordKind::ReadCount(count(&both[1])),
            ),
        ];
        self.note(started, Outcome::Done, saw);
        Ok(())
    }

    /// Changes two numbers together with optimistic locking: WATCH, read, then a transaction.
    async fn read_and_write(&mut self, thing: u64) -> CallResult<()> {
        let keys = [format!("in|a{thing}|1"), format!("out|{thing}")];
        let both = format!("{} {}", keys[0], keys[1]);
        let watch = [format!("WATCH {both}"), format!("MGET {both}")];
        let (_, replies) = self.send_pipeline(&watch).await?;
        let before = elements_of_last(&replies);
        let after = [count(&before[0]) + 1, count(&before[1]) - 1];
        let lines = transaction(&[0, 1].map(|at| format!("SET {} {}", keys[at], after[at])));
        let started = self.begin_write(&transfer(thing, 1));
        let outcome = match self.send_pipeline(&lines).await {
            // Another client changed the numbers, so the transaction had no effect.
            Ok((_, replies)) if replies.last() == Some(&LinkReply::Nil) => {
                self.history.in_flight.borrow_mut().remove(&self.session);
                return Ok(());
            }
            Ok(_) => Ok(Outcome::Done),
            Err(lost) => Err(lost),
        };
        self.note(
            started,
            *outcome.as_ref().unwrap_or(&Outcome::Unknown),
            transfer(thing, 1),
        );
        outcome.map(|_| ())
    }

    async fn count(&mut self, line: &str, item: u64) -> CallResult<()> {
        let (started, replies) = self.send_pipeline(&[line.to_owned()]).await?;
        let what = RecordKind::ReadCount(count(&replies[0]));
        self.note(started, Outcome::Done, vec![(item, what)]);
        Ok(())
    }

    async fn list(&mut self, prefix: &str, item: u64) -> CallResult<()> {
        let line = format!("RANGE {prefix}| {prefix}}} KEYSONLY");
        let (started, replies) = self.send_pipeline(&[line]).await?;
        let elements = elements_of_last(&replies).iter().map(|key| match key {
            LinkReply::Text(key) => element(&key[prefix.len() + 1..]),
            other => panic!("{other:?}"),
        });
        let what = RecordKind::ReadSet(Sketch::of(SKETCHES, item, elements));
        self.note(started, Outcome::Done, vec![(item, what)]);
        Ok(())
    }

    async fn read_votes(&mut self, voter: u64, lists_all: bool) -> CallResult<()> {
        let (prefix, item) = (format!("by|{voter}"), Kind::VotesBy.of(voter));
        if lists_all {
            self.list(&prefix, item).await
        } else {
            let line = format!("RANGECOUNT {prefix}| {prefix}}}");
            self.count(&line, item).await
        }
    }

    async fn read_all_votes(&mut self, lists_all: bool) -> CallResult<()> {
        if !lists_all {
            let (_, replies) = self
                .send_pipeline(&["RANGECOUNT twin| twin}".to_owned()])
                .await?;
            let twins = count(&replies[0]);
            let is_complete = [0, TWINS.len() as i64].contains(&twins);
            assert!(self.cores.has_any_left() || is_complete, "{twins} twins");
            return Ok(());
        }
        // Rows of several cores are merged. The rows of one thing are on one core and of one moment.
        let line = "RANGE vote| vote} KEYSONLY".to_owned();
        let (started, replies) = self.send_pipeline(&[line]).await?;
        let votes = elements_of_last(&replies).iter().map(|key| match key {
            LinkReply::Text(key) => element(&key["vote|".len()..]),
            other => panic!("{other:?}"),
        });
        let votes: Vec<u64> = votes.collect();
        assert!(votes.is_sorted(), "{votes:?}");
        let of_thing = |thing: u64| {
            let votes = votes.iter().filter(|vote| *vote / ITEMS == thing);
            let voters = votes.map(|vote| vote % ITEMS);
            let item = Kind::Voters.of(thing);
            (
                item,
                RecordKind::ReadSet(Sketch::of(SKETCHES, item, voters)),
            )
        };
        let saw = (0..ITEMS).map(of_thing).collect();
        self.note(started, Outcome::Done, saw);
        Ok(())
    }

    async fn read_note(&mut self, thing: u64, on_board: bool) -> CallResult<()> {
        let line = if on_board {
            format!("GET board|{}|{thing}", thing % 2)
        } else {
            format!("GET note|{thing}|{}", thing % 2)
        };
        let (started, replies) = self.send_pipeline(&[line]).await?;
        let what = RecordKind::ReadContent(count(&replies[0]) as u64);
        self.note(started, Outcome::Done, vec![(Kind::Note.of(thing), what)]);
        Ok(())
    }

    async fn read_all(&mut self) -> CallResult<()> {
        for id in 0..ITEMS {
            self.list(&format!("vote|{id}"), Kind::Voters.of(id))
                .await?;
            self.read_votes(id, true).await?;
            self.read_note(id, true).await?;
            self.read_note(id, false).await?;
            for (key, kind) in [
                (format!("votes|{id}"), Kind::Voters),
                (format!("sum|a{id}"), Kind::Credits),
                (format!("in|a{id}|1"), Kind::Credits),
                (format!("out|{id}"), Kind::Debits),
            ] {
                self.count(&format!("GET {key}"), kind.of(id)).await?;
            }
        }
        self.read_all_votes(true).await?;
        for how in 0..3 {
            self.read_twins(how).await?;
        }
        Ok(())
    }

    async fn write(&mut self, lines: Vec<String>, changes: Vec<Change>) -> CallResult<()> {
        let started = self.begin_write(&changes);
        if self.lost_one_in > 0 && self.random.below(self.lost_one_in) == 0 {
            if let Some(link) = &mut self.link {
                let _ = link.send(&lines).await;
            }
            // The connection is closed with its reply unread.
            self.link = None;
            self.note(started, Outcome::Unknown, changes);
            return Ok(());
        }
        let result = self.send_pipeline(&lines).await;
        let outcome = match &result {
            Ok((_, replies)) => {
                let is_aborted = lines[0] == "MULTI" && replies.last() == Some(&LinkReply::Nil);
                assert!(!is_aborted, "{lines:?}");
                Outcome::Done
            }
            Err(ConnectionLost) => Outcome::Unknown,
        };
        self.note(started, outcome, changes);
        result.map(|_| ())
    }

    /// Records the start of a write, which may never finish.
    fn begin_write(&mut self, changes: &[Change]) -> u64 {
        let started = self.clock.next();
        let records = self.records(Span::unanswered(started), Outcome::Unknown, changes);
        let mut in_flight = self.history.in_flight.borrow_mut();
        in_flight.insert(self.session, records);
        started
    }

    /// Records the end of a call.
    fn note(&mut self, started: u64, outcome: Outcome, changes: Vec<Change>) {
        let span = Span::new(started, self.clock.next()).expect("the clock never goes back");
        let records = self.records(span, outcome, &changes);
        self.history.in_flight.borrow_mut().remove(&self.session);
        self.history.records.borrow_mut().extend(records);
    }

    fn records(&self, span: Span, outcome: Outcome, changes: &[Change]) -> Vec<Record> {
        let (session, action) = (self.session, self.action);
        let record = |(item, what): &Change| Record {
            item: *item,
            span,
            session,
            action,
            outcome,
            what: *what,
        };
        changes.iter().map(record).collect()
    }
}

fn transaction(lines: &[String]) -> Vec<String> {
    let (begin, end) = ("MULTI".to_owned(), "EXEC".to_owned());
    let all = [begin].into_iter().chain(lines.iter().cloned());
    all.chain([end]).collect()
}

fn vote_line(thing: u64, voter: u64, put: bool) -> String {
    if put {
        format!("SET vote|{thing}|{voter} 1")
    } else {
        format!("DEL vote|{thing}|{voter}")
    }
}

fn vote(thing: u64, voter: u64, put: bool) -> Vec<Change> {
    let change = |element| {
        if put {
            RecordKind::PutElement(element)
        } else {
            RecordKind::RemoveElement(element)
        }
    };
    vec![
        (Kind::Voters.of(thing), change(voter)),
        (Kind::VotesBy.of(voter), change(thing)),
    ]
}

fn transfer(thing: u64, by: i32) -> Vec<Change> {
    vec![
        (Kind::Credits.of(thing), RecordKind::AddCount(by)),
        (Kind::Debits.of(thing), RecordKind::AddCount(-by)),
    ]
}

/// Decodes `3`, or `1|2` for a thing and a voter.
fn element(rest: &str) -> u64 {
    let number = |text: &str| -> u64 { text.parse().expect("a number") };
    match rest.split_once('|') {
        None => number(rest),
        Some((thing, voter)) => number(thing) * ITEMS + number(voter),
    }
}

/// Returns the elements of the last reply.
fn elements_of_last(replies: &[LinkReply]) -> &[LinkReply] {
    match replies.last() {
        Some(LinkReply::Many(all)) => all,
        other => panic!("{other:?}"),
    }
}

/// Returns a number; 0 for an absent value.
fn count(reply: &LinkReply) -> i64 {
    match reply {
        LinkReply::Nil => 0,
        LinkReply::Number(number) => *number,
        LinkReply::Text(text) => text.parse().expect("a number"),
        other => panic!("{other:?}"),
    }
}
