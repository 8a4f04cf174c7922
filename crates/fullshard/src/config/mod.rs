//! `RunConfig`: one description of a run, whoever writes it.
//!
//! The flags of `train`, `run_clm`, `bench step` and `plan` are one spelling of it, a TOML or JSON
//! file is another, Rust code a third. Every field is declared once, in `sections`, with its key,
//! its flag, its help and its default. [`Flags`] turns given flags into a config and a config into
//! flags; [`RunConfig::read`] and [`RunConfig::to_toml`] do the same with files. What a config
//! comes to is the rest of this crate's business.

mod error;
mod file;
mod flags;
mod fsdp;
mod section;
mod sections;
mod source;
mod spelling;
mod value;

pub use error::ConfigError;
pub use file::FILE_NAME;
pub use flags::{Flags, Given};
pub use section::Flag;
pub use sections::{
    Compute, Data, Device, Evaluation, Fsdp, Logging, Mesh, Model, Optimizer, Output, Precision,
    Rematerialization, Scan, Schedule, When,
};
pub use source::ConfigSource;
pub use value::{FlagValue, Takes};

use fullshard_core::Platform;
use fullshard_parallel::Remat;
use section::section;
use serde::{Deserialize, Serialize};

/// The version of the file format.
pub const VERSION: u32 = 1;

/// Everything that a run follows from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// Which model is trained.
    pub model: Model,
    /// What it is trained on.
    pub data: Data,
    /// Which devices it runs on.
    pub device: Device,
    /// The mesh they form.
    pub mesh: Mesh,
    /// How state is sharded over it.
    pub fsdp: Fsdp,
    /// The types that numbers have.
    pub precision: Precision,
    /// What the backward pass recomputes.
    pub remat: Rematerialization,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// How long training is.
    pub schedule: Schedule,
    /// When the model is evaluated.
    pub evaluation: Evaluation,
    /// What is reported.
    pub logging: Logging,
    /// What is written.
    pub output: Output,
}

impl Default for RunConfig {
    fn default() -> RunConfig {
        RunConfig {
            version: VERSION,
            model: Model::default(),
            data: Data::default(),
            device: Device::default(),
            mesh: Mesh::default(),
            fsdp: Fsdp::default(),
            precision: Precision::default(),
            remat: Rematerialization::default(),
            optimizer: Optimizer::default(),
            schedule: Schedule::default(),
            evaluation: Evaluation::default(),
            logging: Logging::default(),
            output: Output::default(),
        }
    }
}

/// Trainer's learning rate where none is given.
const LEARNING_RATE: f64 = 5e-5;

/// What follows from a config without looking at anything else.
impl RunConfig {
    /// The platform.
    pub fn platform(&self) -> Platform {
        self.device.platform.unwrap_or(Platform::Cpu)
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.mesh.fsdp.unwrap_or(1)
    }

    /// The learning rate before any schedule.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate.unwrap_or(LEARNING_RATE)
    }

    /// What layers save for the backward pass.
    pub fn remat(&self) -> Remat {
        self.remat.policy.unwrap_or_default()
    }

    /// Whether any data is named.
    pub fn names_data(&self) -> bool {
        let Data { dataset, train_file, validation_file, .. } = &self.data;
        dataset.is_some() || !train_file.is_empty() || !validation_file.is_empty()
    }

    /// Refuses fields that exclude each other, and fields that do nothing without another.
    pub fn check(&self) -> Result<(), ConfigError> {
        let (model, data) = (&self.model, &self.data);
        let pretrained = ("model_name_or_path", model.pretrained.is_some());
        let config = ("config_name", model.config.is_some());
        let model_type = ("model_type", model.model_type.is_some());
        let overrides = ("config_overrides", model.overrides.is_some());
        let dataset = ("dataset_name", data.dataset.is_some());
        let dataset_config = ("dataset_config_name", data.dataset_config.is_some());
        let train_file = ("train_file", !data.train_file.is_empty());
        let validation_file = ("validation_file", !data.validation_file.is_empty());
        let demo = ("demo", data.demo);
        for ((first, has_first), (second, has_second)) in [
            (pretrained, config),
            (pretrained, model_type),
            (config, model_type),
            (dataset, train_file),
            (dataset, validation_file),
            (demo, dataset),
            (demo, train_file),
            (demo, validation_file),
        ] {
            if has_first && has_second {
                return Err(ConfigError::Exclusive { first, second });
            }
        }
        for ((flag, given), (needed, has_needed)) in
            [(overrides, model_type), (dataset_config, dataset)]
        {
            if given && !has_needed {
                return Err(ConfigError::Needs { flag, needed });
            }
        }
        Ok(())
    }
}
