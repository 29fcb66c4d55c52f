//! The demo's second act: users post and read timelines, which a join keeps fresh.

use std::time::{Duration, Instant};

use larder_client::RespClient;
use larder_types::Random;

use crate::demo::graph::Graph;
use crate::demo::social::Social;
use crate::failure::Failure;
use crate::output::{StepPrinter, count, duration, print_line, rate};

const JOIN: &str =
    "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>";
/// Maximum number of users who read their timelines.
const READERS_MAX: usize = 5_000;
/// Maximum number of posts before the first read, and number of posts afterwards.
const OLD_POSTS_MAX: usize = 20_000;
const NEW_POSTS: usize = 2_000;
/// Number of timelines that are compared with recomputed ones.
const TIMELINES_COMPARED: usize = 500;

/// Runs the act.
pub fn run(
    address: &str,
    graph: &Graph,
    seed: u64,
    story: &mut StepPrinter,
) -> Result<(), Failure> {
    print_line(
        "Second act. The same people write posts, and each reads what their friends wrote:\n",
    )?;
    let client = RespClient::new(address);
    let mut act = Act {
        social: Social::new(&client, graph),
        random: Random::new(seed ^ 0x7477_6970),
        graph,
    };
    act.declare(&client, story)?;
    let readers = act.pick_readers();
    act.read_first(&readers, story)?;
    act.post_and_read(&readers, story)?;
    act.follow_and_unfollow(&readers, story)?;
    act.post_as_celebrity(story)
}

struct Act<'a> {
    social: Social<'a>,
    random: Random,
    graph: &'a Graph,
}

impl Act<'_> {
    fn declare(&mut self, client: &RespClient, story: &mut StepPrinter) -> Result<(), Failure> {
        client.command(&[b"JOIN.CREATE", b"timeline", JOIN.as_bytes()])?;
        let started = Instant::now();
        let subscriptions = self.social.follow_friends()?;
        let followed = started.elapsed();
        let posts = OLD_POSTS_MAX.min(self.graph.len());
        let authors = self.pick_authors(posts);
        let started = Instant::now();
        self.social.post_all(&authors)?;
        story.print_step(
            "Declare a timeline, and let people follow their friends",
            &[
                format!("JOIN.CREATE timeline '{JOIN}'"),
                format!(
                    "{} subscriptions written in {} ({}/s), {} posts in {}; no timeline has been read yet, so none is materialized",
                    count(subscriptions),
                    duration(followed),
                    count(rate(subscriptions, followed) as u64),
                    count(posts as u64),
                    duration(started.elapsed())
                ),
            ],
        )
    }

    /// Chooses authors in proportion to their number of friendships.
    fn pick_authors(&mut self, posts: usize) -> Vec<u32> {
        let mut authors = Vec::with_capacity(posts);
        while authors.len() < posts {
            let somebody = self.random.below(self.graph.len() as u64) as u32;
            authors.extend(self.random.choose(self.graph.friends(somebody)));
        }
        authors
    }

    /// Chooses different users at random.
    fn pick_readers(&mut self) -> Vec<u32> {
        let mut users: Vec<u32> = (0..self.graph.len() as u32).collect();
        for at in (1..users.len()).rev() {
            users.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        users.truncate(READERS_MAX);
        users
    }

    fn read_first(&mut self, readers: &[u32], story: &mut StepPrinter) -> Result<(), Failure> {
        let started = Instant::now();
        let rows = count_rows(&self.social.read(readers)?);
        let first = started.elapsed();
        let started = Instant::now();
        self.social.read(readers)?;
        let again = started.elapsed();
        story.print_step(
            "Read timelines: computed at the first read, kept from then on",
            &[format!(
                "{} users read {} posts in {}; the same again in {}",
                count(readers.len() as u64),
                count(rows),
                duration(first),
                duration(again)
            )],
        )
    }

    fn post_and_read(&mut self, readers: &[u32], story: &mut StepPrinter) -> Result<(), Failure> {
        let authors = self.pick_authors(NEW_POSTS);
        let mut times: Vec<Duration> = Vec::with_capacity(authors.len());
        let first = self.social.posts_count;
        for author in authors {
            let started = Instant::now();
            self.social.post(author)?;
            times.push(started.elapsed());
        }
        times.sort();
        let started = Instant::now();
        let news = count_rows(
            &self
                .social
                .read_since(readers, self.social.time_of(first))?,
        );
        let read = started.elapsed();
        let sample = &readers[..readers.len().min(TIMELINES_COMPARED)];
        let compared = self.social.check(sample)?;
        story.print_step(
            "Post, and read the new posts",
            &[
                format!(
                    "{} posts, one after another: half within {}, 99% within {}, the slowest {};",
                    count(times.len() as u64),
                    duration(times[times.len() / 2]),
                    duration(times[times.len() * 99 / 100]),
                    duration(times[times.len() - 1])
                ),
                "the reply came when every timeline in use had the post".to_owned(),
                format!(
                    "{} users read what came since, {} rows, in {} ({} reads/s over one connection)",
                    count(readers.len() as u64),
                    count(news),
                    duration(read),
                    count(rate(readers.len() as u64, read) as u64)
                ),
                format!(
                    "{} timelines compared with ones computed from scratch, {} rows: all equal",
                    count(sample.len() as u64),
                    count(compared)
                ),
            ],
        )
    }

    /// A user follows a stranger, reads the stranger's earlier posts, and ends the subscription.
    fn follow_and_unfollow(
        &mut self,
        readers: &[u32],
        story: &mut StepPrinter,
    ) -> Result<(), Failure> {
        let user = readers[0];
        let strangers = self.pick_authors(1_000);
        let stranger = strangers.into_iter().find(|author| {
            *author != user
                && self.social.posts_of(*author) > 0
                && self.graph.friends(user).binary_search(author).is_err()
        });
        let Some(stranger) = stranger else {
            return print_line("Everybody knows everybody here: there is no stranger to follow.\n");
        };
        let of_stranger = |act: &Act| -> Result<(usize, Duration), Failure> {
            let started = Instant::now();
            let timelines = act.social.read(&[user])?;
            let took = started.elapsed();
            act.social.check(&[user])?;
            let rows = timelines[0].iter().filter(|row| row.1 == stranger);
            Ok((rows.count(), took))
        };
        let posts = self.social.posts_of(stranger);
        let (before, _) = of_stranger(self)?;
        self.social.follow(user, stranger, true)?;
        let (during, followed) = of_stranger(self)?;
        self.social.follow(user, stranger, false)?;
        let (after, unfollowed) = of_stranger(self)?;
        if (before, during, after) != (0, posts, 0) {
            return Err(Failure::new(format!(
                "of {posts} posts of a stranger a timeline had {before} before, {during} while following and {after} after"
            )));
        }
        let [user, stranger] = [user, stranger].map(|user| self.social.name(user));
        story.print_step(
            "Follow another user, and unfollow again",
            &[
                format!(
                    "SET sub|{user}|{stranger} 1: all {} of {stranger}'s posts are in {user}'s timeline; that read took {}",
                    count(posts as u64),
                    duration(followed)
                ),
                format!(
                    "DEL sub|{user}|{stranger}: the posts are gone; that read took {}",
                    duration(unfollowed)
                ),
            ],
        )
    }

    /// The user with the most friends posts while all friends' timelines are materialized.
    fn post_as_celebrity(&mut self, story: &mut StepPrinter) -> Result<(), Failure> {
        let users = 0..self.graph.len() as u32;
        let Some(author) = users.max_by_key(|user| self.graph.friends(*user).len()) else {
            return Ok(());
        };
        let followers = self.graph.friends(author);
        self.social.read(followers)?;
        let started = Instant::now();
        let time = self.social.post(author)?;
        let posted = started.elapsed();
        let started = Instant::now();
        let timelines = self.social.read_since(followers, time)?;
        let read = started.elapsed();
        let have = timelines
            .iter()
            .filter(|rows| matches!(rows.as_slice(), [(at, by, _)] if *at == time && *by == author))
            .count();
        if have != followers.len() {
            return Err(Failure::new(format!(
                "a post is in {have} of {} timelines",
                followers.len()
            )));
        }
        self.social
            .check(&followers[..followers.len().min(TIMELINES_COMPARED)])?;
        story.print_step(
            "A celebrity posts",
            &[
                format!(
                    "user {} has {} followers, all with their timelines in use",
                    self.social.name(author),
                    count(followers.len() as u64)
                ),
                format!(
                    "one SET, answered after {}: the post is in {} of {} timelines; reading them all took {}",
                    duration(posted),
                    count(have as u64),
                    count(followers.len() as u64),
                    duration(read)
                ),
            ],
        )
    }
}

fn count_rows<T>(timelines: &[Vec<T>]) -> u64 {
    timelines.iter().map(|rows| rows.len() as u64).sum()
}
