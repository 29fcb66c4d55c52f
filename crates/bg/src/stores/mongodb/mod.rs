//! MongoDB, or another server with its protocol.
//!
//! | collection | document |
//! |---|---|
//! | members | `_id`, profile, thumbnail, image, number of resources, friends and invitations as arrays of numbers |
//! | walls | `_id` is the member, resources as an array, highest number first; with `comments=embedded` each has its comments as an array |
//! | comments | `_id` is the resource, comments as an array; absent until the first one; not with `comments=embedded` |
//! | posts | `_id` is the time, author, number, body |
//! | notes | `_id` is the name, text |
//!
//! A document changes atomically, but several documents do not, and a friendship is in two. Accepting and thawing first
//! change the document of the acting member, which prevents the action from being done twice, and then the other one.
//! Each item of the trace is in one document, and changes at one instant within the call. Counts and lists are
//! therefore correct (levels counts, members and snapshot). The effects of an action on two members do not share an
//! instant. If the client dies between them, the action stays half done: one member has a friend who does not have
//! them.

mod load;
mod wire;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bson::raw::{RawArray, RawDocument};
use bson::spec::BinarySubtype;
use bson::{Binary, RawArrayBuf, RawDocumentBuf, rawdoc};

use super::settings::Settings;
use super::{OpenResult, Options};
use crate::model::content::{Owner, POST_SIZE};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Failure, Feed, People, Post, Profile, Reply, Resources, Store,
};
use wire::{Wire, number, text};

/// The location of comments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum CommentsLayout {
    /// In a document for each resource.
    Separate,
    /// Within the resource in the document of its wall: reading the top of a wall reads all its comments too.
    Embedded,
}

struct MongoDb {
    address: String,
    database: String,
    comments: CommentsLayout,
    connections: usize,
}

/// The number of connections of each worker. The server executes one command at a time on each.
const DEFAULT_CONNECTIONS: usize = 8;

pub fn open(options: &Options) -> OpenResult {
    let mut settings = Settings::new(options);
    let comments = settings.choice(
        "comments",
        &[
            ("separate", CommentsLayout::Separate),
            ("embedded", CommentsLayout::Embedded),
        ],
    )?;
    settings.finish("mongodb")?;
    let given = options.address.as_deref().unwrap_or("127.0.0.1:27017");
    let address = given.strip_prefix("mongodb://").unwrap_or(given);
    let (address, database) = address.split_once('/').unwrap_or((address, ""));
    let port = address
        .rsplit_once(':')
        .map(|(_, port)| port.parse::<u16>());
    if !matches!(port, Some(Ok(_))) || address.contains('@') {
        return Err(format!(
            "--at {given:?}: must be host:port or mongodb://host:port/database"
        ));
    }
    Ok(Box::new(MongoDb {
        address: address.to_owned(),
        comments,
        database: if database.is_empty() { "bg" } else { database }.to_owned(),
        connections: options.connections.unwrap_or(DEFAULT_CONNECTIONS),
    }))
}

impl Store for MongoDb {
    fn name(&self) -> &'static str {
        "mongodb"
    }

    fn layout(&self) -> String {
        match self.comments {
            CommentsLayout::Separate => "mongodb".to_owned(),
            CommentsLayout::Embedded => "mongodb comments=embedded".to_owned(),
        }
    }

    fn processes(&self) -> &'static [&'static str] {
        &["mongod", "mongos", "ferretdb", "java"]
    }

    fn create<'a>(&'a self, population: &'a Population) -> Reply<'a, ()> {
        Box::pin(async {
            if i32::try_from(population.members).is_err() {
                let why = format!(
                    "{} members exceed the maximum of MongoDB int ids",
                    population.members
                );
                return Err(Failure::Refused(why));
            }
            let wire = Wire::connect(&self.address, 1).await?;
            let database = &*self.database;
            wire.command(&rawdoc! { "dropDatabase": 1, "$db": database })
                .await?;
            let index = rawdoc! { "key": { "author": 1, "_id": -1 }, "name": "by_author" };
            wire.command(
                &rawdoc! { "createIndexes": "posts", "indexes": [index], "$db": database },
            )
            .await?;
            Ok(())
        })
    }

    fn note<'a>(&'a self, name: &'a str) -> Reply<'a, Option<String>> {
        Box::pin(async move {
            let (wire, database) = (Wire::connect(&self.address, 1).await?, &*self.database);
            let find = rawdoc! {
                "find": "notes", "filter": { "_id": name }, "limit": 1, "singleBatch": true, "$db": database,
            };
            let mut found = None;
            wire::find(&wire, database, "notes", &find, |document| {
                found = text(document, "text").map(str::to_owned);
            })
            .await?;
            Ok(found)
        })
    }

    fn put_note<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            let wire = Wire::connect(&self.address, 1).await?;
            let note = rawdoc! { "_id": name, "text": text };
            let update = rawdoc! { "q": { "_id": name }, "u": note, "upsert": true };
            let command =
                rawdoc! { "update": "notes", "updates": [update], "$db": &*self.database };
            wire.command(&command).await.map(|_| ())
        })
    }

    fn put_note_if_absent<'a>(&'a self, name: &'a str, text: &'a str) -> Reply<'a, ()> {
        Box::pin(async move {
            let wire = Wire::connect(&self.address, 1).await?;
            let note = rawdoc! { "_id": name, "text": text };
            let command =
                rawdoc! { "insert": "notes", "documents": [note], "$db": &*self.database };
            match wire.command(&command).await {
                Err(Failure::Refused(why)) if why.ends_with(wire::DUPLICATE) => Ok(()),
                done => done.map(|_| ()),
            }
        })
    }

    fn connect(&self, population: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async {
            let worker = MongoDbClient {
                wire: Wire::connect(&self.address, self.connections).await?,
                database: self.database.clone(),
                comments: self.comments,
                population,
            };
            Ok(Rc::new(worker) as Rc<dyn Client>)
        })
    }
}

struct MongoDbClient {
    wire: Wire,
    database: String,
    comments: CommentsLayout,
    population: Arc<Population>,
}

impl MongoDbClient {
    /// Finds the document with this `_id`.
    async fn find_by_id(
        &self,
        collection: &str,
        id: i64,
        projection: RawDocumentBuf,
        each: impl FnMut(&RawDocument),
    ) -> Result<(), Failure> {
        let filter = rawdoc! { "_id": id };
        let find = rawdoc! {
            "find": collection, "filter": filter, "projection": projection,
            "limit": 1, "singleBatch": true, "$db": &*self.database,
        };
        wire::find(&self.wire, &self.database, collection, &find, each).await
    }

    /// Returns the members in an array of a member's document. The document is read once, so the list shows one
    /// instant; the data about each member never changes.
    async fn people(&self, member: u32, array: &str) -> Result<People, Failure> {
        let mut named = None;
        let mut projection = RawDocumentBuf::new();
        append(&mut projection, array, 1);
        self.find_by_id("members", member.into(), projection, |document| {
            named = Some(wire::numbers(document, array));
        })
        .await?;
        let named = named.ok_or_else(|| missing_member(member))?;
        let mut people = People::default();
        if named.is_empty() {
            return Ok(people);
        }
        let batch = named.len() as i64 + 1;
        let ids: RawArrayBuf = named.iter().map(|member| *member as i32).collect();
        let find = rawdoc! {
            "find": "members", "filter": { "_id": { "$in": ids } },
            "projection": { "profile": 1, "thumbnail": 1 },
            "batchSize": batch, "$db": &*self.database,
        };
        wire::find(&self.wire, &self.database, "members", &find, |document| {
            let member = number(document, "_id").unwrap_or(u64::MAX) as u32;
            let profile = text(document, "profile").unwrap_or_default();
            let thumbnail = bytes(document, "thumbnail");
            people.push(&self.population, member, profile.as_bytes(), thumbnail);
        })
        .await?;
        Ok(people)
    }

    /// Updates one document that matches `filter`, or with `upsert` inserts one.
    ///
    /// # Errors
    ///
    /// Refused with `rejection` if no document matches.
    async fn update(
        &self,
        collection: &str,
        filter: RawDocumentBuf,
        change: RawDocumentBuf,
        upsert: bool,
        rejection: &str,
    ) -> Result<(), Failure> {
        let update = rawdoc! { "q": filter, "u": change, "upsert": upsert };
        self.update_one(collection, update, rejection).await
    }

    async fn update_one(
        &self,
        collection: &str,
        update: RawDocumentBuf,
        rejection: &str,
    ) -> Result<(), Failure> {
        let command = rawdoc! {
            "update": collection, "updates": [update], "$db": &*self.database,
        };
        let answer = self.wire.command(&command).await?;
        match number(answer.document(), "n") {
            Some(0) => Err(Failure::Refused(rejection.to_owned())),
            _ => Ok(()),
        }
    }

    async fn update_member(
        &self,
        filter: RawDocumentBuf,
        change: RawDocumentBuf,
        rejection: &str,
    ) -> Result<(), Failure> {
        self.update("members", filter, change, false, rejection)
            .await
    }

    /// Updates the second of two documents. A failure is *unknown*, because the first update cannot be undone.
    async fn update_other(&self, member: u32, change: RawDocumentBuf) -> Result<(), Failure> {
        let filter = rawdoc! { "_id": member as i32 };
        let done = self.update_member(filter, change, "no such member").await;
        done.map_err(|why| {
            Failure::Unknown(format!("only the first of two updates was executed: {why}"))
        })
    }

    async fn accept(&self, invitee: u32, inviter: u32) -> Result<(), Failure> {
        let (invitee, inviter) = (invitee as i32, inviter as i32);
        let filter = rawdoc! { "_id": invitee, "invitations": inviter };
        let change = rawdoc! {
            "$pull": { "invitations": inviter }, "$addToSet": { "friends": inviter },
        };
        self.update_member(filter, change, "no such invitation")
            .await?;
        let change = rawdoc! { "$addToSet": { "friends": invitee } };
        self.update_other(inviter as u32, change).await
    }

    async fn thaw(&self, member: u32, friend: u32) -> Result<(), Failure> {
        let (member, friend) = (member as i32, friend as i32);
        let filter = rawdoc! { "_id": member, "friends": friend };
        let change = rawdoc! { "$pull": { "friends": friend } };
        self.update_member(filter, change, "no such friendship")
            .await?;
        let change = rawdoc! { "$pull": { "friends": member } };
        self.update_other(friend as u32, change).await
    }

    async fn comment(&self, member: u32, resource: u64, comment: u64) -> Result<(), Failure> {
        let (id, number) = (resource as i64, comment as i64);
        let body = self.text(
            Owner::Comment(resource, comment),
            self.population.comment_size,
        );
        let entry = rawdoc! { "number": number, "member": member as i32, "body": body };
        if self.comments == CommentsLayout::Embedded {
            let free = rawdoc! { "$ne": number };
            let change = rawdoc! { "$push": { "resources.$[one].comments": entry } };
            return self
                .update_on_wall(resource, free, change, "not posted")
                .await;
        }
        // If the comment exists, no document matches, and the insert fails because of the duplicate `_id`.
        let filter = rawdoc! { "_id": id, "comments.number": { "$ne": number } };
        let change = rawdoc! { "$push": { "comments": entry } };
        self.update("comments", filter, change, true, "not posted")
            .await
    }

    async fn delete(&self, resource: u64, comment: u64) -> Result<(), Failure> {
        let (id, number) = (resource as i64, comment as i64);
        let entry = rawdoc! { "number": number };
        if self.comments == CommentsLayout::Embedded {
            let present = rawdoc! { "$in": [number] };
            let change = rawdoc! { "$pull": { "resources.$[one].comments": entry } };
            return self
                .update_on_wall(resource, present, change, "no such comment")
                .await;
        }
        let filter = rawdoc! { "_id": id, "comments.number": number };
        let change = rawdoc! { "$pull": { "comments": entry } };
        self.update("comments", filter, change, false, "no such comment")
            .await
    }

    /// Updates the resource on its wall, `one` in the change, if the numbers of its comments match.
    ///
    /// # Errors
    ///
    /// Refused with `rejection` if they do not.
    async fn update_on_wall(
        &self,
        resource: u64,
        numbers: RawDocumentBuf,
        change: RawDocumentBuf,
        rejection: &str,
    ) -> Result<(), Failure> {
        let (wall, number) = (self.population.wall(resource) as i32, resource as i64);
        let found = rawdoc! { "number": number, "comments.number": numbers };
        let update = rawdoc! {
            "q": { "_id": wall, "resources": { "$elemMatch": found } },
            "u": change, "upsert": false, "arrayFilters": [{ "one.number": number }],
        };
        self.update_one("walls", update, rejection).await
    }

    async fn comments_on(&self, resource: u64) -> Result<Comments, Failure> {
        let mut comments = Comments::default();
        let mut take = |of: &RawDocument| {
            let Ok(array) = of.get_array("comments") else {
                return;
            };
            for (comment, body) in bodies(array) {
                comments.push(&self.population, resource, comment, body.as_bytes());
            }
        };
        match self.comments {
            CommentsLayout::Separate => {
                let projection = rawdoc! { "comments": 1 };
                self.find_by_id("comments", resource as i64, projection, take)
                    .await?;
            }
            CommentsLayout::Embedded => {
                let wall = self.population.wall(resource).into();
                let of_one = rawdoc! { "$elemMatch": { "number": resource as i64 } };
                let projection = rawdoc! { "resources": of_one };
                self.find_by_id("walls", wall, projection, |document| {
                    let resources = document.get_array("resources");
                    let first = resources.ok().and_then(|array| array.get_document(0).ok());
                    if let Some(found) = first {
                        take(found);
                    }
                })
                .await?;
            }
        }
        Ok(comments)
    }

    fn text(&self, owner: Owner, size: usize) -> String {
        let bytes = self.population.contents().generate(owner, size);
        String::from_utf8(bytes).expect("texts are letters")
    }
}

fn missing_member(member: u32) -> Failure {
    Failure::Refused(format!("member {member} does not exist"))
}

/// Appends a value under a key that is not known at compile time.
fn append(document: &mut RawDocumentBuf, key: &str, value: i32) {
    let key = bson::raw::CString::try_from(key.to_owned()).expect("names have no zeros");
    document.append(key, value);
}

fn bytes<'a>(of: &'a RawDocument, key: &str) -> Option<&'a [u8]> {
    of.get_binary(key).ok().map(|binary| binary.bytes)
}

fn binary(bytes: Vec<u8>) -> Binary {
    Binary {
        subtype: BinarySubtype::Generic,
        bytes,
    }
}

/// Returns the number and the body of each document in an array.
fn bodies(array: &RawArray) -> impl Iterator<Item = (u64, &str)> {
    array.into_iter().filter_map(|value| {
        let document = value.ok()?.as_document()?;
        Some((number(document, "number")?, text(document, "body")?))
    })
}

impl Client for MongoDbClient {
    fn load(&self, members: Range<u32>) -> Reply<'_, ()> {
        Box::pin(self.load(members))
    }

    fn view_profile(&self, requester: u32, owner: u32) -> Reply<'_, Profile> {
        Box::pin(async move {
            let mut found = None;
            let projection = rawdoc! { "profile": 1, "image": 1, "resources": 1, "friends": 1, "invitations": 1 };
            self.find_by_id("members", owner.into(), projection, |document| {
                let count = |array| wire::numbers(document, array).len() as u64;
                let mut profile = Profile {
                    friends: count("friends"),
                    invitations: (requester == owner).then(|| count("invitations")),
                    resources: number(document, "resources").unwrap_or_default(),
                    wrong: 0,
                };
                let attributes = text(document, "profile").unwrap_or_default().as_bytes();
                profile.check(
                    &self.population,
                    owner,
                    attributes,
                    bytes(document, "image"),
                );
                found = Some(profile);
            })
            .await?;
            found.ok_or_else(|| missing_member(owner))
        })
    }

    fn list_friends(&self, _: u32, owner: u32) -> Reply<'_, People> {
        Box::pin(self.people(owner, "friends"))
    }

    fn view_friend_requests(&self, member: u32) -> Reply<'_, People> {
        Box::pin(self.people(member, "invitations"))
    }

    fn invite_friend(&self, inviter: u32, invitee: u32) -> Reply<'_, ()> {
        Box::pin(async move {
            let (inviter, invitee) = (inviter as i32, invitee as i32);
            let filter = rawdoc! { "_id": invitee, "invitations": { "$ne": inviter } };
            let change = rawdoc! { "$push": { "invitations": inviter } };
            self.update_member(filter, change, "invited already").await
        })
    }

    fn accept_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(self.accept(invitee, inviter))
    }

    fn reject_friend_request(&self, invitee: u32, inviter: u32) -> Reply<'_, ()> {
        Box::pin(async move {
            let (invitee, inviter) = (invitee as i32, inviter as i32);
            let filter = rawdoc! { "_id": invitee, "invitations": inviter };
            let change = rawdoc! { "$pull": { "invitations": inviter } };
            self.update_member(filter, change, "no such invitation")
                .await
        })
    }

    fn thaw_friendship(&self, member: u32, friend: u32) -> Reply<'_, ()> {
        Box::pin(self.thaw(member, friend))
    }

    fn view_top_resources(&self, _: u32, owner: u32, top: u32) -> Reply<'_, Resources> {
        Box::pin(async move {
            let mut resources = Resources::default();
            let projection = rawdoc! { "resources": { "$slice": top as i32 } };
            self.find_by_id("walls", owner.into(), projection, |document| {
                let Ok(array) = document.get_array("resources") else {
                    return;
                };
                for (resource, body) in bodies(array) {
                    resources.push(&self.population, resource, body.as_bytes());
                }
            })
            .await?;
            Ok(resources)
        })
    }

    fn view_comments(&self, _: u32, resource: u64) -> Reply<'_, Comments> {
        Box::pin(self.comments_on(resource))
    }

    fn post_comment(&self, member: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        Box::pin(self.comment(member, resource, comment))
    }

    fn delete_comment(&self, _: u32, resource: u64, comment: u64) -> Reply<'_, ()> {
        Box::pin(self.delete(resource, comment))
    }

    fn post_to_feed(&self, member: u32, post: Post) -> Reply<'_, ()> {
        Box::pin(async move {
            let body = self.text(Owner::Post(member, post.number), POST_SIZE);
            let document = rawdoc! {
                "_id": post.time as i64, "author": member as i32,
                "number": post.number as i64, "body": body,
            };
            let command = rawdoc! {
                "insert": "posts", "documents": [document], "$db": &*self.database,
            };
            self.wire.command(&command).await.map(|_| ())
        })
    }

    fn view_feed(&self, member: u32, top: u32) -> Reply<'_, Feed> {
        Box::pin(async move {
            let mut friends = Vec::new();
            self.find_by_id(
                "members",
                member.into(),
                rawdoc! { "friends": 1 },
                |found| {
                    friends = wire::numbers(found, "friends");
                },
            )
            .await?;
            let friends: RawArrayBuf = friends.iter().map(|friend| *friend as i32).collect();
            let find = rawdoc! {
                "find": "posts", "filter": { "author": { "$in": friends } },
                "sort": { "_id": -1 }, "limit": i64::from(top), "$db": &*self.database,
            };
            let mut feed = Feed::default();
            wire::find(&self.wire, &self.database, "posts", &find, |document| {
                let of = |key| number(document, key).unwrap_or_default();
                let post = Post {
                    author: of("author") as u32,
                    number: of("number"),
                    time: of("_id"),
                };
                let body = text(document, "body").unwrap_or_default();
                feed.push(&self.population, post, body.as_bytes());
            })
            .await?;
            Ok(feed)
        })
    }
}
