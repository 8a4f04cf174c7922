//! The mesh of a run, and how collectives run over it.

use crate::config::{CollectiveChoice, RunConfig};
use crate::error::{Error, Result};
use fullshard_core::{Mesh, MeshSpec};
use fullshard_parallel::rules::{CONTEXT, FSDP, TENSOR};
use fullshard_parallel::{Rules, Settings, Staging, Strategy};
use fullshard_plan::Machine;
use fullshard_plan::staging::Chosen;
use std::path::Path;

/// Names of axes that mean other kinds of parallelism than data parallelism.
const RESERVED: [&str; 4] = ["sequence", "expert", "pipeline", "spatial"];

impl RunConfig {
    /// The mesh: `--mesh`, or the one of the sharding groups, or all devices along one axis.
    pub fn device_mesh(&self) -> Result<Mesh> {
        let devices = self.devices();
        let settings = self.sharding_settings()?;
        let grouped = settings.group_mesh(devices).map_err(fullshard_parallel::Error::from)?;
        let spec = match (&self.mesh.shape, grouped) {
            (Some(given), Some(grouped)) if *given != grouped => {
                return Err(Error::Usage(format!(
                    "--mesh is {given}, but the sharding groups of the FSDP config are a mesh of \
                     {grouped}: leave one of them out"
                )));
            }
            (Some(given), _) => given.clone(),
            (None, Some(grouped)) => grouped,
            (None, None) => MeshSpec::of(&[(FSDP, devices)]),
        };
        if spec.devices().is_none() && self.mesh.devices.is_none() {
            return Err(Error::Usage(format!(
                "--mesh is {spec}: add --num_cores, of which -1 is the rest, or give all sizes"
            )));
        }
        let mesh = spec.resolve(devices);
        let mesh = mesh.map_err(|error| Error::Usage(format!("--mesh: {error}")))?;
        let reserved = |(name, size): &(&str, usize)| RESERVED.contains(name) && *size > 1;
        if let Some((name, _)) = mesh.axes().find(reserved) {
            return Err(Error::Usage(format!(
                "--mesh: there is no {name} parallelism yet, and an axis `{name}` would shard the \
                 batch as any other: name it otherwise, such as data, or leave it out"
            )));
        }
        Ok(mesh)
    }

    /// The number of parts of the batch: the devices along all axes that shard it.
    pub fn batch_shards(&self) -> Result<usize> {
        let mesh = self.device_mesh()?;
        let others = [TENSOR, CONTEXT];
        Ok(mesh.axes().filter(|(name, _)| !others.contains(name)).map(|(_, size)| size).product())
    }

    /// The strategy. With sharding groups, `full_shard` has replicas.
    pub(crate) fn strategy(&self) -> Result<Strategy> {
        let grouped =
            self.fsdp.sharding_groups.is_some() || self.fsdp.sharding_world_size.is_some();
        match self.fsdp.strategy {
            strategy if !grouped || strategy.is_hybrid() => Ok(strategy),
            Strategy::FullShard => Ok(Strategy::HybridShard),
            Strategy::ShardGradOp => Ok(Strategy::HybridShardZero2),
            strategy => Err(Error::Usage(format!(
                "--fsdp {strategy} has no sharding groups: leave sharding_groups and \
                 sharding_world_size out, or write --fsdp hybrid_shard"
            ))),
        }
    }

    /// The rules of the user's file, if there is one.
    pub(crate) fn sharding_rules(&self) -> Result<Option<Rules>> {
        let Some(path) = &self.fsdp.rules else { return Ok(None) };
        let taken = [
            ("--fsdp", self.fsdp.strategy != Strategy::default()),
            ("reshard_after_forward", self.fsdp.reshard_after_forward.is_some()),
            ("shard_param_on_dim_0", self.fsdp.shard_param_on_dim_0),
            ("sharding_groups", self.fsdp.sharding_groups.is_some()),
            ("sharding_world_size", self.fsdp.sharding_world_size.is_some()),
        ];
        match taken.into_iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(Error::Usage(format!(
                "{name} and --sharding_rules {} both state how parameters are sharded: leave one \
                 of them out",
                path.display()
            ))),
            None => read_rules(path).map(Some),
        }
    }

    fn sharding_settings(&self) -> Result<Settings> {
        let config = self.fsdp.resolve(crate::config::Compute::Float32);
        Ok(config.map_err(fullshard_parallel::Error::from)?.settings)
    }

    /// The machine that the devices are, if it is known.
    pub(crate) fn machine(&self) -> Result<Option<Machine>> {
        let machine = self.device.topology.as_deref().map(Machine::parse).transpose();
        Ok(machine.map_err(fullshard_plan::Error::from)?)
    }

    /// The mesh that programs are written for, and how collectives run over it. On a torus that
    /// collectives follow, an axis is split into its parts along the dimensions.
    pub(crate) fn staged_mesh(&self) -> Result<Chosen> {
        let mesh = self.device_mesh()?;
        if self.compiles_per_process() {
            return self.mesh_across_processes(&mesh);
        }
        let machine = self.machine()?;
        let dims = machine.as_ref().and_then(Machine::torus_dims);
        let along_torus = || dims.and_then(|dims| mesh.along_torus(&dims));
        let all = |split: Option<Mesh>, staging| Chosen {
            mesh: split.unwrap_or_else(|| mesh.clone()),
            gather: staging,
            reduce: staging,
        };
        match (self.fsdp.collective, &machine) {
            (CollectiveChoice::Axes, _) => Ok(all(along_torus(), Staging::Axes)),
            (CollectiveChoice::Rotated, _) => Ok(all(along_torus(), Staging::Rotated)),
            (CollectiveChoice::Hierarchical, _) => Ok(all(along_torus(), Staging::Hierarchical)),
            (CollectiveChoice::Ring, _) => {
                Ok(Chosen { gather: Staging::Flat, ..all(along_torus(), Staging::Ring) })
            }
            (CollectiveChoice::Auto, Some(machine)) => {
                let rules = match self.sharding_rules()? {
                    Some(rules) => rules,
                    None => {
                        let settings = self.sharding_settings()?;
                        let sequence_parallel = self.mesh.sequence_parallel;
                        Rules::of(self.strategy()?, &settings, &mesh, sequence_parallel)?
                    }
                };
                Ok(fullshard_plan::staging::choose(machine, &mesh, &rules))
            }
            (CollectiveChoice::Auto | CollectiveChoice::Flat, _) => Ok(all(None, Staging::Flat)),
        }
    }
}

impl RunConfig {
    /// A mesh whose axes across processes are marked, for a compiler that does not see them. Unless
    /// chosen otherwise, collectives run inside a process first, so that less goes between them.
    fn mesh_across_processes(&self, mesh: &Mesh) -> Result<Chosen> {
        let marked = mesh
            .across_processes(self.processes)
            .map_err(|error| Error::Usage(format!("--mesh: {error}")))?;
        let automatic = self.mesh.automatic.iter();
        let across = |axis: &String| {
            let parts = marked.axis_positions(axis).unwrap_or_default();
            parts.into_iter().any(|axis| marked.is_across(axis))
        };
        if let Some(axis) = automatic.into_iter().find(|axis| across(axis)) {
            return Err(Error::Usage(format!(
                "--automatic_axes {axis}: this axis is across processes, of which the CPU compiler \
                 does not know. Put it last in --mesh, with at most {} devices, or leave \
                 --automatic_axes out",
                self.local_devices()
            )));
        }
        let staging = match self.fsdp.collective {
            CollectiveChoice::Flat => Staging::Flat,
            CollectiveChoice::Axes => Staging::Axes,
            CollectiveChoice::Rotated => Staging::Rotated,
            CollectiveChoice::Ring => Staging::Ring,
            CollectiveChoice::Auto | CollectiveChoice::Hierarchical => Staging::Hierarchical,
        };
        Ok(Chosen { mesh: marked, gather: staging, reduce: staging })
    }
}

/// Reads sharding rules from a TOML or JSON file.
fn read_rules(path: &Path) -> Result<Rules> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Usage(format!("--sharding_rules: cannot read {name}: {error}")))?;
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    let rules: Result<Rules, String> = match is_json {
        true => serde_json::from_str(&text).map_err(|error| error.to_string()),
        false => toml::from_str(&text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start);
            let line = 1 + text[..start].matches('\n').count();
            format!("line {line}: {}", error.message())
        }),
    };
    let mut rules = rules.map_err(|error| {
        Error::Usage(format!("--sharding_rules {name}: {error}; see docs/parallelism.md"))
    })?;
    rules.source = name.to_string();
    Ok(rules)
}
