//! Attention over sequences sharded over devices: values and gradients against one device.

use super::{TestTracer, assert_close, attend, inputs, traced};
use crate::common::{call, difference, eval, random};
use fullshard_graph::{
    Argument, DType, Group, Key, Mesh, MeshExt, Program, Result, Tensor, TensorType, constant,
    ones, value_aux_and_grad,
};
use fullshard_models::Scope;
use fullshard_models::layers::attention::context::{
    ContextMethod, ContextParallel, Dropout, Zigzag, attention,
};
use fullshard_models::layers::attention::{Heads, Mask, Scores, reference};
use fullshard_pjrt::{CompileOptions, HostTensor, LoadedExecutable};
use fullshard_testing::compile;

pub const GATHER: ContextMethod = ContextMethod::Gather;
pub const RING: ContextMethod = ContextMethod::Ring;
pub const METHODS: [ContextMethod; 2] = [GATHER, RING];

pub fn mesh(devices: usize) -> Mesh {
    Mesh::new(&[("context", devices)]).unwrap()
}

/// The output of attention and the gradients of its weighted sum, on the shards of a device.
fn on_shards(
    shards: &[Tensor],
    dropout: f64,
    scaled: impl Fn(DType) -> Result<Scores>,
    context: &ContextParallel,
) -> Result<Vec<Tensor>> {
    let [query, key, value, weights] = shards else { unreachable!() };
    let (_, mut results, gradients) = value_aux_and_grad(&[query, key, value], |inputs| {
        let [query, key, value] = inputs.try_into().unwrap();
        let scores = Scores { dropout, ..scaled(query.dtype())? };
        let attn_out = attention(&Heads { query, key, value }, &scores, context)?;
        Ok(((&attn_out * weights)?.sum_all()?, vec![attn_out]))
    })?;
    results.extend(gradients);
    Ok(results)
}

pub fn causal(dtype: DType) -> Result<Scores> {
    Scores::scaled(Mask::causal(), dtype, 0.7)
}

/// The output and gradients in the order of positions, of full inputs on all devices of a mesh.
/// The batch is sharded over its other axes.
fn on_mesh(
    mesh: &Mesh,
    inputs: &[HostTensor],
    trace: impl Fn(&Group, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Vec<HostTensor> {
    let axes: Vec<&str> = mesh.axes().map(|(name, _)| name).collect();
    let data: Vec<&str> = axes.iter().copied().filter(|name| *name != "context").collect();
    let sharding = mesh.sharding(&[&data, &[], &[], &[]]).unwrap();
    let arguments: Vec<Argument> =
        inputs.iter().map(|input| Argument::new(input.ty().clone()).sharded(&sharding)).collect();
    let results = vec![sharding.clone(); 4];
    let program = Program::trace("context", &arguments, |inputs| {
        let sharded: Vec<_> = inputs.iter().map(|input| (input, sharding.clone())).collect();
        mesh.manual(&axes, &sharded, &results, |inputs| {
            let group = mesh.over(&["context"])?;
            let zigzag = Zigzag::new(&group, inputs[0].dims()[2])?;
            let shards = inputs.iter().map(|input| zigzag.shard(input, 2));
            let results = trace(&group, &shards.collect::<Result<Vec<_>>>()?)?;
            results.iter().map(|x| zigzag.by_position(&group.all_gather(x, 2)?, 2)).collect()
        })
    });
    let program = program.unwrap().sharded_results(&results).unwrap().on_mesh(mesh).unwrap();
    call(&loaded(&program), inputs)
}

fn values(results: &[HostTensor]) -> Vec<Vec<f64>> {
    results.iter().map(|result| result.to_f64().unwrap()).collect()
}

/// Compares with one device: heads, key heads, the length of chunks, and that of blocks.
#[track_caller]
fn check(methods: &[ContextMethod], devices: usize, [heads, key_heads, chunk, block]: [usize; 4]) {
    let inputs = inputs(heads, key_heads, 2 * devices * chunk);
    let expected = attend(&inputs, 0.0, reference);
    for &method in methods {
        let found = on_mesh(&mesh(devices), &inputs, |group, shards| {
            let context = ContextParallel { block, ..ContextParallel::new(group, method) };
            on_shards(shards, 0.0, causal, &context)
        });
        assert_close(&values(&found), &expected);
    }
}

#[test]
fn two_devices_match_one() {
    check(&METHODS, 2, [4, 4, 6, 256]);
}

#[test]
fn four_devices_match_one() {
    check(&METHODS, 4, [4, 2, 5, 256]);
}

#[test]
fn eight_devices_match_one() {
    check(&METHODS, 8, [3, 1, 3, 256]);
}

/// Several groups of rows, in loops, and a shorter block last.
#[test]
fn long_chunks_match_one_device() {
    check(&[GATHER], 2, [4, 2, 17, 2]);
}

#[test]
fn one_device_has_the_full_sequence() {
    check(&[RING], 1, [2, 1, 5, 4]);
}

/// The largest difference of any result in a dtype from `f64` on one device.
fn rounding(dtype: DType, method: ContextMethod) -> f64 {
    let inputs = inputs(4, 2, 64);
    let expected = attend(&inputs, 0.0, reference);
    let found = on_mesh(&mesh(4), &inputs, |group, shards| {
        let short = shards.iter().map(|shard| shard.convert(dtype)).collect::<Result<Vec<_>>>()?;
        let context = ContextParallel::new(group, method);
        let results = on_shards(&short, 0.0, causal, &context)?;
        results.iter().map(|result| result.convert(DType::F64)).collect()
    });
    let apart = values(&found).into_iter().zip(&expected);
    apart.map(|(found, expected)| difference(&found, expected)).fold(0.0, f64::max)
}

#[test]
fn low_precision_rounds_only_as_its_dtype() {
    for method in METHODS {
        let (single, short) = (rounding(DType::F32, method), rounding(DType::Bf16, method));
        println!("{method:?}: f32 {single:.1e}, bf16 {short:.1e}");
        assert!(single < 1e-5, "{method:?}: {single}");
        assert!(short < 0.02, "{method:?}: {short}");
    }
}

/// The dropout mask is that of the full sequence, on any mesh.
#[test]
fn dropout_masks_are_those_of_one_device() {
    const RATE: f64 = 0.25;
    let inputs = inputs(4, 2, 24);
    let key = || Key::constant(3)?.named("attn_dropout");
    let expected = eval(&inputs, |inputs| {
        let shape = [2, 4, 24, 24];
        let mask = key()?.draw(&shape).dropout(&ones(DType::F64, &shape)?, RATE)?;
        traced(&inputs[..3], &inputs[3], RATE, |_, heads, scores| {
            let tracer = TestTracer { mask: Some(mask.clone()), ..TestTracer::new(DType::F64) };
            Ok(Scope::root(&tracer, |scope| Ok(vec![reference(scope, heads, scores)?]))?.remove(0))
        })
    });
    for (method, block) in [(GATHER, 256), (RING, 2)] {
        let mesh = Mesh::new(&[("data", 2), ("context", 4)]).unwrap();
        let found = on_mesh(&mesh, &inputs, |group, shards| {
            let batch = Some(mesh.over(&["data"])?);
            let dropout = Some(Dropout { key: key()?, batch, heads: None });
            let context = ContextParallel::new(group, method);
            on_shards(shards, RATE, causal, &ContextParallel { block, dropout, ..context })
        });
        assert_close(&values(&found), &values(&expected));
    }
}

#[test]
fn without_a_key_nothing_is_dropped() {
    let inputs = inputs(2, 2, 16);
    let found = on_mesh(&mesh(2), &inputs, |group, shards| {
        on_shards(shards, 0.5, causal, &ContextParallel::new(group, RING))
    });
    assert_close(&values(&found), &attend(&inputs, 0.0, reference));
}

/// Scales that depend on the layer, and matmuls of scores in `f32`.
#[test]
fn traced_scales_and_upcasts_match_one_device() {
    let by_layer = |dtype| {
        let scores = Scores::scaled(Mask::causal(), dtype, 0.7)?;
        Ok(Scores { factor: None, scale: (scores.scale * 2.0)?, upcast: true, ..scores })
    };
    let inputs = inputs(2, 2, 16);
    let expected = attend(&inputs, 0.0, |scope, heads, _| {
        reference(scope, heads, &by_layer(heads.query.dtype())?)
    });
    let found = on_mesh(&mesh(2), &inputs, |group, shards| {
        on_shards(shards, 0.0, by_layer, &ContextParallel::new(group, GATHER))
    });
    assert_close(&values(&found), &expected);
}

#[test]
fn positions_are_those_of_the_shards() {
    let mesh = mesh(4);
    let sharding = mesh.sharding(&[&["context"]]).unwrap();
    let outputs = vec![sharding; 2];
    let program = Program::trace("positions", &[], |_| {
        mesh.manual(&["context"], &[], &outputs, |_| {
            let zigzag = Zigzag::new(&mesh.over(&["context"])?, 16)?;
            let all: Vec<i32> = (0..16).collect();
            Ok(vec![zigzag.positions()?, zigzag.shard(&constant(&[16], &all)?, 0)?])
        })
    });
    let program = program.unwrap().sharded_results(&outputs).unwrap().on_mesh(&mesh).unwrap();
    let found = values(&call(&loaded(&program), &[]));
    let expected = [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9].map(f64::from);
    assert_eq!(found, [expected, expected]);
}

/// Compiled without the optimizations of machine code, which take most of the time.
pub fn loaded(program: &Program) -> LoadedExecutable {
    let options = CompileOptions::new(program.devices());
    compile(program, &options.flag_text("xla_backend_optimization_level=0").unwrap())
}

#[test]
fn rejects_unsupported_masks_and_lengths() {
    let error = |sequence: usize, mask: fn() -> Result<Mask>| {
        let mesh = mesh(2);
        let sharding = mesh.replicated(4);
        let argument = Argument::new(TensorType::new(DType::F32, &[1, 1, sequence, 8]));
        let outputs = [sharding.clone()];
        let program = Program::trace("rejected", &[argument], |inputs| {
            mesh.manual(&["context"], &[(&inputs[0], sharding.clone())], &outputs, |inputs| {
                let [query, key, value] = [0, 0, 0].map(|i: usize| inputs[i].clone());
                let scores = Scores::scaled(mask()?, DType::F32, 1.0)?;
                let context = ContextParallel::new(&mesh.over(&["context"])?, RING);
                Ok(vec![attention(&Heads { query, key, value }, &scores, &context)?])
            })
        });
        program.unwrap_err().to_string()
    };
    let odd = error(7, || Ok(Mask::causal()));
    assert!(odd.contains("14 must be a multiple of 4") && odd.contains("12 or 16"), "{odd}");
    let full = error(8, || Ok(Mask::full()));
    assert!(full.contains("the mask is full") && full.contains("size of the axis to 1"), "{full}");
    let padded = error(8, || Mask::causal().with_lengths(&constant(&[1], &[3_i32])?, 8));
    assert!(padded.contains("keys can be padding"), "{padded}");
}

/// A shard of the full inputs of two devices with few heads, on one GPU: the kernel in blocks.
#[test]
#[ignore = "gpu: needs an NVIDIA GPU"]
fn gpu_kernel_in_blocks_matches_reference() {
    for (heads, key_heads, sequence) in [(4, 4, 256), (6, 2, 1024)] {
        let (query, key) = ([2, heads, sequence, 64], [2, key_heads, sequence, 64]);
        let inputs = [random(&query, 1), random(&key, 2), random(&key, 3), random(&query, 4)];
        let short = |inputs: &[Tensor]| {
            inputs.iter().map(|x| x.convert(DType::Bf16)).collect::<Result<Vec<_>>>()
        };
        let long = |results: Vec<Tensor>| {
            results.iter().map(|x| x.convert(DType::F32)).collect::<Result<Vec<_>>>()
        };
        let expected = eval(&inputs, |inputs| {
            let inputs = short(inputs)?;
            long(traced(&inputs[..3], &inputs[3], 0.0, reference)?)
        });
        let found = on_mesh(&mesh(1), &inputs, |group, shards| {
            let context = ContextParallel::new(group, RING);
            let context = ContextParallel { fused: true, ..context };
            long(on_shards(&short(shards)?, 0.0, causal, &context)?)
        });
        for (i, (found, expected)) in values(&found).iter().zip(values(&expected)).enumerate() {
            let apart = difference(found, &expected);
            println!("{heads} heads, {sequence} tokens: {i}: {apart:.1e}");
            assert!(apart < 0.02, "result {i}: {apart}");
        }
    }
}
