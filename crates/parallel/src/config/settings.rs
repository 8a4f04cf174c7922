//! How a unit is sharded and computed: the options of PyTorch/XLA's FSDP.

use super::error::FsdpConfigError;
use super::keys::{BOOL, Keys};
use super::strategy::Strategy;
use crate::layout::FLAT_MULTIPLE;
use fullshard_graph::DType;
use serde_json::Value;

/// The contents of `xla_fsdp_settings`. The default is PyTorch/XLA's.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The type that units are computed in and their parameters all-gathered in. Shards and
    /// optimizer state are always `f32`.
    pub compute_dtype: DType,
    /// Whether the matmuls of layers are in FP8. The compute type is then that of everything else,
    /// `bf16`.
    pub fp8: bool,
    /// The compute type that the config states, if it does: no other may then be requested.
    pub stated_compute_dtype: Option<DType>,
    /// The type of buffers that are not parameters; the compute type if none.
    pub buffer_dtype: Option<DType>,
    /// Whether gradients are reduced in `f32` when the compute type is smaller.
    pub fp32_reduce_scatter: bool,
    /// Whether parameters are resharded after the forward pass and all-gathered again for the
    /// backward pass. If not set, the strategy decides: see [`Settings::reshard`].
    pub reshard_after_forward: Option<bool>,
    /// Whether the root always keeps its parameters unsharded between the passes. They are needed
    /// last in one and first in the other.
    pub disable_reshard_on_root: bool,
    /// Whether the parameters of a unit are concatenated into one collective. Each keeps its own
    /// shard for the optimizer.
    pub flatten_parameters: bool,
    /// Whether parameters are sharded on dim 0 rather than flattened and sharded evenly. Has no
    /// effect on flattened units.
    pub shard_param_on_dim_0: bool,
    /// Accepted for compatibility: one program runs on all devices, so layouts cannot differ and
    /// need no pinning. Either value works with [`Settings::coalesce_all_gather_ops`].
    pub pin_layout_in_collective_ops: Option<bool>,
    /// Whether barriers between unrolled layers keep the compiler from merging the forward pass of
    /// a layer with its neighbors'. Scanned layers need no barrier.
    pub optimization_barrier_in_forward: Option<bool>,
    /// The same for the backward pass.
    pub optimization_barrier_in_backward: Option<bool>,
    /// Gradients are reduced together once a bucket exceeds this many megabytes; at 0 each is
    /// reduced separately.
    pub reduce_scatter_bucket_size_mb: f64,
    /// Whether the parameters of a unit are all-gathered together.
    pub coalesce_all_gather_ops: bool,
    /// What a gradient is divided by before and after it is summed over devices. If their product
    /// is not the number of devices, gradients are scaled. PyTorch/XLA has a method for this and
    /// no option; the key, `[before, after]`, is specific to Fullshard. See
    /// [`Settings::divide_factors`].
    pub gradient_divide_factors: Option<(f64, f64)>,
    /// Groups of devices that shard together; the groups are replicas. See
    /// [`Settings::group_mesh`].
    pub sharding_groups: Option<Vec<Vec<usize>>>,
    /// Accepted for compatibility: each device's rank follows from its group.
    pub sharding_rank: Option<usize>,
    /// The number of devices that shard together.
    pub sharding_world_size: Option<usize>,
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
            pin_layout_in_collective_ops: None,
            optimization_barrier_in_forward: None,
            optimization_barrier_in_backward: None,
            reduce_scatter_bucket_size_mb: 0.0,
            coalesce_all_gather_ops: false,
            gradient_divide_factors: None,
            sharding_groups: None,
            sharding_rank: None,
            sharding_world_size: None,
        }
    }
}

impl Settings {
    /// Whether units other than the root reshard their parameters after the forward pass.
    ///
    /// `full_shard` and `hybrid_shard` do unless the settings state otherwise. The others never
    /// do; settings that request it contradict them.
    pub fn reshard(&self, strategy: Strategy) -> Result<bool, FsdpConfigError> {
        match (strategy, self.reshard_after_forward) {
            (strategy, choice) if strategy.reshards() => Ok(choice.unwrap_or(true)),
            (_, Some(true)) => Err(FsdpConfigError::Contradiction {
                first: format!("`--fsdp {strategy}`"),
                second: "`reshard_after_forward: true`".to_owned(),
                fix: match strategy.is_hybrid() {
                    true => "write `--fsdp hybrid_shard`, or leave reshard_after_forward out",
                    false => "write `--fsdp full_shard`, or leave reshard_after_forward out",
                },
            }),
            _ => Ok(false),
        }
    }

    /// What gradients are divided by before and after they are summed over `world` devices.
    ///
    /// [`default_divide_factors`] unless the settings have them. The factors (1, 1) mean that the
    /// collective itself takes the mean, which is a sum divided by `world` afterwards.
    pub fn divide_factors(&self, world: usize) -> (f64, f64) {
        match self.gradient_divide_factors {
            None => default_divide_factors(world),
            Some((1.0, 1.0)) => (1.0, world as f64),
            Some(factors) => factors,
        }
    }

    /// Warnings about settings that have no effect because of others or are likely mistakes.
    pub(super) fn warnings(&self) -> Vec<String> {
        const ONE_COLLECTIVE: &str = "`flatten_parameters` makes a unit one collective already";
        let flat = self.flatten_parameters;
        let f32_already = self.fp32_reduce_scatter && self.compute_dtype == DType::F32;
        let ineffective = [
            (
                "shard_param_on_dim_0",
                flat && self.shard_param_on_dim_0,
                "`flatten_parameters` leaves no dimensions to shard",
            ),
            (
                "reduce_scatter_bucket_size_mb",
                flat && self.reduce_scatter_bucket_size_mb > 0.0,
                ONE_COLLECTIVE,
            ),
            ("coalesce_all_gather_ops", flat && self.coalesce_all_gather_ops, ONE_COLLECTIVE),
            ("fp32_reduce_scatter", f32_already, "gradients are computed in float32 already"),
            (
                "pin_layout_in_collective_ops",
                self.pin_layout_in_collective_ops.is_some(),
                "one program runs on all devices, so layouts cannot differ",
            ),
            (
                "sharding_rank",
                self.sharding_rank.is_some(),
                "one program runs on all devices, and each knows its rank",
            ),
        ];
        let ineffective = ineffective.into_iter().filter(|(_, applies, _)| *applies);
        let ineffective = ineffective.map(|(key, _, reason)| {
            format!("`xla_fsdp_settings.{key}` has no effect here: {reason}")
        });
        let underflow = (self.compute_dtype == DType::F16).then(|| {
            "small gradients underflow in float16, since there is no loss scaling here: bfloat16 \
             has the range"
                .to_owned()
        });
        ineffective.chain(underflow).collect()
    }

    /// Reads the settings.
    pub(super) fn read(keys: &mut Keys) -> Result<Settings, FsdpConfigError> {
        let mut settings = Settings::default();
        settings.read_types(keys)?;
        settings.read_flags(keys)?;
        settings.reshard_after_forward = keys.read_bool("reshard_after_forward")?;
        let bucket = keys.read("reduce_scatter_bucket_size_mb", BUCKET, bucket)?;
        settings.reduce_scatter_bucket_size_mb = bucket.unwrap_or(0.0);
        settings.gradient_divide_factors =
            keys.read("gradient_divide_factors", FACTORS, factors)?;
        settings.read_groups(keys)?;
        check_other_keys(keys)?;
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

    fn read_flags(&mut self, keys: &mut Keys) -> Result<(), FsdpConfigError> {
        let flags = [
            ("fp32_reduce_scatter", &mut self.fp32_reduce_scatter),
            ("disable_reshard_on_root", &mut self.disable_reshard_on_root),
            ("flatten_parameters", &mut self.flatten_parameters),
            ("shard_param_on_dim_0", &mut self.shard_param_on_dim_0),
            ("coalesce_all_gather_ops", &mut self.coalesce_all_gather_ops),
        ];
        for (key, flag) in flags {
            *flag = keys.read_bool(key)?.unwrap_or(*flag);
        }
        for (key, flag) in [
            ("pin_layout_in_collective_ops", &mut self.pin_layout_in_collective_ops),
            ("optimization_barrier_in_forward", &mut self.optimization_barrier_in_forward),
            ("optimization_barrier_in_backward", &mut self.optimization_barrier_in_backward),
        ] {
            *flag = keys.read_bool(key)?;
        }
        Ok(())
    }
}

/// PyTorch/XLA's factors for `world` devices: the first is a power of two near the square root of
/// `world`, so that neither the gradients nor their sum overflow or underflow a small type.
pub fn default_divide_factors(world: usize) -> (f64, f64) {
    let mut before = 1;
    while world.is_multiple_of(before) && world / before > before {
        before *= 2;
    }
    (before as f64, world as f64 / before as f64)
}

/// The options without a field: those that have no effect and those that are not supported.
fn check_other_keys(keys: &mut Keys) -> Result<(), FsdpConfigError> {
    const SHARDED_INIT: &str = "parameters are initialized as shards, never in full";
    const ONE_STEP: &str = "a training step is one program, which ends with the step";
    const CALLABLE: &str = "JSON cannot hold a function. Set transformer_layer_cls_to_wrap or \
                            min_num_params";
    const DUMMY: &str = "a step without some of its ops trains nothing. Leave it out; `fullshard \
                         exec --profile` shows what each costs";
    const SAVED: &str = "gathered parameters are saved for the backward pass only where resharding \
                         is off";
    const PADDING: &str =
        "flat shards are padded to multiples of 128 elements, dim 0 shards to full rows";

    for (key, reason) in [
        ("execute_sharding_on_init", SHARDED_INIT),
        ("sync_on_finalization", ONE_STEP),
        ("mark_step_on_finalization", ONE_STEP),
        ("_use_xla_patched_linear", SAVED),
        ("_debug_print", "the plan and the compiled program can be printed instead"),
    ] {
        keys.accept(key, BOOL, Value::is_boolean, reason)?;
    }
    keys.accept("_debug_msg", "a string", Value::is_string, "there is no debug output to label")?;
    keys.drop_if("_shard_size_multiple", FLAT_MULTIPLE);
    keys.accept("_shard_size_multiple", "a whole number", Value::is_u64, PADDING)?;

    for (key, reason) in [
        ("auto_wrap_policy", CALLABLE),
        ("auto_wrapper_callable", CALLABLE),
        ("param_init_fn", "JSON cannot hold a function, and parameters are initialized as shards"),
        ("_debug_dummy_forward_pass", DUMMY),
        ("_debug_dummy_all_gather_op", DUMMY),
        ("_debug_dummy_all_reduce_op", DUMMY),
        ("_debug_dummy_reduce_scatter_op", DUMMY),
        ("_debug_dummy_optimization_barrier_op", DUMMY),
    ] {
        keys.reject(key, reason)?;
    }
    Ok(())
}

const COMPUTE_DTYPES: &str = "\"float32\", \"bfloat16\", \"float16\", or \"float8_e4m3fn\" for \
                              bfloat16 with the matmuls of layers in FP8";

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
