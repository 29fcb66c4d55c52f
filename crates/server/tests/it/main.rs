//! The server as its users see it: over HTTP and RESP, on a folder of its own, with sources that fail.

mod allowed;
mod bounds;
mod clients;
mod cluster;
mod cluster_clients;
mod cores;
mod cut;
mod fetch;
mod full_disk;
mod guide;
mod http;
mod judged;
mod killable;
mod kills;
mod membership;
mod mixed_reads;
mod objects;
mod one_moment;
mod peers;
#[path = "../../../remote/tests/it/pipe.rs"]
mod pipe;
mod postgres;
mod redis_py;
mod redis_words;
mod resp;
mod scripts;
mod search_clients;
mod source;
mod spaces;
mod stores;
mod strings;
mod subscribe;
mod support;
mod tables;
mod values_on_disk;
mod wire;
