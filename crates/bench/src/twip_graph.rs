//! The graph of followers: generated with a few very popular users, or read from an edge list.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use larder_types::Random;

use crate::Result;

/// Draws numbers by weight.
pub struct Weighted {
    sums: Vec<f64>,
}

impl Weighted {
    pub fn new(weights: &[f64]) -> Self {
        let sums = weights
            .iter()
            .scan(0.0, |sum, w| {
                *sum += w;
                Some(*sum)
            })
            .collect();
        Weighted { sums }
    }

    pub fn pick(&self, random: &mut Random) -> usize {
        let at = random.unit() * self.sums.last().copied().unwrap_or(0.0);
        self.sums
            .partition_point(|sum| *sum <= at)
            .min(self.sums.len() - 1)
    }
}

pub struct Graph {
    pub users: usize,
    /// Follower and followed.
    pub edges: Vec<(u32, u32)>,
    pub popularity: Weighted,
}

/// Generates a graph in which each user follows 20 to 200 others. User number i of n has the weight 10 + (i/n)^8 * max,
/// where max is the first of n, 0.7 n, 0.49 n, ... that is at most n/4.
pub fn generate(users: usize, random: &mut Random) -> Graph {
    let mut max = users as f64;
    while max > users as f64 / 4.0 {
        max *= 0.7;
    }
    let mut weights: Vec<f64> = (0..users)
        .map(|i| 10.0 + (i as f64 / users as f64).powi(8) * max)
        .collect();
    random.shuffle(&mut weights);
    let popularity = Weighted::new(&weights);
    let mut edges = Vec::with_capacity(users * 110);
    let mut seen = vec![u32::MAX; users];
    for user in 0..users as u32 {
        let selected = (20 + random.index(181)).min(users / 2);
        let mut found = 0;
        while found < selected {
            let other = popularity.pick(random) as u32;
            if other != user && seen[other as usize] != user {
                seen[other as usize] = user;
                edges.push((user, other));
                found += 1;
            }
        }
    }
    Graph {
        users,
        edges,
        popularity,
    }
}

/// Reads lines of two numbers, the follower first. Lines that begin with `#` and self-loops are skipped. A file that
/// ends in `.gz` is decompressed.
pub fn read(path: &Path) -> Result<Graph> {
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    let mut edges = Vec::new();
    let file = File::open(path)?;
    let file: Box<dyn Read> = match path.extension() {
        Some(end) if end == "gz" => Box::new(flate2::read::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    for line in BufReader::new(file).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        let (Some(a), Some(b)) = (words.next(), words.next()) else {
            continue;
        };
        let (Ok(a), Ok(b)) = (a.parse::<u64>(), b.parse::<u64>()) else {
            continue;
        };
        if a == b {
            continue;
        }
        let mut number = |id| {
            let next = numbers.len() as u32;
            *numbers.entry(id).or_insert(next)
        };
        edges.push((number(a), number(b)));
    }
    edges.sort_unstable();
    edges.dedup();
    let users = numbers.len();
    let mut followers = vec![1.0; users];
    for (_, followed) in &edges {
        followers[*followed as usize] += 1.0;
    }
    Ok(Graph {
        users,
        edges,
        popularity: Weighted::new(&followers),
    })
}
