//! A data store in this process that is correct under concurrency: the reference for other data stores, and the store
//! of tests.
//!
//! It stores the given bytes, and answers from them. Each member has a lock of its own. A change of two members takes
//! both locks, the lower number first. A list is read under one lock, so it shows one instant.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use super::{OpenResult, Options};
use crate::model::content::{Owner, RESOURCE_SIZE, THUMBNAIL_SIZE};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};

const SHARDS: usize = 1024;

#[derive(Default)]
struct Memory {
    data: RwLock<Arc<StoredPopulation>>,
}

pub fn open(options: &Options) -> OpenResult {
    if let Some((name, _)) = options.settings.first() {
        return Err(format!("--set {name}: memory has no settings"));
    }
    if let Some(address) = &options.address {
        return Err(format!("--at {address}: memory is in this process"));
    }
    Ok(Box::new(Memory::default()))
}

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        Box::pin(async {
            let data = Arc::new(StoredPopulation::new(population));
            *self.data.write().expect("no panic while locked") = data;
            Ok(())
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        ready_reply(|| Ok(lock(&self.data().notes).get(name).cloned()))
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        ready_reply(|| {
            lock(&self.data().notes).insert(name.to_owned(), text.to_owned());
            Ok(())
        })
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        ready_reply(|| {
            let data = self.data();
            let mut notes = lock(&data.notes);
            notes.entry(name.to_owned()).or_insert(text.to_owned());
            Ok(())
        })
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        let data = self.data();
        Box::pin(async { Ok(Rc::new(MemoryClient { data, population }) as Rc<dyn Client>) })
    }
}

impl Memory {
    fn data(&self) -> Arc<StoredPopulation> {
        self.data.read().expect("no panic while locked").clone()
    }
}

/// All stored data.
#[derive(Default)]
struct StoredPopulation {
    members: Box<[Member]>,
    /// By resource; resources without comments are absent.
    comments: Box<[Mutex<HashMap<u64, Thread>>]>,
    notes: Mutex<BTreeMap<String, String>>,
}

/// The comments on a resource.
type Thread = BTreeMap<u64, Box<[u8]>>;

#[derive(Default)]
struct Member {
    stored: OnceLock<LoadedData>,
    mutable: Mutex<MutableState>,
}

/// The data that does not change after the load.
struct LoadedData {
    profile: Box<[u8]>,
    thumbnail: Option<Box<[u8]>>,
    image: Option<Box<[u8]>>,
    /// The bodies of the resources that the member created, concatenated.
    resources: Box<[u8]>,
}

#[derive(Default)]
struct MutableState {
    friends: Vec<u32>,
    inviters: Vec<u32>,
    /// Descending.
    wall: Vec<u64>,
    /// In the order of their numbers.
    posts: Vec<(Post, Box<[u8]>)>,
}

impl StoredPopulation {
    fn new(population: &Population) -> StoredPopulation {
        StoredPopulation {
            members: (0..population.members).map(|_| Member::default()).collect(),
            comments: (0..SHARDS).map(|_| Mutex::default()).collect(),
            notes: Mutex::default(),
        }
    }

    fn member(&self, member: u32) -> Result<(&LoadedData, MutexGuard<'_, MutableState>), Failure> {
        let found = self.members.get(member as usize);
        match found.and_then(|it| Some((it, it.stored.get()?))) {
            Some((it, stored)) => Ok((stored, lock(&it.mutable))),
            None => refuse("no such member"),
        }
    }

    /// Changes the relation of two members atomically.
    fn update_pair<T>(
        &self,
        one: u32,
        other: u32,
        change: impl FnOnce(&mut MutableState, &mut MutableState) -> T,
    ) -> T {
        let lock = |member: u32| lock(&self.members[member as usize].mutable);
        let (mut first, mut second);
        if one < other {
            first = lock(one);
            second = lock(other);
        } else {
            second = lock(other);
            first = lock(one);
        }
        change(&mut first, &mut second)
    }

    fn thread(&self, resource: u64) -> MutexGuard<'_, HashMap<u64, Thread>> {
        lock(&self.comments[resource as usize % SHARDS])
    }

    fn load(&self, population: &Population, member: u32) {
        let contents = population.contents();
        let boxed = |owner, size| contents.generate(owner, size).into_boxed_slice();
        let resources = population.resources_of(member);
        let mut bodies = vec![0; population.resources as usize * RESOURCE_SIZE];
        for (resource, body) in resources.clone().zip(bodies.chunks_mut(RESOURCE_SIZE)) {
            contents.fill(Owner::Resource(resource), body);
        }
        // Existing data is identical.
        let _ = self.members[member as usize].stored.set(LoadedData {
            profile: boxed(Owner::Profile(member), population.profile_size()),
            thumbnail: population
                .image_size
                .map(|_| boxed(Owner::Thumbnail(member), THUMBNAIL_SIZE)),
            image: population
                .image_size
                .map(|size| boxed(Owner::Image(member), size)),
            resources: bodies.into(),
        });
        {
            let mut mutable = lock(&self.members[member as usize].mutable);
            mutable.friends = population.friends_of(member).collect();
            mutable.inviters = population.inviters_of(member).collect();
        }
        for resource in resources {
            let wall = population.wall(resource);
            let wall = &mut lock(&self.members[wall as usize].mutable).wall;
            if let Err(place) = wall.binary_search_by(|other| resource.cmp(other)) {
                wall.insert(place, resource);
            }
            for comment in 0..population.comments.into() {
                let text = boxed(Owner::Comment(resource, comment), population.comment_size);
                let mut threads = self.thread(resource);
                threads.entry(resource).or_default().insert(comment, text);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic while locked")
}

fn refuse<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Refused(why.to_owned()))
}

/// Removes an element of an unordered list. Returns whether it was present.
fn remove_element<T: PartialEq>(list: &mut Vec<T>, element: T) -> bool {
    match list.iter().position(|other| *other == element) {
        Some(place) => {
            list.swap_remove(place);
            true
        }
        None => false,
    }
}

struct MemoryClient {
    data: Arc<StoredPopulation>,
    population: Arc<Population>,
}

impl MemoryClient {
    /// Returns the members of a list with their profiles.
    fn people(&self, members: Vec<u32>) -> Result<People, Failure> {
        let mut people = People::default();
        people.members.reserve(members.len());
        for member in members {
            let Some(stored) = self.data.members[member as usize].stored.get() else {
                return refuse("no such member");
            };
            let thumbnail = stored.thumbnail.as_deref();
            people.push(&self.population, member, &stored.profile, thumbnail);
        }
        Ok(people)
    }

    fn profile(&self, requester: u32, owner: u32) -> Result<Profile, Failure> {
        let (stored, mutable) = self.data.member(owner)?;
        let mut profile = Profile {
            friends: mutable.friends.len() as u64,
            invitations: (requester == owner).then_some(mutable.inviters.len() as u64),
            resources: (stored.resources.len() / RESOURCE_SIZE) as u64,
            wrong: 0,
        };
        drop(mutable);
        let image = stored.image.as_deref();
        profile.check(&self.population, owner, &stored.profile, image);
        Ok(profile)
    }

    fn top(&self, owner: u32, top: u32) -> Result<Resources, Failure> {
        let (_, mutable) = self.data.member(owner)?;
        let wall: Vec<u64> = mutable.wall.iter().copied().take(top as usize).collect();
        drop(mutable);
        let mut found = Resources::default();
        for resource in wall {
            let creator = self.population.creator(resource);
            let Some(stored) = self.data.members[creator as usize].stored.get() else {
                return refuse("no such resource");
            };
            let place = (resource % u64::from(self.population.resources)) as usize * RESOURCE_SIZE;
            let body = &stored.resources[place..place + RESOURCE_SIZE];
            found.push(&self.population, resource, body);
        }
        Ok(found)
    }

    fn comments(&self, resource: u64) -> Comments {
        let mut found = Comments::default();
        if let Some(thread) = self.data.thread(resource).get(&resource) {
            for (comment, text) in thread {
                found.push(&self.population, resource, *comment, text);
            }
        }
        found
    }

    fn change(
        &self,
        one: u32,
        other: u32,
        change: impl FnOnce(&mut MutableState, &mut MutableState) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let members = self.data.members.len();
        if one != other && (one.max(other) as usize) < members {
            self.data.update_pair(one, other, change)
        } else {
            refuse("no such two members")
        }
    }
}

/// Returns a future that completes when it is first polled.
fn ready_reply<'a, T: 'a>(act: impl FnOnce() -> Result<T, Failure> + 'a) -> Reply<'a, T> {
    Box::pin(async { act() })
}

impl Client for MemoryClient {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        ready_reply(move || {
            members.for_each(|member| self.data.load(&self.population, member));
            Ok(())
        })
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        ready_reply(move || self.profile(requester, owner))
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        ready_reply(move || {
            let friends = self.data.member(owner)?.1.friends.clone();
            self.people(friends)
        })
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        ready_reply(move || {
            let inviters = self.data.member(member)?.1.inviters.clone();
            self.people(inviters)
        })
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        ready_reply(move || {
            self.change(inviter, invitee, |one, other| {
                let related = other.inviters.contains(&inviter)
                    || one.inviters.contains(&invitee)
                    || one.friends.contains(&invitee);
                if related {
                    return refuse("they are related already");
                }
                other.inviters.push(inviter);
                Ok(())
            })
        })
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        ready_reply(move || {
            self.change(invitee, inviter, |one, other| {
                if !remove_element(&mut one.inviters, inviter) {
                    return refuse("no such invitation");
                }
                one.friends.push(inviter);
                other.friends.push(invitee);
                Ok(())
            })
        })
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        ready_reply(move || {
            let (_, mut mutable) = self.data.member(invitee)?;
            if remove_element(&mut mutable.inviters, inviter) {
                Ok(())
            } else {
                refuse("no such invitation")
            }
        })
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        ready_reply(move || {
            self.change(member, friend, |one, other| {
                let were = remove_element(&mut one.friends, friend)
                    && remove_element(&mut other.friends, member);
                if were {
                    Ok(())
                } else {
                    refuse("they are not friends")
                }
            })
        })
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        ready_reply(move || self.top(owner, top))
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        ready_reply(move || Ok(self.comments(resource)))
    }

    fn post_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        ready_reply(move || {
            let owner = Owner::Comment(resource, comment);
            let text = self
                .population
                .contents()
                .generate(owner, self.population.comment_size);
            let mut threads = self.data.thread(resource);
            let thread = threads.entry(resource).or_default();
            match thread.insert(comment, text.into()) {
                None => Ok(()),
                Some(_) => refuse("a comment with that number exists"),
            }
        })
    }

    fn delete_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        ready_reply(move || {
            let mut threads = self.data.thread(resource);
            match threads
                .get_mut(&resource)
                .and_then(|it| it.remove(&comment))
            {
                Some(_) => Ok(()),
                None => refuse("no such comment"),
            }
        })
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        ready_reply(move || {
            let owner = Owner::Post(post.author, post.number);
            let text = self
                .population
                .contents()
                .generate(owner, crate::model::content::POST_SIZE);
            let (_, mut mutable) = self.data.member(member)?;
            mutable.posts.push((post, text.into()));
            Ok(())
        })
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        ready_reply(move || {
            let friends = self.data.member(member)?.1.friends.clone();
            let mut posts = Vec::new();
            for friend in friends {
                let (_, mutable) = self.data.member(friend)?;
                posts.extend(mutable.posts.iter().rev().take(top as usize).cloned());
            }
            posts.sort_unstable_by_key(|(post, _)| std::cmp::Reverse(post.time));
            posts.truncate(top as usize);
            let mut feed = Feed::default();
            for (post, text) in &posts {
                feed.push(&self.population, *post, text);
            }
            Ok(feed)
        })
    }
}
