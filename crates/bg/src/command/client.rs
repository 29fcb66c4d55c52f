//! `bg client`: acts for a part of the members, as a coordinator says.

use std::net::TcpListener;
use std::sync::Arc;

use clap::Args;

use super::coordinator::Work;
use super::interrupt::on_interrupt;
use super::say;
use crate::coordinate::client::{Leave, Ready, serve};
use crate::coordinate::protocol::Prepare;
use crate::draw::{Drawing, fragment};
use crate::run::{Process, Tracing};

const EXAMPLES: &str = "\
Examples:
  bg client
  bg client --listen 10.0.0.7:7654

Whoever reaches the address may have this client act on data stores that it can reach: listen on a network where
that is fine. Port 0 takes a free one, which is printed.";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Where coordinators connect
    #[arg(long, default_value = "127.0.0.1:7654", value_name = "HOST:PORT")]
    listen: String,
}

pub fn client(arguments: &Arguments) -> Result<(), String> {
    let refuse = |why: std::io::Error| format!("--listen {}: {why}", arguments.listen);
    let listener = TcpListener::bind(&arguments.listen).map_err(refuse)?;
    println!("listening on {}", listener.local_addr().map_err(refuse)?);
    let leave = Leave::default();
    let (wish, own) = (leave.clone(), listener.try_clone().map_err(refuse)?);
    on_interrupt(move || wish.leave(&own))?;
    serve(&listener, &leave, &prepare, &|what| {
        say::err(format_args!("{what}"))
    })
    .map_err(refuse)
}

/// What the words of a command and a fragment come to.
fn prepare(order: &Prepare) -> Result<Ready, String> {
    let work = Work::parse(&order.words)?;
    let mut setup = work.setup()?;
    let (own, of) = (order.fragment, order.speeds.len());
    let sane = order
        .speeds
        .iter()
        .all(|speed| *speed > 0.0 && speed.is_finite());
    if own >= of || !sane {
        return Err(format!("there is no fragment {own} of {of}"));
    }
    let (distribution, members) = (setup.drawing.distribution(), setup.population.members);
    let mut fragments = fragment::split(distribution, members, &order.speeds);
    let fragment = Arc::new(fragments.swap_remove(own));
    let mass = fragment.mass();
    setup.drawing = Drawing::of_fragment(distribution, members, fragment);
    setup.seed = setup.seed.wrapping_add(own as u64);
    if let Tracing::Keep(folder) = &mut setup.tracing {
        folder.push(format!("client-{own}"));
    }
    let mut process = Process::new(setup)?;
    if work.judges_online() {
        process.judge_online();
    }
    Ok(Ready { process, mass })
}
