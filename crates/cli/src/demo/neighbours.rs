//! "People you may know": for each user, the people with the most common friends who are not yet friends.
//!
//! The work is limited: of a friend with more than [`FRIENDS_EXAMINED_MAX`] friends, only so many, evenly spaced, are
//! examined. A common friend who is a celebrity means little anyway.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::demo::graph::Graph;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::{Progress, Unit};

const FRIENDS_EXAMINED_MAX: usize = 1_000;
const PEOPLE_PER_USER: usize = 20;
/// Users that a thread computes per access to the shared counter.
const USERS_PER_STEP: usize = 256;

/// Number of users who have more friends than are examined.
pub fn hubs(graph: &Graph) -> usize {
    let is_hub = |user: &u32| graph.friends(*user).len() > FRIENDS_EXAMINED_MAX;
    (0..graph.len() as u32).filter(is_hub).count()
}

pub fn hub_friends_min() -> usize {
    FRIENDS_EXAMINED_MAX
}

/// Writes one JSON line per user: `member`, the `build` tag, and `people` with their scores. Each thread writes a
/// separate file, `part-<n>.jsonl`, like a batch job.
pub fn write_recommendations(
    graph: &Graph,
    build: u32,
    folder: &Path,
    threads: usize,
) -> Result<(), Failure> {
    let progress = Progress::new(Unit::Records, "computing", false);
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let work = |thread: usize| -> Result<(), Failure> {
        let path = folder.join(format!("part-{thread}.jsonl"));
        let writing = || Failure::io(format!("write {}", path.display()));
        let file = std::fs::File::create(&path).map_err(writing())?;
        let mut out = std::io::BufWriter::with_capacity(1 << 16, file);
        let mut scratch = Scratch::new(graph.len());
        loop {
            interrupt::check()?;
            let first = next.fetch_add(USERS_PER_STEP, Ordering::Relaxed);
            if first >= graph.len() {
                return out.flush().map_err(writing());
            }
            let last = (first + USERS_PER_STEP).min(graph.len());
            for user in first as u32..last as u32 {
                let people = scratch.people_for(graph, user);
                write_line(&mut out, graph, build, user, &people).map_err(writing())?;
            }
            let total = done.fetch_add(last - first, Ordering::Relaxed) + last - first;
            progress.set("computing", total as u64, graph.len() as u64);
        }
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        running
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the computation does not panic"))
    })
}

fn write_line(
    out: &mut impl Write,
    graph: &Graph,
    build: u32,
    user: u32,
    people: &[Person],
) -> std::io::Result<()> {
    let name = |user| serde_json::Value::from(graph.name(user));
    write!(
        out,
        "{{\"member\":{},\"build\":{build},\"people\":[",
        name(user)
    )?;
    for (index, person) in people.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(
            out,
            "{comma}{{\"member\":{},\"score\":{}}}",
            name(person.user),
            person.common_friends
        )?;
    }
    out.write_all(b"]}\n")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Person {
    user: u32,
    common_friends: u32,
}

/// Counters for every user; all zero between two calls.
struct Scratch {
    common: Vec<u32>,
    seen: Vec<u32>,
}

impl Scratch {
    fn new(users: usize) -> Scratch {
        Scratch {
            common: vec![0; users],
            seen: Vec::new(),
        }
    }

    /// Returns the people with the most common friends, then by number.
    fn people_for(&mut self, graph: &Graph, user: u32) -> Vec<Person> {
        for &friend in graph.friends(user) {
            let theirs = graph.friends(friend);
            let step = theirs.len().div_ceil(FRIENDS_EXAMINED_MAX).max(1);
            for &other in theirs.iter().step_by(step) {
                if self.common[other as usize] == 0 {
                    self.seen.push(other);
                }
                self.common[other as usize] += 1;
            }
        }
        // The user and their friends are not recommended.
        for &known in graph.friends(user).iter().chain([&user]) {
            self.common[known as usize] = 0;
        }
        let mut people = Vec::new();
        for other in self.seen.drain(..) {
            let common_friends = std::mem::take(&mut self.common[other as usize]);
            if common_friends > 0 {
                people.push(Person {
                    user: other,
                    common_friends,
                });
            }
        }
        let best_first = |person: &Person| (std::cmp::Reverse(person.common_friends), person.user);
        if people.len() > PEOPLE_PER_USER {
            people.select_nth_unstable_by_key(PEOPLE_PER_USER - 1, best_first);
            people.truncate(PEOPLE_PER_USER);
        }
        people.sort_unstable_by_key(best_first);
        people
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A direct implementation of the definition.
    fn people_by_definition(graph: &Graph, user: u32) -> Vec<Person> {
        let mut people: Vec<Person> = (0..graph.len() as u32)
            .filter(|other| *other != user && !graph.friends(user).contains(other))
            .map(|other| {
                let shared = graph
                    .friends(user)
                    .iter()
                    .filter(|friend| graph.friends(other).contains(friend));
                Person {
                    user: other,
                    common_friends: shared.count() as u32,
                }
            })
            .filter(|person| person.common_friends > 0)
            .collect();
        people.sort_by_key(|person| (std::cmp::Reverse(person.common_friends), person.user));
        people.truncate(PEOPLE_PER_USER);
        people
    }

    #[test]
    fn people_are_those_with_most_common_friends_by_definition() {
        let graph = Graph::generate(300, 7);
        let mut scratch = Scratch::new(graph.len());
        for user in 0..300 {
            assert_eq!(
                scratch.people_for(&graph, user),
                people_by_definition(&graph, user),
                "{user}"
            );
        }
    }
}
