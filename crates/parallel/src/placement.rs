//! The placement of a model: units, the parameters they own, how each is sharded, and what follows
//! from that before anything is traced.

use crate::ahead::{self, GatherAhead};
use crate::config::{FsdpConfig, Strategy};
use crate::error::Error;
use crate::gather::CommPolicy;
use crate::layout::ShardedParam;
use crate::remat::Remat;
use crate::ring;
use crate::rules::{BATCH, FSDP, Gather, ParamSharding, Rules, SEQUENCE};
use crate::slices::{TensorAxes, check_automatic};
use crate::stack::Stacks;
use crate::staged::Staging;
use crate::wrap::{self, Unit};
use fullshard_core::Layout;
use fullshard_graph::{DType, Dialect, Group, Mesh, MeshExt, Sharding};
use fullshard_models::layers::attention::context::ContextMethod;
use fullshard_models::{LoweringOptions, Module, Parameter};
use std::collections::HashMap;

/// How a model is to be placed.
#[derive(Debug, Clone, Default)]
pub struct PlacementOptions {
    /// What is sharded, unless rules state it.
    pub strategy: Strategy,
    /// Whether tokens of norms and residuals are sharded over the devices of tensor parallelism.
    pub sequence_parallel: bool,
    /// The mesh axes that the compiler shards tensors over: `tensor`, or none.
    pub automatic_axes: Vec<String>,
    /// How attention gets the keys and values of other devices along the axis `context`.
    pub context_method: ContextMethod,
    /// Sharding rules instead of those of the strategy.
    pub rules: Option<Rules>,
    /// How reductions over several mesh axes run.
    pub staging: Staging,
    /// How all-gathers over several mesh axes run.
    pub gather_staging: Staging,
    /// Units and how they are run.
    pub config: FsdpConfig,
    /// What layers save for the backward pass; by default as the configuration states.
    pub remat: Option<Remat>,
    /// Whether identical layers are scanned rather than unrolled.
    pub scan_layers: bool,
    /// What is all-gathered before scanned layers need it.
    pub gather_ahead: GatherAhead,
    /// Which of several equivalent forms a model is lowered to on the platform.
    pub lowering: LoweringOptions,
    /// How programs are written for the platform.
    pub dialect: Dialect,
    /// Names of frozen parameters, with `*` as a wildcard.
    pub frozen: Vec<String>,
}

/// A unit with its sharded parameters.
#[derive(Debug, Clone)]
pub struct PlacedUnit {
    /// The path of its module, with a `*` for the layer if layers are scanned.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// Number of units of this kind: the scanned layers.
    pub count: usize,
    /// The positions of its parameters in [`Placement::parameters`].
    pub parameters: Vec<usize>,
    /// Whether its parameters are resharded after the forward pass and all-gathered again.
    pub reshard: bool,
}

/// Where a model's units and parameters are.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The devices.
    pub mesh: Mesh,
    /// The sharding rules.
    pub rules: Rules,
    /// The units, parents first; the first is the root.
    pub units: Vec<PlacedUnit>,
    /// The sharded parameters, in the order of the tree.
    pub parameters: Vec<ShardedParam>,
    /// The communication policy.
    pub comm: CommPolicy,
    /// The positions of the mesh axes that shard the batch.
    pub sample_axes: Vec<usize>,
    /// The positions of the mesh axes that shard sequences.
    pub context_axes: Vec<usize>,
    /// The mesh axes of tensor parallelism, if there are any.
    pub tensor: Option<TensorAxes>,
    /// What layers save for the backward pass.
    pub remat: Remat,
    /// The options it was made with.
    pub options: PlacementOptions,
    /// The classes of its blocks.
    blocks: Vec<&'static str>,
    pub(crate) stacks: Stacks,
    pub(crate) aliases: HashMap<String, String>,
}

impl Placement {
    /// Places a model on `devices` devices along one axis, `fsdp`.
    pub fn new(
        tree: &Module,
        devices: usize,
        options: &PlacementOptions,
    ) -> Result<Placement, Error> {
        Placement::on_mesh(tree, &Mesh::new(&[(FSDP, devices)])?, options)
    }

    /// Places a model on a mesh.
    pub fn on_mesh(
        tree: &Module,
        mesh: &Mesh,
        options: &PlacementOptions,
    ) -> Result<Placement, Error> {
        let settings = &options.config.settings;
        check_automatic(options, mesh)?;
        let mut rules = match &options.rules {
            Some(rules) => rules.clone(),
            None => Rules::of(options.strategy, settings, mesh, options.sequence_parallel)?,
        };
        rules.automatic = !options.automatic_axes.is_empty();
        rules.check(tree, mesh)?;
        let units = wrap::units(tree, &options.config.wrap)?;
        let frozen = wrap::frozen(tree, &options.frozen)?;
        let stacks = Stacks::of(tree);
        let scanned = if options.scan_layers { stacks.clone() } else { Stacks::default() };
        let stored = |name: &str, parameter: &Parameter| rules.stored(name, parameter, mesh);
        let mut parameters = sharded_params(tree, &stacks, &scanned, &frozen, stored, mesh)?;
        let comm = comm(options, mesh, &rules)?;
        if options.staging == Staging::Ring && !comm.packed {
            ring::spread(mesh, &mut parameters);
        }
        let reshard = rules.reshard_after_forward && rules.gather == Gather::Unit;
        ahead::check(options, &units, &scanned, reshard)?;
        let keep_root = settings.disable_reshard_on_root;
        let units = placed_units(&units, &scanned, &parameters, reshard, keep_root);
        let remat = options.remat.clone().unwrap_or(match options.config.gradient_checkpointing {
            true => Remat::Full,
            false => Remat::None,
        });
        Ok(Placement {
            mesh: mesh.clone(),
            units,
            parameters,
            comm,
            sample_axes: rules.activation_axes(BATCH, mesh)?,
            context_axes: rules.activation_axes(SEQUENCE, mesh)?,
            tensor: rules.tensor_axes(mesh),
            rules,
            remat,
            options: options.clone(),
            blocks: wrap::block_classes(tree),
            stacks: scanned,
            aliases: aliases(tree),
        })
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.mesh.devices()
    }

    /// The sharding of each parameter.
    pub fn shardings(&self) -> Result<Vec<Sharding>, Error> {
        let sharding = |param: &ShardedParam| Ok(param.sharding(&self.mesh)?);
        self.parameters.iter().map(sharding).collect()
    }

    /// The sharding of a tensor of a rank whose dim `dim` is the batch.
    pub fn batch_sharding(&self, rank: usize, dim: usize) -> Result<Sharding, Error> {
        let mut dims = vec![Vec::new(); rank];
        dims[dim] = self.sample_axes.clone();
        Ok(self.mesh.sharding_over(dims)?)
    }

    /// The devices with their own sequences of the batch.
    pub fn sample_group(&self) -> Group {
        self.group(&self.sample_axes)
    }

    /// The number of parts of the batch.
    pub fn batch_shards(&self) -> usize {
        self.mesh.group_size(&self.sample_axes)
    }

    /// The devices with their own tokens, over which losses are summed and gradients averaged.
    pub fn token_group(&self) -> Group {
        self.group(&self.comm.batch_axes)
    }

    /// The number of parts of each sequence.
    pub fn context_shards(&self) -> usize {
        self.mesh.group_size(&self.context_axes)
    }

    /// The number of devices that compute with slices of the same layers.
    pub fn tensor_shards(&self) -> usize {
        self.tensor.as_ref().map_or(1, |tensor| self.mesh.group_size(&tensor.axes))
    }

    /// The positions of all mesh axes.
    pub fn all_axes(&self) -> Vec<usize> {
        (0..self.mesh.sizes().len()).collect()
    }

    /// The positions of the mesh axes that are manual in a step.
    pub fn manual_axes(&self) -> Vec<usize> {
        let automatic = self.tensor.as_ref().filter(|tensor| tensor.automatic);
        let is_manual = |axis: &usize| !automatic.is_some_and(|it| it.axes.contains(axis));
        (0..self.mesh.sizes().len()).filter(is_manual).collect()
    }

    /// The devices along axes, by their positions.
    pub fn group(&self, axes: &[usize]) -> Group {
        let group = self.mesh.group(axes);
        if self.options.staging.is_staged() { group.in_stages() } else { group }
    }

    /// Whether parameters are all-gathered once per step, before the first forward pass.
    pub fn gathers_per_step(&self) -> bool {
        self.rules.gather == Gather::Step && self.is_sharded()
    }

    /// Whether any parameter is sharded.
    pub fn is_sharded(&self) -> bool {
        self.parameters.iter().any(|param| param.layout != Layout::Replicated)
    }

    /// The positions of the parameters that are trained.
    pub fn trained(&self) -> Vec<usize> {
        (0..self.parameters.len()).filter(|&i| !self.parameters[i].frozen).collect()
    }

    /// Whether the last layer saves everything, since its backward pass is next. A scan cannot.
    pub fn saves_last_layer(&self) -> bool {
        self.options.lowering.save_last_layer && !self.options.scan_layers
    }

    /// The classes of blocks that are not wrapped although all else would be sharded: the whole
    /// model is then one unit, and all of its parameters are unsharded at once.
    pub fn unwrapped_blocks(&self) -> &[&'static str] {
        let once = self.gathers_per_step();
        if self.is_sharded() && !once && self.units.len() == 1 { &self.blocks } else { &[] }
    }

    /// The unit of the module at a path.
    pub(crate) fn unit(&self, path: &str) -> Option<&PlacedUnit> {
        self.units.iter().find(|unit| unit.path == path)
    }

    /// The units at a path or below.
    pub(crate) fn units_under<'a>(
        &'a self,
        path: &'a str,
    ) -> impl Iterator<Item = &'a PlacedUnit> + 'a {
        let below = move |unit: &str| {
            unit.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.units.iter().filter(move |unit| below(&unit.path))
    }
}

fn comm(options: &PlacementOptions, mesh: &Mesh, rules: &Rules) -> Result<CommPolicy, Error> {
    let settings = &options.config.settings;
    let batch_axes = rules.token_axes(mesh)?;
    // Over automatic axes the compiler sums the gradients of tokens.
    let is_partial = |tensor: &TensorAxes| tensor.sequence_parallel && !tensor.automatic;
    let tokens = rules.tensor_axes(mesh).filter(is_partial);
    Ok(CommPolicy {
        mesh: mesh.clone(),
        divide: settings.divide_factors(mesh.group_size(&batch_axes)),
        batch_axes,
        partial_axes: tokens.map(|tensor| tensor.axes).unwrap_or_default(),
        staging: options.staging,
        gather_staging: options.gather_staging,
        compute: settings.compute_dtype,
        reduce: if settings.fp32_reduce_scatter { DType::F32 } else { settings.compute_dtype },
        packed: settings.flatten_parameters || settings.coalesce_all_gather_ops,
        bucket: match settings.flatten_parameters {
            true => usize::MAX,
            false => (settings.reduce_scatter_bucket_size_mb * f64::from(1 << 20)) as usize,
        },
    })
}

/// The other names of tied parameters.
fn aliases(tree: &Module) -> HashMap<String, String> {
    let named = tree.named_parameters().into_iter();
    named.filter_map(|(name, parameter)| Some((name, parameter.tied_to.clone()?))).collect()
}

/// The sharded parameters of a tree, those of scanned layers stacked.
fn sharded_params(
    tree: &Module,
    stacks: &Stacks,
    scanned: &Stacks,
    frozen: &[String],
    stored: impl Fn(&str, &Parameter) -> Result<ParamSharding, Error>,
    mesh: &Mesh,
) -> Result<Vec<ShardedParam>, Error> {
    let mut all: Vec<ShardedParam> = Vec::new();
    let mut classes = HashMap::new();
    tree.visit(&mut |path, module| {
        classes.insert(path.to_owned(), module.class);
    });
    for (name, parameter) in tree.named_parameters() {
        if parameter.tied_to.is_some() {
            continue;
        }
        let path = name.rsplit_once('.').map_or("", |(path, _)| path);
        let (template, layer) = stacks.template(&name);
        let (param_name, _) = scanned.template(&name);
        let is_frozen = frozen.contains(&name);
        if let Some(known) = all.iter().find(|known| known.name == param_name) {
            if known.frozen != is_frozen {
                return Err(Error::PartiallyFrozen { name: param_name });
            }
            continue;
        }
        let stack = scanned.count(&name);
        let ParamSharding { layout, axes, slice, reason } = stored(&name, parameter)?;
        all.push(ShardedParam {
            name: param_name,
            class: classes.get(path).copied().unwrap_or(""),
            dims: parameter.dims.clone(),
            initializer: parameter.initializer,
            zero_row: parameter.zero_row,
            stack,
            template,
            layer: if stack.is_some() { None } else { layer },
            layout,
            num_shards: mesh.group_size(&axes),
            axes,
            slice,
            fused: fused(parameter),
            reason,
            frozen: is_frozen,
        });
    }
    Ok(all)
}

/// The dim of fused parts of a parameter, and their number.
fn fused(parameter: &Parameter) -> Option<(usize, usize)> {
    let dim = parameter.dim_names.iter().position(|dim| dim.parts > 1)?;
    Some((dim, parameter.dim_names[dim].parts))
}

/// Units with the sharded parameters that they own; those of scanned layers become one.
fn placed_units(
    units: &[Unit],
    scanned: &Stacks,
    parameters: &[ShardedParam],
    reshard: bool,
    keep_root: bool,
) -> Vec<PlacedUnit> {
    let positions: HashMap<&str, usize> =
        parameters.iter().enumerate().map(|(i, param)| (param.name.as_str(), i)).collect();
    let mut placed: Vec<PlacedUnit> = Vec::new();
    for unit in units {
        let (path, _) = scanned.template(&unit.path);
        if let Some(known) = placed.iter_mut().find(|known| known.path == path) {
            known.count += 1;
            continue;
        }
        let mut owned: Vec<usize> = Vec::new();
        for name in &unit.parameters {
            if let Some(&position) = positions.get(scanned.template(name).0.as_str())
                && !owned.contains(&position)
            {
                owned.push(position);
            }
        }
        // A scan saves its full inputs, so they cannot be resharded.
        let around_scan =
            !path.contains('*') && owned.iter().any(|&i| parameters[i].stack.is_some());
        let reshard = reshard && !around_scan && !(unit.path.is_empty() && keep_root);
        placed.push(PlacedUnit { path, class: unit.class, count: 1, parameters: owned, reshard });
    }
    placed
}
