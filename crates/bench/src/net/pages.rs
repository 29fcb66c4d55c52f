//! Newp's operations, and the expected content of each page.
//!
//! A page is an article, its score, its comments, and with each comment the karma of its author: the votes for all of
//! that user's own articles. Articles have 0 to 19 comments and 0 to 49 votes at first. Most operations read a page;
//! the others vote for it or comment on it.

use std::collections::HashSet;

use larder_types::Random;

use super::workload::ReadChecksum;

/// The maximum number of attempts to draw a voter who has not voted yet.
const DRAWS_MAX: usize = 8;

#[derive(Clone, Copy)]
pub enum Operation {
    /// Writes the initial text, before the clock starts.
    Article {
        article: u32,
    },
    Read {
        article: u32,
    },
    Vote {
        article: u32,
        voter: u32,
    },
    Comment {
        article: u32,
        number: u32,
        commenter: u32,
    },
}

#[derive(Clone, Default)]
struct Article {
    votes: u64,
    commenters: Vec<u32>,
}

pub struct Pages {
    pub users: u32,
    pub articles: u32,
    /// The votes and comments before the clock starts.
    pub initial: Vec<Operation>,
    pub operations: Vec<Operation>,
}

/// Returns the author of an article.
pub fn author(users: u32, article: u32) -> u32 {
    article % users
}

impl Pages {
    /// `rates` contains the percentages of votes and of comments.
    pub fn new(
        articles: u32,
        users: u32,
        count: usize,
        rates: (usize, usize),
        random: &mut Random,
    ) -> Pages {
        let mut voted: HashSet<(u32, u32)> = HashSet::new();
        let mut comments = vec![0; articles as usize];
        let mut vote = |article: u32, random: &mut Random| {
            let mut draws = (0..DRAWS_MAX).map(|_| random.index(users as usize) as u32);
            let voter = draws.find(|voter| voted.insert((article, *voter)));
            voter.map(|voter| Operation::Vote { article, voter })
        };
        let mut comment = |article: u32, random: &mut Random| {
            let number: u32 = comments[article as usize];
            comments[article as usize] += 1;
            let commenter = random.index(users as usize) as u32;
            Operation::Comment {
                article,
                number,
                commenter,
            }
        };
        let mut before = Vec::new();
        for article in 0..articles {
            for _ in 0..random.index(50) {
                before.extend(vote(article, random));
            }
            for _ in 0..random.index(20) {
                before.push(comment(article, random));
            }
        }
        let operations = (0..count).map(|_| {
            let kind = random.index(100);
            let article = random.index(articles as usize) as u32;
            let read = Operation::Read { article };
            if kind < rates.0 {
                vote(article, random).unwrap_or(read)
            } else if kind < rates.0 + rates.1 {
                comment(article, random)
            } else {
                read
            }
        });
        Pages {
            users,
            articles,
            operations: operations.collect(),
            initial: before,
        }
    }

    /// Returns the expected result of the operations' reads, and then of reading all pages once.
    pub fn expected(&self) -> (ReadChecksum, ReadChecksum) {
        let mut articles = vec![Article::default(); self.articles as usize];
        let mut karma = vec![0; self.users as usize];
        let (mut read, mut last) = (ReadChecksum::default(), ReadChecksum::default());
        for operation in self.initial.iter().chain(&self.operations) {
            match *operation {
                Operation::Article { .. } => {}
                Operation::Read { article } => {
                    show(&mut read, article, &articles[article as usize], &karma);
                }
                Operation::Vote { article, .. } => {
                    articles[article as usize].votes += 1;
                    karma[author(self.users, article) as usize] += 1;
                }
                Operation::Comment {
                    article, commenter, ..
                } => {
                    articles[article as usize].commenters.push(commenter);
                }
            }
        }
        for (article, id) in articles.iter().zip(0..) {
            show(&mut last, id, article, &karma);
        }
        (read, last)
    }

    pub fn reads(&self) -> usize {
        let reads = self.operations.iter();
        reads
            .filter(|one| matches!(one, Operation::Read { .. }))
            .count()
    }
}

fn show(seen: &mut ReadChecksum, id: u32, article: &Article, karma: &[u64]) {
    text(seen, id);
    score(seen, id, article.votes);
    for (&commenter, number) in article.commenters.iter().zip(0..) {
        comment(seen, id, number, commenter);
        commenters_karma(seen, id, number, karma[commenter as usize]);
    }
}

// The parts of a page in the result of a read. A count of zero is omitted.

pub fn text(seen: &mut ReadChecksum, article: u32) {
    seen.row(article, 0, 0);
}

pub fn score(seen: &mut ReadChecksum, article: u32, votes: u64) {
    if votes > 0 {
        seen.row(article, votes, 1);
    }
}

pub fn comment(seen: &mut ReadChecksum, article: u32, number: u32, commenter: u32) {
    seen.row(article, u64::from(commenter), 2 * number + 2);
}

pub fn commenters_karma(seen: &mut ReadChecksum, article: u32, number: u32, karma: u64) {
    if karma > 0 {
        seen.row(article, karma, 2 * number + 3);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_contain_the_writes_and_most_operations_are_reads() {
        let pages = Pages::new(50, 20, 10_000, (1, 1), &mut Random::new(3));
        assert!((9_700..9_900).contains(&pages.reads()), "{}", pages.reads());
        let (read, last) = pages.expected();
        assert!(last.rows > 50 * 2 + 50 * 9, "{last:?}");
        assert!(read.rows > 10_000 * 10, "{read:?}");
        let mut voters = HashSet::new();
        for operation in pages.initial.iter().chain(&pages.operations) {
            if let Operation::Vote { article, voter } = *operation {
                assert!(voters.insert((article, voter)), "nobody votes twice");
            }
        }
    }
}
