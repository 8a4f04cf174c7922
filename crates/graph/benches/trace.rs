//! Time to trace and write a full training step: GPT-2 with 96 unrolled layers, forward and
//! backward pass and the AdamW update.
//!
//!     cargo bench -p fullshard-graph --bench trace
#![allow(clippy::unwrap_used)]

use fullshard_graph::{
    Argument, Comparison, DType, Program, Result, Tensor, TensorType, einsum, full, iota, module,
    select, value_and_grad,
};
use std::time::Instant;

const LAYERS: usize = 96;
const WIDTH: usize = 1024;
const HEADS: usize = 16;
const BATCH: usize = 4;
const LENGTH: usize = 512;
const VOCABULARY: usize = 50_304;

/// The parameter shapes of a block.
const BLOCK: [&[usize]; 12] = [
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 3 * WIDTH],
    &[3 * WIDTH],
    &[WIDTH, WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 4 * WIDTH],
    &[4 * WIDTH],
    &[4 * WIDTH, WIDTH],
    &[WIDTH],
];

fn main() {
    for _ in 0..3 {
        let start = Instant::now();
        let program = step().unwrap();
        let traced = start.elapsed();
        let text = program.to_text();
        let total = start.elapsed();
        println!(
            "{LAYERS} layers: traced in {:.0} ms, written in {:.0} ms, total {:.0} ms; {} lines, \
             {:.1} MB",
            traced.as_secs_f64() * 1e3,
            (total - traced).as_secs_f64() * 1e3,
            total.as_secs_f64() * 1e3,
            text.lines().count(),
            text.len() as f64 / 1e6
        );
    }
}

/// One training step. Inputs: parameters, two moments and a batch; outputs: their updates and the
/// loss.
fn step() -> Result<Program> {
    let mut shapes: Vec<&[usize]> = vec![&[VOCABULARY, WIDTH], &[LENGTH, WIDTH]];
    (0..LAYERS).for_each(|_| shapes.extend(BLOCK));
    shapes.extend([&[WIDTH][..], &[WIDTH]]);
    let state = [&shapes[..], &shapes, &shapes].concat();
    let arguments = state
        .iter()
        .enumerate()
        .map(|(i, dims)| Argument::new(TensorType::new(DType::F32, dims)).donated_to(i));
    let tokens = Argument::new(TensorType::new(DType::I32, &[BATCH, LENGTH + 1]));
    let arguments: Vec<Argument> = arguments.chain([tokens]).collect();
    Program::trace("step", &arguments, |inputs| {
        let (state, tokens) = inputs.split_at(state.len());
        let (parameters, moments) = state.split_at(shapes.len());
        let (first, second) = moments.split_at(shapes.len());
        let inputs: Vec<&Tensor> = parameters.iter().collect();
        let (loss, gradients) =
            value_and_grad(&inputs, |parameters| loss(&parameters, &tokens[0]))?;
        let mut updated = [Vec::new(), Vec::new(), Vec::new()];
        for (i, gradient) in gradients.iter().enumerate() {
            let new = adamw(&parameters[i], &first[i], &second[i], gradient)?;
            updated.iter_mut().zip(new).for_each(|(list, tensor)| list.push(tensor));
        }
        Ok(updated.into_iter().flatten().chain([loss]).collect())
    })
}

fn adamw(p: &Tensor, m: &Tensor, v: &Tensor, g: &Tensor) -> Result<[Tensor; 3]> {
    let m = ((m * 0.9)? + (g * 0.1)?)?;
    let v = ((v * 0.95)? + (g.square()? * 0.05)?)?;
    let update = (&m / (v.sqrt()? + 1e-8)?)?;
    let p = ((p * (1.0 - 3e-5))? - (update * 3e-4)?)?;
    Ok([p, m, v])
}

fn loss(parameters: &[Tensor], tokens: &Tensor) -> Result<Tensor> {
    let bf16 = |tensor: &Tensor| tensor.convert(DType::Bf16);
    let (inputs, targets) = (tokens.narrow(1, 0, LENGTH)?, tokens.narrow(1, 1, LENGTH + 1)?);
    let embedding = bf16(&parameters[0])?;
    let mut x = (embedding.take(&inputs)? + bf16(&parameters[1])?)?;
    for i in 0..LAYERS {
        let weights = &parameters[2 + i * BLOCK.len()..][..BLOCK.len()];
        x = module(&format!("transformer.h.{i}"), || block(&x, weights))?;
    }
    let last = &parameters[parameters.len() - 2..];
    let x = layer_norm(&x, &last[0], &last[1])?;
    let logits = einsum("bsd,vd->bsv", &x, &embedding)?.convert(DType::F32)?;
    let picked = logits.take_along(&targets.expand(2)?, 2)?.reshape(&[BATCH, LENGTH])?;
    (logits.logsumexp(2)? - picked)?.mean_all()
}

fn block(x: &Tensor, weights: &[Tensor]) -> Result<Tensor> {
    let [ln1, bias1, qkv, qkv_bias, out, out_bias, ln2, bias2, up, up_bias, down, down_bias] =
        weights
    else {
        unreachable!("a block has twelve parameters");
    };
    let x = module("attn", || {
        let normal = layer_norm(x, ln1, bias1)?;
        x + linear(&attention(&linear(&normal, qkv, qkv_bias)?)?, out, out_bias)?
    })?;
    module("mlp", || {
        let normal = layer_norm(&x, ln2, bias2)?;
        &x + linear(&linear(&normal, up, up_bias)?.gelu_tanh()?, down, down_bias)?
    })
}

fn linear(x: &Tensor, weights: &Tensor, bias: &Tensor) -> Result<Tensor> {
    x.linear(&weights.convert(x.dtype())?)? + bias.convert(x.dtype())?
}

fn layer_norm(x: &Tensor, scale: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let normal = x.convert(DType::F32)?.normalize(1e-5)?;
    ((normal * scale)? + bias)?.convert(x.dtype())
}

fn attention(qkv: &Tensor) -> Result<Tensor> {
    let heads = [BATCH, LENGTH, HEADS, WIDTH / HEADS];
    let parts = qkv.split(2, 3)?;
    let [q, k, v] = [&parts[0], &parts[1], &parts[2]].map(|part| part.reshape(&heads));
    let scores = einsum("bqhd,bkhd->bhqk", &q?, &k?)?.convert(DType::F32)?;
    let scores = (scores * ((WIDTH / HEADS) as f64).powf(-0.5))?;
    let [rows, columns] = [0, 1].map(|dim| iota(DType::I32, &[LENGTH, LENGTH], dim));
    let mask = rows?.compare(Comparison::GreaterEqual, &columns?)?;
    let masked = full(DType::F32, scores.dims(), f64::NEG_INFINITY)?;
    let mask = mask.broadcast_to(scores.dims())?;
    let weights = select(&mask, &scores, &masked)?.softmax(3)?.convert(DType::Bf16)?;
    einsum("bhqk,bkhd->bqhd", &weights, &v?)?.reshape(&[BATCH, LENGTH, WIDTH])
}
