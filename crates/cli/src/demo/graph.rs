//! The demo's friendships: generated from a seed or read from a file, and stored as sorted adjacency lists.
//!
//! Invariants:
//! 1. Undirected, without loops or duplicate edges; each adjacency list is sorted.
//! 2. A generated graph depends only on `users` and `seed`.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use larder_types::Random;

use crate::failure::Failure;

/// A graph in one array: the friends of user `u` are `friends[starts[u]..starts[u + 1]]`.
pub struct Graph {
    names: Vec<String>,
    starts: Vec<usize>,
    friends: Vec<u32>,
}

impl Graph {
    /// Generates a graph whose degrees follow a power law: new users befriend a popular user, and then mostly friends
    /// of their friends.
    pub fn generate(users: u32, seed: u64) -> Graph {
        let mut random = Random::new(seed);
        let mut edges: Vec<(u32, u32)> = Vec::new();
        // Contains each user once per friendship, so that a uniform choice prefers popular users.
        let mut ends: Vec<u32> = vec![0];
        let mut friends: Vec<Vec<u32>> = vec![Vec::new(); users as usize];
        for user in 1..users {
            for _ in 0..2 + random.below(12) {
                let known = random.choose(&friends[user as usize]);
                let friend = match known {
                    Some(known) if random.below(10) < 8 => {
                        random.choose(&friends[known as usize]).unwrap_or(known)
                    }
                    _ => ends[random.below(ends.len() as u64) as usize],
                };
                if friend == user {
                    continue;
                }
                edges.push((user, friend));
                friends[user as usize].push(friend);
                friends[friend as usize].push(user);
                ends.push(friend);
                ends.push(user);
            }
        }
        let names = (0..users).map(|user| user.to_string()).collect();
        Graph::from_edges(names, edges)
    }

    /// Reads lines of two names, separated by spaces or tabs; `#` begins a comment. Files ending in `.gz` or `.zst` are
    /// decompressed.
    pub fn read(path: &Path) -> Result<Graph, Failure> {
        let reading = |error| Failure::io(format!("read {}", path.display()))(error);
        let mut reader = BufReader::with_capacity(1 << 16, open(path).map_err(reading)?);
        let mut ids: HashMap<String, u32> = HashMap::new();
        let mut names = Vec::new();
        let mut edges = Vec::new();
        let mut line = String::new();
        let mut line_number = 0u64;
        while reader.read_line(&mut line).map_err(reading)? > 0 {
            line_number += 1;
            let data = line.split('#').next().unwrap_or_default();
            let mut words = data.split_whitespace();
            match (words.next(), words.next()) {
                (None, _) => {}
                (Some(left), Some(right)) => {
                    let mut id = |name: &str| match ids.get(name) {
                        Some(id) => *id,
                        None => {
                            let id = names.len() as u32;
                            ids.insert(name.to_owned(), id);
                            names.push(name.to_owned());
                            id
                        }
                    };
                    edges.push((id(left), id(right)));
                }
                (Some(_), None) => {
                    return Err(Failure::new(format!(
                        "{} line {line_number}: {:?} is one name; write two, separated by a space or a tab",
                        path.display(),
                        data.trim()
                    )));
                }
            }
            line.clear();
        }
        if edges.is_empty() {
            return Err(Failure::new(format!(
                "{} contains no friendships; write two names per line",
                path.display()
            )));
        }
        Ok(Graph::from_edges(names, edges))
    }

    /// Returns the graph of the next day, with `count` more friendships between friends of friends.
    pub fn with_more_friendships(&self, count: usize, seed: u64) -> Graph {
        let mut random = Random::new(seed ^ 0x6f76_6572_6e69_6768);
        let users = self.len() as u64;
        let mut edges: Vec<(u32, u32)> = Vec::new();
        for user in 0..self.len() as u32 {
            edges.extend(
                self.friends(user)
                    .iter()
                    .filter(|other| **other > user)
                    .map(|other| (user, *other)),
            );
        }
        for _ in 0..count {
            let user = random.below(users) as u32;
            let middle = random.choose(self.friends(user));
            let friend = middle.and_then(|middle| random.choose(self.friends(middle)));
            edges.extend(friend.map(|friend| (user, friend)));
        }
        Graph::from_edges(self.names.clone(), edges)
    }

    fn from_edges(names: Vec<String>, edges: Vec<(u32, u32)>) -> Graph {
        let mut both: Vec<(u32, u32)> = Vec::with_capacity(edges.len() * 2);
        for (left, right) in edges {
            if left != right {
                both.push((left, right));
                both.push((right, left));
            }
        }
        both.sort_unstable();
        both.dedup();
        let mut starts = vec![0; names.len() + 1];
        for (user, _) in &both {
            starts[*user as usize + 1] += 1;
        }
        for index in 1..starts.len() {
            starts[index] += starts[index - 1];
        }
        Graph {
            names,
            starts,
            friends: both.into_iter().map(|(_, friend)| friend).collect(),
        }
    }

    /// Number of users.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn friendships(&self) -> usize {
        self.friends.len() / 2
    }

    pub fn name(&self, user: u32) -> &str {
        &self.names[user as usize]
    }

    pub fn friends(&self, user: u32) -> &[u32] {
        &self.friends[self.starts[user as usize]..self.starts[user as usize + 1]]
    }

    pub fn most_friends(&self) -> usize {
        (0..self.len() as u32)
            .map(|user| self.friends(user).len())
            .max()
            .unwrap_or(0)
    }
}

fn open(path: &Path) -> std::io::Result<Box<dyn Read>> {
    let file = std::fs::File::open(path)?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("gz") => Ok(Box::new(flate2::read::MultiGzDecoder::new(file))),
        Some("zst") => Ok(Box::new(zstd::Decoder::new(file)?)),
        _ => Ok(Box::new(file)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_undirected_without_loops_or_doubles() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("edges.txt");
        std::fs::write(&path, "# a comment\na b\nb\ta\r\nc c\n\nb c # another\n").unwrap();
        let graph = Graph::read(&path).unwrap();
        assert_eq!((graph.len(), graph.friendships()), (3, 2));
        assert_eq!(graph.friends(1), [0, 2]);
        assert_eq!(graph.name(2), "c");
        std::fs::write(&path, "a b\nlonely\n").unwrap();
        let error = Graph::read(&path).map(drop).unwrap_err().message;
        assert!(error.contains("line 2: \"lonely\" is one name"), "{error}");
    }

    #[test]
    fn the_same_seed_generates_the_same_graph_with_popular_users() {
        let [one, two] = [1, 1].map(|seed| Graph::generate(2_000, seed));
        assert_eq!(one.friends, two.friends);
        assert_ne!(one.friends, Graph::generate(2_000, 2).friends);
        assert!(one.most_friends() > 10 * one.friends.len() / one.len());
        assert!(one.with_more_friendships(100, 1).friendships() > one.friendships());
    }
}
