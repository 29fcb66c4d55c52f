//! A data store that does nothing and returns nothing, to measure the cost of bg itself.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use super::{OpenResult, Options};
use crate::model::population::Population;
use crate::stores::contract::{
    Client, Comments, Feed, People, Post, Profile, Reply, Resources, Store,
};

struct Null;

pub fn open(_: &Options) -> OpenResult {
    Ok(Box::new(Null))
}

impl Store for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn skips_validation(&self) -> bool {
        true
    }

    fn create<'a>(&'a self, _: &'a Population) -> Reply<'a, ()> {
        done()
    }

    fn note<'a>(&'a self, _: &'a str) -> Reply<'a, Option<String>> {
        done()
    }

    fn put_note<'a>(&'a self, _: &'a str, _: &'a str) -> Reply<'a, ()> {
        done()
    }

    fn put_note_if_absent<'a>(&'a self, _: &'a str, _: &'a str) -> Reply<'a, ()> {
        done()
    }

    fn connect(&self, _: Arc<Population>) -> Reply<'_, Rc<dyn Client>> {
        Box::pin(async { Ok(Rc::new(Null) as Rc<dyn Client>) })
    }
}

impl Client for Null {
    fn load(&self, _: Range<u32>) -> Reply<'_, ()> {
        done()
    }

    fn view_profile(&self, _: u32, _: u32) -> Reply<'_, Profile> {
        done()
    }

    fn list_friends(&self, _: u32, _: u32) -> Reply<'_, People> {
        done()
    }

    fn view_friend_requests(&self, _: u32) -> Reply<'_, People> {
        done()
    }

    fn invite_friend(&self, _: u32, _: u32) -> Reply<'_, ()> {
        done()
    }

    fn accept_friend_request(&self, _: u32, _: u32) -> Reply<'_, ()> {
        done()
    }

    fn reject_friend_request(&self, _: u32, _: u32) -> Reply<'_, ()> {
        done()
    }

    fn thaw_friendship(&self, _: u32, _: u32) -> Reply<'_, ()> {
        done()
    }

    fn view_top_resources(&self, _: u32, _: u32, _: u32) -> Reply<'_, Resources> {
        done()
    }

    fn view_comments(&self, _: u32, _: u64) -> Reply<'_, Comments> {
        done()
    }

    fn post_comment(&self, _: u32, _: u64, _: u64) -> Reply<'_, ()> {
        done()
    }

    fn delete_comment(&self, _: u32, _: u64, _: u64) -> Reply<'_, ()> {
        done()
    }

    fn post_to_feed(&self, _: u32, _: Post) -> Reply<'_, ()> {
        done()
    }

    fn view_feed(&self, _: u32, _: u32) -> Reply<'_, Feed> {
        done()
    }
}

fn done<'a, T: Default + 'a>() -> Reply<'a, T> {
    Box::pin(async { Ok(T::default()) })
}
