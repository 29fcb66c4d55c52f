//! What takes a connection several turns: jobs, and replies that other cores give.

use std::future::poll_fn;
use std::io;

use larder_protocol::commands::{self, Id, Place, Subject};

use super::connection;
use super::dispatch::{GuessJob, Job, dispatch};
use super::finish::finish;
use super::memory::Charge;
use super::reads::Need;
use super::remote::Sent;
use super::session::{Session, State};
use super::tables::{self, ManyJob, Merge, RangeJob, header, one_row};

impl Session {
    /// Sends what the batch has for other cores, and puts their replies where they belong.
    pub(super) async fn drain(&mut self) -> io::Result<()> {
        let Some(gathered) = self.state.gathered.take() else {
            return Ok(());
        };
        self.state.output.has_holes = false;
        let Sent {
            mut incoming,
            holes,
            writes,
            parts,
        } = gathered.send(&self.state);
        let Some(&(first, _)) = holes.first() else {
            return Ok(());
        };
        let late = self.state.output.tail.split_off(first);
        let mut at = first;
        let limits = self.state.core.clients.limits;
        let (mut is_too_long, mut dropped) = (false, Vec::new());
        for (hole, core) in holes {
            let tail = &mut self.state.output.tail;
            tail.extend_from_slice(&late[at - first..hole - first]);
            at = hole;
            let gone = || io::Error::other("a core does not answer");
            let incoming = incoming[core].as_mut().ok_or_else(gone)?;
            loop {
                let tail = &mut self.state.output.tail;
                is_too_long |= tail.len() > limits.each;
                let out = if is_too_long { &mut dropped } else { tail };
                let ended = incoming.next(out).await.ok_or_else(gone)?;
                dropped.clear();
                // Writes are not to wait for their client to take replies.
                while !writes && !self.state.has_room() {
                    poll_fn(|cx| self.poll_send(cx)).await?;
                }
                if ended {
                    break;
                }
            }
        }
        let State {
            output, gate, core, ..
        } = &mut self.state;
        output.tail.extend_from_slice(&late[at - first..]);
        if let Some(parts) = parts {
            core.tables.keep_parts(parts, gate);
        }
        match is_too_long {
            true => Err(io::Error::other("the replies are too long")),
            false => Ok(()),
        }
    }

    /// Executes a command that gives a password.
    fn look_at(&mut self, guess: &GuessJob) {
        let command = guess.command.command();
        match command.id() {
            Id::Auth => connection::auth(&mut self.state, command.request),
            _ => connection::hello(&mut self.state, command.request),
        }
        self.set_limits();
    }

    /// Answers a command that several cores execute.
    async fn answer_many(&mut self, many: &mut ManyJob) -> io::Result<()> {
        let spec = many.command.spec;
        if spec.place == Place::AllCores && spec.subject == Subject::Server {
            let shared = self.state.core.shared.clone();
            shared.tables.refresh_figures().await;
            let snapshot = shared.catalog.load();
            dispatch(&mut self.state, &snapshot, many.command.command());
            return Ok(());
        }
        let asked = match many.range() {
            None => {
                match many.answer(&self.state).await {
                    Ok(done) => {
                        self.state.failed = done.reply.first() == Some(&b'-');
                        self.state.output.tail.extend_from_slice(&done.reply);
                        self.state.gate.join(done.gate);
                        self.state.set_proto(done.proto);
                        self.state.closing |= done.closing;
                    }
                    Err(refusal) => self.state.refuse(refusal),
                }
                return Ok(());
            }
            Some(Err(refusal)) => {
                self.state.refuse(refusal);
                return Ok(());
            }
            Some(Ok(asked)) => asked,
        };
        let shared = self.state.core.shared.clone();
        let mut merge = match Merge::begin(&shared.tables, &asked, None, &self.state.client).await {
            Ok(merge) => merge,
            Err(refusal) => {
                self.state.refuse(refusal);
                return Ok(());
            }
        };
        header(&mut self.state.encoder(), asked.keys_only, merge.left);
        loop {
            match merge.next().await {
                Ok(Some((key, value))) => {
                    one_row(&mut self.state.encoder(), asked.keys_only, &key, &value);
                }
                Ok(None) if merge.left == 0 => return Ok(()),
                // An answer that is not as long as was said ends the connection.
                _ => return Err(io::Error::other("a range could not be read to its end")),
            }
            while !self.state.has_room() {
                poll_fn(|cx| self.poll_send(cx)).await?;
            }
        }
    }

    /// Executes a job to its end, while other connections of the core go on.
    pub(super) async fn drive(&mut self, mut job: Job) -> io::Result<()> {
        let state = &mut self.state;
        state.failed = false;
        state.keys = (0, 0);
        let command = commands::spec(job.command());
        let args = job.args();
        let mut clock = job.started();
        let mut counted = Charge::new(&state.client);
        counted.set(job.request_bytes());
        if matches!(job, Job::Again(_) | Job::Write(_)) {
            // Replies that are ready need not wait for PostgreSQL.
            while !self.state.output.is_empty() {
                poll_fn(|cx| self.poll_send(cx)).await?;
            }
        }
        let state = &mut self.state;
        match &mut job {
            Job::Again(again) => match again.load(state).await {
                Err(refusal) => again.refuse(state, refusal),
                Ok(()) => {
                    state.tables().resumed(None).await;
                    let snapshot = state.core.shared.catalog.load();
                    let next = again.again(state, &snapshot);
                    drop(snapshot);
                    if let Some(next) = next {
                        return Box::pin(self.drive(next)).await;
                    }
                }
            },
            Job::Write(write) => tables::run_write(state, write).await,
            Job::Stores(stores) => {
                if let Some(next) = stores.run(state).await {
                    return Box::pin(self.drive(next)).await;
                }
            }
            Job::Watch(watch) => watch.run(state).await,
            Job::Mixed(mixed) => {
                if let Some(next) = mixed.run(state).await {
                    return Box::pin(self.drive(next)).await;
                }
            }
            Job::Subscribe(subscribe) => subscribe.run(state).await,
            Job::Guess(guess) => {
                let shared = state.core.shared.clone();
                shared.guesses.turn(state.client.addr.ip()).await;
                self.look_at(guess);
            }
            Job::Scan(scan) => scan.run(state).await,
            Job::Drop(drop) => drop.run(state).await,
            Job::Room(_) => state.tables().room().await,
            Job::Wait(wait) => {
                let tables = state.tables();
                tables.supplied(&wait.lacking, None).await;
                tables.resumed(None).await;
                let snapshot = state.core.shared.catalog.load();
                let next = wait.again(&mut self.state, &snapshot, false);
                drop(snapshot);
                if let Some(next) = next {
                    return Box::pin(self.drive(next)).await;
                }
            }
            Job::Many(many) => self.answer_many(many).await?,
            Job::Range(range) => loop {
                while !self.state.has_room() {
                    poll_fn(|cx| self.poll_send(cx)).await?;
                }
                if matches!(range, RangeJob::Remove(_)) {
                    self.state.tables().resumed(None).await;
                }
                if range.advance(&mut self.state) {
                    break;
                }
                tokio::task::yield_now().await;
            },
            Job::Read(read) => loop {
                match read.advance(&mut self.state) {
                    Need::Nothing => break,
                    Need::Room => {
                        read.reply_has_left();
                        while !self.state.has_room() {
                            poll_fn(|cx| self.poll_send(cx)).await?;
                        }
                    }
                    Need::Disk => {
                        let reads = read.start_reads();
                        self.state.core.stats.disk_reads.add(reads.len() as u64);
                        // Replies that are ready need not wait for the disk.
                        read.reply_has_left();
                        while !self.state.output.is_empty() {
                            poll_fn(|cx| self.poll_send(cx)).await?;
                        }
                        for disk_read in reads {
                            let found = disk_read.await.map_err(io::Error::other)?;
                            read.deliver(&mut self.state, found);
                        }
                    }
                }
            },
        }
        let state = &mut self.state;
        finish(state, command, &mut clock, args.iter().map(Vec::as_slice));
        Ok(())
    }
}
