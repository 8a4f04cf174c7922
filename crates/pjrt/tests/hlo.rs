//! Reads modules of real compilers (see `data/make_samples.py`), and malformed ones.

use fullshard_pjrt::hlo::{
    CollectiveKind, CollectiveSummary, HloError, Module, OpSharding, Signature, collectives,
    runs_per_launch, trip_count,
};
use proptest::prelude::*;

const LAYERS: u64 = 6;

const CPU: Sample = Sample("hlo", include_bytes!("data/cpu.pb"));
const TPU_V4: Sample = Sample("hlo_with_config", include_bytes!("data/tpu_v4.pb"));
const TPU_V6E: Sample = Sample("hlo_with_config", include_bytes!("data/tpu_v6e.pb"));
const TPU_V5E_WIDE: Sample = Sample("hlo_with_config", include_bytes!("data/tpu_v5e_wide.pb"));
const ALL: [Sample; 4] = [CPU, TPU_V4, TPU_V6E, TPU_V5E_WIDE];

#[derive(Clone, Copy, Debug)]
struct Sample(&'static str, &'static [u8]);

impl Sample {
    fn module(self) -> Module {
        Module::decode(self.0, self.1).expect("a sample decodes")
    }

    fn signature(self) -> Signature {
        Signature::decode(self.0, self.1).expect("a sample decodes")
    }
}

fn strings<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(T::to_string).collect()
}

/// Kind, asynchronous, count, bytes, group size, in a loop, runs.
type Row = (CollectiveKind, bool, u64, Option<u64>, Option<usize>, bool, Option<u64>);

fn rows(module: &Module) -> Vec<Row> {
    let row = |it: CollectiveSummary| {
        (it.kind, it.asynchronous, it.count, it.bytes, it.group_size, it.in_loop, it.runs)
    };
    collectives(module).into_iter().map(row).collect()
}

#[test]
fn signatures_are_per_device() {
    let cpu = CPU.signature();
    assert_eq!(strings(&cpu.parameters), ["s32[]", "f32[6,64,256]{2,1,0}", "bf16[8,256]{1,0}"]);
    assert_eq!(strings(&cpu.results), ["s32[]", "f32[6,64,256]{2,1,0}", "f32[]"]);
    let tpu = TPU_V4.signature();
    let tiled =
        ["s32[]{:T(128)}", "f32[6,64,256]{2,1,0:T(8,128)}", "bf16[8,256]{1,0:T(8,128)(2,1)}"];
    assert_eq!(strings(&tpu.parameters), tiled);
    for signature in [&cpu, &tpu] {
        assert_eq!(signature.donated, [1]);
        let sizes: Vec<_> = signature.parameters.iter().map(|it| it.byte_size()).collect();
        assert_eq!(sizes, [Some(4), Some(6 * 64 * 256 * 4), Some(8 * 256 * 2)]);
    }
}

#[test]
fn single_result_is_not_a_tuple() {
    let wide = TPU_V5E_WIDE.signature();
    assert_eq!(strings(&wide.results), ["bf16[2048,8192]{1,0:T(8,128)(2,1)}"]);
    assert_eq!(wide.result_shardings.len(), 1);
    assert_eq!(wide.donated, [] as [usize; 0]);
}

#[test]
fn signatures_include_shardings() {
    let signature = TPU_V6E.signature();
    let shardings = [&signature.parameter_shardings, &signature.result_shardings];
    for shardings in shardings {
        assert_eq!(shardings[0], Some(OpSharding::Replicated));
        let Some(OpSharding::Tiled(weights)) = &shardings[1] else { panic!("{shardings:?}") };
        assert_eq!((weights.grid.as_slice(), weights.replicas()), (&[1, 4, 1][..], 1));
        assert_eq!(weights.tile_of(3), Some(vec![0, 3, 0]));
        assert_eq!(weights.tile_of(4), None);
    }
}

#[test]
fn collectives_of_a_training_step() {
    use CollectiveKind::{AllGather, AllReduce, ReduceScatter};
    // The CPU widens bf16 collectives to f32.
    for (sample, bytes) in [(CPU, 256 * 256 * 4), (TPU_V4, 256 * 256 * 2), (TPU_V6E, 256 * 256 * 2)]
    {
        let full = (Some(bytes), Some(4), true, Some(LAYERS));
        let expected: [Row; 3] = [
            (AllReduce, false, 1, Some(4), Some(4), false, Some(1)),
            (ReduceScatter, false, 1, full.0, full.1, full.2, full.3),
            (AllGather, false, 1, full.0, full.1, full.2, full.3),
        ];
        assert_eq!(rows(&sample.module()), expected);
    }
}

#[test]
fn collectives_inside_fusions() {
    use CollectiveKind::{AllGather, CollectivePermute, ReduceScatter};
    let gathered = Some(8192 * 8192 * 2);
    let expected: [Row; 4] = [
        // A fused all-reduce and slice, padded to 8256 rows, and the permute that fixes the edges.
        (ReduceScatter, false, 1, Some(8256 * 8192 * 2), Some(4), false, Some(1)),
        (CollectivePermute, true, 1, Some(786_432), Some(3), false, Some(1)),
        (AllGather, false, 1, gathered, Some(4), true, Some(LAYERS)),
        // Split into a chain of fusions, still one collective.
        (AllGather, true, 1, gathered, Some(4), true, Some(LAYERS)),
    ];
    let module = TPU_V5E_WIDE.module();
    assert_eq!(rows(&module), expected);
    let pieces = module.instructions().filter(|it| it.opcode == "all-gather");
    assert!(pieces.count() > 2, "the sample no longer shows a chain");
}

#[test]
fn replica_groups_are_expanded() {
    for sample in ALL {
        let module = sample.module();
        let gathers: Vec<_> =
            module.instructions().filter(|it| it.opcode == "all-gather").collect();
        assert!(!gathers.is_empty());
        for gather in gathers {
            assert!(gather.is_collective());
            assert_eq!(gather.replica_groups.to_vecs(), [[0, 1, 2, 3]]);
        }
    }
}

#[test]
fn loops_run_once_per_layer() {
    for sample in ALL {
        let module = sample.module();
        let runs = runs_per_launch(&module);
        let loops: Vec<_> = module.instructions().filter(|it| it.opcode == "while").collect();
        assert!(!loops.is_empty());
        for each in loops {
            assert_eq!(trip_count(&module, each), Some(LAYERS), "{}", each.name);
            let mut counts: Vec<_> = each.called.iter().map(|&id| runs.count(id)).collect();
            counts.sort_unstable();
            assert_eq!(counts, [Some(LAYERS), Some(LAYERS + 1)]);
        }
        assert_eq!(runs.count(module.entry().id), Some(1));
    }
}

#[test]
fn tpu_matmuls_have_cycle_estimates() {
    for sample in [TPU_V4, TPU_V6E] {
        let module = sample.module();
        let matmuls: Vec<_> = module
            .instructions()
            .filter(|it| it.opcode == "fusion" && it.fusion_kind.as_deref() == Some("kOutput"))
            .filter(|it| it.metadata.op_name.ends_with("dot_general"))
            .collect();
        assert_eq!(matmuls.len(), 3);
        for matmul in matmuls {
            assert!(matmul.estimated_cycles().unwrap() > 500);
        }
    }
    assert!(CPU.module().instructions().all(|it| it.estimated_cycles().is_none()));
}

#[test]
fn sources_are_resolved() {
    for sample in [CPU, TPU_V4] {
        let module = sample.module();
        let scatter = module.instructions().find(|it| it.opcode == "reduce-scatter").unwrap();
        assert!(scatter.metadata.op_name.ends_with("closed_call/reduce_scatter"));
        let source = scatter.metadata.source.as_ref().unwrap();
        assert_eq!(&*source.file, "make_samples.py");
        assert!(source.line > 1);
    }
}

#[test]
fn instructions_are_in_schedule_order() {
    for sample in ALL {
        let module = sample.module();
        assert!(module.is_scheduled);
        for computation in module.computations() {
            let position = |id| computation.instructions().iter().position(|it| it.id == id);
            for (at, instruction) in computation.instructions().iter().enumerate() {
                for &operand in &instruction.operands {
                    assert!(position(operand).unwrap() < at);
                }
            }
        }
    }
}

#[test]
fn text_is_readable_and_stable() {
    for sample in ALL {
        let text = sample.module().to_string();
        assert_eq!(text, sample.module().to_string());
        assert_eq!(text.matches("ENTRY ").count(), 1);
    }
    let text = CPU.module().to_string();
    let line = |needle: &str| text.lines().find(|line| line.contains(needle)).unwrap();
    assert!(text.starts_with("HloModule jit_step, is_scheduled=true\n"));
    let gather = line("%all_gather.5 = f32[256,256]{1,0} all-gather(%convert_bitcast_fusion)");
    assert!(gather.contains("channel_id=1, replica_groups={{0,1,2,3}}"));
    assert!(
        gather.contains("op_name=\"jit(step)/shard_map/jvp()/while/body/closed_call/all_gather\"")
    );
    assert!(line(" parameter(1), sharding={devices=[1,4,1]<=[4]}").contains("weights"));
    assert!(line(" while(").contains("condition=%wide.region_1.2_spmd.clone, body="));
    assert!(line("  ROOT %tuple.51").contains("tuple(%wrapped_add, %multiply_subtract_fusion,"));
}

#[test]
fn formats_are_checked() {
    for format in ["mlir", "", "HLO"] {
        let wrong = Module::decode(format, CPU.1);
        assert!(matches!(wrong, Err(HloError::UnknownFormat(_))));
        let wrong = Signature::decode(format, CPU.1);
        assert!(matches!(wrong, Err(HloError::UnknownFormat(_))));
    }
    assert!(matches!(Module::decode("hlo", b""), Err(HloError::Malformed { .. })));
    assert!(Module::decode("hlo_with_config", b"").is_err());
    assert!(Module::decode("hlo", &TPU_V4.1[1..]).is_err());
}

/// Everything a caller may do with bytes; it must not panic or hang.
fn exercise(format: &str, bytes: &[u8]) {
    if let Ok(signature) = Signature::decode(format, bytes) {
        let shardings = signature.parameter_shardings.iter().flatten();
        for sharding in shardings.chain(signature.result_shardings.iter().flatten()) {
            if let OpSharding::Tiled(tiles) = sharding {
                tiles.tile_of(1);
            }
        }
        for shape in signature.parameters.iter().chain(&signature.results) {
            shape.byte_size();
        }
    }
    if let Ok(module) = Module::decode(format, bytes) {
        collectives(&module);
        for instruction in module.instructions() {
            trip_count(&module, instruction);
            instruction.estimated_cycles();
            instruction.replica_groups.to_vecs();
        }
        drop(module.to_string());
    }
}

fn sample() -> impl Strategy<Value = Sample> {
    prop::sample::select(ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn random_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048)) {
        exercise("hlo", &bytes);
        exercise("hlo_with_config", &bytes);
    }

    #[test]
    fn truncated_samples_do_not_panic(sample in sample(), end in any::<prop::sample::Index>()) {
        exercise(sample.0, &sample.1[..end.index(sample.1.len())]);
    }

    #[test]
    fn mutated_samples_do_not_panic(
        sample in sample(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = sample.1.to_vec();
        for (at, value) in edits {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        exercise(sample.0, &bytes);
    }
}
