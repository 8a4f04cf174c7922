//! Sharding rules: which mesh axes shard which named dimensions, of parameters and of activations.
//!
//! A strategy is a set of rules, and so is a user's file:
//!
//! ```toml
//! activations = [["batch", "*"]]
//! parameters = [["norm", []], ["flat", ["data", "fsdp"]]]
//! gather = "unit"
//! reshard_after_forward = true
//! ```
//!
//! The first rule that names one of a parameter's dimensions decides how it is stored: sharded on
//! that dimension, over the rule's axes, the major first. `flat` stands for the flattened parameter
//! and `dim_0` for its first dimension, whatever its name. A parameter without a rule is
//! replicated. Gradients and optimizer state follow the parameter. `*` stands for all axes.

use crate::config::{Settings, Strategy, nearest};
use crate::error::Error;
use fullshard_core::{Layout, Mesh};
use fullshard_models::{Module, Parameter};
use serde::{Deserialize, Deserializer, Serialize};

/// The name of the batch dimension of activations.
pub const BATCH: &str = "batch";
/// The name of a flattened parameter.
pub const FLAT: &str = "flat";
/// The name of the first dimension of any parameter.
pub const DIM_0: &str = "dim_0";
/// All axes of the mesh.
const ALL_AXES: &str = "*";
/// The mesh axis that hybrid strategies shard over, and the only one of a mesh without names.
pub const FSDP: &str = "fsdp";

/// A set of sharding rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// Rules for activations.
    pub activations: Vec<Rule>,
    /// Rules for parameters, the first that matches decides.
    #[serde(default)]
    pub parameters: Vec<Rule>,
    /// When sharded parameters are all-gathered.
    #[serde(default)]
    pub gather: Gather,
    /// Whether units reshard their parameters after the forward pass and all-gather them again.
    #[serde(default = "yes")]
    pub reshard_after_forward: bool,
    /// Where they come from, for messages: a strategy or a file.
    #[serde(skip)]
    pub source: String,
}

/// The mesh axes that shard dimensions of a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rule(pub String, pub Vec<String>);

/// When sharded parameters are all-gathered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gather {
    /// When a unit is entered.
    #[default]
    Unit,
    /// All of them once, before the first forward pass of a step.
    Step,
}

/// How a parameter is stored.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParamSharding {
    pub layout: Layout,
    /// The positions of the axes that shard it, the major first.
    pub axes: Vec<usize>,
    /// Why: the rule that decided.
    pub reason: String,
}

fn yes() -> bool {
    true
}

impl<'de> Deserialize<'de> for Rule {
    /// A name with the name of an axis or a list of them.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Rule, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an axis or a list of axes")]
        enum Axes {
            One(String),
            Several(Vec<String>),
        }
        let (name, axes) = <(String, Axes)>::deserialize(deserializer)?;
        Ok(match axes {
            Axes::One(axis) => Rule(name, vec![axis]),
            Axes::Several(axes) => Rule(name, axes),
        })
    }
}

impl Rules {
    /// The rules of a strategy.
    pub fn of(strategy: Strategy, settings: &Settings) -> Result<Rules, Error> {
        let stored = match settings.shard_param_on_dim_0 && !settings.flatten_parameters {
            true => DIM_0,
            false => FLAT,
        };
        let axes: &[&str] = match strategy {
            Strategy::NoShard => &[],
            Strategy::HybridShard | Strategy::HybridShardZero2 => &[FSDP],
            Strategy::FullShard | Strategy::ShardGradOp | Strategy::WeightUpdate => &[ALL_AXES],
        };
        let rule = |name: &str, axes: &[&str]| {
            Rule(name.to_owned(), axes.iter().map(|&axis| axis.to_owned()).collect())
        };
        Ok(Rules {
            activations: vec![rule(BATCH, &[ALL_AXES])],
            parameters: vec![rule(stored, axes)],
            gather: match strategy {
                Strategy::WeightUpdate => Gather::Step,
                _ => Gather::Unit,
            },
            reshard_after_forward: settings.reshard(strategy)?,
            source: strategy.name().to_owned(),
        })
    }

    /// Checks names against a model and axes against a mesh.
    pub(crate) fn check(&self, tree: &Module, mesh: &Mesh) -> Result<(), Error> {
        for Rule(name, axes) in self.activations.iter().chain(&self.parameters) {
            self.positions(name, axes, mesh)?;
        }
        if let Some(Rule(name, _)) = self.activations.iter().find(|Rule(name, _)| name != BATCH) {
            return Err(self.unknown(name, vec![BATCH]));
        }
        let mut known = vec![FLAT, DIM_0];
        tree.visit(&mut |_, module| {
            known.extend(module.parameters.iter().flat_map(|parameter| parameter.dim_names));
        });
        let is_unknown = |Rule(name, _): &&Rule| !known.contains(&name.as_str());
        match self.parameters.iter().find(is_unknown) {
            Some(Rule(name, _)) => Err(self.unknown(name, known.clone())),
            None => Ok(()),
        }
    }

    fn unknown(&self, name: &str, mut known: Vec<&'static str>) -> Error {
        known.sort_unstable();
        known.dedup();
        let near = nearest(name, known.iter().copied());
        let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
        let (rules, name) = (self.source.clone(), name.to_owned());
        Error::UnknownDim { rules, name, hint, known: known.join(", ") }
    }

    /// The axes that shard the batch. Each device has its own part of it, so they are all axes.
    pub(crate) fn batch_axes(&self, mesh: &Mesh) -> Result<Vec<usize>, Error> {
        let rule = self.activations.iter().find(|Rule(name, _)| name == BATCH);
        let axes = match rule {
            Some(Rule(name, axes)) => self.positions(name, axes, mesh)?,
            None => Vec::new(),
        };
        let idle = |&axis: &usize| !axes.contains(&axis) && mesh.axis_size(axis) > 1;
        match (0..mesh.sizes().len()).find(idle) {
            Some(axis) => {
                let axis = mesh.whole_names(&[axis])[0].to_owned();
                Err(Error::IdleAxis { rules: self.source.clone(), axis })
            }
            None => Ok(axes),
        }
    }

    /// The axes that shard most parameters, by the last rule for them, and those with replicas.
    pub fn example_axes(&self, mesh: &Mesh) -> Result<(Vec<usize>, Vec<usize>), Error> {
        let sharded = match self.parameters.last() {
            Some(Rule(name, axes)) => self.positions(name, axes, mesh)?,
            None => Vec::new(),
        };
        let batch = self.batch_axes(mesh)?.into_iter();
        let replicas = batch.filter(|axis| !sharded.contains(axis)).collect();
        Ok((sharded, replicas))
    }

    /// How a parameter is stored.
    pub(crate) fn stored(
        &self,
        name: &str,
        parameter: &Parameter,
        mesh: &Mesh,
    ) -> Result<ParamSharding, Error> {
        let replicated =
            |reason: String| ParamSharding { layout: Layout::Replicated, axes: Vec::new(), reason };
        if mesh.devices() == 1 {
            return Ok(replicated("one device".to_owned()));
        }
        if parameter.dims.is_empty() {
            return Ok(replicated("a scalar".to_owned()));
        }
        let layout_of = |name: &str| match name {
            FLAT => Some(Layout::Flat),
            DIM_0 => Some(Layout::Dim(0)),
            _ => parameter.dim_names.iter().position(|known| *known == name).map(Layout::Dim),
        };
        let matching = self
            .parameters
            .iter()
            .find_map(|Rule(name, axes)| layout_of(name).map(|layout| (layout, name, axes)));
        let Some((layout, dim_name, axes)) = matching else {
            return Ok(replicated(format!("no rule of {} names its dims", self.source)));
        };
        let axes = self.positions(dim_name, axes, mesh)?;
        let reason = format!("rule `{dim_name}` of {}", self.source);
        let shards = mesh.group_size(&axes);
        if shards == 1 {
            return Ok(replicated(reason));
        }
        if let Layout::Dim(dim @ 1..) = layout
            && !parameter.dims[dim].is_multiple_of(shards)
        {
            let size = parameter.dims[dim];
            let (rules, parameter) = (self.source.clone(), name.to_owned());
            let dim_name = dim_name.clone();
            return Err(Error::IndivisibleDim { rules, parameter, dim, dim_name, size, shards });
        }
        Ok(ParamSharding { layout, axes, reason })
    }

    /// The positions of a rule's axes; those of size 1 shard nothing and are left out.
    fn positions(&self, name: &str, axes: &[String], mesh: &Mesh) -> Result<Vec<usize>, Error> {
        let mut positions: Vec<usize> = Vec::new();
        for axis in axes {
            let found = match axis.as_str() {
                ALL_AXES => (0..mesh.sizes().len()).collect(),
                axis => mesh.axis_positions(axis).map_err(|source| Error::RuleAxis {
                    rules: self.source.clone(),
                    name: name.to_owned(),
                    source,
                })?,
            };
            positions.extend(
                found.into_iter().filter(|axis| !positions.contains(axis)).collect::<Vec<_>>(),
            );
        }
        positions.retain(|&axis| mesh.axis_size(axis) > 1);
        Ok(positions)
    }
}
