//! End-to-end tests of `larder`: the binary, its files and exit codes, and servers that it starts.

mod build;
mod build_inputs;
mod cli;
mod cluster_certs;
mod cluster_local;
mod cluster_tls;
mod console;
mod crash;
mod demo;
mod descriptors;
mod examples;
mod fixture;
mod in_place;
mod increments;
mod increments_served;
mod inputs;
mod memory;
#[path = "../../../remote/tests/it/moto.rs"]
mod moto;
mod pages;
#[path = "../../../remote/tests/it/pipe.rs"]
mod pipe;
mod progress;
mod push;
mod quality;
mod redis_client;
mod routing;
mod s3;
mod space;
mod space_apply;
mod space_apply_cluster;
mod space_calibrate;
mod space_cluster;
mod space_plan;
mod space_record;
mod stop;
mod support;
mod tables;
mod tls;
