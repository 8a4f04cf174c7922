//! What both kinds of plan say alike: the machine, the model, the settings, and the rates that a
//! step's time comes to.

use crate::machine::Machine;
use crate::network::Network;
use crate::report::{MachineSummary, Rates};
use fullshard_graph::DType;
use fullshard_parallel::Remat;
use fullshard_step::{Flops, StepSpec, utilization};

/// What a run is to do, and what it may cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Budget {
    /// Tokens to train on.
    pub tokens: Option<f64>,
    /// What a device costs an hour.
    pub price: Option<f64>,
}

impl MachineSummary {
    /// A machine, for a step that computes in a type.
    pub fn new(machine: &Machine, compute: DType) -> MachineSummary {
        let (torus, wrap) = match &machine.network {
            Network::Torus { dims, wrap, .. } => (dims.clone(), wrap.clone()),
            _ => Default::default(),
        };
        MachineSummary {
            name: machine.name.clone(),
            chip: machine.chip.name.to_owned(),
            devices: machine.devices,
            torus,
            wrap,
            peak: machine.chip.peak(compute),
        }
    }
}

impl Rates {
    /// What a step of so many seconds comes to.
    pub fn new(spec: &StepSpec, machine: &Machine, step: f64, budget: Budget) -> Rates {
        let tokens = spec.tokens_per_step();
        let parameters = spec.parameter_count();
        let dimensions = spec.model.dimensions();
        let flops = Flops::new(parameters, dimensions, tokens, spec.batch.tokens);
        let again = computed_again(spec, flops);
        let peak = machine.chip.peak(spec.placement.wire.compute);
        let share = |flops: f64| peak.map(|peak| utilization(flops, step, machine.devices, peak));
        let tokens_per_second = tokens as f64 / step;
        let days = budget.tokens.map(|tokens| tokens / tokens_per_second / 86_400.0);
        let hourly = budget.price.map(|price| price * machine.devices as f64);
        Rates {
            tokens_per_second,
            mfu: share(flops.post),
            mfu_palm: share(flops.palm),
            hfu: share(flops.post + again.post),
            hfu_palm: share(flops.palm + again.palm),
            days,
            cost: days.zip(hourly).map(|(days, hourly)| days * 24.0 * hourly),
        }
    }
}

/// What is computed twice: the forward pass of all layers where they remember nothing, a third
/// of what the conventions count for them. Products that are remembered are not computed again.
fn computed_again(spec: &StepSpec, flops: Flops) -> Flops {
    if spec.placement.remat != Remat::Full {
        return Flops { post: 0.0, palm: 0.0 };
    }
    let of_layers = spec
        .placement
        .parameters
        .iter()
        .filter(|stored| stored.stack.is_some() || stored.layer.is_some());
    let weights: usize = of_layers.map(|stored| stored.elements()).sum();
    let weights = 2.0 * weights as f64 * spec.tokens_per_step() as f64;
    Flops { post: weights, palm: weights + (flops.palm - flops.post) / 3.0 }
}
