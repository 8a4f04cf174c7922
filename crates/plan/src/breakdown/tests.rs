//! A recorded profile of a real step, cut down by `tests/data/cut_profile.py`, and its expected
//! sums.

use super::*;
use fullshard_models::from_json;
use fullshard_pjrt::read_profile;
use serde_json::Value;
use std::sync::Arc;

const PROFILE: &[u8] = include_bytes!("../../tests/data/breakdown.xplane.pb");
const PROGRAM: &[u8] = include_bytes!("../../tests/data/breakdown.hlo.pb");
const SUMS: &str = include_str!("../../tests/data/breakdown.json");
const GPT2: &str = include_str!("../../../../examples/configs/gpt2_config.json");

fn program() -> Module {
    Module::decode("hlo_with_config", PROGRAM).unwrap()
}

fn devices() -> Vec<DeviceProfile> {
    read_profile(PROFILE).unwrap()
}

fn breakdown(devices: &[DeviceProfile], steps: usize) -> Result<Breakdown, BreakdownError> {
    let model = from_json(GPT2).unwrap();
    Breakdown::new(devices, &program(), model.as_ref(), steps, Chip::named("h200"))
}

fn recorded() -> Breakdown {
    breakdown(&devices(), 3).unwrap()
}

/// Kernels per step and their seconds, for a group of the script.
fn recorded_sum(group: &str) -> (f64, f64) {
    let sums: Value = serde_json::from_str(SUMS).unwrap();
    let number = |field: &str| sums["kernels"][group][field].as_f64().unwrap();
    (number("launches") / 3.0, number("picoseconds") / PICOS / 3.0)
}

fn sum_of(rows: &[KernelTime], name: &str) -> (f64, f64) {
    let rows = rows.iter().filter(|row| row.name.starts_with(name));
    rows.fold((0.0, 0.0), |sum, row| (sum.0 + row.launches, sum.1 + row.seconds))
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 1e-9, "{found} vs {expected}");
}

#[test]
fn times_add_up() {
    let breakdown = recorded();
    let sums: Value = serde_json::from_str(SUMS).unwrap();
    assert_near(breakdown.span, sums["span_ps"].as_f64().unwrap() / PICOS / 3.0);
    for group in ["nvjet", "Memset", "memcpy"] {
        let (found, expected) = (sum_of(&breakdown.kernels, group), recorded_sum(group));
        assert_near(found.0, expected.0);
        assert_near(found.1, expected.1);
    }
    let all = ["nvjet", "Memset", "memcpy", "own"].map(|group| recorded_sum(group).1);
    let all: f64 = all.iter().sum();
    assert_near(breakdown.kernels.iter().map(|row| row.seconds).sum(), all);
    assert_near(breakdown.modules.iter().map(|row| row.seconds).sum(), all);
    assert_near(breakdown.kinds.iter().map(|row| row.seconds).sum(), all + breakdown.idle);
    assert_near(breakdown.busy + breakdown.overlapped, all);
    assert_near(breakdown.busy + breakdown.idle, breakdown.span);
}

/// Library kernels do not name their instruction: that they were matched to the right one shows in
/// the rate from its shapes and their time, which is similar for matmuls of one size.
#[test]
fn matmuls_match_their_instructions() {
    let breakdown = recorded();
    assert_eq!(breakdown.unknown, 0.0);
    let matmuls = breakdown.kernels.iter().filter(|row| row.kind == Kind::Matmuls);
    let matmuls: Vec<&KernelTime> = matmuls.filter(|row| row.seconds > 0.3e-3).collect();
    for row in &matmuls {
        assert!(row.name.starts_with("nvjet"), "{row:?}");
        let rate = row.flops.unwrap() / 1e12;
        assert!((600.0..800.0).contains(&rate), "{rate} TFLOP/s: {row:?}");
    }
    let of = |module: &str, backward: bool| {
        let rows = matmuls.iter().filter(|row| row.module == module && row.backward == backward);
        rows.map(|row| row.launches).sum::<f64>()
    };
    // One layer forward and one backward, where each matmul has two gradients; the loss, with three
    // in each of seven loop iterations.
    for module in ["mlp.c_fc", "mlp.c_proj", "attn.c_proj"] {
        let module = format!("transformer.h.*.{module}");
        assert_eq!((of(&module, false), of(&module, true)), (1.0, 2.0), "{module}");
    }
    assert_eq!(of("transformer.h.*.attn.c_attn", false), 1.0);
    assert_eq!(of("lm_head", false), 21.0);
}

/// Blockwise attention is everything that attention modules compute themselves.
#[test]
fn blockwise_attention_is_attention() {
    let rows = recorded().kernels;
    let attention: Vec<&KernelTime> =
        rows.iter().filter(|row| row.kind == Kind::Attention).collect();
    assert!(attention.iter().all(|row| row.module == "transformer.h.*.attn"), "{attention:?}");
    let has = |name: &str| attention.iter().any(|row| row.name.starts_with(name));
    assert!(has("nvjet") && has("triton_softmax"));
}

/// A kernel cannot exceed the memory bandwidth, except for reads from the cache.
#[test]
fn rates_are_below_the_bandwidth() {
    let breakdown = recorded();
    let long = breakdown.kernels.iter().filter(|row| row.seconds > 0.2e-3);
    let shares: Vec<f64> = long.filter_map(|row| row.bandwidth_share).collect();
    assert!(shares.len() > 20 && shares.iter().all(|share| (0.0..1.1).contains(share)));
    let gelu = breakdown.kernels.iter().find(|row| row.name == "loop_convert_tanh_fusion").unwrap();
    assert_eq!((&*gelu.module, gelu.kind), ("transformer.h.*.mlp", Kind::Elementwise));
    // One tensor of 16 × 1024 × 12288 in bf16 read and three written.
    assert_eq!(gelu.bytes.map(|bytes| bytes >> 20), Some(4 * 384));
}

/// Missing kernels, here from the loss to the backward layer, do not affect others.
#[test]
fn walk_recovers_from_missing_kernels() {
    let full = recorded();
    let mut devices = devices();
    let kernels = &mut devices[0].kernels;
    let missing: f64 = kernels.drain(100..250).map(|it| it.duration as f64 / PICOS / 3.0).sum();
    let partial = breakdown(&devices, 3).unwrap();
    let seconds = |breakdown: &Breakdown, module: &str| {
        let rows = breakdown.modules.iter().filter(|row| row.module == module);
        rows.map(|row| row.seconds).sum::<f64>()
    };
    let lost = |module| seconds(&full, module) - seconds(&partial, module);
    assert_near(full.busy + full.overlapped - partial.busy - partial.overlapped, missing);
    assert_eq!(partial.unknown, 0.0);
    for module in ["transformer.wte", "transformer.h.*.attn.c_attn"] {
        assert!(lost(module).abs() < 1e-9, "{module}: {}", lost(module));
    }
    assert!(lost("lm_head") > 0.5 * missing);
}

/// Without CUDA graphs the profile records the instruction of a kernel, which is trusted.
#[test]
fn profile_ops_take_precedence_over_names() {
    let mut devices = devices();
    let op: Arc<str> = "custom-call.417".into();
    for kernel in &mut devices[0].kernels {
        kernel.op = Some(op.clone());
    }
    let breakdown = breakdown(&devices, 3).unwrap();
    let rows = &breakdown.kernels;
    assert!(rows.iter().all(|row| row.op.as_deref() == Some(&*op)), "{rows:?}");
}

#[test]
fn rejects_profiles_without_the_program() {
    assert_eq!(breakdown(&[], 3).unwrap_err(), BreakdownError::NoDevice);
    let other = DeviceProfile { name: "/device:GPU:0".into(), kernels: Vec::new() };
    let error = breakdown(&[other], 3).unwrap_err().to_string();
    assert_eq!(error, "/device:GPU:0 ran no kernels of `train_step` while it was profiled");
}

#[test]
fn busy_time_counts_overlap_once() {
    let kernel =
        |start, duration| Kernel { name: "k".into(), module: None, op: None, start, duration };
    let kernels = [kernel(0, 10), kernel(5, 10), kernel(6, 2), kernel(20, 5)];
    assert_eq!(busy(&kernels.iter().collect::<Vec<_>>()), 20);
}
