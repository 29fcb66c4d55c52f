//! Tests the guarantees of the journal: nothing acknowledged is lost, batches are atomic, and damage is an error.
//! `crashes` uses a model of a disk, `kills` real files in a real process.

mod crashes;
mod damage;
mod descriptors;
mod failing;
mod golden;
mod kills;
mod model_disk;
mod parts;
mod rows;
mod threads;
