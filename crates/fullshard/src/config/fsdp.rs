//! Converts the FSDP section from and to `fsdp_config.json`, whose reader validates both.

use super::section::Section;
use super::sections::Fsdp;
use super::types::{AheadChoice, Compute, WrapClasses};
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Settings, WrapPolicy};
use serde_json::{Map, Value};

impl Fsdp {
    /// The section as an `fsdp_config.json`, without defaults.
    pub fn to_json(&self) -> Value {
        self.json(|key| matches!(key, "strategy" | "gather_ahead" | "rules" | "collective"))
    }

    /// The fields that have no flags, as an `fsdp_config.json` without defaults.
    pub(super) fn flagless_json(&self) -> Value {
        self.json(|key| !Fsdp::keys_without_flags().contains(&key))
    }

    /// The keys that are not at their defaults and change only how several devices share the work.
    /// That nothing is gathered ahead holds on one device too.
    pub(crate) fn multi_device_keys(&self) -> Vec<String> {
        let others = ["buffer_dtype", "pin_layout_in_collective_ops"];
        let nothing_ahead = self.gather_ahead == AheadChoice::False;
        let keys = self.changed().into_iter().map(|(key, _)| key);
        let keys = keys.filter(|key| !(nothing_ahead && key == "gather_ahead"));
        keys.filter(|key| !others.contains(&key.as_str())).collect()
    }

    /// The fields that are not at their defaults.
    fn changed(&self) -> Map<String, Value> {
        let fields = |fsdp: &Fsdp| match serde_json::to_value(fsdp) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let (mut own, default) = (fields(self), fields(&Fsdp::default()));
        own.retain(|key, value| default.get(key) != Some(value));
        own
    }

    fn json(&self, left_out: impl Fn(&str) -> bool) -> Value {
        let (mut config, mut settings) = (Map::new(), Map::new());
        for (key, value) in self.changed().into_iter().filter(|(key, _)| !left_out(key)) {
            match key.as_str() {
                "wrap" => config.insert("transformer_layer_cls_to_wrap".into(), value),
                "min_num_params" => config.insert(key, value),
                _ => settings.insert(key, value),
            };
        }
        if !settings.is_empty() {
            config.insert("xla_fsdp_settings".into(), Value::Object(settings));
        }
        Value::Object(config)
    }

    /// Copies the wrap policy of an `fsdp_config.json`.
    pub(super) fn take_wrap(&mut self, policy: &WrapPolicy) {
        (self.wrap, self.min_num_params) = match policy {
            WrapPolicy::Blocks => (None, 0),
            WrapPolicy::Root => (Some(WrapClasses::default()), 0),
            WrapPolicy::Classes(classes) => (Some(WrapClasses(classes.clone())), 0),
            WrapPolicy::MinSize(least) => (None, *least as u64),
        };
    }

    /// Copies the sharding settings of an `fsdp_config.json`.
    pub(super) fn take(&mut self, settings: &Settings) {
        self.reshard_after_forward = settings.reshard_after_forward;
        self.disable_reshard_on_root = settings.disable_reshard_on_root;
        self.flatten_parameters = settings.flatten_parameters;
        self.shard_param_on_dim_0 = settings.shard_param_on_dim_0;
        self.coalesce_all_gather_ops = settings.coalesce_all_gather_ops;
        self.reduce_scatter_bucket_size_mb = settings.reduce_scatter_bucket_size_mb;
        self.fp32_reduce_scatter = settings.fp32_reduce_scatter;
        self.buffer_dtype = settings.buffer_dtype.and_then(Compute::of);
        self.gradient_divide_factors = settings.gradient_divide_factors;
        self.pin_layout_in_collective_ops = settings.pin_layout_in_collective_ops;
        self.optimization_barrier_in_forward = settings.optimization_barrier_in_forward;
        self.optimization_barrier_in_backward = settings.optimization_barrier_in_backward;
        self.sharding_groups = settings.sharding_groups.clone();
        self.sharding_rank = settings.sharding_rank;
        self.sharding_world_size = settings.sharding_world_size;
    }

    /// The validated config of the placement, with a compute dtype.
    pub(crate) fn resolve(&self, compute: Compute) -> Result<FsdpConfig, FsdpConfigError> {
        let config = FsdpConfig::from_json(&self.to_json().to_string())?;
        let settings = Settings {
            compute_dtype: compute.dtype(),
            fp8: compute == Compute::Float8,
            ..config.settings
        };
        Ok(FsdpConfig { settings, ..config })
    }
}

impl Compute {
    /// The compute dtype outside FP8 matmuls.
    pub fn dtype(self) -> DType {
        match self {
            Compute::Float32 => DType::F32,
            Compute::Bfloat16 | Compute::Float8 => DType::Bf16,
            Compute::Float16 => DType::F16,
        }
    }

    /// The choice for a dtype of an FSDP config.
    pub(super) fn of(dtype: DType) -> Option<Compute> {
        match dtype {
            DType::F32 => Some(Compute::Float32),
            DType::Bf16 => Some(Compute::Bfloat16),
            DType::F16 => Some(Compute::Float16),
            DType::F8E4M3FN => Some(Compute::Float8),
            _ => None,
        }
    }
}
