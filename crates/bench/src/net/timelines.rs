//! Twip (timelines) as operations for any data store. A [`System`] implements timelines on one data store, and
//! [`Servers`] calls it for each operation. If the client itself copies earlier posts to a new follower, a check of
//! that timeline waits for the copies.

use std::collections::HashMap;
use std::marker::PhantomData;

use super::drive::{self, Line, Store, WINDOW};
use super::workload::{Operation, ReadChecksum};
use crate::Result;

pub type Pipe = drive::Pipe<TimelineContext>;
pub type Connection = drive::StoreConnection<TimelineContext>;

/// The context of an outstanding reply.
#[derive(Clone, Copy)]
pub enum TimelineContext {
    /// An acknowledgement.
    Done,
    Check {
        user: u32,
        since: u64,
        until: u64,
    },
    /// The followers of the poster of a post.
    Followers {
        poster: u32,
        time: u64,
    },
    /// The earlier posts of a poster, for a new follower.
    Posts {
        user: u32,
        poster: u32,
    },
}

/// The implementation of timelines on one data store. Requests are appended to `pipe`, in order.
pub trait System {
    fn reply_len(&mut self, bytes: &[u8], awaited: TimelineContext) -> Result<Option<usize>>;
    /// Writes the followers of a user, before the clock starts.
    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]);
    /// Called after all followers are loaded.
    fn loaded(&mut self, _pipe: &mut Pipe) {}
    /// Returns whether the client copies the poster's earlier posts, with [`LarderContext::Posts`] as context.
    fn copies(&self) -> bool;
    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32);
    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64);
    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64);
    /// Processes a complete reply. Rows of a check are added to `seen`.
    fn reply(
        &mut self,
        pipe: &mut Pipe,
        awaited: TimelineContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()>;
}

/// The steps of a run, including those before the clock starts.
enum Step<'a> {
    Load(u32, &'a [u32]),
    Loaded,
    Operation(Operation),
}

struct Timelines {
    system: Box<dyn System>,
    copying: HashMap<u32, Copying>,
    /// The number of waiting checks.
    deferred: usize,
}

/// The copies that a user's subscriptions still make, and the checks that wait for some of them.
#[derive(Default)]
struct Copying {
    copies: usize,
    /// Each check with the number of copies for which it still waits.
    checks: Vec<(usize, u64, u64)>,
}

impl Timelines {
    fn new(system: Box<dyn System>) -> Timelines {
        Timelines {
            system,
            copying: HashMap::new(),
            deferred: 0,
        }
    }

    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32) {
        if self.system.copies() {
            self.copying.entry(user).or_default().copies += 1;
        }
        self.system.subscribe(pipe, user, poster);
    }

    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64) {
        match self.copying.get_mut(&user) {
            Some(copying) => {
                copying.checks.push((copying.copies, since, until));
                self.deferred += 1;
            }
            None => self.system.check(pipe, user, since, until),
        }
    }

    /// Records that the requests of a copy were appended, and starts the checks that waited only for it.
    fn end_copy(&mut self, pipe: &mut Pipe, user: u32) {
        let Some(copying) = self.copying.get_mut(&user) else {
            return;
        };
        copying.copies -= 1;
        copying.checks.retain_mut(|(copies, since, until)| {
            *copies -= 1;
            if *copies == 0 {
                self.system.check(pipe, user, *since, *until);
                self.deferred -= 1;
            }
            *copies > 0
        });
        if copying.copies == 0 {
            self.copying.remove(&user);
        }
    }
}

/// Servers that together store the timelines, each with one connection.
pub struct Servers {
    servers: Vec<(Timelines, Connection)>,
    /// The server of each user's rows.
    of_user: Vec<usize>,
    /// The number of requests in flight at all servers above which no new operation starts.
    window: usize,
}

impl Servers {
    pub fn one(system: Box<dyn System>, connection: Connection) -> Servers {
        Servers::many(vec![(system, connection)], Vec::new(), WINDOW)
    }

    /// `of_user` contains the server of each user's rows. Users beyond its end are on the first server.
    pub fn many(
        servers: Vec<(Box<dyn System>, Connection)>,
        of_user: Vec<usize>,
        window: usize,
    ) -> Servers {
        let servers = servers.into_iter();
        Servers {
            servers: servers
                .map(|(system, connection)| (Timelines::new(system), connection))
                .collect(),
            of_user,
            window,
        }
    }

    pub fn load(&mut self, followers: &[Vec<u32>]) -> Result<()> {
        let of = |user: u32| server_of(&self.of_user, user);
        for at in 0..self.servers.len() {
            let its_own =
                |all: &Vec<u32>| all.iter().copied().filter(|user| of(*user) == at).collect();
            let own: Vec<Vec<u32>> = followers.iter().map(its_own).collect();
            let all = own.iter().zip(0..);
            let all = all.map(|(followers, poster)| Step::Load(poster, followers));
            let (timelines, connection) = &mut self.servers[at];
            connection.run(&mut TimelineStore(timelines, PhantomData), all)?;
            connection.run(&mut TimelineStore(timelines, PhantomData), [Step::Loaded])?;
        }
        Ok(())
    }

    pub fn operate(&mut self, operations: &[Operation]) -> Result<ReadChecksum> {
        let of_user = &self.of_user;
        let mut stores: Vec<_> = self.servers.iter_mut().collect();
        let mut stores: Vec<_> = stores
            .iter_mut()
            .map(|(timelines, connection)| (TimelineStore(timelines, PhantomData), connection))
            .collect();
        let lines = stores.iter_mut();
        let mut lines: Vec<_> = lines
            .map(|(store, connection)| Line { store, connection })
            .collect();
        let steps = operations.iter().map(|one| {
            let at = match *one {
                Operation::Post { poster, .. } => server_of(of_user, poster),
                Operation::Subscribe { user, .. } | Operation::Check { user, .. } => {
                    server_of(of_user, user)
                }
                Operation::Logout => 0,
            };
            (at, Step::Operation(*one))
        });
        drive::run_over(&mut lines, self.window, steps)
    }
}

fn server_of(of_user: &[usize], user: u32) -> usize {
    of_user.get(user as usize).copied().unwrap_or(0)
}

/// Adapts borrowed timelines to [`Store`] for one run.
struct TimelineStore<'t, 'a>(&'t mut Timelines, PhantomData<&'a ()>);

impl<'a> Store for TimelineStore<'_, 'a> {
    type Operation = Step<'a>;
    type Context = TimelineContext;

    fn start(&mut self, pipe: &mut Pipe, step: Step<'a>) {
        let timelines = &mut *self.0;
        match step {
            Step::Load(poster, followers) => timelines.system.load(pipe, poster, followers),
            Step::Loaded => timelines.system.loaded(pipe),
            Step::Operation(Operation::Post { poster, time }) => {
                timelines.system.post(pipe, poster, time);
            }
            Step::Operation(Operation::Subscribe { user, poster }) => {
                timelines.subscribe(pipe, user, poster);
            }
            Step::Operation(Operation::Check { user, since, until }) => {
                timelines.check(pipe, user, since, until);
            }
            Step::Operation(Operation::Logout) => {}
        }
    }

    fn deferred(&self) -> usize {
        self.0.deferred
    }

    fn reply_len(&mut self, bytes: &[u8], awaited: TimelineContext) -> Result<Option<usize>> {
        self.0.system.reply_len(bytes, awaited)
    }

    fn reply(
        &mut self,
        pipe: &mut Pipe,
        awaited: TimelineContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        self.0.system.reply(pipe, awaited, reply, seen)?;
        if let TimelineContext::Posts { user, .. } = awaited {
            self.0.end_copy(pipe, user);
        }
        Ok(())
    }
}
