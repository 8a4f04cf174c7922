//! The quick model against published figures that it was not fitted on.
//!
//!     cargo test -p fullshard-plan --test published -- --nocapture
//!
//! Each row has what was published and what is predicted. A prediction that changes fails the
//! test: then look at the row, and change it here and in `docs/performance.md`. Nothing is fitted.
//!
//! - MaxText's tables of TPU v4, v5e and v5p, one slice and several. Shapes, batches and remat
//!   policies are those of the scripts next to the tables (global_parameter_scale of its base
//!   model: width 2048, 16 heads of 128, inner width 7168 with a gate, 16 layers, vocabulary 32000;
//!   the 22B model of v4 has no gate and heads of 256). Differences: attention is a fused kernel
//!   there, the v5p rows and the 128B ones also use tensor parallelism over 4 to 16 devices, their
//!   compiler flags overlap collectives with compute, and `minimal` saves about what `dots` does.
//!   MFU includes attention, as MaxText counted it then. Collectives inside a slice are taken to
//!   overlap with compute as far as they are shorter, which is how those runs were made. Slices
//!   are replicas there: an all-reduce of the gradients between them is added, not overlapped.
//! - The poster's 128B on v4-512, for each batch that it may have been, and on v4-1024.
//! - torchtitan's Llama 3.1 8B and 70B with `torch.compile`. Its selective remat is taken for
//!   `dots`, and FP8 matmuls for 16-bit ones, as the quick model has it. Its local batch is that of
//!   an FSDP rank, which the devices of tensor or context parallelism share.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Case, Shape};
use fullshard_core::CollectiveKind;
use fullshard_models::from_json;
use fullshard_parallel::{FsdpConfig, Placement, PlacementOptions, Remat};
use fullshard_pjrt::plugins::Platform;
use fullshard_plan::{Machine, quick};
use fullshard_step::{BatchShape, StepSpec, lowering};

struct Row {
    machine: &'static str,
    model: Model,
    /// Sequences of 2048 per device.
    batch: usize,
    remat: Remat,
    /// MFU in percent by the number of slices, with what is predicted.
    figures: &'static [(usize, f64, f64)],
}

/// Sizes, some as multiples of MaxText's base model.
enum Model {
    Scaled { width: usize, heads: usize, inner: usize, layers: usize },
    Gpt2 { width: usize, heads: usize, layers: usize },
}

impl Model {
    fn config(&self) -> String {
        match self {
            Model::Scaled { width, heads, inner, layers } => format!(
                r#"{{"model_type": "llama", "vocab_size": 32000, "hidden_size": {},
                "max_position_embeddings": 2048, "num_hidden_layers": {},
                "num_attention_heads": {}, "num_key_value_heads": {}, "head_dim": 128,
                "intermediate_size": {}, "tie_word_embeddings": false}}"#,
                2048 * width,
                16 * layers,
                16 * heads,
                16 * heads,
                7168 * inner
            ),
            Model::Gpt2 { width, heads, layers } => format!(
                r#"{{"model_type": "gpt2", "vocab_size": 32000, "n_positions": 2048,
                "n_embd": {width}, "n_layer": {layers}, "n_head": {heads}, "resid_pdrop": 0,
                "embd_pdrop": 0, "attn_pdrop": 0}}"#
            ),
        }
    }

    fn layer_class(&self) -> &'static str {
        match self {
            Model::Scaled { .. } => "LlamaDecoderLayer",
            Model::Gpt2 { .. } => "GPT2Block",
        }
    }
}

const fn scaled(width: usize, heads: usize, inner: usize, layers: usize) -> Model {
    Model::Scaled { width, heads, inner, layers }
}

fn rows() -> Vec<Row> {
    let row = |machine, model, batch, remat, figures| Row { machine, model, batch, remat, figures };
    let of_22b = Model::Gpt2 { width: 6144, heads: 24, layers: 48 };
    let of_32b = &[
        (1, 66.86, 50.8),
        (2, 64.81, 50.5),
        (4, 64.10, 50.4),
        (8, 63.67, 50.3),
        (16, 62.26, 50.3),
        (32, 60.40, 50.3),
    ];
    let of_128b = &[
        (1, 56.06, 56.8),
        (2, 55.82, 55.6),
        (4, 54.93, 55.0),
        (8, 52.93, 54.7),
        (16, 50.86, 54.6),
        (32, 46.25, 54.5),
    ];
    let on_v4 = &[(1, 56.7, 56.1), (2, 55.2, 55.9), (4, 54.3, 55.7), (8, 53.2, 55.7)];
    let on_v5p = &[(1, 71.47, 62.3), (2, 69.43, 61.4)];
    vec![
        row("v4-128", of_22b, 13, Remat::Full, on_v4),
        row("v5e-256", scaled(2, 4, 4, 2), 6, Remat::Full, &[(1, 61.1, 43.2)]),
        row("v5e-256", scaled(4, 4, 4, 2), 4, Remat::Full, of_32b),
        row("v5e-256", scaled(4, 4, 4, 4), 2, Remat::Full, &[(1, 59.9, 52.3)]),
        row("v5e-256", scaled(4, 8, 8, 4), 1, Remat::Full, of_128b),
        row("v5p-128", scaled(4, 4, 4, 2), 7, Remat::Dots, on_v5p),
        row("v5p-256", scaled(4, 8, 8, 4), 1, Remat::Dots, &[(1, 68.68, 62.6), (2, 66.34, 59.3)]),
        row("v5p-4096", scaled(8, 16, 16, 8), 2, Remat::Full, &[(1, 64.8, 58.8)]),
    ]
}

fn spec(row: &Row, machine: &Machine) -> StepSpec {
    let model = from_json(&row.model.config()).unwrap();
    let config = format!(
        r#"{{"transformer_layer_cls_to_wrap": "{}", "xla_fsdp_settings":
        {{"compute_dtype": "bfloat16", "shard_param_on_dim_0": true}}}}"#,
        row.model.layer_class()
    );
    let options = PlacementOptions {
        config: FsdpConfig::from_json(&config).unwrap(),
        remat: Some(row.remat.clone()),
        scan_layers: true,
        lowering: lowering(Platform::Tpu),
        ..PlacementOptions::default()
    };
    let placement = Placement::new(&model.tree(), machine.devices, &options).unwrap();
    let sequences = row.batch * machine.devices;
    let batch = BatchShape { sequences, tokens: 2048, accumulation: 1, sync_each_microbatch: true };
    let optimizer = fullshard_optim::from_name("adamw", &Default::default()).unwrap();
    StepSpec::new(model, placement, optimizer, batch, Some(1.0)).unwrap()
}

/// Seconds to all-reduce the gradients of all slices, of which each chip has a shard.
fn between_slices(spec: &StepSpec, machine: &str, slices: usize) -> f64 {
    if slices < 2 {
        return 0.0;
    }
    let network = Machine::parse(&format!("{slices}x{machine}")).unwrap().network;
    let gradients = spec.parameter_count() * spec.placement.comm.reduce.size();
    let members: Vec<usize> = (0..slices).map(|slice| slice * network.island).collect();
    network.seconds(CollectiveKind::AllReduce, (gradients / network.island) as u64, &members)
}

/// Whether a figure is predicted as before.
fn unchanged(what: &str, predicted: f64, expected: f64, tolerance: f64) -> bool {
    let same = (predicted - expected).abs() <= tolerance;
    if !same {
        println!("CHANGED {what}: {predicted:.2}, before {expected}");
    }
    same
}

#[test]
fn predictions_of_maxtext_runs_do_not_drift() {
    println!("machine        parameters  batch  remat  published  predicted  error");
    let (mut errors, mut same) = (Vec::new(), true);
    for row in rows() {
        let machine = Machine::parse(row.machine).unwrap();
        let spec = spec(&row, &machine);
        let report = quick(&spec, &machine).unwrap();
        let time = &report.time;
        let inside = time.compute.max(time.exposed + time.hidden);
        for &(slices, published, expected) in row.figures {
            let step = inside + between_slices(&spec, row.machine, slices);
            let predicted = 100.0 * report.rates.mfu_palm.unwrap() * time.step / step;
            let error = predicted / published - 1.0;
            errors.push(error.abs());
            let name = format!("{slices}x{}", row.machine);
            println!(
                "{name:<13} {:>10.1}B {:>6} {:>6} {published:>8.1} % {predicted:>8.1} % {:>+5.1} %",
                spec.parameter_count() as f64 / 1e9,
                row.batch,
                report.settings.remat,
                100.0 * error
            );
            same &= unchanged(&name, predicted, expected, 0.1);
        }
    }
    let mean = errors.iter().sum::<f64>() / errors.len() as f64;
    println!("mean error {:.1} %", 100.0 * mean);
    assert!(same && mean < 0.15, "{mean}");
}

const GPT2_128B: Shape = Shape::Gpt2(52, 14336, 112);

/// MFU by `6·N` in percent. The poster gives 29 for v4-512, and only a chart for v4-1024.
#[test]
fn predictions_of_the_poster_do_not_drift() {
    let rows =
        [("v4-512", 1, 21.8), ("v4-512", 2, 32.3), ("v4-512", 4, 42.5), ("v4-1024", 4, 42.5)];
    let mut same = true;
    for (machine, batch, expected) in rows {
        let case = Case::new(machine, GPT2_128B, batch);
        let report = quick(&case.spec(), &case.machine()).unwrap();
        let mfu = 100.0 * report.rates.mfu.unwrap();
        println!("{machine} batch {batch}: {mfu:.1} %, {:.2} s", report.time.step);
        same &= unchanged(machine, mfu, expected, 0.1);
    }
    assert!(same);
}

const LLAMA_8B: Shape = Shape::Llama(32, 4096, 32, 8, 14336, 128_256);

const LLAMA_70B: Shape = Shape::Llama(80, 8192, 64, 8, 28672, 128_256);

/// Tokens per second per GPU of steps with tensor or context parallelism, full remat and FP8:
/// published and predicted, with the predicted GiB.
#[test]
fn predictions_of_torchtitan_meshes_do_not_drift() {
    let rows = [
        ("h100-96gb:8", LLAMA_8B, "fsdp=4,context=2", (1, 65_536), 2540.0, 2528.0, 31.3),
        ("h100-96gb:8", LLAMA_8B, "fsdp=2,context=4", (1, 131_072), 1071.0, 1436.0, 31.3),
        ("h100-96gb:8", LLAMA_8B, "context=8", (1, 262_144), 548.0, 770.0, 32.1),
        ("h100-96gb:8x32", LLAMA_70B, "fsdp=32,tensor=8", (16, 8192), 829.0, 763.0, 43.0),
    ];
    let mut same = true;
    for (machine, shape, mesh, (batch, tokens), published, expected, gib) in rows {
        let of = Case { mesh: Some(mesh), tokens, ..Case::new(machine, shape, batch) };
        let case = Case { optimizer: "adamw", scan: false, ..of };
        let report = quick(&case.spec(), &case.machine()).unwrap();
        let rate = report.rates.tokens_per_second / case.machine().devices as f64;
        let memory = report.memory.total as f64 / f64::from(1 << 30);
        let error = 100.0 * (rate / published - 1.0);
        println!(
            "{mesh:<16} {tokens:>7} {published:>6} {rate:>6.0} {error:>+6.1} % {memory:.1} GiB"
        );
        assert!(report.memory.fits());
        same &= unchanged(mesh, rate, expected, 2.0) && unchanged(mesh, memory, gib, 0.1);
    }
    assert!(same);
}

/// Sequences per device, tokens of one, and what is taken for torchtitan's selective remat.
const SELECTIVE: (usize, usize, Remat) = (2, 8192, Remat::Dots);

/// Tokens per second per GPU: published in bf16 or FP8, and predicted.
#[test]
fn predictions_of_torchtitan_runs_do_not_drift() {
    let rows = [
        ("h100-96gb:8", SELECTIVE, "bf16", 6667.0, 8870.0),
        ("h100-96gb:8x16", SELECTIVE, "bf16", 6514.0, 8955.0),
        ("h100-96gb:8", SELECTIVE, "fp8", 8532.0, 8870.0),
        ("h100-96gb:8x16", SELECTIVE, "fp8", 8380.0, 8955.0),
        ("h100-96gb:8", (1, 32_768, Remat::Full), "fp8", 3890.0, 4078.0),
        ("h200:8x4", SELECTIVE, "fp8", 10938.0, 10455.0),
        ("h200:8x8", SELECTIVE, "fp8", 10753.0, 10463.0),
    ];
    let mut same = true;
    for (machine, (batch, tokens, remat), dtype, published, expected) in rows {
        let of = Case::new(machine, LLAMA_8B, batch);
        let case = Case { tokens, remat, optimizer: "adamw", scan: false, ..of };
        let report = quick(&case.spec(), &case.machine()).unwrap();
        let rate = report.rates.tokens_per_second / case.machine().devices as f64;
        let error = 100.0 * (rate / published - 1.0);
        println!("{machine:<15} {tokens:>6} {dtype:<5} {published:>7} {rate:>8.0} {error:>+6.1} %");
        same &= unchanged(machine, rate, expected, 10.0);
    }
    assert!(same);
}
