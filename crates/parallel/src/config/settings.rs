//! How a unit is sharded and computed: the options of PyTorch/XLA's FSDP.

use super::error::FsdpConfigError;
use super::keys::{Keys, SWITCH};
use super::strategy::Strategy;
use crate::layout::FLAT_MULTIPLE;
use fullshard_graph::DType;
use serde_json::Value;

/// The contents of `xla_fsdp_settings`. The default is PyTorch/XLA's.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The type units are computed in, and their parameters gathered in. Shards and optimizer
    /// state are `f32` whatever it is.
    pub compute_dtype: DType,
    /// Whether the matrix products of layers are of 8-bit numbers. The compute type is then that
    /// of everything else, `bf16`.
    pub fp8: bool,
    /// The compute type as the config states it, if it does: nobody may then ask for another.
    pub stated_compute_dtype: Option<DType>,
    /// The type of tables that are no parameters; the compute type if none.
    pub buffer_dtype: Option<DType>,
    /// Whether gradients are reduced in `f32` when the compute type is smaller.
    pub fp32_reduce_scatter: bool,
    /// Whether gathered parameters are let go after the forward pass and gathered again for the
    /// backward pass. If not said, the strategy decides: see [`Settings::reshard`].
    pub reshard_after_forward: Option<bool>,
    /// Whether the root keeps its parameters between the passes in any case. They are needed last
    /// in one and first in the other.
    pub disable_reshard_on_root: bool,
    /// Whether the parameters of a unit go over the wire as one exchange, laid end to end. Each
    /// keeps a shard of its own for the optimizer.
    pub flatten_parameters: bool,
    /// Whether parameters are cut into rows and not, flattened, into equal runs of elements. Does
    /// nothing to flattened units.
    pub shard_param_on_dim_0: bool,
    /// Accepted for the sake of configs that have it: one program runs on all devices, so there
    /// are no layouts that could differ and be pinned. Either value goes with
    /// [`Settings::coalesce_all_gather_ops`].
    pub pin_layout_in_collective_ops: bool,
    /// Whether a layer's forward pass is kept from being merged with its neighbours', by barriers
    /// between layers that are written out. A loop over layers is a barrier by itself.
    pub optimization_barrier_in_forward: bool,
    /// The same of the backward pass.
    pub optimization_barrier_in_backward: bool,
    /// Gradients are reduced together once those that wait exceed this many megabytes; at 0 each
    /// by itself.
    pub reduce_scatter_bucket_size_mb: f64,
    /// Whether the parameters of a unit are gathered together.
    pub coalesce_all_gather_ops: bool,
    /// What a gradient is divided by before and after it is summed over devices. If their product
    /// is not the number of devices, gradients are scaled. PyTorch/XLA has a method for this and
    /// no option; the key, `[before, after]`, is ours. See [`Settings::divide_factors`].
    pub gradient_divide_factors: Option<(f64, f64)>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            compute_dtype: DType::F32,
            fp8: false,
            stated_compute_dtype: None,
            buffer_dtype: None,
            fp32_reduce_scatter: false,
            reshard_after_forward: None,
            disable_reshard_on_root: true,
            flatten_parameters: false,
            shard_param_on_dim_0: false,
            pin_layout_in_collective_ops: true,
            optimization_barrier_in_forward: true,
            optimization_barrier_in_backward: true,
            reduce_scatter_bucket_size_mb: 0.0,
            coalesce_all_gather_ops: false,
            gradient_divide_factors: None,
        }
    }
}

impl Settings {
    /// Whether units other than the root let go of gathered parameters after the forward pass.
    ///
    /// `full_shard` does unless the settings say otherwise. `shard_grad_op` never does, nor
    /// `no_shard`, which has nothing to let go of; settings that ask for it contradict them.
    pub fn reshard(&self, strategy: Strategy) -> Result<bool, FsdpConfigError> {
        match (strategy, self.reshard_after_forward) {
            (Strategy::FullShard, choice) => Ok(choice.unwrap_or(true)),
            (_, Some(true)) => Err(FsdpConfigError::Contradiction {
                first: format!("`--fsdp {strategy}`"),
                second: "`reshard_after_forward: true`".to_owned(),
                way_out: "write `--fsdp full_shard`, or leave reshard_after_forward out",
            }),
            _ => Ok(false),
        }
    }

    /// What gradients are divided by before and after they are summed over `world` devices.
    ///
    /// Unless the settings say it, [`default_divide_factors`]. The factors (1, 1) stand for the
    /// mean taken by the collective itself, which is a sum divided by `world` afterwards.
    pub fn divide_factors(&self, world: usize) -> (f64, f64) {
        match self.gradient_divide_factors {
            None => default_divide_factors(world),
            Some((1.0, 1.0)) => (1.0, world as f64),
            Some(factors) => factors,
        }
    }

    /// What settings do not do because of others, and what they do that is hardly meant.
    pub(super) fn warnings(&self) -> Vec<String> {
        const ONE_EXCHANGE: &str = "`flatten_parameters` makes a unit one exchange already";
        let flat = self.flatten_parameters;
        let wide_already = self.fp32_reduce_scatter && self.compute_dtype == DType::F32;
        let idle = [
            (
                "shard_param_on_dim_0",
                flat && self.shard_param_on_dim_0,
                "`flatten_parameters` leaves no dimensions to cut",
            ),
            (
                "reduce_scatter_bucket_size_mb",
                flat && self.reduce_scatter_bucket_size_mb > 0.0,
                ONE_EXCHANGE,
            ),
            ("coalesce_all_gather_ops", flat && self.coalesce_all_gather_ops, ONE_EXCHANGE),
            ("fp32_reduce_scatter", wide_already, "gradients are computed in float32 already"),
        ];
        let idle = idle.into_iter().filter(|(_, is_idle, _)| *is_idle);
        let idle = idle.map(|(key, _, reason)| {
            format!("`xla_fsdp_settings.{key}` changes nothing here: {reason}")
        });
        let vanishing = (self.compute_dtype == DType::F16).then(|| {
            "in float16 small gradients vanish, since there is no loss scaling here: bfloat16 has \
             the range"
                .to_owned()
        });
        idle.chain(vanishing).collect()
    }

    /// Reads the settings.
    pub(super) fn read(keys: &mut Keys) -> Result<Settings, FsdpConfigError> {
        let mut settings = Settings::default();
        settings.read_types(keys)?;
        settings.read_switches(keys)?;
        settings.reshard_after_forward = keys.switch("reshard_after_forward")?;
        let bucket = keys.read("reduce_scatter_bucket_size_mb", BUCKET, bucket)?;
        settings.reduce_scatter_bucket_size_mb = bucket.unwrap_or(0.0);
        settings.gradient_divide_factors =
            keys.read("gradient_divide_factors", FACTORS, factors)?;
        accept_or_refuse(keys)?;
        Ok(settings)
    }

    fn read_types(&mut self, keys: &mut Keys) -> Result<(), FsdpConfigError> {
        self.stated_compute_dtype = keys.read("compute_dtype", COMPUTE_DTYPES, compute_dtype)?;
        self.fp8 = self.stated_compute_dtype == Some(DType::F8E4M3FN);
        self.compute_dtype = match self.stated_compute_dtype {
            Some(DType::F8E4M3FN) => DType::Bf16,
            stated => stated.unwrap_or(self.compute_dtype),
        };
        self.buffer_dtype = keys.read("buffer_dtype", DTYPES, dtype)?;
        Ok(())
    }

    fn read_switches(&mut self, keys: &mut Keys) -> Result<(), FsdpConfigError> {
        let switches = [
            ("fp32_reduce_scatter", &mut self.fp32_reduce_scatter),
            ("disable_reshard_on_root", &mut self.disable_reshard_on_root),
            ("flatten_parameters", &mut self.flatten_parameters),
            ("shard_param_on_dim_0", &mut self.shard_param_on_dim_0),
            ("pin_layout_in_collective_ops", &mut self.pin_layout_in_collective_ops),
            ("optimization_barrier_in_forward", &mut self.optimization_barrier_in_forward),
            ("optimization_barrier_in_backward", &mut self.optimization_barrier_in_backward),
            ("coalesce_all_gather_ops", &mut self.coalesce_all_gather_ops),
        ];
        for (key, switch) in switches {
            *switch = keys.switch(key)?.unwrap_or(*switch);
        }
        Ok(())
    }
}

/// PyTorch/XLA's factors for `world` devices: the first is a power of two near the root of
/// `world`, so that neither the gradients nor their sum come close to the edges of a small type.
pub fn default_divide_factors(world: usize) -> (f64, f64) {
    let mut before = 1;
    while world.is_multiple_of(before) && world / before > before {
        before *= 2;
    }
    (before as f64, world as f64 / before as f64)
}

/// The options that are no fields: those that change nothing and those that cannot be.
fn accept_or_refuse(keys: &mut Keys) -> Result<(), FsdpConfigError> {
    const BORN_SHARDED: &str = "parameters are made as shards, never whole";
    const ONE_STEP: &str = "a training step is one program, which ends when the step does";
    const CALLABLE: &str = "a function cannot stand in JSON. Say what to wrap with \
                            transformer_layer_cls_to_wrap or min_num_params";
    const ALL_DEVICES: &str = "all devices shard together. Leave it out";
    const DUMMY: &str = "a step with parts left out trains nothing. Leave it out; `fullshard exec \
                         --profile` shows what a part costs";
    const KEPT: &str = "what was gathered is kept for the backward pass only where resharding is \
                        off";
    const PADDING: &str = "flat shards are padded to multiples of 128 elements, rows to whole rows";

    for (key, reason) in [
        ("execute_sharding_on_init", BORN_SHARDED),
        ("sync_on_finalization", ONE_STEP),
        ("mark_step_on_finalization", ONE_STEP),
        ("_use_xla_patched_linear", KEPT),
        ("_debug_print", "the plan and the compiled program can be printed instead"),
    ] {
        keys.accept(key, SWITCH, Value::is_boolean, reason)?;
    }
    keys.accept("_debug_msg", "a text", Value::is_string, "there is no debug output to mark")?;
    keys.drop_if("_shard_size_multiple", FLAT_MULTIPLE);
    keys.accept("_shard_size_multiple", "a whole number", Value::is_u64, PADDING)?;

    for (key, reason) in [
        ("auto_wrap_policy", CALLABLE),
        ("auto_wrapper_callable", CALLABLE),
        ("param_init_fn", "a function cannot stand in JSON, and parameters are made as shards"),
        ("sharding_groups", ALL_DEVICES),
        ("sharding_rank", ALL_DEVICES),
        ("sharding_world_size", ALL_DEVICES),
        ("_debug_dummy_forward_pass", DUMMY),
        ("_debug_dummy_all_gather_op", DUMMY),
        ("_debug_dummy_all_reduce_op", DUMMY),
        ("_debug_dummy_reduce_scatter_op", DUMMY),
        ("_debug_dummy_optimization_barrier_op", DUMMY),
    ] {
        keys.refuse(key, reason)?;
    }
    Ok(())
}

const COMPUTE_DTYPES: &str = "\"float32\", \"bfloat16\", \"float16\", or \"float8_e4m3fn\" for \
                              bfloat16 with the matrix products of layers in 8 bits";

fn compute_dtype(value: &Value) -> Option<DType> {
    match value.as_str()?.trim_start_matches("torch.") {
        "float8_e4m3fn" => Some(DType::F8E4M3FN),
        _ => dtype(value),
    }
}

const DTYPES: &str = "\"float32\", \"bfloat16\" or \"float16\"";

fn dtype(value: &Value) -> Option<DType> {
    let name = value.as_str()?;
    match name.strip_prefix("torch.").unwrap_or(name) {
        "float32" => Some(DType::F32),
        "bfloat16" => Some(DType::Bf16),
        "float16" => Some(DType::F16),
        _ => None,
    }
}

const BUCKET: &str = "a number of megabytes from 0, for no buckets, to 65536";

fn bucket(value: &Value) -> Option<f64> {
    value.as_f64().filter(|megabytes| (0.0..=65536.0).contains(megabytes))
}

const FACTORS: &str = "two positive numbers, [before, after]: summed gradients are divided by \
                       their product, and anything but the number of devices scales them";

fn factors(value: &Value) -> Option<(f64, f64)> {
    let [before, after] = value.as_array()?.as_slice() else { return None };
    let positive = |value: &Value| value.as_f64().filter(|factor| *factor > 0.0);
    Some((positive(before)?, positive(after)?))
}
