//! The journal against its promises: nothing acknowledged is lost, nothing is there by half, damage
//! is an error. `crashes` runs it on a model of a disk, `kills` on real files in a real process.

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
