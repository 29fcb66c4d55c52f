//! The versions of a store on a node: their partitions are pulled (which takes time and may fail), kept on disk, and read. A slot
//! with rows stands for a partition.

use std::collections::{BTreeMap, BTreeSet};

use larder_cluster::controller::{Progress, VersionProgress};
use larder_cluster::map::{Map, NodeId};
use larder_sim::{NodeId as At, Random};
use larder_types::VersionId;

use super::{SLOTS, store_name};

/// The versions that a node has, and the one that it pulls.
#[derive(Debug, Default)]
pub struct Stores {
    /// On disk.
    pub have: BTreeMap<VersionId, PulledVersion>,
    failed: BTreeSet<VersionId>,
    pulling: Option<Pull>,
    /// Waits for the disk.
    written: Option<(u64, VersionId, PulledVersion)>,
}

/// The partitions of a version that are present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledVersion {
    pub digest: String,
    pub slots: BTreeSet<u16>,
}

#[derive(Debug)]
struct Pull {
    version: VersionId,
    brings: PulledVersion,
    ends_at_ms: u64,
    works: bool,
}

/// A read of one record in each slot, from the version that it started with.
pub struct PartitionRead {
    pub client: At,
    pub number: u64,
    pub parts: Vec<Option<VersionId>>,
}

impl Stores {
    pub fn load(text: &[u8]) -> Stores {
        let text = String::from_utf8_lossy(text);
        let have = text.lines().map(|line| {
            let mut words = line.split(' ');
            let version = words.next().and_then(|it| it.parse().ok());
            let pulled = PulledVersion {
                digest: words.next().unwrap_or_default().to_owned(),
                slots: words.filter_map(|it| it.parse().ok()).collect(),
            };
            (VersionId(version.expect("a number")), pulled)
        });
        Stores {
            have: have.collect(),
            ..Stores::default()
        }
    }

    /// The contents of the file with a further version.
    fn text(&self, version: VersionId, pulled: &PulledVersion) -> Vec<u8> {
        let mut all = self.have.clone();
        all.insert(version, pulled.clone());
        let line = |(version, pulled): (VersionId, PulledVersion)| {
            let slots = pulled.slots.iter().map(|slot| format!(" {slot}"));
            format!("{version} {}{}\n", pulled.digest, slots.collect::<String>())
        };
        all.into_iter().map(line).collect::<String>().into_bytes()
    }

    /// The slots that a node has or should have.
    pub fn required_slots(map: &Map, me: NodeId) -> BTreeSet<u16> {
        let is_wanted = |slot: &u16| {
            let placed = &map.slots().of(*slot).placement;
            placed.includes(me)
        };
        SLOTS.into_iter().filter(is_wanted).collect()
    }

    /// Continues the pulls that the map requires. Returns the file contents to write, if any.
    pub fn tick(
        &mut self,
        map: &Map,
        me: NodeId,
        now_ms: u64,
        random: &mut Random,
    ) -> Option<Vec<u8>> {
        let store = map.stores().get(&store_name())?;
        let pushed = store.push.as_ref().map(|push| &push.version);
        let wanted: Vec<_> = store.live.iter().chain(&store.kept).chain(pushed).collect();
        // A version that differs from the pushed one is pulled again if other nodes have made it live.
        self.have.retain(|version, pulled| {
            let wanted = wanted.iter().find(|it| it.version == *version);
            let is_pushed = pushed.is_some_and(|it| it.version == *version);
            wanted.is_some_and(|it| is_pushed || it.digest == pulled.digest)
        });
        let is_wanted = |pull: &Pull| wanted.iter().any(|it| it.version == pull.version);
        if self.pulling.as_ref().is_some_and(|pull| !is_wanted(pull)) {
            self.pulling = None;
        }
        if self.written.is_some() {
            return None;
        }
        if let Some(pull) = self.pulling.take_if(|pull| pull.ends_at_ms <= now_ms) {
            if !pull.works {
                self.failed.insert(pull.version);
                return None;
            }
            let text = self.text(pull.version, &pull.brings);
            self.written = Some((0, pull.version, pull.brings));
            return Some(text);
        }
        if self.pulling.is_none() {
            let is_pushed = |version| pushed.is_some_and(|it| it.version == version);
            let slots = Stores::required_slots(map, me);
            let next = wanted.into_iter().find(|it| {
                let failed = self.failed.contains(&it.version) && is_pushed(it.version);
                let has = self.have.get(&it.version);
                !failed && has.is_none_or(|pulled| !slots.is_subset(&pulled.slots))
            })?;
            let pulled = self.have.get(&next.version).map(|pulled| &pulled.slots);
            let goes_wrong = is_pushed(next.version) && random.one_in(16);
            let is_another = is_pushed(next.version) && random.one_in(40);
            self.pulling = Some(Pull {
                version: next.version,
                brings: PulledVersion {
                    digest: if is_another {
                        "another".to_owned()
                    } else {
                        next.digest.clone()
                    },
                    slots: slots
                        .iter()
                        .chain(pulled.into_iter().flatten())
                        .copied()
                        .collect(),
                },
                ends_at_ms: now_ms + random.between(10, 1_500),
                works: !goes_wrong,
            });
        }
        None
    }

    pub fn is_written_by(&mut self, change: u64) {
        if let Some((by, _, _)) = &mut self.written {
            *by = change;
        }
    }

    pub fn synced(&mut self, upto: u64) {
        if let Some((_, version, pulled)) = self.written.take_if(|it| it.0 <= upto && it.0 > 0) {
            self.have.insert(version, pulled);
        }
    }

    /// A version is ready if it has all of the slots.
    pub fn report(&self, slots: &BTreeSet<u16>) -> Vec<VersionProgress> {
        let progress_of = |version: VersionId, progress| VersionProgress {
            store: store_name(),
            version,
            progress,
        };
        let complete = self
            .have
            .iter()
            .filter(|(_, pulled)| slots.is_subset(&pulled.slots));
        let have = complete.map(|(version, pulled)| {
            let digest = pulled.digest.clone();
            progress_of(*version, Progress::Ready { digest })
        });
        let failed = self.failed.iter().map(|version| {
            let why = "the disk is full".to_owned();
            progress_of(*version, Progress::Failed { why })
        });
        let pulling = self
            .pulling
            .iter()
            .filter(|pull| !self.have.contains_key(&pull.version));
        let pulling = pulling.map(|pull| {
            let (bytes, of_bytes) = (1, 2);
            progress_of(pull.version, Progress::Pulling { bytes, of_bytes })
        });
        have.chain(failed).chain(pulling).collect()
    }

    /// Returns whether this node answers for a slot from this version.
    pub fn answers(&self, map: &Map, me: NodeId, slot: u16, version: VersionId) -> bool {
        let wanted = map
            .stores()
            .get(&store_name())
            .and_then(|it| it.version(version));
        let pulled = self
            .have
            .get(&version)
            .filter(|pulled| pulled.slots.contains(&slot));
        let has = wanted.is_some_and(|it| pulled.is_some_and(|pulled| pulled.digest == it.digest));
        has && map.slots().of(slot).placement.is_holder(me)
    }

    /// The version that a request starts with.
    pub fn live(map: &Map) -> Option<VersionId> {
        let store = map.stores().get(&store_name())?;
        store.live.as_ref().map(|it| it.version)
    }

    pub fn latest_pulled(&self) -> Option<VersionId> {
        self.have.keys().next_back().copied()
    }
}

impl PartitionRead {
    pub fn new(client: At, number: u64) -> PartitionRead {
        PartitionRead {
            client,
            number,
            parts: vec![None; SLOTS.len()],
        }
    }

    pub fn is_complete(&self) -> bool {
        self.parts.iter().all(Option::is_some)
    }
}
