//! A disk that provides only the guarantees of the `Disk` trait.
//!
//! Unsynced bytes may survive a crash or not, piece by piece, in any order. So may name changes before their folder's
//! sync, each atomically. Operations can be made to fail in three ways: once (an I/O error; the data of a failed sync
//! is then lost permanently, and the next sync does not report it), while the disk is full (operations that need
//! space), or forever (the machine has crashed).

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use larder_journal::{Disk, DiskFile};

/// xorshift64*: the only source of randomness of the tests.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone)]
pub struct ModelDisk(Arc<Mutex<Model>>);

type Hook = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Model {
    inodes: Vec<Inode>,
    /// The names that processes see, and those on the medium.
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    /// Name changes since the folder's sync, each atomic.
    name_changes: Vec<Vec<(PathBuf, Option<usize>)>>,
    now: Duration,
    ids: u64,
    operations: u64,
    crash_at: Option<u64>,
    fail_at: Option<(u64, i32)>,
    /// Operations that need space fail with this error.
    full: Option<i32>,
    /// Called while a file is written or synced.
    during: Option<Hook>,
    /// Files opened before the last crash keep failing.
    generation: u64,
    crashed: bool,
    pub syncs: u64,
}

#[derive(Default, Clone)]
struct Inode {
    durable: Vec<u8>,
    seen: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(offset, new) => {
            let (from, to) = (*offset as usize, *offset as usize + new.len());
            if bytes.len() < to {
                bytes.resize(to, 0);
            }
            bytes[from..to].copy_from_slice(new);
        }
        Change::Truncate(size) => bytes.resize(*size as usize, 0),
    }
}

impl ModelDisk {
    pub fn new(seed: u64) -> ModelDisk {
        ModelDisk(Arc::new(Mutex::new(Model {
            ids: seed.wrapping_mul(0xd134_2543_de82_ef95),
            ..Model::default()
        })))
    }

    fn model(&self) -> MutexGuard<'_, Model> {
        self.0.lock().unwrap()
    }

    /// Makes the machine crash at the given modifying operation, counted from now.
    pub fn crash_at(&self, operation: Option<u64>) {
        let mut model = self.model();
        model.crash_at = operation.map(|operation| model.operations + operation);
    }

    /// Makes that operation fail with this error; the machine continues.
    pub fn fail_at(&self, operation: u64, errno: i32) {
        let mut model = self.model();
        model.fail_at = Some((model.operations + operation, errno));
    }

    /// Until this is `None`, creating files and writing fail with this error; a failed write may have written any
    /// part of its bytes.
    pub fn fill(&self, errno: Option<i32>) {
        self.model().full = errno;
    }

    /// Calls `hook` while a file is written or synced.
    pub fn during_operations(&self, hook: impl Fn() + Send + Sync + 'static) {
        self.model().during = Some(Arc::new(hook));
    }

    fn call_hook(&self) {
        let hook = self.model().during.clone();
        if let Some(hook) = hook {
            hook();
        }
    }

    pub fn operations(&self) -> u64 {
        self.model().operations
    }

    pub fn syncs(&self) -> u64 {
        self.model().syncs
    }

    pub fn crashed(&self) -> bool {
        self.model().crashed
    }

    pub fn advance(&self, time: Duration) {
        self.model().now += time;
    }

    /// Restarts the machine with a random part of the unsynced data.
    pub fn restart(&self, random: &mut Random) {
        let mut model = self.model();
        let changes = std::mem::take(&mut model.name_changes);
        // All changes survive, none, or each at random.
        let kept = random.below(3);
        for change in changes {
            if kept == 0 || (kept == 1 && random.one_in(2)) {
                set_names(&mut model.durable_names, &change);
            }
        }
        model.names = model.durable_names.clone();
        for inode in &mut model.inodes {
            let mut changes = std::mem::take(&mut inode.unsynced);
            for index in (1..changes.len()).rev() {
                if random.one_in(2) {
                    changes.swap(index, random.below(index + 1));
                }
            }
            let kept = random.below(3);
            for change in changes {
                survive(&mut inode.durable, &change, kept, random);
            }
            inode.seen = inode.durable.clone();
        }
        model.begin_again();
    }

    /// Restarts the process on a machine that kept running: the kernel has everything that was written.
    pub fn restart_process(&self) {
        self.model().begin_again();
    }

    pub fn names(&self) -> Vec<String> {
        let model = self.model();
        let names = model.names.keys();
        names
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect()
    }

    pub fn contents(&self, path: &Path) -> Vec<u8> {
        let model = self.model();
        model.inodes[model.names[path]].seen.clone()
    }

    /// Creates a durable file.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut model = self.model();
        let number = model.inodes.len();
        model.inodes.push(Inode {
            durable: bytes.to_vec(),
            seen: bytes.to_vec(),
            unsynced: Vec::new(),
        });
        model.names.insert(path.to_owned(), number);
        model.durable_names.insert(path.to_owned(), number);
    }

    pub fn delete(&self, path: &Path) {
        let mut model = self.model();
        model.names.remove(path);
        model.durable_names.remove(path);
    }
}

fn survive(durable: &mut Vec<u8>, change: &Change, kept: usize, random: &mut Random) {
    match (kept, change) {
        (0, change) => apply(durable, change),
        (1, Change::Write(offset, bytes)) => {
            // Cut into pieces at arbitrary bytes; each is present, missing, or zeros.
            let mut at = 0;
            while at < bytes.len() {
                let size = (1 + random.below(bytes.len())).min(bytes.len() - at);
                let piece = match random.below(4) {
                    0 | 1 => Some(bytes[at..at + size].to_vec()),
                    2 => Some(vec![0; size]),
                    _ => None,
                };
                if let Some(piece) = piece {
                    // Zeros represent allocated but unwritten space: they never replace old bytes.
                    let place = offset + at as u64;
                    let over_old = (place as usize) < durable.len();
                    if !(over_old && piece.iter().all(|byte| *byte == 0)) {
                        apply(durable, &Change::Write(place, piece));
                    }
                }
                at += size;
            }
        }
        (1, change) if random.one_in(2) => apply(durable, change),
        _ => {}
    }
}

fn set_names(names: &mut BTreeMap<PathBuf, usize>, change: &[(PathBuf, Option<usize>)]) {
    for (path, inode) in change {
        match inode {
            Some(inode) => names.insert(path.clone(), *inode),
            None => names.remove(path),
        };
    }
}

enum Passed {
    Done,
    /// The operation must fail with this error after part of its work.
    Failed(io::Error),
}

impl Model {
    fn begin_again(&mut self) {
        self.generation += 1;
        self.crashed = false;
        self.crash_at = None;
        self.fail_at = None;
        self.full = None;
    }

    /// Counts a modifying operation.
    fn pass(&mut self, generation: u64) -> Result<Passed, io::Error> {
        if self.crashed || generation != self.generation {
            return Err(io::Error::other("the machine has crashed"));
        }
        self.operations += 1;
        if self.crash_at.is_some_and(|at| self.operations >= at) {
            self.crashed = true;
            return Ok(Passed::Failed(io::Error::other("the machine has crashed")));
        }
        if let Some((at, errno)) = self.fail_at
            && self.operations == at
        {
            return Ok(Passed::Failed(io::Error::from_raw_os_error(errno)));
        }
        Ok(Passed::Done)
    }

    fn change_names(
        &mut self,
        generation: u64,
        change: Vec<(PathBuf, Option<usize>)>,
    ) -> io::Result<()> {
        let passed = self.pass(generation)?;
        // In a crash the change may have been made; in a plain failure it was not.
        if matches!(passed, Passed::Done) || self.crashed {
            set_names(&mut self.names, &change);
            self.name_changes.push(change);
        }
        match passed {
            Passed::Done => Ok(()),
            Passed::Failed(error) => Err(error),
        }
    }
}

struct ModelFile {
    disk: ModelDisk,
    inode: usize,
    generation: u64,
}

impl Disk for ModelDisk {
    fn create_folder(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _folder: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }

    fn list(&self, _folder: &Path) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut model = self.model();
        if let Some(errno) = model.full {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let generation = model.generation;
        // The journal does not distinguish between a truncated file and a new one.
        let inode = model.inodes.len();
        model.inodes.push(Inode::default());
        model.change_names(generation, vec![(path.to_owned(), Some(inode))])?;
        Ok(Box::new(ModelFile {
            disk: self.clone(),
            inode,
            generation,
        }))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let model = self.model();
        let inode = *model.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(ModelFile {
            disk: self.clone(),
            inode,
            generation: model.generation,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut model = self.model();
        let inode = *model.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        let generation = model.generation;
        let change = vec![(from.to_owned(), None), (to.to_owned(), Some(inode))];
        model.change_names(generation, change)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut model = self.model();
        if !model.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let generation = model.generation;
        model.change_names(generation, vec![(path.to_owned(), None)])
    }

    fn sync_folder(&self, _folder: &Path) -> io::Result<()> {
        let mut model = self.model();
        let generation = model.generation;
        match model.pass(generation)? {
            Passed::Failed(error) => Err(error),
            Passed::Done => {
                for change in std::mem::take(&mut model.name_changes) {
                    set_names(&mut model.durable_names, &change);
                }
                Ok(())
            }
        }
    }

    fn now(&self) -> Duration {
        self.model().now
    }

    fn new_id(&self) -> io::Result<u64> {
        let mut model = self.model();
        model.ids = model.ids.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Ok(model
            .ids
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
            .rotate_left(31))
    }
}

impl ModelFile {
    fn change(&self, change: Change) -> io::Result<()> {
        self.disk.call_hook();
        let mut model = self.disk.model();
        let mut passed = model.pass(self.generation)?;
        if let (Passed::Done, Some(errno), Change::Write(..)) = (&passed, model.full, &change) {
            passed = Passed::Failed(io::Error::from_raw_os_error(errno));
        }
        let change = match (&passed, change) {
            // A failed write may have written any prefix of its bytes.
            (Passed::Failed(_), Change::Write(offset, mut bytes)) => {
                bytes.truncate(model.operations as usize * 7919 % (bytes.len() + 1));
                Change::Write(offset, bytes)
            }
            (_, change) => change,
        };
        let inode = &mut model.inodes[self.inode];
        apply(&mut inode.seen, &change);
        inode.unsynced.push(change);
        match passed {
            Passed::Done => Ok(()),
            Passed::Failed(error) => Err(error),
        }
    }
}

impl DiskFile for ModelFile {
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.change(Change::Write(offset, parts.concat()))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let model = self.disk.model();
        let bytes = &model.inodes[self.inode].seen;
        let from = (offset as usize).min(bytes.len());
        let size = into.len().min(bytes.len() - from);
        into[..size].copy_from_slice(&bytes[from..from + size]);
        Ok(size)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.disk.model().inodes[self.inode].seen.len() as u64)
    }

    fn truncate(&self, size: u64) -> io::Result<()> {
        self.change(Change::Truncate(size))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call_hook();
        let mut model = self.disk.model();
        model.syncs += 1;
        let passed = model.pass(self.generation)?;
        let crashed = model.crashed;
        let inode = &mut model.inodes[self.inode];
        match passed {
            Passed::Done => {
                for change in std::mem::take(&mut inode.unsynced) {
                    apply(&mut inode.durable, &change);
                }
                Ok(())
            }
            Passed::Failed(error) => {
                if !crashed {
                    // Unwritten data is dropped and marked clean: the next sync succeeds, and the bytes are visible
                    // but not on the medium.
                    inode.unsynced.clear();
                }
                Err(error)
            }
        }
    }
}
