//! Loads complete documents, replacing existing ones.

use std::ops::Range;

use bson::{RawArrayBuf, RawDocumentBuf, rawdoc};

use super::{CommentsLayout, MongoDbClient, binary};
use crate::model::content::{Owner, RESOURCE_SIZE, THUMBNAIL_SIZE};
use crate::stores::contract::Failure;

/// The maximum size of a command. Servers accept 16 MB.
const COMMAND_SIZE: usize = 4 << 20;

impl MongoDbClient {
    pub(super) async fn load(&self, members: Range<u32>) -> Result<(), Failure> {
        let mut batch = Batch::new(self, "members");
        for member in members.clone() {
            batch.put(member.into(), self.member(member)).await?;
        }
        batch.send().await?;

        let mut batch = Batch::new(self, "walls");
        for member in members.clone() {
            batch.put(member.into(), self.wall(member)).await?;
        }
        batch.send().await?;

        let mut batch = Batch::new(self, "comments");
        if self.population.comments > 0 && self.comments == CommentsLayout::Separate {
            for resource in members.flat_map(|member| self.population.resources_of(member)) {
                let comments =
                    rawdoc! { "_id": resource as i64, "comments": self.first_comments(resource) };
                batch.put(resource as i64, comments).await?;
            }
        }
        batch.send().await
    }

    fn member(&self, member: u32) -> RawDocumentBuf {
        let population = &self.population;
        let ids = |members: &mut dyn Iterator<Item = u32>| -> RawArrayBuf {
            members.map(|member| member as i32).collect()
        };
        let mut document = rawdoc! {
            "_id": i64::from(member),
            "profile": self.text(Owner::Profile(member), population.profile_size()),
            "resources": population.resources as i32,
            "friends": ids(&mut population.friends_of(member)),
            "invitations": ids(&mut population.inviters_of(member)),
        };
        if let Some(size) = population.image_size {
            let contents = population.contents();
            let thumbnail = contents.generate(Owner::Thumbnail(member), THUMBNAIL_SIZE);
            let image = contents.generate(Owner::Image(member), size);
            document.append(bson::raw::cstr!("thumbnail"), binary(thumbnail));
            document.append(bson::raw::cstr!("image"), binary(image));
        }
        document
    }

    fn wall(&self, member: u32) -> RawDocumentBuf {
        let population = &self.population;
        let resources: RawArrayBuf = population
            .top_of_wall(member, population.resources)
            .into_iter()
            .map(|resource| {
                let mut document = rawdoc! {
                    "number": resource as i64, "creator": population.creator(resource) as i32,
                    "body": self.text(Owner::Resource(resource), RESOURCE_SIZE),
                };
                if self.comments == CommentsLayout::Embedded {
                    let comments = self.first_comments(resource);
                    document.append(bson::raw::cstr!("comments"), comments);
                }
                document
            })
            .collect();
        rawdoc! { "_id": i64::from(member), "resources": resources }
    }

    fn first_comments(&self, resource: u64) -> RawArrayBuf {
        let creator = self.population.creator(resource) as i32;
        (0..u64::from(self.population.comments))
            .map(|number| {
                let body = self.text(
                    Owner::Comment(resource, number),
                    self.population.comment_size,
                );
                rawdoc! { "number": number as i64, "member": creator, "body": body }
            })
            .collect()
    }
}

/// Documents of a collection to be sent.
struct Batch<'a> {
    worker: &'a MongoDbClient,
    collection: &'a str,
    updates: RawArrayBuf,
}

impl<'a> Batch<'a> {
    fn new(worker: &'a MongoDbClient, collection: &'a str) -> Batch<'a> {
        Batch {
            worker,
            collection,
            updates: RawArrayBuf::new(),
        }
    }

    async fn put(&mut self, id: i64, document: RawDocumentBuf) -> Result<(), Failure> {
        let filter = rawdoc! { "_id": id };
        let update = rawdoc! { "q": filter, "u": document, "upsert": true };
        self.updates.push(update);
        if self.updates.as_bytes().len() > COMMAND_SIZE {
            self.send().await
        } else {
            Ok(())
        }
    }

    async fn send(&mut self) -> Result<(), Failure> {
        let updates = std::mem::take(&mut self.updates);
        if updates.is_empty() {
            return Ok(());
        }
        let command = rawdoc! {
            "update": self.collection, "updates": updates, "$db": &*self.worker.database,
        };
        self.worker.wire.command(&command).await.map(|_| ())
    }
}
