//! The subscriptions and posts that the demo has written to the server, and the timelines that follow from them.
//!
//! Rows are `sub|user|author` and `post|author|time`; timelines are `tline|user|time|author`. All writes are recorded
//! here, so that timelines can be compared with recomputed ones.

use std::collections::{BTreeSet, HashMap};

use larder_client::{Reply, RespClient};

use crate::demo::graph::Graph;
use crate::failure::Failure;

/// Commands in one pipeline.
const PIPELINE_LENGTH: usize = 64;
/// Rows in one MSET.
const ROWS: usize = 200;
/// Times count up from here. They have ten digits, so that they sort as text.
const FIRST_TIME: u64 = 1_000_000_000;

type Command = Vec<Vec<u8>>;
/// A row of a timeline: time, author, text.
pub type Row = (u64, u32, String);

pub struct Social<'a> {
    client: &'a RespClient,
    graph: &'a Graph,
    /// Set if keys contain user numbers, because a name would end a slot. Otherwise keys contain the graph's names.
    numbers: Option<HashMap<&'a str, u32>>,
    /// Differences from the graph: additional and ended subscriptions.
    followed: BTreeSet<(u32, u32)>,
    unfollowed: BTreeSet<(u32, u32)>,
    /// The times of each user's posts.
    posts: Vec<Vec<u64>>,
    pub posts_count: u64,
}

impl<'a> Social<'a> {
    pub fn new(client: &'a RespClient, graph: &'a Graph) -> Social<'a> {
        let names = || (0..graph.len() as u32).map(|user| (graph.name(user), user));
        let fit = names().all(|(name, _)| !name.contains('|'));
        Social {
            client,
            graph,
            numbers: fit.then(|| names().collect()),
            followed: BTreeSet::new(),
            unfollowed: BTreeSet::new(),
            posts: vec![Vec::new(); graph.len()],
            posts_count: 0,
        }
    }

    pub fn name(&self, user: u32) -> String {
        match self.numbers {
            Some(_) => self.graph.name(user).to_owned(),
            None => user.to_string(),
        }
    }

    /// Makes every user follow their friends. Returns the number of rows.
    pub fn follow_friends(&self) -> Result<u64, Failure> {
        let mut commands: Vec<Command> = Vec::new();
        let (mut rows, mut all) = (0, 0);
        for user in 0..self.graph.len() as u32 {
            for friend in self.graph.friends(user) {
                if rows == 0 {
                    commands.push(vec![b"MSET".to_vec()]);
                }
                if let Some(command) = commands.last_mut() {
                    command.push(self.subscription(user, *friend));
                    command.push(b"1".to_vec());
                }
                (rows, all) = ((rows + 1) % ROWS, all + 1);
            }
            if commands.len() > PIPELINE_LENGTH {
                let last = commands.pop();
                self.send_all(&commands)?;
                commands = last.into_iter().collect();
            }
        }
        self.send_all(&commands)?;
        Ok(all)
    }

    /// Makes the user follow the author, or ends the subscription.
    pub fn follow(&mut self, user: u32, author: u32, follows: bool) -> Result<(), Failure> {
        let key = self.subscription(user, author);
        let (add, remove) = if follows {
            (&mut self.followed, &mut self.unfollowed)
        } else {
            (&mut self.unfollowed, &mut self.followed)
        };
        add.insert((user, author));
        remove.remove(&(user, author));
        let command = if follows {
            vec![b"SET".to_vec(), key, b"1".to_vec()]
        } else {
            vec![b"DEL".to_vec(), key]
        };
        self.send_all(&[command]).map(drop)
    }

    /// Posts as the author, at the next time. Returns that time.
    pub fn post(&mut self, author: u32) -> Result<u64, Failure> {
        let (time, command) = self.next_post(author);
        self.send_all(&[command])?;
        Ok(time)
    }

    /// Posts once as each author.
    pub fn post_all(&mut self, authors: &[u32]) -> Result<(), Failure> {
        let mut commands = Vec::with_capacity(authors.len());
        for &author in authors {
            commands.push(self.next_post(author).1);
        }
        self.send_all(&commands).map(drop)
    }

    fn next_post(&mut self, author: u32) -> (u64, Command) {
        let time = self.time_of(self.posts_count);
        self.posts_count += 1;
        self.posts[author as usize].push(time);
        let key = format!("post|{}|{time}", self.name(author)).into_bytes();
        (
            time,
            vec![b"SET".to_vec(), key, self.text(author, time).into_bytes()],
        )
    }

    fn text(&self, author: u32, time: u64) -> String {
        format!(
            "{} says hello, post {}",
            self.name(author),
            time - FIRST_TIME + 1
        )
    }

    /// Reads the complete timeline of each user from the server.
    pub fn read(&self, users: &[u32]) -> Result<Vec<Vec<Row>>, Failure> {
        self.read_since(users, 0)
    }

    /// Reads the rows of the timelines from a time on.
    pub fn read_since(&self, users: &[u32], time: u64) -> Result<Vec<Vec<Row>>, Failure> {
        let command = |user: &u32| {
            let name = self.name(*user);
            let from = match time {
                0 => format!("tline|{name}|"),
                _ => format!("tline|{name}|{time}"),
            };
            vec![
                b"RANGE".to_vec(),
                from.into_bytes(),
                format!("tline|{name}}}").into_bytes(),
            ]
        };
        let replies = self.send_all(&users.iter().map(command).collect::<Vec<_>>())?;
        let rows = replies.iter().zip(users);
        rows.map(|(reply, user)| self.parse_rows(*user, reply))
            .collect()
    }

    fn parse_rows(&self, user: u32, reply: &Reply) -> Result<Vec<Row>, Failure> {
        let strange = || Failure::new(format!("the timeline of {} is {reply:?}", self.name(user)));
        let Reply::Array(items) = reply else {
            return Err(strange());
        };
        let text = |reply: &Reply| match reply {
            Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).ok(),
            _ => None,
        };
        let mut rows = Vec::with_capacity(items.len() / 2);
        for pair in items.chunks(2) {
            let key = pair.first().and_then(text).ok_or_else(strange)?;
            let value = pair.get(1).and_then(text).ok_or_else(strange)?;
            let mut words = key.split('|').skip(2);
            let time = words.next().and_then(|time| time.parse().ok());
            let author = words.next().and_then(|name| self.number(name));
            rows.push((
                time.ok_or_else(strange)?,
                author.ok_or_else(strange)?,
                value,
            ));
        }
        Ok(rows)
    }

    fn number(&self, name: &str) -> Option<u32> {
        match &self.numbers {
            Some(numbers) => numbers.get(name).copied(),
            None => name.parse().ok(),
        }
    }

    /// Recomputes a timeline from all writes.
    pub fn expected(&self, user: u32) -> Vec<Row> {
        let friends = self.graph.friends(user).iter().copied();
        let more = self.followed.range((user, 0)..=(user, u32::MAX));
        let authors: BTreeSet<u32> = friends.chain(more.map(|pair| pair.1)).collect();
        let mut rows: Vec<Row> = Vec::new();
        for author in authors {
            if self.unfollowed.contains(&(user, author)) {
                continue;
            }
            let times = self.posts[author as usize].iter();
            rows.extend(times.map(|&time| (time, author, self.text(author, time))));
        }
        rows.sort();
        rows
    }

    /// Compares the server's timelines with recomputed ones. Returns the number of rows compared.
    pub fn check(&self, users: &[u32]) -> Result<u64, Failure> {
        let mut compared = 0;
        for (rows, &user) in self.read(users)?.iter().zip(users) {
            let expected = self.expected(user);
            if *rows != expected {
                return Err(Failure::new(format!(
                    "the timeline of {} has {} rows, and {} others are right",
                    self.name(user),
                    rows.len(),
                    expected.len()
                )));
            }
            compared += rows.len() as u64;
        }
        Ok(compared)
    }

    /// Number of a user's posts.
    pub fn posts_of(&self, author: u32) -> usize {
        self.posts[author as usize].len()
    }

    /// Returns the time of the post with this number.
    pub fn time_of(&self, post: u64) -> u64 {
        FIRST_TIME + post
    }

    fn subscription(&self, user: u32, author: u32) -> Vec<u8> {
        format!("sub|{}|{}", self.name(user), self.name(author)).into_bytes()
    }

    /// Sends commands in pipelines. An error reply is a failure.
    fn send_all(&self, commands: &[Command]) -> Result<Vec<Reply>, Failure> {
        let mut replies = Vec::with_capacity(commands.len());
        for some in commands.chunks(PIPELINE_LENGTH) {
            let parts: Vec<Vec<&[u8]>> = some
                .iter()
                .map(|command| command.iter().map(Vec::as_slice).collect())
                .collect();
            let parts: Vec<&[&[u8]]> = parts.iter().map(Vec::as_slice).collect();
            replies.extend(self.client.pipeline(&parts)?);
        }
        match replies
            .iter()
            .find(|reply| matches!(reply, Reply::Error(_)))
        {
            Some(Reply::Error(error)) => Err(Failure::new(format!(
                "the server rejected a command: {} {}",
                error.code, error.message
            ))),
            _ => Ok(replies),
        }
    }
}
