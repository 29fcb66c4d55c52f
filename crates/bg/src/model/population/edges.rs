//! Reads the friendships of a real graph from a file. Each line has two numbers, separated by space, tab or comma; `#`
//! and `%` start comments. The file may be compressed with gzip. Members are renumbered in the order of their numbers
//! in the file.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::graph::Graph;

/// Reads a graph.
///
/// # Errors
///
/// The file cannot be read, or a line is not a friendship.
pub fn read(path: &Path) -> Result<Graph, String> {
    let fail = |why: &dyn std::fmt::Display| format!("--edges {}: {why}", path.display());
    let mut file = BufReader::new(File::open(path).map_err(|why| fail(&why))?);
    let packed = file
        .fill_buf()
        .map_err(|why| fail(&why))?
        .starts_with(&[0x1f, 0x8b]);
    let text: Box<dyn Read> = if packed {
        Box::new(MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    let mut edges = Vec::new();
    let mut lines = BufReader::with_capacity(1 << 16, text);
    let mut line = String::new();
    let mut number = 0u64;
    loop {
        line.clear();
        number += 1;
        if lines.read_line(&mut line).map_err(|why| fail(&why))? == 0 {
            break;
        }
        let text = line.trim();
        if text.is_empty() || text.starts_with(['#', '%']) {
            continue;
        }
        let mut words = text.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let mut member = || words.next().and_then(|word| word.parse::<u64>().ok());
        match (member(), member()) {
            (Some(one), Some(other)) => edges.push((one, other)),
            _ => {
                return Err(fail(&format_args!(
                    "line {number} does not contain two numbers: {text}"
                )));
            }
        }
    }
    renumber(&edges).map_err(|why| fail(&why))
}

fn renumber(edges: &[(u64, u64)]) -> Result<Graph, String> {
    let mut names: Vec<u64> = edges
        .iter()
        .flat_map(|(one, other)| [*one, *other])
        .collect();
    names.sort_unstable();
    names.dedup();
    let members = u32::try_from(names.len()).map_err(|_| "more than 2^32 members".to_owned())?;
    let number = |name: u64| names.partition_point(|other| *other < name) as u32;
    let edges: Vec<(u32, u32)> = edges
        .iter()
        .map(|(one, other)| (number(*one), number(*other)))
        .collect();
    match members {
        0 => Err("the file contains no friendships".to_owned()),
        _ => Ok(Graph::new(members, &edges)),
    }
}
