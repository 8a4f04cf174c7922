//! Where everything lives: units, the parameters they own, how each is stored, and what follows
//! from that before anything is traced.

use crate::config::{FsdpConfig, Strategy};
use crate::error::Error;
use crate::gather::Wire;
use crate::layout::Stored;
use crate::remat::Remat;
use crate::stack::Stacks;
use crate::wrap::{self, Unit};
use fullshard_core::Layout;
use fullshard_graph::{DType, Dialect, Mesh, Sharding};
use fullshard_models::{LoweringOptions, Module};
use std::collections::HashMap;

/// The mesh axis that parameters and batches are cut over.
pub const AXIS: &str = "fsdp";

/// How a model is to be placed.
#[derive(Debug, Clone, Default)]
pub struct PlacementOptions {
    /// What is cut at all.
    pub strategy: Strategy,
    /// Units and how they are run.
    pub config: FsdpConfig,
    /// What layers remember; by default what the configuration says.
    pub remat: Option<Remat>,
    /// Whether equal layers are a loop rather than written out.
    pub scan_layers: bool,
    /// Whether a loop gathers the next layer while it computes one.
    pub gather_ahead: bool,
    /// Which of several equal forms a model is lowered to on the platform.
    pub lowering: LoweringOptions,
    /// How programs are written for the platform.
    pub dialect: Dialect,
    /// Names of parameters that stay as they are, with `*` for anything.
    pub frozen: Vec<String>,
}

/// A unit whose parameters are stored.
#[derive(Debug, Clone)]
pub struct PlacedUnit {
    /// The path of its module, with a `*` for the layer in a loop.
    pub path: String,
    /// The class of its module.
    pub class: &'static str,
    /// How many units there are of this kind: the layers of a loop.
    pub count: usize,
    /// Its parameters, by their position in [`Placement::parameters`].
    pub parameters: Vec<usize>,
    /// Whether its parameters are let go after the forward pass and gathered again.
    pub reshard: bool,
}

/// Where everything lives.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The devices, along one axis, [`AXIS`].
    pub mesh: Mesh,
    /// The units, parents first; the first is the root.
    pub units: Vec<PlacedUnit>,
    /// The stored parameters, in the order of the tree.
    pub parameters: Vec<Stored>,
    /// What goes over the wire.
    pub wire: Wire,
    /// What layers remember.
    pub remat: Remat,
    /// How it was asked for.
    pub options: PlacementOptions,
    pub(crate) stacks: Stacks,
    pub(crate) aliases: HashMap<String, String>,
}

impl Placement {
    /// Places a model on so many devices.
    pub fn new(
        tree: &Module,
        devices: usize,
        options: &PlacementOptions,
    ) -> Result<Placement, Error> {
        let settings = &options.config.settings;
        let reshard = settings.reshard(options.strategy)?;
        let units = wrap::units(tree, &options.config.wrap)?;
        let frozen = wrap::frozen(tree, &options.frozen)?;
        let stacks = Stacks::of(tree);
        let looped = if options.scan_layers { stacks.clone() } else { Stacks::default() };
        let layout = layout(options, devices);
        let parameters = stored(tree, &stacks, &looped, &frozen, layout, devices)?;
        check_ahead(options, &units, &looped, reshard)?;
        let units = placed(&units, &looped, &parameters, reshard, settings.disable_reshard_on_root);
        let remat = options.remat.unwrap_or(match options.config.gradient_checkpointing {
            true => Remat::Full,
            false => Remat::None,
        });
        Ok(Placement {
            mesh: Mesh::new(&[(AXIS, devices)])?,
            units,
            parameters,
            wire: wire(options, devices),
            remat,
            options: options.clone(),
            stacks: looped,
            aliases: aliases(tree),
        })
    }

    /// The number of devices.
    pub fn devices(&self) -> usize {
        self.mesh.devices()
    }

    /// How each stored parameter is cut.
    pub fn shardings(&self) -> Result<Vec<Sharding>, Error> {
        let cut = |stored: &Stored| Ok(stored.sharding(&self.mesh, AXIS)?);
        self.parameters.iter().map(cut).collect()
    }

    /// The parameters that are trained, by position.
    pub fn trained(&self) -> Vec<usize> {
        (0..self.parameters.len()).filter(|&i| !self.parameters[i].frozen).collect()
    }

    /// Whether loops gather the next layer while they compute one. One device gathers nothing.
    pub fn gathers_ahead(&self) -> bool {
        self.options.gather_ahead && self.devices() > 1
    }

    /// Whether the last layer keeps all it computes: its way back is next. In a loop it cannot.
    pub fn keeps_last_layer(&self) -> bool {
        self.options.lowering.last_layer_kept && !self.options.scan_layers
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

fn layout(options: &PlacementOptions, devices: usize) -> Layout {
    let settings = &options.config.settings;
    match options.strategy {
        _ if devices == 1 => Layout::Replicated,
        Strategy::NoShard => Layout::Replicated,
        _ if settings.shard_param_on_dim_0 && !settings.flatten_parameters => Layout::Dim0,
        _ => Layout::Flat,
    }
}

fn wire(options: &PlacementOptions, devices: usize) -> Wire {
    let settings = &options.config.settings;
    Wire {
        compute: settings.compute_dtype,
        reduce: if settings.fp32_reduce_scatter { DType::F32 } else { settings.compute_dtype },
        packed: settings.flatten_parameters || settings.coalesce_all_gather_ops,
        bucket: match settings.flatten_parameters {
            true => usize::MAX,
            false => (settings.reduce_scatter_bucket_size_mb * f64::from(1 << 20)) as usize,
        },
        divide: settings.divide_factors(devices),
    }
}

/// Refuses a gather ahead where there is none: it takes a loop, units in it, and weights that are
/// let go, since the way back gathers ahead in its own order.
fn check_ahead(
    options: &PlacementOptions,
    units: &[Unit],
    looped: &Stacks,
    reshard: bool,
) -> Result<(), Error> {
    let in_loop = |unit: &Unit| looped.template(&unit.path).1.is_some();
    let reason = match options.gather_ahead {
        false => return Ok(()),
        true if !options.scan_layers => "layers are written out (--scan_layers false)",
        true if !units.iter().any(in_loop) => "no layer is or has a unit of its own",
        true if !reshard => "gathered parameters are kept (reshard_after_forward is off)",
        true => return Ok(()),
    };
    Err(Error::NothingAhead { reason })
}

/// The other names of tied parameters.
fn aliases(tree: &Module) -> HashMap<String, String> {
    let named = tree.named_parameters().into_iter();
    named.filter_map(|(name, parameter)| Some((name, parameter.tied_to.clone()?))).collect()
}

/// The parameters of a tree as they are stored, those of looped layers stacked.
fn stored(
    tree: &Module,
    stacks: &Stacks,
    looped: &Stacks,
    frozen: &[String],
    layout: Layout,
    parts: usize,
) -> Result<Vec<Stored>, Error> {
    let mut all: Vec<Stored> = Vec::new();
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
        let (stored_name, _) = looped.template(&name);
        let is_frozen = frozen.contains(&name);
        if let Some(known) = all.iter().find(|known| known.name == stored_name) {
            if known.frozen != is_frozen {
                return Err(Error::PartlyFrozen { name: stored_name });
            }
            continue;
        }
        let stack = looped.count(&name);
        all.push(Stored {
            name: stored_name,
            class: classes.get(path).copied().unwrap_or(""),
            dims: parameter.dims.clone(),
            initializer: parameter.initializer,
            zero_row: parameter.zero_row,
            stack,
            template,
            layer: if stack.is_some() { None } else { layer },
            layout: if parameter.dims.is_empty() { Layout::Replicated } else { layout },
            parts,
            frozen: is_frozen,
        });
    }
    Ok(all)
}

/// Units with the stored parameters that they own; those of looped layers become one.
fn placed(
    units: &[Unit],
    looped: &Stacks,
    parameters: &[Stored],
    reshard: bool,
    keep_root: bool,
) -> Vec<PlacedUnit> {
    let positions: HashMap<&str, usize> =
        parameters.iter().enumerate().map(|(i, stored)| (stored.name.as_str(), i)).collect();
    let mut placed: Vec<PlacedUnit> = Vec::new();
    for unit in units {
        let (path, _) = looped.template(&unit.path);
        if let Some(known) = placed.iter_mut().find(|known| known.path == path) {
            known.count += 1;
            continue;
        }
        let mut owned: Vec<usize> = Vec::new();
        for name in &unit.parameters {
            if let Some(&position) = positions.get(looped.template(name).0.as_str())
                && !owned.contains(&position)
            {
                owned.push(position);
            }
        }
        // A loop remembers what goes into it as a whole, so nothing of it can be let go.
        let around_loop =
            !path.contains('*') && owned.iter().any(|&i| parameters[i].stack.is_some());
        let reshard = reshard && !around_loop && !(unit.path.is_empty() && keep_root);
        placed.push(PlacedUnit { path, class: unit.class, count: 1, parameters: owned, reshard });
    }
    placed
}
