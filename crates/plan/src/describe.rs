//! What both kinds of plan share: the machine summary, the mesh axes of collectives, and the rates
//! that follow from the step time.

use crate::machine::Machine;
use crate::network::Fabric;
use crate::report::{MachineSummary, Memory, Rates, Warning};
use fullshard_graph::{DType, Mesh};
use fullshard_parallel::{Placement, Remat};
use fullshard_step::{StepSpec, utilization};

/// Token budget and device price of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Budget {
    /// Tokens to train on.
    pub tokens: Option<f64>,
    /// Price of one device per hour, in US dollars.
    pub price: Option<f64>,
}

impl MachineSummary {
    /// Summarizes a machine for a step with the given compute dtype.
    pub fn new(machine: &Machine, compute: DType) -> MachineSummary {
        let (torus, wrap) = match &machine.network.fabric {
            Fabric::Torus { dims, wrap, .. } => (dims.clone(), wrap.clone()),
            Fabric::Switch { .. } => Default::default(),
        };
        MachineSummary {
            name: machine.name.clone(),
            chip: machine.chip.name.to_owned(),
            devices: machine.devices,
            islands: machine.network.islands(),
            torus,
            wrap,
            peak: machine.chip.peak(compute),
        }
    }
}

/// The mesh axes along which the members of a group differ, such as `data, fsdp`; of a group that
/// does not cover them, `part of fsdp`.
pub fn axes_of(mesh: &Mesh, members: &[usize]) -> String {
    let Some(&first) = members.first() else { return String::new() };
    let mut stride = mesh.devices();
    let mut names = Vec::new();
    let mut covered = 1;
    for (name, size) in mesh.axes() {
        stride /= size;
        let place = |id: usize| id / stride % size;
        if members.iter().any(|&id| place(id) != place(first)) {
            names.push(name);
            covered *= size;
        }
    }
    let names = names.join(", ");
    if covered == members.len() { names } else { format!("part of {names}") }
}

/// The mesh axis of tensor parallelism, as [`axes_of`] names it.
pub fn tensor_axis(placement: &Placement) -> Option<String> {
    let (mesh, tensor) = (&placement.mesh, placement.tensor.as_ref()?);
    Some(axes_of(mesh, &mesh.groups(&tensor.axes).swap_remove(0)))
}

/// A path with a `*` for the layer number.
pub fn any_layer(path: &str) -> String {
    let parts = path.split('.').map(|part| match part {
        number if str::parse::<usize>(number).is_ok() => "*",
        name => name,
    });
    parts.collect::<Vec<_>>().join(".")
}

/// Warns of activations that the host has no memory for.
pub(crate) fn host_memory(memory: &Memory) -> Option<Warning> {
    let gib = |bytes: u64| bytes as f64 / (1_u64 << 30) as f64;
    let limit = memory.host_limit.filter(|_| !memory.fits_host())?;
    Some(Warning {
        what: format!(
            "activations take {:.1} GiB of host memory per device, {:.1} GiB available",
            gib(memory.host),
            gib(limit)
        ),
        fix: "offload fewer names (--remat qkv_offload), or lower --per_device_train_batch_size"
            .to_owned(),
    })
}

/// Warns of blocks that are not wrapped, so that the whole model is unsharded at once.
pub fn one_unit(spec: &StepSpec) -> Option<Warning> {
    let classes = spec.placement.unwrapped_blocks().join(", ");
    let bytes = spec.parameter_count() * spec.placement.comm.compute.size();
    (!classes.is_empty()).then(|| Warning {
        what: format!(
            "the whole model is one FSDP unit: {:.1} GiB of parameters are all-gathered at once",
            bytes as f64 / f64::from(1 << 30)
        ),
        fix: wrap_fix(spec).unwrap_or_default(),
    })
}

/// How to wrap blocks that are not wrapped.
pub fn wrap_fix(spec: &StepSpec) -> Option<String> {
    let classes = spec.placement.unwrapped_blocks().join(",");
    let flag = format!("--fsdp_transformer_layer_cls_to_wrap {classes}");
    (!classes.is_empty()).then(|| format!("wrap the blocks of the model with {flag}"))
}

/// What makes a step need less memory, the most effective first.
pub fn memory_fix(spec: &StepSpec) -> String {
    let mut fixes: Vec<String> = wrap_fix(spec).into_iter().collect();
    if spec.placement.remat != Remat::Full {
        fixes.push("add --remat full".to_owned());
    }
    fixes.push(match spec.batch.sequences > spec.placement.batch_shards() {
        true => "lower --per_device_train_batch_size".to_owned(),
        false => "shard layers or sequences over an axis tensor or context of --mesh".to_owned(),
    });
    format!("{}, or use more devices", fixes.join(", "))
}

impl Rates {
    /// The rates of a step that takes `step` seconds.
    pub fn new(spec: &StepSpec, machine: &Machine, step: f64, budget: Budget) -> Rates {
        let tokens = spec.tokens_per_step();
        let (model, hardware) = (spec.model_flops(), spec.hardware_flops());
        let peak = machine.chip.peak(spec.placement.comm.compute);
        let share = |flops: f64| peak.map(|peak| utilization(flops, step, machine.devices, peak));
        let tokens_per_second = tokens as f64 / step;
        let days = budget.tokens.map(|tokens| tokens / tokens_per_second / 86_400.0);
        let hourly = budget.price.map(|price| price * machine.devices as f64);
        Rates {
            tokens_per_second,
            mfu: share(model.flops_6n),
            mfu_palm: share(model.palm),
            hfu: share(hardware.flops_6n),
            hfu_palm: share(hardware.palm),
            days,
            cost_usd: days.zip(hourly).map(|(days, hourly)| days * 24.0 * hourly),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_named_by_their_axes() {
        let mesh = Mesh::new(&[("data", 2), ("fsdp", 4), ("one", 1), ("tensor", 2)]).unwrap();
        let of = |members: &[usize]| axes_of(&mesh, members);
        assert_eq!(of(&[0, 8]), "data");
        assert_eq!(of(&[1, 3, 5, 7]), "fsdp");
        assert_eq!(of(&[0, 1]), "tensor");
        assert_eq!(of(&[0, 1, 8, 9]), "data, tensor");
        assert_eq!(of(&(0..16).collect::<Vec<_>>()), "data, fsdp, tensor");
        assert_eq!(of(&[0, 2]), "part of fsdp");
        assert_eq!((of(&[3]), of(&[])), (String::new(), String::new()));
        let flat = Mesh::new(&[("fsdp", 4)]).unwrap();
        assert_eq!(axes_of(&flat, &[0, 1, 2, 3]), "fsdp");
    }
}
