//! `bg client`: acts for a fragment of the members under a coordinator.

use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::coordinator::Work;
use super::folder::Folder;
use super::interrupt::on_interrupt;
use super::output;
use crate::coordinate::admission::{self, Admission};
use crate::coordinate::client::{PreparedClient, StopHandle, serve};
use crate::coordinate::protocol::PrepareRequest;
use crate::coordinate::split_count;
use crate::model::draw::{Drawing, fragment};
use crate::model::duration::parse_duration;
use crate::run::{Process, Tracing};

const EXAMPLES: &str = "\
Examples:
  bg client
  BG_SECRET=... bg client --listen 10.0.0.7:7654 --folder /var/tmp/bg

A coordinator can make this client execute actions on any data store that the client can reach. On an address that other machines
can reach, the client therefore requires the secret in BG_SECRET, which must be the same for the coordinator. The client opens only
files below --folder. With port 0, the system chooses a free port, which is printed.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientArguments {
    /// Address and port for coordinators
    #[arg(long, default_value = "127.0.0.1:7654", value_name = "HOST:PORT")]
    listen: String,
    /// The folder of the files that a coordinator may name (--edges, --mix, --trace) [default: none, no files are
    /// opened]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Disconnect a coordinator that has sent no heartbeat for this time; a coordinator sends one every second
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    patience: Duration,
    /// Accept coordinators without a BG_SECRET on an address that is not loopback
    #[arg(long)]
    open: bool,
}

/// The environment variable with the secret that clients and their coordinator share.
pub const SECRET: &str = "BG_SECRET";

/// Returns the secret of this process. An empty one counts as none.
pub fn secret() -> Option<String> {
    std::env::var(SECRET)
        .ok()
        .filter(|secret| !secret.is_empty())
}

pub fn client(arguments: &ClientArguments) -> Result<(), String> {
    let refuse = |why: std::io::Error| format!("--listen {}: {why}", arguments.listen);
    if arguments.patience.is_zero() {
        return Err("--patience 0: must be more than 0".to_owned());
    }
    let listener = TcpListener::bind(&arguments.listen).map_err(refuse)?;
    let address = listener.local_addr().map_err(refuse)?;
    let secret = secret();
    if secret.is_none() && !arguments.open && !address.ip().is_loopback() {
        return Err(format!(
            "--listen {}: other machines can reach this address and could make this client access any data store; set {SECRET} to the same value here and for the coordinator, or use --open",
            arguments.listen
        ));
    }
    let folder = arguments.folder.as_deref().map(Folder::open).transpose()?;
    println!("listening on {address}");
    let stop_handle = StopHandle::default();
    let (stop, own) = (stop_handle.clone(), listener.try_clone().map_err(refuse)?);
    on_interrupt(move || stop.stop(&own))?;
    let admission = Admission::new(secret, admission::HELLO_TIMEOUT);
    serve(
        &listener,
        &admission,
        &stop_handle,
        arguments.patience,
        &|request| prepare(request, folder.as_ref()),
        &|line| output::err(format_args!("{line}")),
    );
    Ok(())
}

/// Builds the process for a command line and a fragment.
fn prepare(request: &PrepareRequest, folder: Option<&Folder>) -> Result<PreparedClient, String> {
    let mut work = Work::parse(&request.arguments)?;
    work.confine(folder)?;
    let (own, of) = (request.fragment, request.speeds.len());
    let are_valid = request
        .speeds
        .iter()
        .all(|speed| *speed > 0.0 && speed.is_finite());
    if own >= of || !are_valid {
        return Err(format!("invalid request: fragment {own} of {of}"));
    }
    let mut setup = work.setup(&request.speeds)?;
    let (distribution, members) = (setup.drawing.distribution(), setup.population.members);
    let fragment = match &setup.population.communities {
        Some(communities) => {
            let masses = communities.fragments().iter().map(|it| it.mass());
            let masses: Vec<f64> = masses.collect();
            let threads = split_count(setup.run_options.threads_max.into(), &masses, own);
            setup.run_options.threads_max = threads as u32;
            communities.fragments()[own].clone()
        }
        None => Arc::new(fragment::split(distribution, members, &request.speeds).swap_remove(own)),
    };
    let mass = fragment.mass();
    setup.drawing = Drawing::for_fragment(distribution, members, fragment);
    setup.seed = setup.seed.wrapping_add(own as u64);
    if let Tracing::Keep(folder) = &mut setup.tracing {
        folder.push(format!("client-{own}"));
    }
    let mut process = Process::new(setup)?;
    process.set_run_name(&request.run);
    if work.validates_online() {
        process.validate_online();
    }
    Ok(PreparedClient { process, mass })
}
