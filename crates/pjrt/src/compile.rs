//! Compile options: devices and compiler flags.

use crate::error::{Error, Result};
use crate::sys;
use prost::Message;
use std::collections::{BTreeMap, HashSet};

/// How a program is compiled.
///
/// Programs are partitioned, not replicated (SPMD): each of `partitions` devices runs the program
/// on its shard, and Shardy applies the shardings in the text.
#[derive(Debug, Clone, PartialEq)]
pub struct CompileOptions {
    partitions: usize,
    device_ids: Option<Vec<i32>>,
    flags: BTreeMap<String, Flag>,
    optimization: Option<Effort>,
    memory_fitting: Option<Effort>,
}

/// The value of a compiler flag.
#[derive(Debug, Clone, PartialEq)]
pub enum Flag {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float; must be positive, the compilers accept no other here.
    Float(f64),
    /// Text: an enum value, a comma-separated list, or any of the above for flags that accept
    /// only text.
    Text(String),
}

/// A compiler effort level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// As little as possible.
    O0,
    /// More than the default.
    O1,
    /// Suited to long runs.
    O2,
    /// Everything, including experimental passes.
    O3,
}

impl Effort {
    fn raw(self) -> i32 {
        match self {
            Effort::O0 => 9,
            Effort::O1 => 19,
            Effort::O2 => 29,
            Effort::O3 => 39,
        }
    }
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions::new(1)
    }
}

impl CompileOptions {
    /// Options for a program over `partitions` devices.
    pub fn new(partitions: usize) -> CompileOptions {
        CompileOptions {
            partitions,
            device_ids: None,
            flags: BTreeMap::new(),
            optimization: None,
            memory_fitting: None,
        }
    }

    /// The device of each partition, by device id; by default the first ones in order.
    pub fn device_ids(mut self, ids: Vec<i32>) -> CompileOptions {
        self.device_ids = Some(ids);
        self
    }

    /// Sets a compiler flag for this program only. The name is that of the field in XLA's
    /// `DebugOptions` (or of a libtpu flag), without dashes.
    pub fn flag(mut self, name: &str, value: Flag) -> CompileOptions {
        self.flags.insert(name.to_owned(), value);
        self
    }

    /// Sets a flag unless it is already set.
    pub(crate) fn default_flag(&mut self, name: &str, value: &Flag) {
        self.flags.entry(name.to_owned()).or_insert_with(|| value.clone());
    }

    /// Sets a flag written `name=value`, as on a command line.
    pub fn flag_text(self, text: &str) -> Result<CompileOptions> {
        let (name, value) = text
            .trim_start_matches('-')
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| {
                Error::CompileOption(format!("`{text}` is not of the form name=value"))
            })?;
        let value = match value {
            "true" | "True" => Flag::Bool(true),
            "false" | "False" => Flag::Bool(false),
            _ => match value.parse::<i64>() {
                Ok(int) => Flag::Int(int),
                Err(_) => Flag::Text(value.to_owned()),
            },
        };
        Ok(self.flag(name, value))
    }

    /// The effort level for speed.
    pub fn optimization(mut self, effort: Effort) -> CompileOptions {
        self.optimization = Some(effort);
        self
    }

    /// The effort level for fitting the program into memory.
    pub fn memory_fitting(mut self, effort: Effort) -> CompileOptions {
        self.memory_fitting = Some(effort);
        self
    }

    /// The number of devices.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Assigns an available device to every partition.
    ///
    /// The default order is by device id, which follows a TPU's torus, so that consecutive
    /// partitions are neighbors. In the order in which libtpu lists devices, host by host, its
    /// compiler gives up on ring all-gathers and makes each all-gather an all-reduce of the full
    /// tensor.
    pub(crate) fn assign_devices(&mut self, available: &[i32]) -> Result<()> {
        let partitions = self.partitions;
        let ids = match &self.device_ids {
            Some(ids) => ids.clone(),
            None => {
                let mut ids = available.to_vec();
                ids.sort_unstable();
                ids.truncate(partitions);
                ids
            }
        };
        let problem = if partitions == 0 {
            "a program needs at least one device".to_owned()
        } else if partitions > available.len() {
            let count = available.len();
            format!(
                "the program is for {partitions} devices but there are {count}; on CPU request \
                 more virtual devices"
            )
        } else if ids.len() != partitions {
            format!("{} device ids for {partitions} partitions", ids.len())
        } else if let Some(id) = ids.iter().find(|id| !available.contains(id)) {
            format!("there is no device with id {id}")
        } else if let Some(id) = first_repeated(&ids) {
            format!("the device with id {id} is given twice")
        } else {
            self.device_ids = Some(ids);
            return Ok(());
        };
        Err(Error::CompileOption(problem))
    }

    /// Assigns the devices of a job, given in the order of their numbers, of which `local` are
    /// those of this process. A program runs on all of them in that order, so that the shards of a
    /// process are next to one another; or on devices of this process alone, if it names them.
    pub(crate) fn assign_job_devices(&mut self, all: &[i32], local: &[i32]) -> Result<()> {
        let (partitions, count) = (self.partitions, all.len());
        let ids = self.device_ids.get_or_insert_with(|| all.to_vec());
        if ids != all && !ids.iter().all(|id| local.contains(id)) {
            return Err(Error::CompileOption(format!(
                "a program of a job runs on its devices {all:?} in that order, or on those of one \
                 process, {local:?}; not on {ids:?}"
            )));
        }
        if ids == all && partitions != count {
            return Err(Error::CompileOption(format!(
                "the program is for {partitions} devices but the job has {count}; compile it for \
                 all, or name devices of this process"
            )));
        }
        self.assign_devices(all)
    }

    /// The options serialized for the plugin.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let assignment = self.device_ids.as_ref().map(|ids| DeviceAssignment {
            replica_count: 1,
            computation_count: ids.len() as i32,
            computation_devices: ids
                .iter()
                .map(|&id| ComputationDevice { replica_device_ids: vec![i64::from(id)] })
                .collect(),
        });
        let build = BuildOptions {
            device_ordinal: -1,
            num_replicas: 1,
            num_partitions: self.partitions as i64,
            use_spmd_partitioning: true,
            device_assignment: assignment,
            use_shardy_partitioner: true,
            optimization_level: self.optimization.map_or(0, Effort::raw),
            memory_fitting_level: self.memory_fitting.map_or(0, Effort::raw),
        };
        let overrides = self.flags.iter().map(|(name, flag)| (name.clone(), flag.encode()));
        let options = Options {
            executable_build_options: Some(build),
            env_option_overrides: overrides.collect(),
        };
        options.encode_to_vec()
    }
}

fn first_repeated(ids: &[i32]) -> Option<i32> {
    let mut seen = HashSet::new();
    ids.iter().copied().find(|&id| !seen.insert(id))
}

impl Flag {
    fn encode(&self) -> OptionOverride {
        let value = match self {
            Flag::Bool(boolean) => OverrideValue::Bool(*boolean),
            Flag::Int(int) => OverrideValue::Int(*int),
            Flag::Float(float) => OverrideValue::Float(*float),
            Flag::Text(text) => OverrideValue::Text(text.clone()),
        };
        OptionOverride { value: Some(value) }
    }
}

// XLA's option messages, with only the fields we set. The debug options are left out on purpose:
// sending them would reset every flag that is not listed.

#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(message, optional, tag = "3")]
    executable_build_options: Option<BuildOptions>,
    #[prost(btree_map = "string, message", tag = "7")]
    env_option_overrides: BTreeMap<String, OptionOverride>,
}

#[derive(Clone, PartialEq, Message)]
struct BuildOptions {
    #[prost(int64, tag = "1")]
    device_ordinal: i64,
    #[prost(int64, tag = "4")]
    num_replicas: i64,
    #[prost(int64, tag = "5")]
    num_partitions: i64,
    #[prost(bool, tag = "6")]
    use_spmd_partitioning: bool,
    #[prost(message, optional, tag = "9")]
    device_assignment: Option<DeviceAssignment>,
    #[prost(bool, tag = "19")]
    use_shardy_partitioner: bool,
    #[prost(int32, tag = "24")]
    optimization_level: i32,
    #[prost(int32, tag = "25")]
    memory_fitting_level: i32,
}

#[derive(Clone, PartialEq, Message)]
struct DeviceAssignment {
    #[prost(int32, tag = "1")]
    replica_count: i32,
    #[prost(int32, tag = "2")]
    computation_count: i32,
    #[prost(message, repeated, tag = "3")]
    computation_devices: Vec<ComputationDevice>,
}

#[derive(Clone, PartialEq, Message)]
struct ComputationDevice {
    #[prost(int64, repeated, tag = "1")]
    replica_device_ids: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct OptionOverride {
    #[prost(oneof = "OverrideValue", tags = "1, 2, 3, 4")]
    value: Option<OverrideValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum OverrideValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(int64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

/// StableHLO text for the plugin. It borrows the text by pointer, so the text must outlive it.
pub(crate) fn raw_program(text: &str) -> sys::Program {
    const FORMAT: &str = "mlir";
    sys::Program {
        struct_size: size_of::<sys::Program>(),
        extension_start: std::ptr::null_mut(),
        // The plugin only reads it; the field is mutable in C because it is also used for output.
        code: text.as_ptr().cast_mut().cast(),
        code_size: text.len(),
        format: FORMAT.as_ptr().cast(),
        format_size: FORMAT.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids of four devices in the order of their numbers, of which the second process has two.
    const ALL: [i32; 4] = [0, 2, 1, 3];
    const LOCAL: [i32; 2] = [1, 3];

    fn assigned(mut options: CompileOptions) -> Result<Vec<i32>, String> {
        let assigned = options.assign_job_devices(&ALL, &LOCAL);
        assigned.map_err(|error| error.to_string())?;
        Ok(options.device_ids.unwrap())
    }

    #[test]
    fn programs_of_a_job_run_on_all_devices_process_by_process() {
        assert_eq!(assigned(CompileOptions::new(4)), Ok(ALL.to_vec()));
        assert_eq!(assigned(CompileOptions::new(4).device_ids(ALL.to_vec())), Ok(ALL.to_vec()));
        assert_eq!(assigned(CompileOptions::new(1).device_ids(vec![3])), Ok(vec![3]));
    }

    #[test]
    fn programs_on_some_devices_of_a_job_name_their_own() {
        for (options, expected) in [
            (CompileOptions::new(2), "for 2 devices but the job has 4"),
            (CompileOptions::new(8), "for 8 devices but the job has 4"),
            (CompileOptions::new(4).device_ids(vec![0, 1, 2, 3]), "devices [0, 2, 1, 3] in that"),
            (CompileOptions::new(1).device_ids(vec![0]), "not on [0]"),
            (CompileOptions::new(2).device_ids(vec![3]), "1 device ids for 2 partitions"),
            (CompileOptions::new(2).device_ids(vec![3, 3]), "id 3 is given twice"),
        ] {
            let error = assigned(options).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
