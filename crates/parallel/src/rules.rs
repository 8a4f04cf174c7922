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
//! replicated. Gradients and optimizer state follow the parameter.
//!
//! Rules for the axis `tensor` slice: `["mlp", "tensor"]` is tensor parallelism, in which devices
//! compute with their slices and never gather them. Slices are stored by the next rule, on another
//! dim. The axis `context` shards the `sequence` of activations.
//!
//! `*` stands for all axes that a dim may have: for parameters all but `tensor`, for the batch all
//! but `tensor` and `context`.

use crate::config::{Settings, Strategy, nearest};
use crate::error::Error;
use crate::layout::TensorSlice;
use crate::slices::SLICED;
use fullshard_core::{Layout, Mesh};
use fullshard_models::{Module, Parameter};
use serde::{Deserialize, Deserializer, Serialize};

/// The name of the batch dimension of activations.
pub const BATCH: &str = "batch";
/// The name of the sequence dimension of activations.
pub const SEQUENCE: &str = "sequence";
/// The name of the sequence dimension in norms and residuals.
pub const NORM_SEQUENCE: &str = "norm_sequence";
/// The name of a flattened parameter.
pub const FLAT: &str = "flat";
/// The name of the first dimension of any parameter.
pub const DIM_0: &str = "dim_0";
/// All axes of the mesh.
const ALL_AXES: &str = "*";
/// The mesh axis that hybrid strategies shard over, and the only one of a mesh without names.
pub const FSDP: &str = "fsdp";

/// The mesh axis of tensor parallelism.
pub const TENSOR: &str = "tensor";
/// The mesh axis of context parallelism.
pub const CONTEXT: &str = "context";

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
    /// Whether the tensor axis is automatic.
    #[serde(skip)]
    pub(crate) automatic: bool,
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
    /// The slices that devices compute with.
    pub slice: Option<TensorSlice>,
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

impl Rule {
    /// Whether it slices dims for tensor parallelism.
    pub(crate) fn is_slicing(&self) -> bool {
        self.1.iter().any(|axis| axis == TENSOR)
    }
}

impl Rules {
    /// The rules of a strategy on a mesh, with sequence parallelism beside tensor parallelism or
    /// without.
    pub fn of(
        strategy: Strategy,
        settings: &Settings,
        mesh: &Mesh,
        sequence_parallel: bool,
    ) -> Result<Rules, Error> {
        let stored = match settings.shard_param_on_dim_0 && !settings.flatten_parameters {
            true => DIM_0,
            false => FLAT,
        };
        let has = |axis: &str| mesh.axis_positions(axis).is_ok();
        let axes: &[&str] = match strategy {
            Strategy::NoShard => &[],
            Strategy::HybridShard | Strategy::HybridShardZero2 if has(CONTEXT) => &[FSDP, CONTEXT],
            Strategy::HybridShard | Strategy::HybridShardZero2 => &[FSDP],
            Strategy::FullShard | Strategy::ShardGradOp | Strategy::WeightUpdate => &[ALL_AXES],
        };
        let rule = |name: &str, axes: &[&str]| {
            Rule(name.to_owned(), axes.iter().map(|&axis| axis.to_owned()).collect())
        };
        let tokens = has(TENSOR) && sequence_parallel;
        let context = has(CONTEXT).then(|| rule(SEQUENCE, &[CONTEXT]));
        let tokens = tokens.then(|| rule(NORM_SEQUENCE, &[TENSOR]));
        let slices = SLICED.iter().filter(|_| has(TENSOR)).map(|dim| rule(dim.name, &[TENSOR]));
        Ok(Rules {
            activations: [rule(BATCH, &[ALL_AXES])]
                .into_iter()
                .chain(context)
                .chain(tokens)
                .collect(),
            parameters: slices.chain([rule(stored, axes)]).collect(),
            gather: match strategy {
                Strategy::WeightUpdate => Gather::Step,
                _ => Gather::Unit,
            },
            reshard_after_forward: settings.reshard(strategy)?,
            source: strategy.name().to_owned(),
            automatic: false,
        })
    }

    /// Checks names against a model and axes against a mesh.
    pub(crate) fn check(&self, tree: &Module, mesh: &Mesh) -> Result<(), Error> {
        for Rule(name, axes) in self.activations.iter().chain(&self.parameters) {
            self.positions(name, axes, mesh)?;
        }
        for Rule(name, axes) in &self.activations {
            let expected = match name.as_str() {
                BATCH => continue,
                SEQUENCE => CONTEXT,
                NORM_SEQUENCE => TENSOR,
                _ => return Err(self.unknown(name, vec![BATCH, SEQUENCE, NORM_SEQUENCE])),
            };
            if let Some(axis) = axes.iter().find(|axis| *axis != expected) {
                let (rules, name) = (self.source.clone(), name.clone());
                return Err(Error::ActivationAxis { rules, name, axis: axis.clone(), expected });
            }
        }
        self.check_slices(tree, mesh)?;
        let mut known = vec![FLAT, DIM_0];
        known.extend(SLICED.iter().map(|dim| dim.name));
        tree.visit(&mut |_, module| {
            let names = module.parameters.iter().flat_map(|parameter| &parameter.dim_names);
            known.extend(names.map(|dim| dim.name));
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

    /// The axes that shard a dimension of activations.
    pub(crate) fn activation_axes(&self, dim: &str, mesh: &Mesh) -> Result<Vec<usize>, Error> {
        match self.activations.iter().find(|Rule(name, _)| name == dim) {
            Some(Rule(name, axes)) => self.positions(name, axes, mesh),
            None => Ok(Vec::new()),
        }
    }

    /// The axes that shard tokens: those of the batch, and those of the sequence. With those of
    /// tensor parallelism they must be all axes, so that no two devices compute the same.
    pub(crate) fn token_axes(&self, mesh: &Mesh) -> Result<Vec<usize>, Error> {
        let mut axes = self.activation_axes(BATCH, mesh)?;
        let sequence = self.activation_axes(SEQUENCE, mesh)?;
        axes.extend(sequence.into_iter().filter(|axis| !axes.contains(axis)).collect::<Vec<_>>());
        let tensor = self.tensor_axes(mesh).map(|tensor| tensor.axes).unwrap_or_default();
        let is_idle = |&axis: &usize| {
            !axes.contains(&axis) && !tensor.contains(&axis) && mesh.axis_size(axis) > 1
        };
        match (0..mesh.sizes().len()).find(is_idle) {
            Some(axis) => Err(self.idle_axis(mesh.whole_names(&[axis])[0])),
            None => Ok(axes),
        }
    }

    pub(crate) fn idle_axis(&self, axis: &str) -> Error {
        let hint = match axis {
            TENSOR => "; it slices named dims of parameters, such as [\"mlp\", \"tensor\"]",
            CONTEXT => "; it shards the rule `sequence` of activations",
            _ => "",
        };
        Error::IdleAxis { rules: self.source.clone(), axis: axis.to_owned(), hint }
    }

    /// The axes that shard most parameters, by the last rule for them, and those with replicas.
    pub fn example_axes(&self, mesh: &Mesh) -> Result<(Vec<usize>, Vec<usize>), Error> {
        let sharded = match self.parameters.last() {
            Some(Rule(name, axes)) => self.positions(name, axes, mesh)?,
            None => Vec::new(),
        };
        let batch = self.token_axes(mesh)?.into_iter();
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
        let slice = self.slice(parameter, mesh);
        let replicated = |reason: String| {
            let slice = slice.clone();
            ParamSharding { layout: Layout::Replicated, axes: Vec::new(), slice, reason }
        };
        if mesh.devices() == 1 {
            return Ok(replicated("one device".to_owned()));
        }
        if parameter.dims.is_empty() {
            return Ok(replicated("a scalar".to_owned()));
        }
        let sliced = slice.as_ref().map(|slice| slice.dim);
        let layout_of = |name: &str| match (name, sliced) {
            (FLAT | DIM_0, Some(sliced)) => Some(slice_layout(&parameter.dims, sliced)),
            (FLAT, None) => Some(Layout::Flat),
            (DIM_0, None) => Some(Layout::Dim(0)),
            _ => {
                let dim = parameter.dim_names.iter().position(|known| known.name == name);
                dim.filter(|&dim| sliced != Some(dim)).map(Layout::Dim)
            }
        };
        let stored = self.parameters.iter().filter(|rule| !rule.is_slicing());
        let matching = stored
            .into_iter()
            .find_map(|Rule(name, axes)| layout_of(name).map(|layout| (layout, name, axes)));
        let Some((layout, dim_name, axes)) = matching else {
            return Ok(replicated(format!("no rule of {} names its dims", self.source)));
        };
        let axes = self.positions(dim_name, axes, mesh)?;
        let reason = match sliced {
            Some(dim) => {
                let slicing = parameter.dim_names[dim].name;
                format!("rules `{slicing}` and `{dim_name}` of {}", self.source)
            }
            None => format!("rule `{dim_name}` of {}", self.source),
        };
        let shards = mesh.group_size(&axes);
        if shards == 1 || layout == Layout::Replicated {
            return Ok(replicated(reason));
        }
        let is_named = dim_name != FLAT && dim_name != DIM_0;
        if let Layout::Dim(dim @ 1..) = layout
            && is_named
            && !parameter.dims[dim].is_multiple_of(shards)
        {
            let size = parameter.dims[dim];
            let (rules, parameter) = (self.source.clone(), name.to_owned());
            let dim_name = dim_name.clone();
            return Err(Error::IndivisibleDim { rules, parameter, dim, dim_name, size, shards });
        }
        Ok(ParamSharding { layout, axes, slice, reason })
    }

    /// The positions of a rule's axes; those of size 1 shard nothing and are left out.
    fn positions(&self, name: &str, axes: &[String], mesh: &Mesh) -> Result<Vec<usize>, Error> {
        let mut positions: Vec<usize> = Vec::new();
        for axis in axes {
            let found = match axis.as_str() {
                ALL_AXES => {
                    let is_other = |axis: &usize| match mesh.whole_names(&[*axis])[0] {
                        TENSOR => true,
                        CONTEXT => name == BATCH,
                        _ => false,
                    };
                    (0..mesh.sizes().len()).filter(|axis| !is_other(axis)).collect()
                }
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

/// How slices of a parameter are stored: on the largest other dim, so that a shard is a block.
/// Slices of vectors are small, and replicated.
fn slice_layout(dims: &[usize], sliced: usize) -> Layout {
    let others = (0..dims.len()).filter(|&dim| dim != sliced);
    others.max_by_key(|&dim| dims[dim]).map_or(Layout::Replicated, Layout::Dim)
}
