//! Programs of attention over sequences sharded over devices: what they compute, hold and
//! communicate, and that the compiler for GPUs accepts the kernel in blocks.

use super::context::{GATHER, METHODS, RING, causal, loaded, mesh};
use fullshard_graph::{
    Argument, DType, Group, MeshExt, Policy, Program, Tensor, TensorType, remat, value_and_grad,
};
use fullshard_models::layers::attention::context::{
    ContextParallel, attention, unsupported_reason,
};
use fullshard_models::layers::attention::{Form, Heads};
use fullshard_models::layers::checkpoint;
use fullshard_pjrt::hlo::{CollectiveKind, Module, collectives, runs_per_launch};
use fullshard_pjrt::plugins::Platform;
use fullshard_pjrt::{CompileOptions, LoadedExecutable};
use fullshard_testing::compile_ahead;

const OUTPUT: Option<Policy> = None;
const GRADIENTS: Option<Policy> = Some(Policy::Everything);

/// The program of sharded inputs: the gradients, with what a policy saves, or the output.
fn program(
    devices: usize,
    [heads, key_heads, sequence, head]: [usize; 4],
    dtype: DType,
    policy: Option<Policy>,
    context: impl Fn(&Group) -> ContextParallel,
) -> Program {
    let mesh = mesh(devices);
    let sharding = mesh.sharding(&[&[], &[], &["context"], &[]]).unwrap();
    let argument = |heads| {
        Argument::new(TensorType::new(dtype, &[1, heads, sequence, head])).sharded(&sharding)
    };
    let arguments = [argument(heads), argument(key_heads), argument(key_heads)];
    let outputs = vec![sharding.clone(); if policy.is_some() { 3 } else { 1 }];
    let program = Program::trace("long", &arguments, |inputs| {
        let sharded: Vec<_> = inputs.iter().map(|input| (input, sharding.clone())).collect();
        mesh.manual(&["context"], &sharded, &outputs, |shards| {
            let context = context(&mesh.over(&["context"])?);
            let attend = |inputs: Vec<Tensor>| {
                let [query, key, value] = inputs.try_into().unwrap();
                let scores = causal(query.dtype())?;
                attention(&Heads { query, key, value }, &scores, &context)
            };
            let Some(policy) = policy else { return Ok(vec![attend(shards)?]) };
            // The gradient of the output depends on the output, as in a model.
            let loss = |inputs: Vec<Tensor>| {
                let inputs: Vec<&Tensor> = inputs.iter().collect();
                let results = remat(policy, &inputs, |inputs| Ok(vec![attend(inputs)?]))?;
                results[0].square()?.sum_all()
            };
            Ok(value_and_grad(&shards.iter().collect::<Vec<_>>(), loss)?.1)
        })
    });
    program.unwrap().sharded_results(&outputs).unwrap().on_mesh(&mesh).unwrap()
}

fn module(loaded: &LoadedExecutable) -> Module {
    loaded.executable().optimized_program().unwrap().module().unwrap()
}

/// FLOPs of the matmuls per device.
fn flops(module: &Module) -> f64 {
    let runs = runs_per_launch(module);
    let mut total = 0.0;
    for computation in module.computations().iter().filter(|it| runs.is_reached(it.id)) {
        for dot in computation.instructions().iter().filter(|it| it.opcode == "dot") {
            let lhs = &computation.operands(dot).next().unwrap().shape.as_array().unwrap().dims;
            let contracting = &dot.dot_dims.as_ref().unwrap().lhs_contracting;
            let contracted: f64 = contracting.iter().map(|&dim| lhs[dim as usize] as f64).product();
            let results = dot.shape.as_array().unwrap().elements() as f64;
            total += 2.0 * contracted * results * runs.count(computation.id).unwrap() as f64;
        }
    }
    total
}

/// All devices run the same program, so the work is balanced; and there is no more of it than
/// causal attention has.
#[test]
fn devices_share_the_causal_work() {
    const SEQUENCE: usize = 512;
    let shape = [2, 1, SEQUENCE, 8];
    for (devices, method, matmuls) in [(2, GATHER, 2.0), (4, RING, 7.0), (8, GATHER, 7.0)] {
        let policy = if matmuls > 2.0 { GRADIENTS } else { OUTPUT };
        let program = program(devices, shape, DType::F32, policy, |group| ContextParallel {
            block: 16,
            ..ContextParallel::new(group, method)
        });
        let scores = (SEQUENCE * SEQUENCE) as f64 / 2.0;
        let causal = matmuls * 2.0 * 8.0 * 2.0 * scores;
        let found = flops(&module(&loaded(&program))) * devices as f64;
        println!("{devices} {method:?}, {matmuls} matmuls: {:.3}", found / causal);
        assert!((found / causal - 1.0).abs() < 0.05, "{devices} {method:?}: {found}, {causal}");
    }
}

#[test]
fn memory_per_device_falls_with_devices() {
    for method in METHODS {
        let found = [2, 4, 8].map(|devices| {
            let program = program(devices, [2, 2, 4096, 64], DType::F32, GRADIENTS, |group| {
                ContextParallel::new(group, method)
            });
            loaded(&program).executable().memory().unwrap().temporaries
        });
        println!("{method:?}: {found:?}");
        assert!(found[1] < found[0] && found[2] < found[1], "{method:?}: {found:?}");
    }
}

/// The number of all-gathers, reduce-scatters and permutes of a program per launch.
fn communicated(module: &Module) -> [u64; 3] {
    let kinds = [
        CollectiveKind::AllGather,
        CollectiveKind::ReduceScatter,
        CollectiveKind::CollectivePermute,
    ];
    kinds.map(|kind| {
        let found = collectives(module).into_iter().filter(|it| it.kind == kind);
        found.map(|it| it.count * it.runs.unwrap()).sum()
    })
}

#[test]
fn keys_and_values_are_communicated_together() {
    const DEVICES: usize = 4;
    let found = |method, policy| {
        let program = program(DEVICES, [2, 1, 64, 8], DType::F32, policy, |group| {
            ContextParallel::new(group, method)
        });
        communicated(&module(&loaded(&program)))
    };
    let hops = DEVICES as u64 - 1;
    assert_eq!(found(GATHER, OUTPUT), [1, 0, 0]);
    assert_eq!(found(RING, OUTPUT), [0, 0, hops]);
    // The CPU compiler drops barriers, and merges the collectives outside the loops of both passes.
    let [1..=2, 1, 0] = found(GATHER, GRADIENTS) else { panic!("other collectives") };
    let [0, 0, permutes] = found(RING, GRADIENTS) else { panic!("other collectives") };
    // Gradients begin with an empty sum, so they take one more.
    assert!((3 * hops..=3 * hops + 1).contains(&permutes), "{permutes} permutes");
}

/// The fused kernel in blocks, forward and backward, as the compiler for GPUs accepts it.
#[test]
fn kernel_compiles_for_gpus() {
    const DEVICES: usize = 4;
    // Of a device's own chunks three blocks, of the others two in a loop; the last is outside.
    for (method, calls) in [(GATHER, 5), (RING, 7)] {
        let program = program(DEVICES, [4, 2, 1024, 64], DType::Bf16, GRADIENTS, |group| {
            ContextParallel { fused: true, ..ContextParallel::new(group, method) }
        });
        let text = program.to_text();
        assert!(!text.contains("dot_general"), "a block is not in the kernel");
        assert_eq!(text.matches("@__cudnn$fmhaSoftmax(").count(), calls);
        assert_eq!(text.matches("@__cudnn$fmhaSoftmaxBackward(").count(), calls);
        assert_eq!(text.matches("\\22CAUSAL\\22").count(), 4);
        assert_eq!(text.matches("\\22NO_MASK\\22").count(), 2 * calls - 4);
        let compiled = compile_ahead(Platform::Cuda, &text, &CompileOptions::new(DEVICES));
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}\n{text}"));
        let module = compiled.optimized_program().unwrap().module().unwrap();
        // In the loop of the backward pass the compiler combines two permutes into one.
        let expected = if method == GATHER { [2, 1, 0] } else { [0, 0, 3 + 3 + 4 - 2] };
        assert_eq!(communicated(&module), expected, "{method:?}");
        let mut in_loop = collectives(&module).into_iter().filter(|it| it.in_loop);
        assert!(in_loop.all(|it| it.asynchronous), "a permute that no block hides");
    }
}

#[test]
fn saved_outputs_are_not_recomputed() {
    let calls = |policy| {
        let program = program(4, [4, 2, 1024, 64], DType::Bf16, Some(policy), |group| {
            ContextParallel { fused: true, ..ContextParallel::new(group, GATHER) }
        });
        program.to_text().matches("@__cudnn$fmhaSoftmax(").count()
    };
    assert_eq!(calls(Policy::Nothing), 10);
    assert_eq!(calls(Policy::saving(&[checkpoint::ATTN_OUT])), 5);
}

#[test]
fn what_the_kernel_does_not_support_is_computed_in_blocks() {
    let form = Form { factor: Some(0.7), ..Form::default() };
    assert_eq!(unsupported_reason(DType::Bf16, 128, 64, form), None);
    let odd = unsupported_reason(DType::Bf16, 127, 64, form).unwrap();
    assert!(odd.contains("127 is odd"), "{odd}");
    let dropping = unsupported_reason(DType::Bf16, 128, 64, Form { dropout: 0.1, ..form }).unwrap();
    assert!(dropping.contains("by position"), "{dropping}");
    let program = program(2, [2, 1, 64, 8], DType::F32, GRADIENTS, |group| ContextParallel {
        fused: true,
        ..ContextParallel::new(group, RING)
    });
    let text = program.to_text();
    assert!(text.contains("dot_general") && !text.contains("cudnn"));
}
