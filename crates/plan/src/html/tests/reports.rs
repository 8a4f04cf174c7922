//! Reports and a frontier to draw.

use crate::report::{
    Basis, CollectiveTime, LargeBuffer, MachineSummary, Memory, ModuleCollectives, ModuleTime,
    Part, Rates, Report, Time, Warning,
};
use crate::search::{Candidate, Frontier, Point};
use crate::start_up::StartUp;
use fullshard_parallel::{GatherAhead, Remat, Strategy};
use fullshard_step::{ModelSummary, StepSettings};

pub const GIB: u64 = 1 << 30;

fn module(path: &str, backward: bool, compute: f64, exposed: f64) -> ModuleTime {
    ModuleTime { module: path.into(), backward, compute, exposed }
}

fn modules() -> Vec<ModuleTime> {
    let forward = [
        ("transformer.wte", 0.004, 0.006),
        ("transformer.wpe", 0.001, 0.0),
        ("transformer.h.*.ln_1", 0.031, 0.002),
        ("transformer.h.*.attn.c_attn", 0.24, 0.021),
        ("transformer.h.*.attn", 0.18, 0.0),
        ("transformer.h.*.attn.c_proj", 0.081, 0.009),
        ("transformer.h.*.mlp.c_fc", 0.32, 0.028),
        ("transformer.h.*.mlp", 0.06, 0.0),
        ("transformer.h.*.mlp.c_proj", 0.32, 0.028),
        ("transformer.ln_f", 0.002, 0.0),
        ("lm_head", 0.14, 0.012),
    ];
    let backward = forward
        .iter()
        .rev()
        .map(|&(path, compute, exposed)| module(path, true, 1.9 * compute, 0.8 * exposed));
    let forward =
        forward.iter().map(|&(path, compute, exposed)| module(path, false, compute, exposed));
    forward.chain(backward).chain([module("", true, 0.09, 0.0)]).collect()
}

fn buffer(gib: f64, shape: &str, module: &str) -> LargeBuffer {
    let bytes = (gib * GIB as f64) as u64;
    LargeBuffer {
        bytes,
        shape: shape.into(),
        instruction: "fusion.412".into(),
        module: module.into(),
    }
}

pub fn collective(kind: &str, group: usize, count: u64, bytes: u64) -> CollectiveTime {
    let seconds = 0.004 * count as f64;
    CollectiveTime {
        kind: kind.into(),
        axis: "fsdp".into(),
        group,
        islands: 1,
        dims: if group == 64 { vec![0, 1, 2] } else { vec![0] },
        count,
        bytes,
        seconds,
        hidden: 0.6 * seconds,
    }
}

/// An all-gather of a module, and one that was combined with others.
fn causes() -> Vec<ModuleCollectives> {
    let cause = |module: &str, backward, combined| ModuleCollectives {
        module: module.into(),
        backward,
        kind: "all-gather".into(),
        axis: "fsdp".into(),
        group: 64,
        count: 24,
        bytes: GIB,
        combined,
    };
    vec![cause("transformer.h.*.mlp.c_fc", false, 1), cause("transformer.h.*.attn", true, 3)]
}

/// A plan of a slice, with all fields set.
pub fn on_torus() -> Report {
    let parts = [
        ("parameters", 2 * GIB),
        ("optimizer", GIB / 4),
        ("gradients", 2 * GIB),
        ("activations", 9 * GIB),
        ("temporaries", 3 * GIB),
    ];
    let modules = modules();
    let compute: f64 = modules.iter().map(|module| module.compute).sum();
    let exposed: f64 = modules.iter().map(|module| module.exposed).sum();
    Report {
        machine: MachineSummary {
            name: "v4-128".into(),
            chip: "TPU v4".into(),
            devices: 64,
            islands: 1,
            torus: vec![4, 4, 4],
            wrap: vec![true, true, true],
            peak: Some(275e12),
        },
        model: ModelSummary {
            class: "GPT2LMHeadModel".into(),
            parameters: 20_000_000_000,
            trained_parameters: 20_000_000_000,
            positions: 1024,
            layers: 24,
            hidden: 8192,
            heads: 64,
            vocabulary: 50257,
        },
        settings: StepSettings {
            devices: 64,
            fsdp: "full_shard".into(),
            batch: 512,
            sequence: 1024,
            gradient_accumulation_steps: 1,
            iterations_per_loop: 1,
            no_sync: false,
            tokens_per_step: 524_288,
            optimizer: "adafactor".into(),
            max_grad_norm: None,
            compute_dtype: "bfloat16".into(),
            fp8_matmuls: None,
            not_fp8: Vec::new(),
            reduce_dtype: "bfloat16".into(),
            remat: "full".into(),
            scan_layers: true,
            gather_ahead: GatherAhead::Nothing,
            frozen: Vec::new(),
        },
        basis: Basis::Compiled { seconds: 59.2, compiler: "libtpu 0.0.51".into(), cached: false },
        program: Some("9f".repeat(32)),
        memory: Memory {
            host: 0,
            host_limit: None,
            limit: 31 * GIB,
            total: parts.iter().map(|(_, bytes)| bytes).sum(),
            parts: parts.iter().map(|&(what, bytes)| Part { what, bytes }).collect(),
            largest: vec![
                buffer(6.0, "bf16[24,8,1024,8192]", "transformer.h.*"),
                buffer(1.5, "bf16[8,1024,32768]", "transformer.h.*.mlp.c_fc"),
                buffer(1.5, "bf16[8,1024,32768]", "transformer.h.*.mlp"),
                buffer(1.1, "bf16[8,1024,24576]", "transformer.h.*.attn.c_attn"),
                buffer(0.8, "f32[2048,50304]", "lm_head"),
                buffer(0.5, "bf16[8192,32768]", "transformer.h.*.mlp.c_fc"),
                buffer(0.5, "bf16[32768,8192]", "transformer.h.*.mlp.c_proj"),
                buffer(0.4, "f32[786,8192]", "transformer.wte"),
                buffer(0.38, "bf16[8192,24576]", "transformer.h.*.attn.c_attn"),
                buffer(0.12, "f32[24,128,32768]", ""),
            ],
        },
        time: Time {
            step: compute + exposed,
            compute,
            exposed,
            contention: 0.0,
            hidden: 0.31,
            modules,
        },
        rates: Rates {
            tokens_per_second: 524_288.0 / (compute + exposed),
            mfu: Some(0.461),
            mfu_palm: Some(0.478),
            hfu: Some(0.614),
            hfu_palm: Some(0.63),
            days: Some(42.3),
            cost_usd: Some(310_000.0),
        },
        goodput: crate::goodput::tests::example(),
        start_up: StartUp::of(fullshard_core::Platform::Tpu, 16, GIB, Some(59.2), None),
        collectives_by_module: causes(),
        collectives: vec![
            collective("all-gather", 64, 98, 384 << 20),
            collective("reduce-scatter", 64, 49, 384 << 20),
            collective("all-reduce", 4, 4, 78 << 10),
        ],
        warnings: vec![
            Warning {
                what: "the vocabulary of 50257 is not a multiple of 128".into(),
                fix: "pad it: 47 more rows make the head's matmuls faster".into(),
            },
            Warning {
                what: "<script>alert(1)</script> stays unsharded from forward to backward".into(),
                fix: "use --remat full & retry".into(),
            },
        ],
        notes: vec!["the step time excludes data loading, the host and gaps between steps".into()],
    }
}

pub fn on_switch() -> Report {
    let machine = MachineSummary {
        name: "h200:8".into(),
        chip: "H200 SXM".into(),
        devices: 8,
        islands: 1,
        torus: Vec::new(),
        wrap: Vec::new(),
        peak: Some(989.4e12),
    };
    let mut report = Report { machine, ..on_torus() };
    report.collectives.iter_mut().for_each(|it| (it.group, it.dims) = (8, Vec::new()));
    report
}

fn point(batch: usize, remat: Remat, gib: f64, speed: f64, confirmed: bool) -> Point {
    let mut report = on_torus();
    report.memory.total = (gib * GIB as f64) as u64;
    report.rates.tokens_per_second = speed;
    report.settings.remat = format!("{remat:?}").to_lowercase();
    let candidate = Candidate {
        batch,
        remat,
        logits_chunk_mib: None,
        layout: fullshard_core::Layout::Dim(0),
        scan_layers: true,
        gather_ahead: GatherAhead::Nothing,
        strategy: Strategy::FullShard,
        mesh: None,
    };
    Point { candidate, report, confirmed }
}

pub fn frontier() -> Frontier {
    let points = vec![
        point(1, Remat::Full, 4.1, 61e3, false),
        point(2, Remat::Full, 5.6, 98e3, false),
        point(4, Remat::Full, 8.2, 133e3, true),
        point(8, Remat::Full, 13.9, 151e3, true),
        point(8, Remat::Dots, 22.4, 169e3, true),
        point(16, Remat::Full, 25.1, 171e3, true),
    ];
    let mut confirmed: Vec<Point> = points.iter().filter(|it| it.confirmed).cloned().collect();
    confirmed.push(point(16, Remat::Dots, 33.0, 178e3, true));
    let best = points.last().cloned();
    Frontier { limit: 31 * GIB, points, confirmed, best }
}
