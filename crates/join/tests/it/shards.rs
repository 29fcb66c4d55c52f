//! Several engines, each with a part of the tables, and messages that arrive late and in any order between pairs. Every
//! read after an acknowledged write agrees with the model, on any engine. Simulates cores of one server, and nodes of a
//! cluster, where connections break, nodes restart and slots move (`moves`).

mod moves;
mod planted;

use std::collections::VecDeque;
use std::ops::ControlFlow;

use larder_join::grammar::JoinMode;
use larder_join::{
    Engine, EngineMessage, Error, Exchange, KeyRange, Limits, NO_OWNER, Owner, ReadOutcome, Shard,
};

use self::moves::Moves;
use self::planted::Planted;
use crate::model::{Computed, Model};
use crate::random::{LOOSE, Random, VALUES, definition};

struct Core {
    engine: Engine,
    exchange: Exchange,
    /// Messages in flight to it, by sender.
    in_flight: Vec<VecDeque<Sent>>,
}

#[derive(Debug)]
enum Sent {
    Message(EngineMessage),
    /// The owner drops its unsent messages. The reader must drop all rows that it received from the owner, and
    /// acknowledge that as the changes up to this one.
    Ended(u64),
}

struct World {
    random: Random,
    seed: u64,
    widths: bool,
    /// True if rows of the table `r|` have an external source, which sends all changes to all cores.
    has_external: bool,
    cores: Vec<Core>,
    /// Set if slots move.
    moves: Option<Moves>,
    model: Model,
    now: u64,
    names: usize,
    /// Of the existing joins.
    definitions: Vec<(String, String)>,
    planted: Option<Planted>,
    log: Vec<String>,
    /// Writes that were not acknowledged yet: their core, and what each waits for.
    unacknowledged: Vec<(usize, u64, u64)>,
    /// Events that must have occurred, so that the test cannot pass trivially.
    coverage: Coverage,
}

#[derive(Default)]
struct Coverage {
    supplies: u64,
    changes: u64,
    unsubscribes: u64,
    waits: u64,
    external: u64,
    deferred: u64,
    broken: u64,
    moved: u64,
    withdrawn: u64,
    restarted: u64,
    ended: u64,
}

/// Supplies the rows of ranges, like a database.
fn supply(engine: &mut Engine, model: &Model, missing: &[KeyRange]) {
    for range in missing {
        let rows = model.base.iter().filter(|(key, _)| range.contains(key));
        let rows = rows.map(|(key, value)| (key.clone(), value.clone()));
        engine.supply(range, &mut rows.collect::<Vec<_>>().into_iter());
    }
}

type Read = Result<Vec<(Vec<u8>, Vec<u8>)>, (Vec<(Vec<u8>, Vec<u8>)>, Error)>;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let count = 2 + random.below(3) as u16;
        let stepped = random.chance(40).then(|| random.below(3));
        let read_rows = random.chance(40).then(|| random.below(24));
        let elsewhere = random.chance(40);
        let chunk_rows = 1 + random.below(5) as u64;
        let moves = random.chance(50).then(|| Moves::new(count));
        let core = |index| {
            let shard = match &moves {
                Some(moves) => moves.shard(usize::from(index)),
                None => Shard::new(index, count),
            };
            let mut engine = Engine::new();
            engine.set_shard(shard.clone());
            engine.record_changes(true);
            if elsewhere {
                engine.declare_external(b"r|").unwrap();
            }
            engine.set_step_rows(stepped);
            engine.set_read_rows(read_rows);
            let mut exchange = Exchange::new(shard);
            exchange.set_chunk_rows(chunk_rows);
            Core {
                engine,
                exchange,
                in_flight: (0..count).map(|_| VecDeque::new()).collect(),
            }
        };
        World {
            widths: random.chance(60),
            has_external: elsewhere,
            random,
            seed,
            cores: (0..count).map(core).collect(),
            moves,
            model: Model::default(),
            now: 1000,
            names: 0,
            definitions: Vec::new(),
            planted: None,
            log: Vec::new(),
            unacknowledged: Vec::new(),
            coverage: Coverage::default(),
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..2 + self.random.below(3) {
            self.create();
        }
        for _ in 0..steps {
            match self.random.below(100) {
                0..=34 => self.put(),
                35..=49 => self.remove(),
                50 => self.create(),
                51 => self.drop_join(),
                52..=54 => self.evict(),
                55..=58 => self.begin_reading(),
                59 if self.moves.is_some() => self.break_some_link(),
                60..=61 if self.moves.is_some() => self.move_slot(),
                62 if self.moves.is_some() => self.restart(),
                63 => self.end_conversations(),
                59..=79 => self.deliver(1),
                _ => self.check(),
            }
            (self.cores.iter()).for_each(|core| core.engine.check_invariants());
        }
        for _ in 0..4 {
            self.check();
        }
    }

    fn slot(&mut self) -> &'static str {
        if self.widths {
            self.random.pick(&VALUES)
        } else {
            self.random.pick(&LOOSE)
        }
    }

    fn base_key(&mut self) -> String {
        match self.random.pick(&["p", "p", "q", "r"]) {
            "p" => format!("p|{}|{}", self.slot(), self.slot()),
            "q" => format!("q|{}|{}|{}", self.slot(), self.slot(), self.slot()),
            _ => format!("r|{}", self.slot()),
        }
    }

    fn owner(&self, key: &[u8]) -> usize {
        match &self.moves {
            Some(moves) => moves.owner(key),
            None => usize::from(self.cores[0].exchange.shard().owner_of(key)),
        }
    }

    /// Exports the engine's changes immediately, as a host must.
    fn export_write(&mut self, core: usize, waits_for: Option<u64>, whole: bool) {
        let Core {
            engine, exchange, ..
        } = &mut self.cores[core];
        let changes = engine.take_changes();
        exchange.export(&changes, whole);
        let sequence = exchange.sequence();
        self.unacknowledged
            .push((core, waits_for.unwrap_or(0), sequence));
        if self.random.chance(60) {
            self.flush(core);
        }
    }

    fn put(&mut self) {
        let key = self.base_key();
        if self.is_external(key.as_bytes()) {
            return self.change_external(key.into_bytes(), Some(b"5"));
        }
        let values = [
            "3",
            "10",
            "7",
            "-2",
            "x",
            "a longer text than fits a handle",
        ];
        let value = self.random.pick(&values).to_string();
        let core = self.owner(key.as_bytes());
        self.log.push(format!("put {key} {value} on {core}"));
        let engine = &mut self.cores[core].engine;
        let written = engine.put(key.as_bytes(), value.as_bytes(), self.now);
        self.model.base.insert(key.into_bytes(), value.into_bytes());
        let mut waits_for = written.unwrap().waits_for;
        let whole = self.random.chance(20);
        for _ in 0..if whole { 4 } else { 0 } {
            let key = self.base_key();
            if self.is_external(key.as_bytes()) || self.owner(key.as_bytes()) != core {
                continue;
            }
            self.log.push(format!("and put {key} 7"));
            let engine = &mut self.cores[core].engine;
            let written = engine.put(key.as_bytes(), b"7", self.now).unwrap();
            waits_for = waits_for.max(written.waits_for);
            self.model.base.insert(key.into_bytes(), b"7".to_vec());
        }
        self.export_write(core, waits_for, whole);
    }

    fn remove(&mut self) {
        let at = self.random.below(self.model.base.len().max(1));
        let Some(key) = self.model.base.keys().nth(at).cloned() else {
            return;
        };
        if self.is_external(&key) {
            return self.change_external(key, None);
        }
        let core = self.owner(&key);
        self.log.push(format!(
            "remove {} on {core}",
            String::from_utf8_lossy(&key)
        ));
        let written = self.cores[core].engine.remove(&key, self.now);
        self.model.base.remove(&key);
        self.export_write(core, written.unwrap().waits_for, false);
    }

    fn is_external(&self, key: &[u8]) -> bool {
        self.has_external && key.starts_with(b"r|")
    }

    /// Changes a row of the external source, and sends the change to every core.
    fn change_external(&mut self, key: Vec<u8>, value: Option<&[u8]>) {
        let shown = String::from_utf8_lossy(&key).into_owned();
        self.log.push(format!("told {shown} {value:?}"));
        for core in 0..self.cores.len() {
            let engine = &mut self.cores[core].engine;
            let written = match value {
                Some(value) => engine.put(&key, value, self.now),
                None => engine.remove(&key, self.now),
            };
            self.export_write(core, written.unwrap().waits_for, false);
        }
        match value {
            Some(value) => self.model.base.insert(key, value.to_vec()),
            None => self.model.base.remove(&key),
        };
    }

    /// Changes definitions while no client's command is executed; messages may be in flight.
    fn create(&mut self) {
        let definition = definition(&mut self.random, self.widths);
        self.define(definition);
    }

    fn define(&mut self, definition: String) {
        self.names += 1;
        let name = format!("j{}", self.names);
        let now = self.now;
        let done: Vec<bool> = (0..self.cores.len())
            .map(|core| {
                let engine = &mut self.cores[core].engine;
                let done = engine.create(&name, &definition, now).is_ok();
                engine.take_changes();
                done
            })
            .collect();
        if done.iter().all(|done| *done) {
            self.log.push(format!("create {name} {definition}"));
            self.model.create(&name, &definition);
            self.definitions.push((name, definition));
            return;
        }
        for (core, _) in done.iter().enumerate().filter(|(_, done)| **done) {
            self.cores[core].engine.drop_join(&name).unwrap();
            self.cores[core].engine.take_changes();
        }
    }

    fn drop_join(&mut self) {
        let at = self.random.below(self.model.joins.len().max(1));
        let Some((name, _)) = self.model.joins.get(at).cloned() else {
            return;
        };
        self.log.push(format!("drop {name}"));
        for core in &mut self.cores {
            core.engine.drop_join(&name).unwrap();
            core.engine.take_changes();
        }
        self.model.drop_join(&name);
        self.definitions.retain(|(own, _)| *own != name);
    }

    fn evict(&mut self) {
        let core = self.random.below(self.cores.len());
        self.log.push(format!("evict all on {core}"));
        self.cores[core].engine.evict_all();
    }

    /// Sends a core's queued messages.
    fn flush(&mut self, from: usize) {
        for to in 0..self.cores.len() {
            let out = self.cores[from].exchange.drain_outgoing(to as u16);
            for message in &out {
                match message {
                    EngineMessage::Supply { .. } => self.coverage.supplies += 1,
                    EngineMessage::Changes { .. } => self.coverage.changes += 1,
                    EngineMessage::Unsubscribe(_) => self.coverage.unsubscribes += 1,
                    _ => {}
                }
                let early = match message {
                    EngineMessage::Changes { mark, .. } => (Planted::AcknowledgesTooEarly, mark),
                    EngineMessage::Withdraw { mark, .. } => (Planted::KeepsWithdrawnRows, mark),
                    _ => continue,
                };
                if self.planted == Some(early.0) {
                    let ack = EngineMessage::Ack(*early.1);
                    self.cores[from].in_flight[to].push_back(Sent::Message(ack));
                }
            }
            self.cores[to].in_flight[from].extend(out.into_iter().map(Sent::Message));
        }
    }

    /// Makes an owner drop its unsent messages to readers, as a core does with changes that will never become visible.
    fn end_conversations(&mut self) {
        let cores = self.cores.len();
        let owner = match self.unacknowledged.last() {
            Some((core, ..)) => *core,
            None => self.random.below(cores),
        };
        for reader in (0..cores).filter(|reader| *reader != owner) {
            self.end_conversation(owner, reader);
        }
    }

    fn end_conversation(&mut self, owner: usize, reader: usize) {
        self.log
            .push(format!("{owner} ends its conversation with {reader}"));
        let exchange = &mut self.cores[owner].exchange;
        let dropped = exchange.drain_outgoing(reader as u16);
        let upto = match self.planted {
            Some(Planted::EndsWithoutWaiting) => {
                exchange.handle_reader_loss(reader as u16);
                0
            }
            _ => exchange.end_reader(reader as u16),
        };
        // Its messages as a reader are sent.
        let sent = dropped.into_iter().filter(|it| !it.is_from_owner());
        let in_flight = &mut self.cores[reader].in_flight[owner];
        in_flight.extend(sent.map(Sent::Message));
        in_flight.push_back(Sent::Ended(upto));
        self.coverage.ended += 1;
    }

    /// Delivers a message.
    fn arrive(&mut self, to: usize, from: usize, sent: Sent) {
        let ignores_epochs = self.planted == Some(Planted::IgnoresEpochs);
        let Core {
            engine, exchange, ..
        } = &mut self.cores[to];
        let now = exchange.epoch();
        let message = match sent {
            Sent::Ended(upto) => return exchange.handle_owner_end(engine, from as u16, upto),
            Sent::Message(EngineMessage::Request { range, .. }) if ignores_epochs => {
                EngineMessage::Request { range, epoch: now }
            }
            Sent::Message(EngineMessage::Supply { range, rows, .. }) if ignores_epochs => {
                EngineMessage::Supply {
                    range,
                    rows,
                    epoch: now,
                }
            }
            Sent::Message(message) => message,
        };
        exchange.receive(from as u16, message);
    }

    /// Delivers some messages, and does some work.
    fn deliver(&mut self, times: usize) {
        for _ in 0..times {
            self.learn_some();
            let (to, from) = (
                self.random.below(self.cores.len()),
                self.random.below(self.cores.len()),
            );
            for _ in 0..1 + self.random.below(3) {
                if let Some(sent) = self.cores[to].in_flight[from].pop_front() {
                    self.arrive(to, from, sent);
                }
            }
            let budget = 1 + self.random.below(40);
            let core = &mut self.cores[to];
            let _ = core.exchange.step(&mut core.engine, self.now, budget);
            let _ = core.engine.step(budget);
            core.exchange.acknowledge(&core.engine);
            let changes = core.engine.take_changes();
            core.exchange.export(&changes, false);
            self.flush(to);
        }
    }

    /// Delivers messages until every write is acknowledged; other messages may still be in flight.
    fn acknowledge(&mut self) {
        for round in 0.. {
            let cores = &self.cores;
            self.unacknowledged.retain(|(core, change, sequence)| {
                let core = &cores[*core];
                !core.engine.is_done(*change) || !core.exchange.is_acknowledged(*sequence)
            });
            if self.unacknowledged.is_empty() {
                return;
            }
            assert!(round < 10_000, "seed {}: never acknowledged", self.seed);
            for core in 0..self.cores.len() {
                self.flush(core);
            }
            self.deliver(3);
        }
    }

    fn range(&mut self) -> (String, String) {
        let table = self.random.pick(&["x|", "y|", "z|", "w|"]);
        match self.random.below(4) {
            0 => (table.to_string(), table.replace('|', "}")),
            1 => (
                format!("{table}{}", self.slot()),
                format!("{table}{}", self.slot()),
            ),
            2 => {
                let lo = format!("{table}{}|", self.slot());
                let hi = format!("{}}}", &lo[..lo.len() - 1]);
                (lo, hi)
            }
            _ => {
                let rows = self.model.table(table);
                let at = self.random.below(rows.len().max(1));
                let key = rows.keys().nth(at).cloned().unwrap_or(table.into());
                let lo = String::from_utf8(key).unwrap();
                let hi = format!("{lo}\0");
                (lo, hi)
            }
        }
    }

    fn reader(&mut self, lo: &str, hi: &str) -> usize {
        let shard = self.cores[0].exchange.shard();
        match shard.owner_of_range(lo.as_bytes(), hi.as_bytes()) {
            // While a slot moves, it has no owner.
            Owner::One(owner) if owner != NO_OWNER && self.random.chance(80) => usize::from(owner),
            // Any core can compute any range.
            _ => self.random.below(self.cores.len()),
        }
    }

    fn try_reading(&mut self, core: usize, lo: &str, hi: &str, limits: Limits) -> Option<Read> {
        let Core {
            engine, exchange, ..
        } = &mut self.cores[core];
        let mut rows = Vec::new();
        let outcome = engine.range(
            lo.as_bytes(),
            hi.as_bytes(),
            limits,
            self.now,
            &mut |key, value| {
                rows.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            },
        );
        match outcome {
            Ok(ReadOutcome::Done(())) => Some(Ok(rows)),
            Err(error) => Some(Err((rows, error))),
            Ok(ReadOutcome::Needs(needs)) if needs.steps.is_some() => {
                self.coverage.deferred += 1;
                None
            }
            Ok(ReadOutcome::Needs(needs)) => {
                supply(engine, &self.model, &needs.external);
                self.coverage.external += needs.external.len() as u64;
                exchange.request(engine, &needs.remote);
                assert!(!needs.is_empty(), "seed {}: waits for nothing", self.seed);
                self.coverage.waits += 1;
                None
            }
        }
    }

    /// Starts a read without waiting for its end: its rows arrive while other things happen.
    fn begin_reading(&mut self) {
        let (lo, hi) = self.range();
        if lo < hi {
            let core = if self.random.chance(50) {
                self.reader(&lo, &hi)
            } else {
                self.random.below(self.cores.len())
            };
            self.log.push(format!("begin reading {lo} {hi} on {core}"));
            let _ = self.try_reading(core, &lo, &hi, Limits::default());
        }
    }

    fn check(&mut self) {
        self.check_on(None);
    }

    /// Reads on the range's owner, or on some core.
    fn check_on(&mut self, core: Option<usize>) {
        let (lo, hi) = self.range();
        if lo >= hi {
            return;
        }
        self.acknowledge();
        let is_snapshot = |mode| matches!(mode, JoinMode::Snapshot { .. });
        if self.model.joins.iter().any(|(_, j)| is_snapshot(j.mode)) {
            self.now += 10_000;
        }
        let core = core.unwrap_or_else(|| self.reader(&lo, &hi));
        let limits = Limits {
            limit: self.random.chance(40).then(|| self.random.below(4) as u64),
            reverse: self.random.chance(20),
            keys_only: false,
            ..Limits::default()
        };
        let limits = Limits {
            total_limit: limits.limit.filter(|_| self.random.chance(70)),
            ..limits
        };
        self.log
            .push(format!("read {lo} {hi} {limits:?} on {core}"));
        let mut expected: Computed = self.model.table(&crate::model::table_of(&lo));
        expected.retain(|k, _| lo.as_bytes() <= k.as_slice() && k.as_slice() < hi.as_bytes());
        let mut wanted: Vec<_> = expected.into_iter().collect();
        if limits.reverse {
            wanted.reverse();
        }
        // Ranges omit invalid aggregates.
        let mut wanted: Vec<_> = wanted
            .into_iter()
            .filter_map(|(k, v)| Some((k, v?)))
            .collect();
        wanted.truncate(limits.limit.map_or(usize::MAX, |limit| limit as usize));
        for round in 0.. {
            if let Some(read) = self.try_reading(core, &lo, &hi, limits) {
                let rows = match read {
                    Ok(rows) => rows,
                    Err((_, error)) => panic!("seed {}: {error}", self.seed),
                };
                if rows != wanted {
                    self.fail(&wanted, &rows);
                }
                return;
            }
            assert!(round < 10_000, "seed {}: never read", self.seed);
            self.flush(core);
            self.deliver(3);
        }
    }

    fn fail(&self, wanted: &[(Vec<u8>, Vec<u8>)], got: &[(Vec<u8>, Vec<u8>)]) -> ! {
        let show = |rows: &[(Vec<u8>, Vec<u8>)]| -> String {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let line = |(k, v): &(Vec<u8>, Vec<u8>)| format!("\n  {} = {}", text(k), text(v));
            rows.iter().map(line).collect()
        };
        panic!(
            "seed {}: {} cores, after\n{}\nwanted{}\ngot{}",
            self.seed,
            self.cores.len(),
            self.log.join("\n"),
            show(wanted),
            show(got)
        );
    }
}

/// Reproduce one seed: `LARDER_SEED=17 cargo test -p larder-join shards`.
#[test]
fn shards_agree_with_one_engine() {
    let steps = std::env::var("LARDER_STEPS").map_or(80, |s| s.parse().unwrap());
    let seeds = match std::env::var("LARDER_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) if std::env::var("LARDER_SLOW_TESTS").is_ok() => 0..20_000,
        Err(_) => 0..1_500,
    };
    let is_complete_run = seeds.end - seeds.start > 1;
    let mut all = Coverage::default();
    for seed in seeds {
        let mut world = World::new(seed);
        world.run(steps);
        all.supplies += world.coverage.supplies;
        all.changes += world.coverage.changes;
        all.unsubscribes += world.coverage.unsubscribes;
        all.waits += world.coverage.waits;
        all.external += world.coverage.external;
        all.deferred += world.coverage.deferred;
        all.broken += world.coverage.broken;
        all.moved += world.coverage.moved;
        all.withdrawn += world.coverage.withdrawn;
        all.restarted += world.coverage.restarted;
        all.ended += world.coverage.ended;
    }
    if is_complete_run {
        all.assert_moves();
        let Coverage {
            supplies,
            changes,
            unsubscribes,
            waits,
            external: elsewhere,
            deferred,
            ..
        } = all;
        assert!(elsewhere > 500, "{elsewhere}");
        assert!(deferred > 1000, "{deferred}");
        let summary =
            format!("{supplies} supplies, {changes} changes, {unsubscribes}, {waits} waits");
        assert!(
            supplies.min(changes).min(unsubscribes).min(waits) > 1000,
            "{summary}"
        );
    }
}

/// Most rows of a range expire together, just when another core requests the range.
#[test]
fn an_owner_with_expiring_rows_supplies_the_remaining_ones() {
    let shards = [Shard::new(0, 2), Shard::new(1, 2)];
    let [mut owner, mut reader] = shards.clone().map(|shard| {
        let mut engine = Engine::new();
        engine.set_shard(shard.clone());
        (engine, Exchange::new(shard))
    });
    let mut users = ["ann", "bob", "cid", "dan", "eve"].into_iter();
    let user = users.find(|user| shards[0].owns(format!("p|{user}|").as_bytes()));
    let user = user.expect("one of them is the first's");
    for row in 0..100 {
        let key = format!("p|{user}|{row:03}").into_bytes();
        owner.0.put(&key, b"", 0).unwrap();
        owner.0.expire(&key, (row < 90).then_some(10), 0).unwrap();
    }
    owner.0.set_step_rows(Some(4));
    owner.0.set_read_rows(Some(8));
    let count = "n|<who> = count p|<who>|<row>";
    reader.0.create("n", count, 0).unwrap();
    let mut seen = None;
    for round in 0.. {
        let mut each = |value: &[u8]| seen = Some(value.to_vec());
        let read = reader.0.get(format!("n|{user}").as_bytes(), 20, &mut each);
        let ReadOutcome::Needs(needs) = read.unwrap() else {
            break;
        };
        assert!(round < 100, "never answered");
        reader.1.request(&mut reader.0, &needs.remote);
        for message in reader.1.drain_outgoing(0) {
            owner.1.receive(1, message);
        }
        owner.1.step(&mut owner.0, 20, 100);
        for message in owner.1.drain_outgoing(1) {
            reader.1.receive(0, message);
        }
        reader.1.step(&mut reader.0, 20, 100);
    }
    assert_eq!(seen, Some(b"10".to_vec()));
}
