//! Twip's operations, and the expected results of each system.
//!
//! There are 10 new subscriptions, 5 logouts and 100 timeline checks for each post. 70 % of the users are active. One
//! operation is one tick of time. A check reads the rows since the last one, without the newest ticks.

use std::collections::{HashSet, VecDeque};

use larder_types::Random;

use crate::twip::{START, poster_weight};
use crate::twip_graph::{Graph, Weighted};

const LOGIN_WINDOW: u64 = 1_000_000;
/// The maximum number of attempts to draw a poster that the user does not follow yet.
const DRAWS_MAX: usize = 8;
/// A time after all others.
pub const FOREVER: u64 = 9_999_999_999;

#[derive(Clone, Copy)]
pub enum Operation {
    Post {
        poster: u32,
        time: u64,
    },
    Subscribe {
        user: u32,
        poster: u32,
    },
    /// A read of the user's timeline from `since` (inclusive) to `until` (exclusive).
    Check {
        user: u32,
        since: u64,
        until: u64,
    },
    /// Changes only the client's own state.
    Logout,
}

/// The number of rows read, and an order-independent checksum.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct ReadChecksum {
    pub rows: u64,
    pub sum: u64,
}

impl ReadChecksum {
    pub fn row(&mut self, user: u32, time: u64, poster: u32) {
        let mut mixed = time
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(u64::from(user) << 32 | u64::from(poster));
        mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        self.rows += 1;
        self.sum = self.sum.wrapping_add(mixed ^ (mixed >> 32));
    }
}

pub struct Workload {
    pub users: usize,
    /// For each user, the initial followers.
    pub followers: Vec<Vec<u32>>,
    pub subscriptions: usize,
    pub active: Vec<u32>,
    pub operations: Vec<Operation>,
}

impl Workload {
    pub fn new(graph: &Graph, operations: usize, held_back: u64, random: &mut Random) -> Workload {
        let mut followers: Vec<Vec<u32>> = vec![Vec::new(); graph.users];
        for &(user, poster) in &graph.edges {
            followers[poster as usize].push(user);
        }
        let mut active: Vec<u32> = (0..graph.users as u32).collect();
        random.shuffle(&mut active);
        active.truncate((graph.users * 70 / 100).max(1));
        let weights: Vec<f64> = followers
            .iter()
            .map(|all| poster_weight(all.len() as u32, random))
            .collect();
        let posters = Weighted::new(&weights);
        let mut known: HashSet<(u32, u32)> = graph.edges.iter().copied().collect();
        let mut last_read: Vec<Option<u64>> = vec![None; graph.users];
        let (mut logged_in, mut next_active) = (VecDeque::new(), 0);
        let operations = (0..operations as u64).map(|tick| {
            let now = START + tick;
            match random.index(116) {
                0 => Operation::Post {
                    poster: posters.pick(random) as u32,
                    time: now,
                },
                1..=10 => {
                    let user = active[random.index(active.len())];
                    let mut draws =
                        (0..DRAWS_MAX).map(|_| (user, graph.popularity.pick(random) as u32));
                    draws
                        .find(|&(user, poster)| poster != user && known.insert((user, poster)))
                        .map_or(Operation::Logout, |(user, poster)| Operation::Subscribe {
                            user,
                            poster,
                        })
                }
                11..=15 => {
                    if let Some(user) = logged_in.pop_front() {
                        last_read[user as usize] = None;
                    }
                    Operation::Logout
                }
                _ => {
                    let user: u32 = active[next_active];
                    next_active = (next_active + 1) % active.len();
                    let since = last_read[user as usize];
                    if since.is_none() {
                        logged_in.push_back(user);
                    }
                    let until = now - held_back;
                    last_read[user as usize] = Some(until);
                    Operation::Check {
                        user,
                        since: since.unwrap_or(now - LOGIN_WINDOW),
                        until,
                    }
                }
            }
        });
        Workload {
            users: graph.users,
            operations: operations.collect(),
            subscriptions: graph.edges.len(),
            followers,
            active,
        }
    }

    /// Returns the expected result of the first `count` operations, and then of reading the complete timelines of all
    /// active users.
    pub fn expected(&self, count: usize) -> (ReadChecksum, ReadChecksum) {
        let mut followers = self.followers.clone();
        let mut posts: Vec<Vec<u64>> = vec![Vec::new(); self.users];
        let mut timelines: Vec<Vec<(u64, u32)>> = vec![Vec::new(); self.users];
        let mut read = ReadChecksum::default();
        for operation in &self.operations[..count] {
            match *operation {
                Operation::Post { poster, time } => {
                    posts[poster as usize].push(time);
                    for &user in &followers[poster as usize] {
                        timelines[user as usize].push((time, poster));
                    }
                }
                Operation::Subscribe { user, poster } => {
                    followers[poster as usize].push(user);
                    for &time in &posts[poster as usize] {
                        let timeline = &mut timelines[user as usize];
                        let at = timeline.partition_point(|row| *row < (time, poster));
                        timeline.insert(at, (time, poster));
                    }
                }
                Operation::Check { user, since, until } => {
                    let timeline = &timelines[user as usize];
                    let from = timeline.partition_point(|row| row.0 < since);
                    let rows = timeline[from..].iter().take_while(|row| row.0 < until);
                    rows.for_each(|&(time, poster)| read.row(user, time, poster));
                }
                Operation::Logout => {}
            }
        }
        let mut last = ReadChecksum::default();
        for &user in &self.active {
            for &(time, poster) in &timelines[user as usize] {
                last.row(user, time, poster);
            }
        }
        (read, last)
    }

    /// Returns how many of the first `count` operations are posts, subscriptions and checks.
    pub fn kinds(&self, count: usize) -> [usize; 3] {
        let mut kinds = [0; 3];
        for operation in &self.operations[..count] {
            match operation {
                Operation::Post { .. } => kinds[0] += 1,
                Operation::Subscribe { .. } => kinds[1] += 1,
                Operation::Check { .. } => kinds[2] += 1,
                Operation::Logout => {}
            }
        }
        kinds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twip_graph;

    #[test]
    fn operations_have_the_papers_proportions_and_reads_find_rows() {
        let mut random = Random::new(7);
        let graph = twip_graph::generate(300, &mut random);
        let workload = Workload::new(&graph, 58_000, 1000, &mut random);
        let [posts, subscriptions, checks] = workload.kinds(58_000);
        assert!((400..600).contains(&posts), "{posts}");
        assert!(subscriptions > 3000, "{subscriptions}");
        assert!((49_000..51_000).contains(&checks), "{checks}");
        let (read, last) = workload.expected(58_000);
        assert!(
            read.rows > 10_000 && last.rows > 10_000,
            "{read:?} {last:?}"
        );
        assert!(
            workload.expected(1000).0.rows == 0,
            "the newest are held back"
        );
    }

    #[test]
    fn a_checksum_depends_on_the_rows_and_not_on_their_order() {
        let sum = |rows: &[(u32, u64, u32)]| {
            let mut seen = ReadChecksum::default();
            rows.iter().for_each(|&(u, t, p)| seen.row(u, t, p));
            seen
        };
        assert_eq!(sum(&[(1, 2, 3), (4, 5, 6)]), sum(&[(4, 5, 6), (1, 2, 3)]));
        assert_ne!(sum(&[(1, 2, 3)]), sum(&[(3, 2, 1)]));
        assert_ne!(sum(&[(1, 2, 3)]), sum(&[(1, 3, 2)]));
    }
}
