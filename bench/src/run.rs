//! A measurement: every variant has a slice in every round.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::Run;
use crate::load::generate;
use crate::machine::{Machine, today};
use crate::peers::{Cpus, Server, Variant};
use crate::process::{Tree, pin};
use crate::results::{Measured, Results, Slice, Unit, VariantSlices};
use crate::scenario::{Generator, Scenario};

/// For the allocator and the sockets to come to rest, before memory is read.
const SETTLE: Duration = Duration::from_secs(1);

/// Measures what the arguments say.
///
/// # Errors
/// A server or a generator cannot be started or does not do its work.
pub fn run(args: &Run) -> Result<Results> {
    let cpus = Cpus { server: args.server_cpu, load: args.load_cpu };
    pin(cpus.load)?;
    let playhouses = playhouses(&args.playhouse)?;
    let scenarios = if args.scenario.is_empty() { Scenario::value_variants() } else { &args.scenario[..] };
    let mut measured = Vec::new();
    for &scenario in scenarios {
        let variants = variants(scenario, &playhouses, args.peers.as_deref());
        ensure!(!variants.is_empty(), "nobody takes part in {}", scenario.name());
        measured.push(match scenario.generator() {
            Generator::Idle => idle(args, cpus, scenario, variants)?,
            _ => requests(args, cpus, scenario, variants)?,
        });
    }
    Ok(Results { date: today(), machine: Machine::this(&playhouses), scenarios: measured })
}

fn playhouses(given: &[String]) -> Result<Vec<(String, PathBuf)>> {
    given
        .iter()
        .map(|given| {
            let (name, path) = given.split_once('=').unwrap_or(("playhouse", given));
            let path = std::fs::canonicalize(path).with_context(|| format!("the binary {path}"))?;
            Ok((name.to_owned(), path))
        })
        .collect()
}

fn variants(scenario: Scenario, playhouses: &[(String, PathBuf)], only: Option<&[String]>) -> Vec<Variant> {
    let ours = playhouses.iter().map(|(name, path)| Variant::Playhouse(name.clone(), path.clone()));
    let wanted = |name: &str| only.is_none_or(|only| only.iter().any(|only| only == name));
    let peers = scenario.peers().iter().filter(|peer| wanted(peer.name())).map(|peer| Variant::Peer(*peer));
    ours.chain(peers).collect()
}

/// CPU time per request.
fn requests(args: &Run, cpus: Cpus, scenario: Scenario, variants: Vec<Variant>) -> Result<Measured> {
    let upstream = if scenario.is_proxied() { Some(Server::upstream(scenario, cpus)?) } else { None };
    let upstream_address = upstream.as_ref().map(|upstream| upstream.address);
    let mut running = Vec::new();
    for variant in variants {
        let server = Server::start(&variant, scenario, upstream_address, cpus)?;
        // Caches, pools and allocators are warm before anything counts.
        let warm = generate(scenario, &server, 1).with_context(|| variant.name().to_owned())?;
        ensure!(warm.requests > 0, "{} answers nothing in {}", variant.name(), scenario.name());
        let name = variant.name().to_owned();
        running.push((server, VariantSlices { variant: name, slices: Vec::new() }));
    }
    for round in 1..=args.rounds {
        for (server, variant) in &mut running {
            let before = server.tree.cpu()?;
            let began = Instant::now();
            let counted = generate(scenario, server, args.seconds)?;
            let seconds = began.elapsed().as_secs_f64();
            server.tree.check()?;
            let cpu = server.tree.cpu()?.saturating_sub(before);
            ensure!(counted.requests > 0, "{} answered nothing", variant.variant);
            let value = cpu.as_secs_f64() * 1e6 / counted.requests as f64;
            let per_second = Some(counted.requests as f64 / seconds);
            variant.slices.push(Slice { value, per_second, errors: counted.errors });
            eprintln!(
                "{} {round}/{}: {:<12} {value:8.2} µs/request {:9.0}/s, {:3.0} % of a CPU, {} errors",
                scenario.name(),
                args.rounds,
                variant.variant,
                counted.requests as f64 / seconds,
                100.0 * cpu.as_secs_f64() / seconds,
                counted.errors
            );
        }
    }
    Ok(Measured {
        scenario,
        unit: Unit::CpuMicrosPerRequest,
        seconds: args.seconds,
        variants: running.into_iter().map(|(_, variant)| variant).collect(),
    })
}

/// Growth of resident memory per idle connection.
fn idle(args: &Run, cpus: Cpus, scenario: Scenario, variants: Vec<Variant>) -> Result<Measured> {
    let mut measured: Vec<VariantSlices> = variants
        .iter()
        .map(|variant| VariantSlices { variant: variant.name().to_owned(), slices: Vec::new() })
        .collect();
    for round in 1..=args.rounds {
        for (variant, measured) in variants.iter().zip(&mut measured) {
            // A fresh process each time: memory that was once used is reused and would not show.
            let server = Server::start(variant, scenario, None, cpus)?;
            hold(&server, scenario, 10, cpus)?.release()?;
            sleep(SETTLE);
            let before = server.tree.resident()?;
            let held =
                hold(&server, scenario, args.connections, cpus).with_context(|| variant.name().to_owned())?;
            sleep(SETTLE);
            let after = server.tree.resident()?;
            held.release().with_context(|| variant.name().to_owned())?;
            let value = after.saturating_sub(before) as f64 / args.connections as f64;
            measured.slices.push(Slice { value, per_second: None, errors: 0 });
            eprintln!(
                "{} {round}/{}: {:<12} {value:8.0} bytes/connection ({} KiB before, {} KiB after)",
                scenario.name(),
                args.rounds,
                variant.name(),
                before >> 10,
                after >> 10
            );
        }
    }
    Ok(Measured { scenario, unit: Unit::BytesPerConnection, seconds: args.seconds, variants: measured })
}

/// A client that holds connections.
struct Held(Tree);

fn hold(server: &Server, scenario: Scenario, connections: usize, cpus: Cpus) -> Result<Held> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["idle-client", &server.address.to_string(), &connections.to_string()]);
    if scenario.is_tls() {
        command.arg("--cert").arg(server.cert());
    }
    let mut tree = Tree::start("idle client", command, cpus.load, cpus.load)?;
    let out = tree.child().stdout.take().context("the idle client has a pipe")?;
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    if line.trim() != "ready" {
        bail!("the idle client failed: {}", tree.child().wait()?);
    }
    Ok(Held(tree))
}

impl Held {
    /// Closes the connections; an error is that one of them had been closed by the server.
    fn release(mut self) -> Result<()> {
        drop(self.0.child().stdin.take());
        let status = self.0.child().wait()?;
        ensure!(status.success(), "the idle client failed: {status}");
        Ok(())
    }
}
