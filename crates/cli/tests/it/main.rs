//! `larder` as its users run it: the binary, its files, its exit codes, a server of its own.

mod cli;
mod demo;
mod push;
mod support;
