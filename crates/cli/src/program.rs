//! Reads StableHLO programs from files, with compile flags shared by commands.

use clap::Args;
use fullshard::{Error, Result};
use fullshard_pjrt::CompileOptions;
use std::fs;
use std::path::{Path, PathBuf};

/// A program and its compile options.
#[derive(Args)]
pub struct ProgramArgs {
    /// StableHLO program as MLIR text.
    #[arg(value_name = "FILE.mlir")]
    pub file: PathBuf,
    /// Number of devices; defaults to that of the program, or 1.
    #[arg(long = "num_devices", value_name = "N")]
    pub num_devices: Option<usize>,
    /// XLA compiler flag, such as xla_cpu_enable_fast_math=true.
    #[arg(long = "xla_flag", value_name = "NAME=VALUE")]
    xla_flags: Vec<String>,
}

impl ProgramArgs {
    /// Reads the program and its compile options.
    pub fn read(&self) -> Result<(String, CompileOptions)> {
        let text = read_text(&self.file)?;
        let devices = self.num_devices.or_else(|| stated_devices(&text)).unwrap_or(1);
        let options = self
            .xla_flags
            .iter()
            .try_fold(CompileOptions::new(devices), |options, flag| options.flag_text(flag))?;
        Ok((text, options))
    }
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::file(path, "not text: expected a StableHLO program as MLIR text"))
}

/// The number of devices in the attributes of a module.
fn stated_devices(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("mhlo.num_partitions")?;
    let rest = rest.trim_start().strip_prefix('=')?.trim_start();
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::stated_devices;

    #[test]
    fn devices_are_read_from_the_module() {
        let text = "module @m attributes {mhlo.num_partitions = 16 : i32} {}";
        assert_eq!(stated_devices(text), Some(16));
        assert_eq!(stated_devices("module @m {}"), None);
        assert_eq!(stated_devices("mhlo.num_partitions"), None);
        assert_eq!(stated_devices("mhlo.num_partitions = x"), None);
    }
}
