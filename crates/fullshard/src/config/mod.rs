//! `RunConfig`: the description of a run.
//!
//! It is built from the flags of `train`, `run_clm`, `bench step` and `plan`, from a TOML or JSON
//! file, or in Rust code. Every field is declared once, in `sections`, with its key, flag, help and
//! default. [`Flags`] converts between flags and configs; [`RunConfig::read`] and
//! [`RunConfig::to_toml`] convert between files and configs.

mod error;
mod file;
mod flags;
mod fsdp;
mod section;
mod sections;
mod source;
mod spelling;
mod types;
mod value;

pub use error::ConfigError;
pub use file::FILE_NAME;
pub use flags::{Flags, Given};
pub use section::Flag;
pub use sections::{
    Checkpoint, Data, Device, Evaluation, Fsdp, Guard, Logging, Mesh, Model, Optimizer, Output,
    Precision, Rematerialization, Schedule,
};
pub use source::ConfigSource;
pub use types::{
    AheadChoice, AttentionChoice, CollectiveChoice, Compute, ContextChoice, OnSpike, ResumeFrom,
    SaveDtype, SaveWhen, Scan, Size, When, WrapClasses,
};
pub use value::{FlagValue, Takes};

use fullshard_core::{MeshSpec, Platform};
use fullshard_parallel::Remat;
use section::section;
use serde::{Deserialize, Serialize};

/// The version of the file format.
pub const VERSION: u32 = 4;

/// All settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The model to train.
    pub model: Model,
    /// The training and evaluation data.
    pub data: Data,
    /// The devices to run on.
    pub device: Device,
    /// The device mesh.
    pub mesh: Mesh,
    /// How state is sharded over the mesh.
    pub fsdp: Fsdp,
    /// Numeric precision.
    pub precision: Precision,
    /// Activation rematerialization.
    pub remat: Rematerialization,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// Training length and learning rate schedule.
    pub schedule: Schedule,
    /// When to evaluate.
    pub evaluation: Evaluation,
    /// Logging.
    pub logging: Logging,
    /// Output files.
    pub output: Output,
    /// Checkpoints during training.
    pub checkpoint: Checkpoint,
    /// Hangs and silent corruption.
    pub guard: Guard,
    /// The number of processes that the run is launched in, which is no setting and in no file.
    #[serde(skip)]
    pub processes: usize,
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
            checkpoint: Checkpoint::default(),
            guard: Guard::default(),
            processes: 1,
        }
    }
}

/// The default learning rate of Hugging Face's Trainer.
const LEARNING_RATE: f64 = 5e-5;

/// Values derived from the config alone.
impl RunConfig {
    /// The platform.
    pub fn platform(&self) -> Platform {
        self.device.platform.unwrap_or(Platform::Cpu)
    }

    /// The number of devices, over all processes.
    pub fn devices(&self) -> usize {
        let shape = self.mesh.shape.as_ref();
        self.mesh.devices.or_else(|| shape.and_then(MeshSpec::devices)).unwrap_or(self.processes)
    }

    /// The number of devices of each process.
    pub fn local_devices(&self) -> usize {
        self.devices() / self.processes.max(1)
    }

    /// Whether the compiler sees the devices of one process of several only, as on CPU.
    pub(crate) fn compiles_per_process(&self) -> bool {
        self.processes > 1 && self.platform() == Platform::Cpu
    }

    /// The learning rate before any schedule.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate.unwrap_or(LEARNING_RATE)
    }

    /// The rematerialization policy.
    pub fn remat(&self) -> Remat {
        self.remat.policy.clone().unwrap_or_default()
    }

    /// Whether any data is given.
    pub fn names_data(&self) -> bool {
        let Data { dataset, train_file, validation_file, .. } = &self.data;
        dataset.is_some() || !train_file.is_empty() || !validation_file.is_empty()
    }

    /// Rejects mutually exclusive fields, and fields that have no effect without another.
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
