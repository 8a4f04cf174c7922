//! `fullshard simulate collectives`.

use super::{difference, percent};
use crate::commands::plan::{parse_machine, positive};
use crate::flags::count;
use crate::output::{print_json, show};
use clap::Args;
use fullshard::config::{FlagValue, Size};
use fullshard::{Error, Result, format};
use fullshard_core::CollectiveKind;
use fullshard_plan::{Fabric, Network, Streams};
use fullshard_simulate::collectives::{Comparison, cases, compare};
use serde::Serialize;

const KINDS: [CollectiveKind; 3] =
    [CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllReduce];

/// The tori that are simulated by default, and whether their first dimension is a ring: pods of
/// TPUs, and the four pods of TPU v3 that were joined along one dimension.
const TORI: [(&str, bool); 4] =
    [("8x8", true), ("16x16", true), ("32x32", true), ("128x32", false)];

#[derive(Args)]
pub struct CollectivesArgs {
    /// A torus such as 16x16 or 128x32. Default: 8x8, 16x16, 32x32 and 128x32, the last one open
    /// along its first dimension.
    #[arg(long, value_name = "AxB", conflicts_with = "topology", value_parser = dims)]
    torus: Option<Dims>,
    /// Which of its dimensions are rings, such as false,true. Default: all.
    #[arg(long, value_name = "BOOL,...", value_delimiter = ',', requires = "torus")]
    wrap: Vec<bool>,
    /// A TPU slice, with its torus and the rate of its links, such as v4-512.
    #[arg(long, value_name = "MACHINE")]
    topology: Option<String>,
    /// GB/s of a link in one direction.
    #[arg(long = "link_gb_s", value_name = "X", default_value_t = 80.0, value_parser = positive,
          conflicts_with = "topology")]
    link_gb_s: f64,
    /// Microseconds from a chip to the next.
    #[arg(long = "hop_us", value_name = "X", default_value_t = 1.0, value_parser = positive,
          conflicts_with = "topology")]
    hop_us: f64,
    /// Size of the full tensor.
    #[arg(long, value_name = "SIZE", default_value = "256MB", value_parser = size)]
    bytes: Size,
    /// The collective: all-gather, reduce-scatter or all-reduce. Default: all three.
    #[arg(long, value_name = "KIND", value_parser = kind)]
    collective: Option<CollectiveKind>,
    /// Number of chunks that a shard is sent in. The closed forms count with one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count)]
    chunks: usize,
}

/// Chips in each dimension.
#[derive(Clone)]
struct Dims(Vec<usize>);

fn dims(text: &str) -> Result<Dims, String> {
    let dims: Option<Vec<usize>> = text.split('x').map(|dim| dim.parse().ok()).collect();
    let valid = |dims: &Vec<usize>| {
        let chips = dims.iter().try_fold(1_usize, |chips, &dim| chips.checked_mul(dim));
        chips.is_some_and(|chips| (2..=MOST).contains(&chips)) && dims.len() <= 3
    };
    let dims = dims.filter(valid);
    dims.map(Dims)
        .ok_or_else(|| format!("must be such as 16x16 or 8x8x8, with at most {MOST} chips"))
}

/// The most chips of a torus: those of a TPU v5p pod and a half.
const MOST: usize = 16_384;

fn kind(word: &str) -> Result<CollectiveKind, String> {
    let found = KINDS.into_iter().find(|kind| kind.name() == word);
    found.ok_or_else(|| format!("must be one of {}", KINDS.map(CollectiveKind::name).join(", ")))
}

fn size(word: &str) -> Result<Size, String> {
    Size::read(&[word.to_owned()])
}

/// The collectives of a torus.
#[derive(Serialize)]
struct Simulated {
    torus: Vec<usize>,
    wrap: Vec<bool>,
    link: f64,
    latency: f64,
    collectives: Vec<Comparison>,
}

impl CollectivesArgs {
    fn networks(&self) -> Result<Vec<Network>> {
        if let Some(name) = &self.topology {
            return Ok(vec![parse_machine(name)?.network]);
        }
        let torus = |dims: Vec<usize>, wrap: Vec<bool>| {
            let (link, latency) = (1e9 * self.link_gb_s, 1e-6 * self.hop_us);
            let island = dims.iter().product();
            let streams = Streams::Sequential;
            Network {
                fabric: Fabric::Torus { dims, wrap, link, latency, streams },
                island,
                dcn: None,
            }
        };
        let Some(Dims(given)) = &self.torus else {
            let all = TORI.iter().map(|&(name, first)| {
                let Dims(dims) = dims(name).map_err(Error::Usage)?;
                Ok(torus(dims, vec![first, true]))
            });
            return all.collect();
        };
        let wrap = match self.wrap.len() {
            0 => vec![true; given.len()],
            length if length == given.len() => self.wrap.clone(),
            length => {
                return Err(Error::Usage(format!(
                    "--wrap has {length} values, but --torus has {} dimensions",
                    given.len()
                )));
            }
        };
        Ok(vec![torus(given.clone(), wrap)])
    }

    fn simulate(&self, network: &Network) -> Result<Simulated> {
        let Fabric::Torus { dims, wrap, link, latency, .. } = &network.fabric else {
            return Err(Error::Usage(
                "--topology must be a TPU slice, whose chips form a torus, such as v4-512".into(),
            ));
        };
        let kinds = self.collective.map_or(KINDS.to_vec(), |kind| vec![kind]);
        let mut collectives = Vec::new();
        for case in cases(dims, wrap) {
            for &kind in &kinds {
                collectives.push(compare(network, &case, kind, self.bytes.0, self.chunks)?);
            }
        }
        let (torus, wrap) = (dims.clone(), wrap.clone());
        Ok(Simulated { torus, wrap, link: *link, latency: *latency, collectives })
    }
}

pub fn run(args: &CollectivesArgs, json: bool) -> Result<()> {
    let networks = args.networks()?;
    let found: Result<Vec<Simulated>> = networks.iter().map(|it| args.simulate(it)).collect();
    let found = found?;
    if json {
        return print_json(&found);
    }
    for torus in &found {
        print(torus);
    }
    let worst = |contended: bool| {
        let rows = found.iter().flat_map(|torus| &torus.collectives);
        let errors = rows.filter(|row| row.contended == contended).map(|row| row.error.abs());
        percent(errors.fold(0.0, f64::max))
    };
    show!(
        "\nlargest difference: {} where links are not shared, {} where they are",
        worst(false),
        worst(true)
    );
    Ok(())
}

fn print(torus: &Simulated) {
    let sides = torus.torus.iter().zip(&torus.wrap);
    let sides =
        sides.map(|(dim, wrap)| format!("{} of {dim}", if *wrap { "ring" } else { "line" }));
    show!(
        "{}: {:.0} GB/s per link, {} per hop",
        sides.collect::<Vec<_>>().join(" × "),
        torus.link / 1e9,
        format::seconds(torus.latency)
    );
    show!(
        "  collective      over                        group   messages   simulated closed form  difference"
    );
    for row in &torus.collectives {
        show!(
            "  {:<15} {:<26} {:>6} {:>10} {:>11} {:>11} {:>10}",
            row.collective,
            row.case,
            row.group,
            row.messages,
            format::seconds(row.simulated),
            format::seconds(row.closed_form),
            difference(row.error),
        );
    }
}
