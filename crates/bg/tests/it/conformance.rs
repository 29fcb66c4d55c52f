//! The conformance test of data stores: a test of a store starts its server and calls [`conforms`].
//!
//! Reads are compared with [`Model`], which keeps complete relations. The first answer that differs fails the test.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use larder_bg::model::population::Population;
use larder_bg::stores::contract::{Client, Post, Store};
use larder_bg::stores::{self, Options};
use tokio::task::LocalSet;

/// Opens the store with this name.
pub fn open(name: &str, options: &Options) -> Box<dyn Store> {
    let entry = stores::find(name).expect("a known store");
    (entry.open)(options).expect("the store opens")
}

/// Runs a future as a worker would, to its end.
pub fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, async {
        tokio::time::timeout(Duration::from_secs(120), work)
            .await
            .expect("the store answers")
    })
}

/// Checks the contract of [`Store`] and [`Client`].
pub fn conforms(store: &dyn Store) {
    let with_images = small(Some(5000));
    run(async {
        creating_twice_equals_creating_once(store, &with_images).await;
        notes_are_kept_until_the_schema_is_recreated(store, &with_images).await;
        every_write_is_read(store, &with_images).await;
        posts_reach_friends(store, &with_images).await;
        dropped_calls_do_not_affect_other_calls(store, &with_images).await;
        concurrent_calls_receive_their_own_results(store, &with_images).await;
        // Without images, only the bytes differ.
        every_write_is_read(store, &small(None)).await;
    });
}

fn small(image_size: Option<usize>) -> Arc<Population> {
    Arc::new(Population {
        members: 30,
        friends: 6,
        invitations: 2,
        resources: 4,
        comments: 3,
        image_size,
        seed: 7,
        ..Population::default()
    })
}

/// Empties a store and loads the population into it.
async fn fresh(store: &dyn Store, population: &Arc<Population>) -> Rc<dyn Client> {
    store.create(population).await.expect("created");
    let client = store.connect(population.clone()).await.expect("connected");
    client.load(0..population.members).await.expect("loaded");
    client.finish_load().await.expect("finished");
    client
}

async fn creating_twice_equals_creating_once(store: &dyn Store, population: &Arc<Population>) {
    let client = fresh(store, population).await;
    client.invite_friend(0, 15).await.expect("invited");
    client.post_comment(0, 3, 99).await.expect("posted");
    let post = Post {
        author: 1,
        number: 1,
        time: 10,
    };
    client.post_to_feed(1, post).await.expect("posted");
    drop(client);

    // Loaded in two parts by two clients; a few members are loaded twice.
    store.create(population).await.expect("created again");
    let first = store.connect(population.clone()).await.expect("connected");
    let second = store.connect(population.clone()).await.expect("connected");
    let half = population.members / 2;
    let parts = futures::future::join(first.load(0..half), second.load(half..population.members));
    assert_eq!(parts.await, (Ok(()), Ok(())));
    second.load(half..half + 3).await.expect("loaded again");
    first.finish_load().await.expect("finished");
    Model::new(population).expect_all(&*second).await;
    assert_eq!(second.view_feed(0, 9).await.expect("a feed").posts, []);
}

async fn notes_are_kept_until_the_schema_is_recreated(
    store: &dyn Store,
    population: &Arc<Population>,
) {
    store.create(population).await.expect("created");
    assert_eq!(store.note("load").await, Ok(None));
    for text in ["one", "{\"two\": 'three'}"] {
        store.put_note("load", text).await.expect("put");
        assert_eq!(store.note("load").await, Ok(Some(text.to_owned())));
    }
    // Of several concurrent notes, exactly one is kept.
    let names: Vec<String> = (0..8).map(|name| format!("run {name}")).collect();
    let put = names
        .iter()
        .map(|name| store.put_note_if_absent("run-1", name));
    futures::future::try_join_all(put).await.expect("put");
    let first = store.note("run-1").await.expect("a reply").expect("put");
    assert!(names.contains(&first), "{first}");
    store
        .put_note_if_absent("run-1", "late")
        .await
        .expect("put");
    assert_eq!(store.note("run-1").await, Ok(Some(first)));
    store.create(population).await.expect("created");
    assert_eq!(store.note("load").await, Ok(None));
    assert_eq!(store.note("run-1").await, Ok(None));
}

async fn every_write_is_read(store: &dyn Store, population: &Arc<Population>) {
    let client = fresh(store, population).await;
    let client = &*client;
    let mut model = Model::new(population);
    model.expect_all(client).await;

    client.invite_friend(0, 15).await.expect("invited");
    client.invite_friend(7, 15).await.expect("invited");
    model.invitations.get_mut(&15).unwrap().extend([0, 7]);
    model.expect_of(client, &[0, 7, 15]).await;

    client.accept_friend_request(15, 7).await.expect("accepted");
    model.invitations.get_mut(&15).unwrap().remove(&7);
    model.befriend(15, 7);
    model.expect_of(client, &[0, 7, 15]).await;

    client.reject_friend_request(15, 0).await.expect("rejected");
    model.invitations.get_mut(&15).unwrap().remove(&0);
    model.expect_of(client, &[0, 7, 15]).await;

    // Repeats what was undone.
    client.invite_friend(0, 15).await.expect("invited");
    client.accept_friend_request(15, 0).await.expect("accepted");
    model.befriend(0, 15);
    model.expect_of(client, &[0, 7, 15]).await;

    // One initial friend and one new friend.
    client.thaw_friendship(0, 1).await.expect("thawed");
    client.thaw_friendship(7, 15).await.expect("thawed");
    model.estrange(0, 1);
    model.estrange(7, 15);
    model.expect_of(client, &[0, 1, 7, 15]).await;

    // Removes all friends and invitations, so that the counts are zero.
    for other in model.friends[&20].clone() {
        client.thaw_friendship(other, 20).await.expect("thawed");
        model.estrange(other, 20);
    }
    for inviter in std::mem::take(model.invitations.get_mut(&20).unwrap()) {
        let rejected = client.reject_friend_request(20, inviter).await;
        rejected.expect("rejected");
    }
    let all: Vec<u32> = (0..population.members).collect();
    model.expect_of(client, &all).await;

    let resource = population.resources_of(4).start + 1;
    client.post_comment(9, resource, 3).await.expect("posted");
    client.post_comment(10, resource, 4).await.expect("posted");
    client
        .delete_comment(4, resource, 0)
        .await
        .expect("deleted");
    client
        .delete_comment(4, resource, 3)
        .await
        .expect("deleted");
    let comments = model.comments.get_mut(&resource).unwrap();
    comments.extend([4]);
    comments.remove(&0);
    model.expect_comments(client, resource).await;
    for number in std::mem::take(model.comments.get_mut(&resource).unwrap()) {
        let deleted = client.delete_comment(4, resource, number).await;
        deleted.expect("deleted");
    }
    model.expect_all(client).await;
}

async fn posts_reach_friends(store: &dyn Store, population: &Arc<Population>) {
    let client = fresh(store, population).await;
    let feed = async |member, top| {
        let feed = client.view_feed(member, top).await.expect("a feed");
        assert_eq!(feed.wrong, 0);
        feed.posts
    };
    let post = async |author, number, time| {
        let post = Post {
            author,
            number,
            time,
        };
        client.post_to_feed(author, post).await.expect("posted");
        post
    };
    assert_eq!(feed(0, 5).await, []);
    let first = post(1, 1, 1000).await;
    let second = post(2, 1, 1001).await;
    let third = post(1, 2, 1_000_000_000_000).await;
    post(15, 1, 2000).await;
    assert_eq!(feed(0, 5).await, [third, second, first]);
    assert_eq!(feed(0, 2).await, [third, second]);
    assert_eq!(
        feed(1, 5).await,
        [second],
        "one's own are not in one's feed"
    );

    client.thaw_friendship(0, 1).await.expect("thawed");
    assert_eq!(feed(0, 5).await, [second], "of friends only");
    assert_eq!(feed(3, 5).await, [third, second, first]);
    let fourth = post(1, 3, 1_000_000_000_001).await;
    assert_eq!(feed(0, 5).await, [second]);

    client.invite_friend(1, 0).await.expect("invited");
    client.accept_friend_request(0, 1).await.expect("accepted");
    let all = [fourth, third, second, first];
    assert_eq!(feed(0, 5).await, all, "those of before, too");
    let fifth = post(0, 1, 1_000_000_000_002).await;
    assert_eq!(feed(1, 5).await, [fifth, second]);
}

/// Drops calls at various moments: before they are sent and while they are in flight. Every other call still gets its
/// own answer.
async fn dropped_calls_do_not_affect_other_calls(store: &dyn Store, population: &Arc<Population>) {
    let client = fresh(store, population).await;
    let model = Model::new(population);
    for polls in 0..4 {
        for member in 0..population.members {
            let mut dropped = pin!(client.list_friends(member, member));
            let mut lost = pin!(client.view_profile(member, member));
            for _ in 0..polls {
                // A call may complete meanwhile; then it is not dropped, which is also valid.
                let ended = poll_fn(|cx| {
                    let ended = dropped.as_mut().poll(cx).is_ready();
                    Poll::Ready(ended || lost.as_mut().poll(cx).is_ready())
                });
                if ended.await {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        model.expect_of(&*client, &[0, 11, 29]).await;
    }
    model.expect_all(&*client).await;
}

/// Runs several clients with many concurrent calls that write for different members.
async fn concurrent_calls_receive_their_own_results(
    store: &dyn Store,
    population: &Arc<Population>,
) {
    const ROUNDS: u64 = 6;
    let client = fresh(store, population).await;
    let other = store.connect(population.clone()).await.expect("connected");
    let members: Vec<u32> = (0..population.members).collect();
    let tasks = members.iter().map(|&member| {
        let client = if member % 2 == 0 { &client } else { &other };
        let client = client.clone();
        let population = population.clone();
        // Each member invites the opposite one, to which it has no relation, and changes the comments on a resource of
        // its own.
        let opposite = (member + population.members / 2) % population.members;
        async move {
            let resource = population.resources_of(member).start;
            let initial: BTreeSet<u64> = (0..u64::from(population.comments)).collect();
            for round in 0..ROUNDS {
                let number = u64::from(population.comments) + round;
                if member < opposite {
                    client
                        .invite_friend(member, opposite)
                        .await
                        .expect("invited");
                    let requests = client
                        .view_friend_requests(opposite)
                        .await
                        .expect("requests");
                    assert!(requests.members.contains(&member) && requests.wrong == 0);
                    let accepted = client.accept_friend_request(opposite, member).await;
                    accepted.expect("accepted");
                    let friends = client.list_friends(member, member).await.expect("friends");
                    assert!(friends.members.contains(&opposite) && friends.wrong == 0);
                    client
                        .thaw_friendship(member, opposite)
                        .await
                        .expect("thawed");
                }
                client
                    .post_comment(member, resource, number)
                    .await
                    .expect("posted");
                let comments = client
                    .view_comments(member, resource)
                    .await
                    .expect("comments");
                let seen: BTreeSet<u64> = comments.comments.iter().copied().collect();
                let expected = initial.iter().copied().chain([number]).collect();
                assert_eq!((seen, comments.wrong), (expected, 0));
                let deleted = client.delete_comment(member, resource, number).await;
                deleted.expect("deleted");
            }
        }
    });
    futures::future::join_all(tasks).await;
    Model::new(population).expect_all(&*other).await;
}

/// The relations between members and the comments on resources.
pub struct Model {
    population: Arc<Population>,
    pub friends: BTreeMap<u32, BTreeSet<u32>>,
    pub invitations: BTreeMap<u32, BTreeSet<u32>>,
    pub comments: BTreeMap<u64, BTreeSet<u64>>,
}

impl Model {
    pub fn new(population: &Arc<Population>) -> Model {
        let members = 0..population.members;
        Model {
            population: population.clone(),
            friends: members
                .clone()
                .map(|member| (member, population.friends_of(member).collect()))
                .collect(),
            invitations: members
                .map(|member| (member, population.inviters_of(member).collect()))
                .collect(),
            comments: (0..population.resource_count())
                .map(|resource| (resource, (0..u64::from(population.comments)).collect()))
                .collect(),
        }
    }

    pub fn befriend(&mut self, one: u32, other: u32) {
        self.friends.get_mut(&one).unwrap().insert(other);
        self.friends.get_mut(&other).unwrap().insert(one);
    }

    pub fn estrange(&mut self, one: u32, other: u32) {
        self.friends.get_mut(&one).unwrap().remove(&other);
        self.friends.get_mut(&other).unwrap().remove(&one);
    }

    /// Reads and compares everything.
    pub async fn expect_all(&self, client: &dyn Client) {
        let all: Vec<u32> = (0..self.population.members).collect();
        self.expect_of(client, &all).await;
        let resources = 0..self.population.resource_count();
        let each = resources.map(|resource| self.expect_comments(client, resource));
        futures::future::join_all(each).await;
    }

    /// Reads and compares everything about these members, concurrently.
    pub async fn expect_of(&self, client: &dyn Client, members: &[u32]) {
        let population = &self.population;
        let of_member = async |member: u32| {
            let (friends, invitations) = (&self.friends[&member], &self.invitations[&member]);
            for requester in [member, (member + 1) % population.members] {
                let profile = client.view_profile(requester, member).await;
                let profile = profile.expect("a profile");
                assert_eq!(profile.wrong, 0, "profile of {member}");
                assert_eq!(profile.friends, friends.len() as u64, "friends of {member}");
                assert_eq!(profile.resources, u64::from(population.resources));
                let own = (requester == member).then_some(invitations.len() as u64);
                assert_eq!(profile.invitations, own, "invitations of {member}");

                let list = client.list_friends(requester, member).await;
                let list = list.expect("friends");
                assert_eq!((sorted(&list.members), list.wrong), (sorted(friends), 0));

                for top in [1, 3, 100] {
                    let found = client.view_top_resources(requester, member, top).await;
                    let found = found.expect("resources");
                    assert_eq!(found.resources, population.top_of_wall(member, top));
                    assert_eq!(found.wrong, 0);
                }
            }
            let list = client.view_friend_requests(member).await;
            let list = list.expect("requests");
            assert_eq!(
                (sorted(&list.members), list.wrong),
                (sorted(invitations), 0)
            );
        };
        futures::future::join_all(members.iter().map(|member| of_member(*member))).await;
    }

    pub async fn expect_comments(&self, client: &dyn Client, resource: u64) {
        let found = client.view_comments(0, resource).await.expect("comments");
        let expected = sorted(&self.comments[&resource]);
        assert_eq!((sorted(&found.comments), found.wrong), (expected, 0));
    }
}

/// Returns the numbers in ascending order, with duplicates.
fn sorted<'a, T: Ord + Copy + 'a>(numbers: impl IntoIterator<Item = &'a T>) -> Vec<T> {
    let mut sorted: Vec<T> = numbers.into_iter().copied().collect();
    sorted.sort_unstable();
    sorted
}
