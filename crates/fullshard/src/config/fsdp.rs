//! The FSDP section against `fsdp_config.json`, whose reader has the checks of both.

use super::sections::{Compute, Fsdp};
use fullshard_graph::DType;
use fullshard_parallel::{FsdpConfig, FsdpConfigError, Settings, WrapPolicy};
use serde_json::{Map, Value};

impl Fsdp {
    /// The section as an `fsdp_config.json` has it; what is as by default is left out.
    pub fn to_json(&self) -> Value {
        let fields = |fsdp: &Fsdp| serde_json::to_value(fsdp).unwrap_or_default();
        let (own, default) = (fields(self), fields(&Fsdp::default()));
        let (mut config, mut settings) = (Map::new(), Map::new());
        for (key, value) in own.as_object().into_iter().flatten() {
            if default.get(key) == Some(value) {
                continue;
            }
            match key.as_str() {
                // These have flags of their own.
                "strategy" | "gather_ahead" => None,
                "wrap" => config.insert("transformer_layer_cls_to_wrap".into(), value.clone()),
                "min_num_params" => config.insert(key.clone(), value.clone()),
                _ => settings.insert(key.clone(), value.clone()),
            };
        }
        if !settings.is_empty() {
            config.insert("xla_fsdp_settings".into(), Value::Object(settings));
        }
        Value::Object(config)
    }

    /// Takes over what an `fsdp_config.json` says of sharding.
    pub(super) fn take(&mut self, config: &FsdpConfig) {
        let settings = &config.settings;
        self.wrap = Vec::new();
        self.min_num_params = None;
        match &config.wrap {
            WrapPolicy::None => {}
            WrapPolicy::Classes(classes) => self.wrap.clone_from(classes),
            WrapPolicy::MinSize(least) => self.min_num_params = Some(*least),
        }
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
    }

    /// What the placement takes, checked, with a type to compute in.
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
    /// The type that is computed in where there are no FP8 matmuls.
    pub fn dtype(self) -> DType {
        match self {
            Compute::Float32 => DType::F32,
            Compute::Bfloat16 | Compute::Float8 => DType::Bf16,
            Compute::Float16 => DType::F16,
        }
    }

    /// The type of a name in an FSDP config.
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
