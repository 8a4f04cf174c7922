//! `fullshard config`: prints the run config of the given flags.

use super::train::{Command, TrainArgs};
use crate::output::{quoted, show};
use clap::{Args, ValueEnum};
use fullshard::Result;

#[derive(Args)]
pub struct ConfigArgs {
    /// Output format.
    #[arg(long, value_enum, default_value = "toml")]
    format: Format,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Toml,
    Json,
    /// As flags of `fullshard train`.
    Flags,
}

pub fn run(args: &ConfigArgs) -> Result<()> {
    let config = args.train.config(Command::Train)?;
    match args.format {
        Format::Toml => show!("{}", config.to_toml()?.trim_end()),
        Format::Json => show!("{}", config.to_json()?),
        Format::Flags => {
            let flags: Vec<String> = config.to_flags().iter().map(|flag| quoted(flag)).collect();
            show!("{}", flags.join(" "));
        }
    }
    Ok(())
}
