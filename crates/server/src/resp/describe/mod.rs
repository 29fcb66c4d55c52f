//! Commands on the server, in the format of Redis: COMMAND, CONFIG, INFO, MODULE LIST; LATENCY, SLOWLOG and MEMORY DOCTOR
//! (`latency`); DBSIZE, ROLE and similar (`server`). `stores` has the commands on complete stores.

mod command;
mod config;
mod info;
mod latency;
mod modules;
mod server;
mod stores;

use larder_protocol::resp::Encoder;

pub(super) use command::command;
pub(super) use config::config;
pub(super) use info::{REDIS_VERSION, info, info_while_loading};
pub(super) use latency::{latency, memory_doctor, slowlog};
pub(super) use modules::{modules, put_modules};
pub(super) use server::{db_size, last_save, role, time, wait};
pub(super) use stores::{store_info, store_list, store_version};

fn encode_pair(encoder: &mut Encoder<'_>, name: &str, value: &str) {
    encoder.text(name);
    encoder.text(value);
}
