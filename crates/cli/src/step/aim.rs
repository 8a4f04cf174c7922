//! The flags of a step as `plan` sets them: for a machine, and with settings that a search tries.

use super::{RematArg, ScanArg, StepFlags};
use crate::error::{Error, Result};
use fullshard_parallel::Remat;
use fullshard_pjrt::plugins::PluginKind;
use fullshard_plan::{Candidate, Space};
use serde_json::Value;

impl StepFlags {
    /// For the devices of a machine, unless others were asked for.
    pub fn aim_at(&mut self, kind: PluginKind, devices: usize, machine: &str) -> Result<()> {
        let other = self.target.device.filter(|&asked| asked != kind);
        if let Some(asked) = other.filter(|_| std::env::var_os("PJRT_DEVICE").is_none()) {
            return Err(Error::Usage(format!(
                "--device is {}, but {machine} is planned for: leave --device out",
                asked.name()
            )));
        }
        if let Some(asked) = self.num_cores.filter(|&asked| asked != devices) {
            return Err(Error::Usage(format!(
                "--num_cores is {asked}, but {machine} has {}: leave --num_cores out, or choose \
                 another --topology",
                crate::format::count(devices, "device")
            )));
        }
        self.target.device = Some(kind);
        self.num_cores = Some(devices);
        Ok(())
    }

    /// What a search may choose from: everything but what was asked for by flag.
    pub fn space(&self) -> Result<Space> {
        let mut space = Space::default();
        if let Some(remat) = self.asked_remat()? {
            space.remats = vec![remat];
        }
        match self.scan_layers {
            ScanArg::Auto => {}
            ScanArg::True => space.scans = vec![true],
            ScanArg::False => space.scans = vec![false],
        }
        if self.gather_ahead {
            space.aheads = vec![true];
        }
        Ok(space)
    }

    /// With the settings that a search tries.
    pub fn choose(&mut self, candidate: &Candidate) -> Result<()> {
        self.remat = Some(match candidate.remat {
            Remat::None => RematArg::None,
            Remat::Dots => RematArg::Dots,
            Remat::Full => RematArg::Full,
        });
        self.gradient_checkpointing = false;
        self.scan_layers = if candidate.scan_layers { ScanArg::True } else { ScanArg::False };
        self.gather_ahead = candidate.gather_ahead;
        self.fsdp = candidate.strategy.name().to_owned();
        let stated = self.config()?.settings;
        let differ = candidate.settings().into_iter().any(|(key, value)| match key {
            "shard_param_on_dim_0" => value != stated.shard_param_on_dim_0,
            _ => value != stated.flatten_parameters,
        });
        if differ {
            self.fsdp_config = Some(self.config_with(&candidate.settings())?);
        }
        Ok(())
    }

    /// The FSDP config as JSON, with other settings.
    fn config_with(&self, settings: &[(&'static str, bool)]) -> Result<String> {
        let text = match self.fsdp_config.as_deref() {
            None => "{}".to_owned(),
            Some(json) if json.trim_start().starts_with('{') => json.to_owned(),
            Some(path) => {
                std::fs::read_to_string(path).map_err(|error| Error::file(path, error))?
            }
        };
        let mut config: Value =
            serde_json::from_str(&text).map_err(|error| Error::file("--fsdp_config", error))?;
        for (key, value) in settings {
            config["xla_fsdp_settings"][key] = Value::Bool(*value);
        }
        Ok(config.to_string())
    }
}
