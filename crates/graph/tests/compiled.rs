//! Compiled programs: memory and matmul counts under rematerialization, the size of scans, and the
//! metadata of instructions.
#![allow(clippy::unwrap_used)]

mod common;

use common::compile;
use fullshard_graph::{
    Argument, DType, Group, Mesh, MeshExt, Policy, Program, Result, Tensor, TensorType, constant,
    custom_vjp, module, remat, scan, transient, value_and_grad,
};
use fullshard_pjrt::hlo::{CollectiveKind, Module, collectives};
use fullshard_pjrt::plugins::{Platform, Store, find_compiler};
use fullshard_pjrt::{CompileOptions, Executable, GpuTarget, Plugin, Topology, TpuSlice};

/// Rows, width and hidden width of a stack.
type Size = (usize, usize, usize);

const SMALL: Size = (256, 64, 256);
/// Too large for a TPU's on-chip memory.
const LARGE: Size = (16384, 512, 2048);

/// The name of matmuls saved for the backward pass.
const MATMUL: &str = "matmul";

fn matmuls() -> Policy {
    Policy::saving(&[MATMUL])
}

/// A transformer block without attention: norm, up projection, GELU, down projection, residual.
fn block(x: &Tensor, up: &Tensor, down: &Tensor) -> Result<Tensor> {
    let hidden = x.normalize(1e-5)?.linear(up)?.named(MATMUL)?.gelu_tanh()?;
    x + hidden.linear(down)?
}

fn rematerialized(policy: &Policy, x: &Tensor, up: &Tensor, down: &Tensor) -> Result<Tensor> {
    let mut results = remat(policy.clone(), &[x, up, down], |inputs| {
        Ok(vec![block(&inputs[0], &inputs[1], &inputs[2])?])
    })?;
    Ok(results.remove(0))
}

/// The gradient step of a stack of blocks, scanned or unrolled.
fn stack((rows, width, hidden): Size, layers: usize, policy: Policy, scanned: bool) -> Program {
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
    let arguments = [
        argument(&[rows, width]),
        argument(&[layers, width, hidden]),
        argument(&[layers, hidden, width]),
    ];
    let forward = |x: &Tensor, ups: &Tensor, downs: &Tensor| {
        if scanned {
            let results = scan(&[x], &[ups, downs]).run(|carries, slices| {
                Ok((vec![rematerialized(&policy, &carries[0], &slices[0], &slices[1])?], vec![]))
            })?;
            return Ok(results.carries[0].clone());
        }
        (0..layers).try_fold(x.clone(), |x, i| {
            let up = ups.narrow(0, i, i + 1)?.reshape(&[width, hidden])?;
            let down = downs.narrow(0, i, i + 1)?.reshape(&[hidden, width])?;
            module(&format!("h.{i}"), || rematerialized(&policy, &x, &up, &down))
        })
    };
    Program::trace("stack", &arguments, |inputs| {
        let (loss, gradients) = value_and_grad(&[&inputs[1], &inputs[2]], |weights| {
            forward(&inputs[0], &weights[0], &weights[1])?.square()?.mean_all()
        })?;
        Ok([loss].into_iter().chain(gradients).collect())
    })
    .unwrap()
}

fn optimized(program: &Program) -> Module {
    compile(program).executable().optimized_program().unwrap().module().unwrap()
}

/// Bytes of temporaries, and number of matmuls in any form.
fn cost(executable: &Executable) -> (u64, usize) {
    let module = executable.optimized_program().unwrap().module().unwrap();
    let is_matmul = |opcode: &str| opcode == "dot" || opcode == "convolution";
    let matmuls = module.instructions().filter(|node| is_matmul(&node.opcode)).count();
    (executable.memory().unwrap().temporaries, matmuls)
}

fn cost_on_cpu(program: &Program) -> (u64, usize) {
    cost(compile(program).executable())
}

fn tpu() -> Topology {
    let store = Store::default_location().unwrap();
    let plugin = Plugin::load(&store.install(Platform::Tpu).unwrap().path).unwrap();
    Topology::tpu(plugin, &TpuSlice::parse("v4-8").unwrap()).unwrap()
}

fn gpu() -> Topology {
    let store = Store::default_location().unwrap();
    let path = match find_compiler(Platform::Cuda, None, &store) {
        Ok(located) => located.path,
        Err(_) => store.install_compiler(Platform::Cuda, None).unwrap().path,
    };
    Topology::gpu(Plugin::load(&path).unwrap(), &GpuTarget::parse("h200").unwrap()).unwrap()
}

fn cost_on_tpu(program: &Program) -> (u64, usize) {
    cost(&tpu().compile(&program.to_text(), &CompileOptions::new(1)).unwrap())
}

/// The CPU plugin accepts forms that newer ones reject.
#[test]
fn bool_constants_are_accepted_by_every_compiler() {
    let program = Program::trace("truth", &[], |_| {
        let many: Vec<bool> = (0..35).map(|i| i % 3 == 0).collect();
        Ok(vec![
            constant(&[5, 7], &many)?,
            constant(&[35], &many)?,
            constant::<bool>(&[2, 0], &[])?,
        ])
    });
    let text = program.unwrap().to_text();
    for topology in [tpu(), gpu()] {
        topology.compile(&text, &CompileOptions::new(1)).unwrap();
    }
}

/// With scanned layers. If they are unrolled, the CPU compiler drops the barriers early and merges
/// the recomputation with the forward pass; the TPU compiler does not, as shown below.
#[test]
fn full_remat_takes_at_most_a_third_of_the_memory() {
    type Cost = fn(&Program) -> (u64, usize);
    let cases: [(&str, Cost, Size); 2] =
        [("on CPU", cost_on_cpu, SMALL), ("on TPU", cost_on_tpu, LARGE)];
    for (what, cost, size) in cases {
        let (all, _) = cost(&stack(size, 24, Policy::Everything, true));
        let (none, _) = cost(&stack(size, 24, Policy::Nothing, true));
        println!("{what}: {all} bytes of temporaries, {none} when recomputed");
        assert!(none * 3 <= all, "{what}: {none} of {all}");
    }
}

#[test]
fn saved_matmuls_are_not_recomputed() {
    let layers = 4;
    // Scanned: two matmuls in the forward pass, and two more for each in the backward pass.
    let count = |policy| cost_on_cpu(&stack(SMALL, layers, policy, true)).1;
    assert_eq!(count(Policy::Everything), 6);
    assert_eq!(count(matmuls()), 6);
    // The backward pass recomputes the first matmul, not the second.
    assert_eq!(count(Policy::Nothing), 7);
    // Unrolled: minus the gradient of the first block's input, which is not requested.
    let count = |policy| cost_on_tpu(&stack(SMALL, layers, policy, false)).1;
    let plain = 6 * layers - 1;
    assert_eq!(count(Policy::Everything), plain);
    assert_eq!(count(matmuls()), plain);
    assert_eq!(count(Policy::Nothing), plain + layers);
}

#[test]
fn scan_size_does_not_depend_on_depth() {
    let [few, many] = [12, 96].map(|layers| stack(SMALL, layers, Policy::Nothing, true));
    let [few_text, many_text] = [few.to_text(), many.to_text()];
    assert_eq!(few_text.lines().count(), many_text.lines().count());
    let growth = many_text.len() as f64 / few_text.len() as f64;
    assert!(growth < 1.1, "{growth}");
    let [few, many] = [few, many].map(|program| optimized(&program).instructions().count());
    assert_eq!(few, many, "instructions after optimization");
}

/// A step of a stack of layers with sharded weights: number of all-gathers outside and inside
/// loops, number of reduce-scatters inside, and the bytes of temporaries.
fn fsdp_step(layers: &dyn Fn(&Group, &Tensor, &Tensor) -> Result<Tensor>) -> ([u64; 3], u64) {
    let mesh = Mesh::new(&[("fsdp", FSDP.0)]).unwrap();
    let rows = mesh.sharding(&[&["fsdp"], &[]]).unwrap();
    let weights = mesh.sharding(&[&[], &["fsdp"], &[]]).unwrap();
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
    let arguments = [
        argument(&[2 * FSDP.0, FSDP.2]).sharded(&rows),
        argument(&[FSDP.1, FSDP.2, FSDP.2]).sharded(&weights),
    ];
    let program = Program::trace("fsdp", &arguments, |inputs| {
        let shards = [(&inputs[0], rows.clone()), (&inputs[1], weights.clone())];
        mesh.manual(&["fsdp"], &shards, std::slice::from_ref(&weights), |locals| {
            let group = mesh.over(&["fsdp"])?;
            let (_, gradients) = value_and_grad(&[&locals[1]], |weights| {
                layers(&group, &locals[0], &weights[0])?.sum_all()
            })?;
            Ok(gradients)
        })
    });
    let program = program.unwrap().sharded_results(&[weights]).unwrap().on_mesh(&mesh).unwrap();
    let loaded = compile(&program);
    let module = loaded.executable().optimized_program().unwrap().module().unwrap();
    let count = |kind, in_loop| {
        let rows = collectives(&module).into_iter();
        rows.filter(|row| row.kind == kind && row.in_loop == in_loop).map(|row| row.count).sum()
    };
    let counts = [
        count(CollectiveKind::AllGather, false),
        count(CollectiveKind::AllGather, true),
        count(CollectiveKind::ReduceScatter, true),
    ];
    (counts, loaded.executable().memory().unwrap().temporaries)
}

/// Devices, layers and width of the stack above, and the bytes of its weights.
const FSDP: (usize, usize, usize) = (4, 16, 128);
const FSDP_WEIGHTS: u64 = (FSDP.1 * FSDP.2 * FSDP.2 * 4) as u64;

/// Weights are gathered one step ahead, in both directions, and never live for all layers at once.
#[test]
fn prefetched_weights_are_gathered_again_in_the_backward_pass() {
    let (counts, temporaries) = fsdp_step(&|group, x, weights| {
        let results = scan(&[x], &[weights]).run_prepared(
            |slices| Ok(vec![group.all_gather(&slices[0], 0)?]),
            |carries, full, _| Ok((vec![carries[0].linear(&full[0])?.tanh()?], vec![])),
        )?;
        Ok(results.carries[0].clone())
    });
    // One before each loop and one in it, forward and backward.
    assert_eq!(counts, [2, 2, 1]);
    assert!(temporaries < FSDP_WEIGHTS / 2, "{temporaries} of {FSDP_WEIGHTS}");
}

/// Weights are freed after use, with what is computed from them alone: each backward step gathers
/// its own.
#[test]
fn transient_weights_are_not_saved_for_the_backward_pass() {
    let gathered = |group: &Group, x: &Tensor, weights: &Tensor, save: bool| {
        let results = scan(&[x], &[weights]).run(|carries, slices| {
            let gather = |shard: &Tensor| Ok(vec![group.all_gather(shard, 0)?]);
            let full = match save {
                true => gather(&slices[0])?,
                false => transient(&[&slices[0]], |shards| gather(&shards[0]))?,
            };
            Ok((vec![carries[0].linear(&full[0].t()?)?.tanh()?], vec![]))
        })?;
        Ok(results.carries[0].clone())
    };
    let (counts, temporaries) = fsdp_step(&|group, x, weights| gathered(group, x, weights, false));
    assert_eq!(counts, [0, 2, 1]);
    assert!(temporaries < FSDP_WEIGHTS / 2, "{temporaries} of {FSDP_WEIGHTS}");
    let (counts, temporaries) = fsdp_step(&|group, x, weights| gathered(group, x, weights, true));
    assert_eq!(counts, [0, 1, 1]);
    assert!(temporaries > FSDP_WEIGHTS, "{temporaries} of {FSDP_WEIGHTS}");
}

/// A matmul with a custom gradient, which needs both operands.
fn custom_matmul(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let matmul = |inputs: &[Tensor]| Ok(vec![inputs[0].linear(&inputs[1])?]);
    let results = custom_vjp(
        &[x, weight],
        |inputs| matmul(&inputs),
        |inputs| Ok((matmul(&inputs)?, inputs)),
        |inputs, gradients| {
            let [x, weight] = [&inputs[0].t()?, &inputs[1].t()?];
            Ok(vec![gradients[0].linear(weight)?, x.linear(&gradients[0])?])
        },
    )?;
    Ok(results[0].clone())
}

#[test]
fn custom_gradient_does_not_save_transient_inputs() {
    let (counts, temporaries) = fsdp_step(&|group, x, weights| {
        let results = scan(&[x], &[weights]).run(|carries, slices| {
            let gather = |shards: Vec<Tensor>| Ok(vec![group.all_gather(&shards[0], 0)?]);
            let full = transient(&[&slices[0]], gather)?;
            Ok((vec![custom_matmul(&carries[0], &full[0].t()?)?.tanh()?], vec![]))
        })?;
        Ok(results.carries[0].clone())
    });
    assert_eq!(counts, [0, 2, 1]);
    assert!(temporaries < FSDP_WEIGHTS / 2, "{temporaries} of {FSDP_WEIGHTS}");
}

/// The backward pass needs the matmul's result for the gradient of `tanh`.
#[test]
fn saved_matmul_with_custom_gradient_is_not_recomputed() {
    let count = |policy: Policy| {
        let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
        let arguments = [argument(&[64, 128]), argument(&[4, 128, 128])];
        let program = Program::trace("own", &arguments, |inputs| {
            let (_, gradients) = value_and_grad(&[&inputs[1]], |weights| {
                let step = |carries: Vec<Tensor>, slices: Vec<Tensor>| {
                    let layer = |inputs: Vec<Tensor>| {
                        let matmul = custom_matmul(&inputs[0], &inputs[1])?.named(MATMUL)?;
                        Ok(vec![matmul.tanh()?])
                    };
                    let inputs = [&carries[0], &slices[0]];
                    Ok((remat(policy.clone(), &inputs, layer)?, vec![]))
                };
                scan(&[&inputs[0]], &[&weights[0]]).run(step)?.carries[0].sum_all()
            })?;
            Ok(gradients)
        });
        cost_on_cpu(&program.unwrap()).1
    };
    assert_eq!(count(Policy::Everything), 3);
    assert_eq!(count(matmuls()), 3);
    assert_eq!(count(Policy::Nothing), 4);
}

#[test]
fn compiled_instructions_carry_their_module_path() {
    let module = optimized(&stack(SMALL, 2, Policy::Everything, false));
    let paths: Vec<&str> =
        module.instructions().map(|instruction| instruction.metadata.op_name.as_str()).collect();
    for path in ["h.0", "h.1", "backward.h.0", "backward.h.1"] {
        assert!(paths.iter().any(|known| known.contains(path)), "{path} in {paths:?}");
    }
}

#[test]
fn tracing_is_deterministic() {
    let text = || stack(SMALL, 3, matmuls(), false).to_text();
    assert_eq!(text(), text());
}
