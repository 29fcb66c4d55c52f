//! Larder's own model.
//!
//! **A dimension of `d` cells** is cut so that cells are equally full, and a value that fills more has cells of its own (`mapping/quantiles`). So a value
//! that a share `s` of the objects has lies in `max(1, s d)` cells, and cells contacted are objects contacted, whatever the skew. In the mean
//! over the values asked for, `c`, that is:
//!
//! | constraint | cells contacted |
//! |---|---|
//! | equality | `c` |
//! | one of `n` | `d (1 - (1 - c/d)^n)` |
//! | range of a share `f` | `1 + f (d - 1)` |
//! | none | `d` |
//!
//! Objects that have several values of an attribute, or none, have a cell of their own; a search for a value of an attribute that may have several contacts that cell as well, with
//! whatever else it contacts, and so does every other one: it is the hottest.
//!
//! **Regions** contacted are their product. **Servers**: regions lie on servers in runs (`mapping/placement`), so an outer dimension that is fixed
//! leaves few of them.
//!
//! **Candidates**: a server keeps all of its regions of a subspace in one index. So what it looks at are its objects that the local index finds for the one
//! constraint that it finds the fewest for, in whichever of its regions they are; or all that it has, one after the other, where that is less work. The key
//! subspace has all objects on all servers. Those of a list are looked at where there are further constraints; without, they are what is asked for.
//!
//! **Conditions**: each further constraint is looked up at each server that is contacted, whatever it finds. **Subspaces**: whom a search would ask is seen in each
//! that there is, which every search pays for.
//!
//! **Matches**: each is weighed, also those that are not sent. How many there are a recording says; else constraints are taken not to depend on one another.
//!
//! **Results**: each server finds as many as are sent, if it has them, and they are merged. Of `m` objects that match in the mean, of which `r` are sent,
//! `m (1 - (1 - r/m)^s)` are found on `s` servers, if numbers of matches are distributed exponentially; and something on `s r / (r + s)` of them. Those have work with it
//! however little it is.
//!
//! **Skew**: the busiest server is the one with the value asked for most often. What it works more than the mean counts for all servers, since the
//! throughput ends where the first server is full. The most asked for places of several classes are taken to be on one server, which they need
//! not be: the prediction errs to the low side, by at most that much. Fewer regions than servers leave servers without work, and regions that do not
//! divide evenly by servers leave some with a region more: that counts as skew, too.
//!
//! **A modification** passes the replicas of each subspace, and those of the server that the object leaves where it moves. It moves where an
//! attribute changes, unless the new value's region is on the same server by chance. Each copy keeps its local indexes. What the owner of the key does for a
//! write costs other than what the keeper of a copy does.
//!
//! **Contention**: of `c` clients, of whose operations a share `w` are writes, `u = c w / s` write at one of `s` servers at a time, if a write takes as long as a
//! search. They share a commit, so each bears `1 / max(1, u)` of it. A search waits for what is not committed at each server that it asks, of which `1 - exp(-u)` have
//! something, if writes come independently of one another.

use super::configuration::{AttributeSet, Configuration, Layout};
use super::deployment::Deployment;
use super::latency;
use super::model::{ClassKind, ClassPrediction, CostModel, Parts, Prediction, mean_of};
use super::workload::{AttributeProfile, Kind, Workload};

/// Larder's model of a workload on a deployment, with one choice of local indexes.
#[derive(Debug, Clone)]
pub struct LarderModel<'a> {
    pub workload: &'a Workload,
    pub deployment: &'a Deployment,
    indexes: AttributeSet,
    queries: Vec<Query>,
    writes: Vec<Write>,
    get_share: f64,
    /// At one server, at a time.
    writes_under_way: f64,
}

#[derive(Debug, Clone)]
struct Query {
    share: f64,
    /// At most one for an attribute.
    constraints: Vec<Constraint>,
    matches: f64,
    results: f64,
}

#[derive(Debug, Clone)]
struct Constraint {
    attribute: usize,
    asks: Asks,
    /// The share of objects that pass it.
    selectivity: f64,
}

#[derive(Debug, Clone, Copy)]
enum Asks {
    Values(f64),
    Range(f64),
}

#[derive(Debug, Clone, Copy)]
struct Write {
    share: f64,
    kind: Kind,
    changes: AttributeSet,
}

impl Query {
    /// How many are found on so many servers together, each of which finds no more than are sent.
    fn found_on(&self, servers: f64) -> f64 {
        if self.results >= self.matches {
            return self.results;
        }
        self.matches * (1.0 - (1.0 - self.results / self.matches).powf(servers))
    }

    /// On how many of these servers something is found and sent.
    fn servers_that_find(&self, servers: f64) -> f64 {
        servers * self.results / (self.results + servers)
    }
}

/// So many objects are looked at one after the other in the time that it takes to look at one of a list, where that was not measured.
const SCANNED: f64 = 64.0;

/// What one query does with one subspace.
#[derive(Debug, Clone, Copy)]
struct Estimate {
    servers: f64,
    regions: f64,
    candidates: f64,
    index: Option<usize>,
    parts: Parts,
}

impl<'a> LarderModel<'a> {
    /// # Errors
    /// The workload or the deployment cannot be; in words.
    pub fn new(
        workload: &'a Workload,
        deployment: &'a Deployment,
        indexes: AttributeSet,
    ) -> Result<LarderModel<'a>, String> {
        workload.check().map_err(|error| error.to_string())?;
        deployment.check().map_err(|error| error.to_string())?;
        let total = workload.frequency();
        let index_of = |name: &String| {
            let index = workload.attribute(name);
            index.expect("the workload is checked")
        };
        let queries = workload.queries.iter().map(|class| {
            let equal = class.equal.iter().map(|name| (name, Asks::Values(1.0)));
            let one_of = class
                .one_of
                .iter()
                .map(|(name, &count)| (name, Asks::Values(count)));
            let range = class
                .range
                .iter()
                .map(|(name, &share)| (name, Asks::Range(share)));
            let constraint = |(name, asks): (&String, Asks)| {
                let attribute = index_of(name);
                let own = match asks {
                    Asks::Range(share) => share,
                    Asks::Values(count) => {
                        let values = Values::of(&workload.attributes[attribute], workload.objects);
                        (count * values.selectivity()).min(1.0)
                    }
                };
                Constraint {
                    attribute,
                    asks,
                    selectivity: class.selectivity.get(name).copied().unwrap_or(own),
                }
            };
            let constraints: Vec<Constraint> =
                equal.chain(one_of).chain(range).map(constraint).collect();
            let pass: f64 = constraints.iter().map(|it| it.selectivity).product();
            let matches = class.matches.unwrap_or(pass * workload.objects as f64);
            Query {
                share: class.frequency / total,
                constraints,
                matches,
                results: class.results.unwrap_or(matches),
            }
        });
        let writes = workload.modifications.iter().map(|class| Write {
            share: class.frequency / total,
            kind: class.kind,
            changes: AttributeSet::of(class.changes.iter().map(index_of)),
        });
        let writes: Vec<Write> = writes.collect();
        let written: f64 = writes.iter().map(|it| it.share).sum();
        Ok(LarderModel {
            indexes,
            queries: queries.collect(),
            writes_under_way: f64::from(deployment.clients) * written
                / f64::from(deployment.servers),
            writes,
            get_share: workload.gets / total,
            workload,
            deployment,
        })
    }

    /// The attributes that some query constrains.
    pub fn searched(&self) -> AttributeSet {
        let constraints = self.queries.iter().flat_map(|it| &it.constraints);
        AttributeSet::of(constraints.map(|it| it.attribute))
    }

    /// How much it helps that an attribute is outermost: the share of operations that fix it, those that ask for a range counted half.
    pub(super) fn definedness(&self, attribute: usize) -> f64 {
        let of = |query: &Query| {
            let constraint = query
                .constraints
                .iter()
                .find(|it| it.attribute == attribute);
            match constraint.map(|it| it.asks) {
                None => 0.0,
                Some(Asks::Values(_)) => query.share,
                Some(Asks::Range(_)) => query.share / 2.0,
            }
        };
        self.queries.iter().map(of).sum()
    }

    pub(super) fn query_attributes(&self, query: usize) -> AttributeSet {
        let constraints = self.queries[query].constraints.iter();
        AttributeSet::of(constraints.map(|it| it.attribute))
    }

    fn servers(&self) -> f64 {
        f64::from(self.deployment.servers)
    }

    fn estimate(&self, query: &Query, layout: Option<&Layout>) -> Estimate {
        let objects = self.workload.objects as f64;
        let (regions, placed) = match layout {
            None => {
                let regions = self.servers() * f64::from(self.deployment.key_regions);
                (regions, Placed::everywhere(self.servers()))
            }
            Some(layout) => {
                let contacts = layout.dimensions.iter().map(|&(attribute, bits)| {
                    self.contacts(query, attribute.into(), f64::from(1 << bits))
                });
                (contacts.product(), self.placed(query, layout))
            }
        };
        let here = objects * placed.share;
        let mut candidates = here;
        let mut index = None;
        for constraint in &query.constraints {
            if !self.indexes.contains(constraint.attribute) {
                continue;
            }
            // The servers contacted are chosen by this attribute, too: among their objects more pass.
            let chosen = placed.chosen_by(constraint.attribute);
            let found = here * (constraint.selectivity / chosen).min(1.0);
            if found < candidates {
                (candidates, index) = (found, Some(constraint.attribute));
            }
        }
        let candidates = candidates.max(query.matches).min(objects);
        let costs = &self.deployment.costs;
        let result_us = costs.result_us + self.workload.object_bytes as f64 * costs.result_byte_us;
        let further = query.constraints.len().saturating_sub(1) as f64;
        // What the index leads to is what is asked for, where nothing else is.
        let listed_us = match (index, further > 0.0) {
            (Some(_), false) if costs.match_us.is_some() => 0.0,
            (Some(_), _) => candidates * costs.candidate_us,
            (None, _) => f64::INFINITY,
        };
        let scanned_us = match costs.scan_us {
            Some(us) => here * us,
            None => (here / SCANNED + query.matches) * costs.candidate_us,
        };
        let (index, candidates) = match listed_us <= scanned_us {
            true => (index, candidates),
            false => (None, here.min(scanned_us / costs.candidate_us)),
        };
        let mut parts = Parts {
            queries: costs.query_us,
            servers: placed.servers * (costs.server_us + further * costs.condition_us),
            regions: regions * costs.region_us,
            candidates: listed_us.min(scanned_us)
                + query.matches * costs.match_us.unwrap_or_default(),
            results: query.found_on(placed.servers) * result_us
                + query.servers_that_find(placed.servers) * costs.found_us,
            contention: placed.servers * costs.beside_us * (1.0 - (-self.writes_under_way).exp()),
            ..Parts::default()
        };
        let of_a_server = (parts.work() - parts.queries) / placed.servers;
        parts.skew = self.servers() * placed.excess * of_a_server;
        Estimate {
            servers: placed.servers,
            regions,
            candidates,
            index,
            parts,
        }
    }

    /// How many of the cells of a dimension a query contacts.
    fn contacts(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        match constraint.map(|it| it.asks) {
            None => cells,
            Some(Asks::Range(share)) => 1.0 + share * (cells - 1.0),
            Some(Asks::Values(count)) => {
                let values =
                    Values::of(&self.workload.attributes[attribute], self.workload.objects);
                let one = values.cells(cells).min(cells) / cells;
                let missed = (1.0 - one).powf(count);
                // Those that have several values, or none, lie in one that has to be asked, too.
                let others = match values.profile.lists {
                    true => missed,
                    false => 0.0,
                };
                cells * (1.0 - missed) + others
            }
        }
    }

    /// How often the fullest cell of a dimension is contacted, of all times that the query comes.
    fn hottest(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let even = self.contacts(query, attribute, cells) / cells;
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        let Some(Asks::Values(_)) = constraint.map(|it| it.asks) else {
            return even;
        };
        let profile = &self.workload.attributes[attribute];
        if profile.lists {
            return 1.0;
        }
        let hottest = profile
            .hot
            .iter()
            .map(|value| match value.objects * cells > 1.0 {
                true => value.queries,
                false => value.queries + (1.0 - value.queries) / cells,
            });
        hottest.fold(even, f64::max)
    }

    fn placed(&self, query: &Query, layout: &Layout) -> Placed {
        let servers = self.servers();
        let of_a_server = (layout.regions() / servers).max(1.0);
        let mut width = layout.regions();
        let (mut contacted, mut even, mut hottest) = (1.0, 1.0, 1.0);
        let mut chosen = Vec::new();
        for &(attribute, bits) in &layout.dimensions {
            // What is within one server is there whatever the inner dimensions are.
            if width <= of_a_server {
                break;
            }
            let attribute = usize::from(attribute);
            let cells = f64::from(1 << bits);
            let inner = width / cells;
            let contacts = self.contacts(query, attribute, cells);
            even *= contacts / cells;
            hottest *= self.hottest(query, attribute, cells);
            // Servers that a cell of the dimensions so far is on, of which several cells may share one.
            let here = width / of_a_server;
            let (most, of_these) = if inner >= of_a_server {
                (cells, contacts)
            } else if self.is_run(query, attribute) {
                let run = 1.0 + (contacts - 1.0) * inner / of_a_server;
                (here.max(1.0), run.min(here.max(1.0)))
            } else {
                let here = here.max(1.0);
                let run = self.run_of_a_value(query, attribute, cells);
                let of_one = (1.0 + (run - 1.0) * inner / of_a_server).min(here);
                (
                    here,
                    here * (1.0 - (1.0 - of_one / here).powf(contacts / run)),
                )
            };
            contacted *= of_these;
            chosen.push((attribute, of_these / most));
            width = inner;
        }
        Placed {
            share: chosen.iter().map(|it| it.1).product(),
            chosen,
            servers: contacted.clamp(1.0, servers),
            excess: (hottest - even).max(0.0)
                + contacted.clamp(1.0, servers) / servers
                    * (self.unevenness(layout.regions()) - 1.0),
        }
    }

    /// How many times the mean of all servers the one has that has most of so many regions.
    fn unevenness(&self, regions: f64) -> f64 {
        self.servers() * (regions / self.servers()).ceil() / regions
    }

    /// How many cells, side by side, a value asked for is in.
    fn run_of_a_value(&self, query: &Query, attribute: usize, cells: f64) -> f64 {
        let mut constraints = query.constraints.iter();
        match constraints.find(|it| it.attribute == attribute) {
            None => 1.0,
            Some(_) => {
                let profile = &self.workload.attributes[attribute];
                let values = Values::of(profile, self.workload.objects);
                values.cells(cells).min(cells)
            }
        }
    }

    /// Whether the cells contacted are adjacent.
    fn is_run(&self, query: &Query, attribute: usize) -> bool {
        let constraint = query
            .constraints
            .iter()
            .find(|it| it.attribute == attribute);
        !matches!(constraint.map(|it| it.asks), Some(Asks::Values(_)))
    }

    /// What one copy of a subspace, or without a layout of the key subspace, costs a write.
    fn write_parts(&self, write: &Write, layout: Option<&Layout>) -> (f64, Parts) {
        let costs = &self.deployment.costs;
        let replicas = f64::from(self.deployment.replicas);
        let all = f64::from(self.indexes.count());
        let changed = f64::from(self.indexes.common(write.changes).count());
        let (moves, entries) = match write.kind {
            Kind::Create | Kind::Delete => (0.0, all),
            Kind::Update => {
                let moves =
                    layout.map_or(0.0, |layout| moves(write.changes, layout, self.servers()));
                (moves, 2.0 * (moves * all + (1.0 - moves) * changed))
            }
        };
        let chain = replicas * (1.0 + moves);
        let left = replicas * moves * costs.leave_us.unwrap_or(costs.stage_us);
        let stages = match layout {
            Some(_) => replicas * costs.stage_us + left,
            None => {
                let commit = costs.commit_us / self.writes_under_way.max(1.0);
                costs.write_us + commit + (replicas - 1.0) * costs.stage_us
            }
        };
        let mut parts = Parts {
            stages,
            moves: replicas * moves * costs.move_us,
            index_entries: replicas * entries * costs.index_entry_us,
            ..Parts::default()
        };
        let copies = layout.map(|it| it.regions() * replicas);
        let unevenness = copies.map_or(1.0, |it| self.unevenness(it));
        parts.skew = parts.work() * (unevenness - 1.0);
        (chain, parts)
    }

    fn best<'l>(&self, query: &Query, layouts: &'l [Layout]) -> (Option<&'l Layout>, Estimate) {
        let mut best = (None, self.estimate(query, None));
        for layout in layouts {
            let estimate = self.estimate(query, Some(layout));
            if estimate.parts.with_skew() < best.1.parts.with_skew() {
                best = (Some(layout), estimate);
            }
        }
        best
    }

    /// The same model with other local indexes.
    pub fn with_indexes(&self, indexes: AttributeSet) -> LarderModel<'a> {
        LarderModel {
            indexes,
            ..self.clone()
        }
    }

    pub fn indexes(&self) -> AttributeSet {
        self.indexes
    }

    fn storage(&self, subspaces: usize) -> f64 {
        let copies = (1 + subspaces) as f64 * f64::from(self.deployment.replicas);
        let entries = f64::from(self.indexes.count()) * self.deployment.index_entry_bytes as f64;
        let object = self.workload.object_bytes as f64 + entries;
        copies * self.workload.objects as f64 * object
    }
}

/// On how many servers the contacted regions are, and how much more often than the mean the busiest one is contacted.
#[derive(Debug, Clone)]
struct Placed {
    servers: f64,
    /// Of all objects, those on these servers.
    share: f64,
    /// What share of the servers each attribute leaves of those that there are by the others.
    chosen: Vec<(usize, f64)>,
    /// Beyond the mean, of all times that the query comes.
    excess: f64,
}

impl Placed {
    fn everywhere(servers: f64) -> Placed {
        Placed {
            servers,
            share: 1.0,
            chosen: Vec::new(),
            excess: 0.0,
        }
    }

    fn chosen_by(&self, attribute: usize) -> f64 {
        let chosen = self.chosen.iter().find(|it| it.0 == attribute);
        chosen.map_or(1.0, |it| it.1)
    }
}

/// How often an update of these attributes moves the object to another server. Regions lie on servers in runs, so only the outer bits say which it is.
fn moves(changes: AttributeSet, layout: &Layout, servers: f64) -> f64 {
    let mut places = servers.min(layout.regions());
    let mut same = 1.0;
    for &(attribute, bits) in &layout.dimensions {
        let of_these = f64::from(1 << bits).min(places);
        if changes.contains(attribute.into()) {
            same /= of_these;
        }
        places = (places / of_these).max(1.0);
    }
    1.0 - same
}

/// The values of an attribute: the hot ones, and others of equal parts.
struct Values<'a> {
    profile: &'a AttributeProfile,
    /// Of the queries, for one of the others.
    queries: f64,
    /// Of the objects, that have one certain other.
    objects: f64,
}

impl Values<'_> {
    fn of(profile: &AttributeProfile, objects: u64) -> Values<'_> {
        let hot: f64 = profile.hot.iter().map(|it| it.objects).sum();
        let asked: f64 = profile.hot.iter().map(|it| it.queries).sum();
        let others = profile.distinct.unwrap_or(objects).min(objects) as f64;
        let others = others - profile.hot.len() as f64;
        let (queries, objects) = match others > 0.0 {
            true => (1.0 - asked, (1.0 - hot) / others),
            false => (0.0, 0.0),
        };
        Values {
            profile,
            queries: queries.max(0.0),
            objects: objects.max(0.0),
        }
    }

    fn mean(&self, number: impl Fn(f64) -> f64) -> f64 {
        let hot = self.profile.hot.iter();
        let hot: f64 = hot.map(|it| it.queries * number(it.objects)).sum();
        let asked: f64 = self.profile.hot.iter().map(|it| it.queries).sum();
        let sum = hot + self.queries * number(self.objects);
        // All values are hot, and the queries for them were not given in full.
        let weight = asked + self.queries;
        if weight > 0.0 {
            sum / weight
        } else {
            number(self.objects)
        }
    }

    /// The share of objects that has the value asked for.
    fn selectivity(&self) -> f64 {
        self.mean(|share| share)
    }

    /// The cells that the value asked for is in.
    fn cells(&self, cells: f64) -> f64 {
        self.mean(|share| (share * cells).max(1.0))
    }
}

impl CostModel for LarderModel<'_> {
    fn queries(&self) -> usize {
        self.queries.len()
    }

    fn without(&self, query: usize) -> f64 {
        let query = &self.queries[query];
        query.share * self.estimate(query, None).parts.with_skew()
    }

    fn with(&self, query: usize, layout: &Layout) -> f64 {
        let query = &self.queries[query];
        query.share * self.estimate(query, Some(layout)).parts.with_skew()
    }

    fn upkeep(&self, layout: &Layout) -> f64 {
        let writes = self.writes.iter();
        let upkeep = writes.map(|it| it.share * self.write_parts(it, Some(layout)).1.with_skew());
        let searches: f64 = self.queries.iter().map(|it| it.share).sum();
        upkeep.sum::<f64>() + searches * self.deployment.costs.subspace_us
    }

    fn fixed(&self) -> f64 {
        let writes = self.writes.iter();
        let writes = writes.map(|it| it.share * self.write_parts(it, None).1.work());
        writes.sum::<f64>() + self.get_share * self.deployment.costs.get_us
    }

    fn subspaces_max(&self) -> usize {
        match self.deployment.storage_bytes_max {
            None => usize::MAX,
            Some(most) => (most as f64 / self.storage(0) - 1.0).max(0.0) as usize,
        }
    }

    fn predict(&self, configuration: &Configuration) -> Prediction {
        let model = self.with_indexes(configuration.indexes);
        let workload = self.workload;
        let message = self.deployment.message_us;
        let mut classes = Vec::new();
        if self.get_share > 0.0 {
            let parts = Parts {
                gets: self.deployment.costs.get_us,
                ..Parts::default()
            };
            classes.push(ClassPrediction {
                latency_idle_us: parts.work() + message,
                servers: 1.0,
                parts,
                ..ClassPrediction::of("get", ClassKind::Get, self.get_share)
            });
        }
        for (query, named) in model.queries.iter().zip(&workload.queries) {
            let (layout, estimate) = model.best(query, &configuration.subspaces);
            let considered = configuration.subspaces.len() as f64;
            let mut parts = estimate.parts;
            parts.queries += considered * self.deployment.costs.subspace_us;
            // Servers search side by side; what is sent passes through one.
            let searched = parts.servers + parts.regions + parts.candidates + parts.contention;
            let path = parts.queries + parts.results + searched / estimate.servers;
            let index = estimate
                .index
                .map(|at| workload.attributes[at].name.clone());
            classes.push(ClassPrediction {
                subspace: layout.map(|it| it.text(workload)),
                index,
                servers: estimate.servers,
                regions: estimate.regions,
                candidates: estimate.candidates,
                results: query.results,
                latency_idle_us: path + 3.0 * message,
                parts,
                ..ClassPrediction::of(&named.name, ClassKind::Query, query.share)
            });
        }
        for (write, named) in model.writes.iter().zip(&workload.modifications) {
            let (mut chain, mut parts) = model.write_parts(write, None);
            for layout in &configuration.subspaces {
                let (servers, more) = model.write_parts(write, Some(layout));
                chain += servers;
                parts.add(&more, 1.0);
            }
            // Down the chain, back, and to the client.
            let messages = 2.0 * (chain - 1.0) + 1.0;
            classes.push(ClassPrediction {
                chain,
                servers: chain.min(self.servers()),
                latency_idle_us: parts.work() + messages * message,
                parts,
                ..ClassPrediction::of(&named.name, ClassKind::Modification, write.share)
            });
        }
        model.together(configuration, classes)
    }
}

impl LarderModel<'_> {
    fn together(
        &self,
        configuration: &Configuration,
        mut classes: Vec<ClassPrediction>,
    ) -> Prediction {
        let mut parts = Parts::default();
        for class in &classes {
            parts.add(&class.parts, class.share);
        }
        let idle: f64 = classes.iter().map(|it| it.share * it.latency_idle_us).sum();
        let processors = self.servers() * f64::from(self.deployment.cores);
        let load = latency::Load {
            work_us: parts.with_skew(),
            idle_us: idle,
            waits_us: idle - self.busy_path(&classes),
            processors,
        };
        let steady = latency::steady(&load, self.deployment.clients);
        for class in &mut classes {
            let waits = self.waits(class);
            class.latency_us = waits + (class.latency_idle_us - waits) * steady.stretch;
        }
        let texts = configuration.subspaces.iter();
        Prediction {
            configuration: configuration.text(self.workload),
            subspaces: texts.map(|it| it.text(self.workload)).collect(),
            indexes: configuration.index_names(self.workload),
            throughput: steady.throughput,
            capacity: 1e6 * processors / parts.with_skew(),
            capacity_even: 1e6 * processors / parts.work(),
            parts,
            latency_idle_us: idle,
            latency_us: steady.latency_us,
            chain: mean_of(&classes, ClassKind::Modification, |it| it.chain),
            servers: mean_of(&classes, ClassKind::Query, |it| it.servers),
            regions: mean_of(&classes, ClassKind::Query, |it| it.regions),
            storage_bytes: self.storage(configuration.subspaces.len()),
            classes,
        }
    }

    /// The time in which messages are under way, and no processor works for the operation.
    fn waits(&self, class: &ClassPrediction) -> f64 {
        let messages = match class.kind {
            ClassKind::Get => 1.0,
            ClassKind::Query => 3.0,
            ClassKind::Modification => 2.0 * (class.chain - 1.0) + 1.0,
        };
        messages * self.deployment.message_us
    }

    fn busy_path(&self, classes: &[ClassPrediction]) -> f64 {
        let of = |it: &ClassPrediction| it.share * (it.latency_idle_us - self.waits(it));
        classes.iter().map(of).sum()
    }
}
