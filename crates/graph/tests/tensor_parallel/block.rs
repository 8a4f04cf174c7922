//! A transformer block in plain ops, with its heads and hidden units over an automatic axis
//! `tensor`, and weights that are gathered over a manual axis `fsdp`.

use fullshard_graph::{
    Argument, DType, Mesh, MeshExt, Policy, Program, Result, Sharding, Tensor, TensorType, einsum,
    module, remat, scan, vjp,
};

pub const BATCH: usize = 4;
pub const SEQUENCE: usize = 256;
pub const WIDTH: usize = 512;
const HEADS: usize = 8;
const HEAD: usize = WIDTH / HEADS;
const HIDDEN: usize = 4 * WIDTH;

/// A block and its annotations.
#[derive(Debug, Clone, Copy)]
pub struct Block {
    /// Whether the residual stream is sharded along the sequence.
    pub sequence: bool,
    /// How attention is annotated.
    pub attention: Attention,
    /// Whether weights are gathered in regions that are also manual over `tensor`.
    pub gather_shards: bool,
    /// Whether the block is recomputed.
    pub remat: bool,
    /// The number of blocks in a scan, or none for one block.
    pub layers: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Attention {
    NotAnnotated,
    /// Its result is annotated along the heads.
    Heads,
    /// It runs in a region that is manual over `tensor`, as a kernel would.
    PerShard,
}

/// Tensor parallelism.
pub const PLAIN: Block = Block {
    sequence: false,
    attention: Attention::Heads,
    gather_shards: true,
    remat: false,
    layers: None,
};

/// With sequence parallelism.
pub const SEQUENCE_PARALLEL: Block = Block { sequence: true, ..PLAIN };

pub fn mesh() -> Mesh {
    Mesh::new(&[("fsdp", 2), ("tensor", 4)]).unwrap()
}

pub fn sharding(dims: &[&[&str]]) -> Sharding {
    mesh().sharding(dims).unwrap()
}

/// A weight: its dims, and which of them `fsdp` and `tensor` shard.
type Weight = (&'static [usize], usize, Option<usize>);

const WEIGHTS: [Weight; 6] = [
    (&[WIDTH], 0, None),
    (&[WIDTH, 3, HEADS, HEAD], 0, Some(2)),
    (&[HEADS, HEAD, WIDTH], 2, Some(0)),
    (&[WIDTH], 0, None),
    (&[WIDTH, HIDDEN], 0, Some(1)),
    (&[HIDDEN, WIDTH], 1, Some(0)),
];

/// The sharding of a weight over some of its axes.
fn of_weight((dims, by_fsdp, by_tensor): Weight, fsdp: bool, tensor: bool) -> Sharding {
    let mut axes: Vec<&[&str]> = vec![&[]; dims.len()];
    if fsdp {
        axes[by_fsdp] = &["fsdp"];
    }
    if let (true, Some(dim)) = (tensor, by_tensor) {
        axes[dim] = &["tensor"];
    }
    sharding(&axes)
}

impl Block {
    /// Forward and backward from `x`, the gradient of the result and the weights.
    pub fn program(self) -> Program {
        let stream = sharding(&[&["fsdp"], self.of_sequence(), &[]]);
        let rows = sharding(&[&["fsdp"], &[], &[]]);
        let stored = self.shardings(true);
        let dims = WEIGHTS.map(|(dims, ..)| self.layers.into_iter().chain(dims.iter().copied()));
        let weights = dims.into_iter().zip(&stored).map(|(dims, stored)| {
            let dims: Vec<usize> = dims.collect();
            Argument::new(TensorType::new(DType::F32, &dims)).sharded(stored)
        });
        let x = Argument::new(TensorType::new(DType::F32, &[BATCH, SEQUENCE, WIDTH]));
        let x = x.sharded(&stream);
        let arguments: Vec<Argument> = [x.clone(), x].into_iter().chain(weights).collect();
        let local = self.shardings(false);
        let local: Vec<Sharding> = [&rows, &rows].into_iter().chain(&local).cloned().collect();
        let program = Program::trace("block", &arguments, |inputs| {
            let shards: Vec<_> = inputs.iter().zip(local.iter().cloned()).collect();
            mesh().manual(&["fsdp"], &shards, &local, |locals| self.gradients(&locals))
        });
        let results: Vec<Sharding> =
            [&stream, &stream].into_iter().chain(&stored).cloned().collect();
        program.unwrap().sharded_results(&results).unwrap()
    }

    /// The axes of the sequence of the residual stream.
    fn of_sequence(self) -> &'static [&'static str] {
        if self.sequence { &["tensor"] } else { &[] }
    }

    /// The shardings of all weights, over `fsdp` and maybe `tensor`.
    fn shardings(self, tensor: bool) -> Vec<Sharding> {
        let of_weight = |weight| of_weight(weight, true, tensor);
        let stacked = |sharding: Sharding| match self.layers {
            Some(_) => sharding.stacked(),
            None => sharding,
        };
        WEIGHTS.map(of_weight).into_iter().map(stacked).collect()
    }

    /// The result, and the gradients of `x` and of the weights.
    fn gradients(self, locals: &[Tensor]) -> Result<Vec<Tensor>> {
        let inputs: Vec<&Tensor> = [&locals[0]].into_iter().chain(&locals[2..]).collect();
        let (mut results, pullback) = vjp(&inputs, |values| {
            let Some(_) = self.layers else { return self.maybe_recomputed(&values) };
            let weights: Vec<&Tensor> = values[1..].iter().collect();
            let results = scan(&[&values[0]], &weights).run(|carries, slices| {
                Ok((self.maybe_recomputed(&[carries, slices].concat())?, vec![]))
            });
            Ok(results?.carries)
        })?;
        let gradients = pullback.apply(&[Some(locals[1].clone())])?;
        results.extend(gradients.into_iter().flatten());
        Ok(results)
    }

    fn maybe_recomputed(self, values: &[Tensor]) -> Result<Vec<Tensor>> {
        if !self.remat {
            return Ok(vec![self.block(values)?]);
        }
        let inputs: Vec<&Tensor> = values.iter().collect();
        remat(Policy::Nothing, &inputs, |values| Ok(vec![self.block(&values)?]))
    }

    /// The residual stream, which a scan would else shard as it likes.
    fn stream(self, x: Tensor) -> Result<Tensor> {
        x.constrain_exactly(&sharding(&[&[], self.of_sequence(), &[]]))
    }

    fn block(self, values: &[Tensor]) -> Result<Tensor> {
        let weights = values[1..].iter().zip(WEIGHTS);
        let weights = weights.map(|(shard, weight)| self.gathered(shard, weight));
        let w = module("gather", || weights.collect::<Result<Vec<Tensor>>>())?;
        let x = module("attn", || {
            let x = &values[0];
            let normalized = (x.rms_normalize(1e-5)? * &w[0])?;
            let qkv = module("qkv", || einsum("bsw,wchd->cbshd", &normalized, &w[1]))?;
            let mixed = module("mix", || self.attention(&qkv))?;
            let out = module("proj", || einsum("bshd,hdw->bsw", &mixed, &w[2]))?;
            self.stream((x + out)?)
        })?;
        module("mlp", || {
            let normalized = (x.rms_normalize(1e-5)? * &w[3])?;
            let hidden = module("up", || normalized.linear(&w[4]))?.gelu_tanh()?;
            let out = module("down", || hidden.linear(&w[5]))?;
            self.stream((&x + out)?)
        })
    }

    /// A weight gathered over `fsdp`.
    fn gathered(self, shard: &Tensor, weight: Weight) -> Result<Tensor> {
        let group = mesh().over(&["fsdp"])?;
        if !self.gather_shards {
            return group.all_gather(shard, weight.1);
        }
        let kept = of_weight(weight, false, true);
        let results = mesh().per_shard(&[(shard, kept.clone())], &[kept], |shard| {
            Ok(vec![group.all_gather(&shard[0], weight.1)?])
        });
        Ok(results?.remove(0))
    }

    fn attention(self, qkv: &Tensor) -> Result<Tensor> {
        let mixed = sharding(&[&[], &[], &["tensor"], &[]]);
        match self.attention {
            Attention::NotAnnotated => attend(qkv),
            Attention::Heads => attend(qkv)?.constrain(&mixed),
            Attention::PerShard => {
                let heads = sharding(&[&[], &[], &[], &["tensor"], &[]]);
                let inputs = [(qkv, heads)];
                let results = mesh().per_shard(&inputs, &[mixed], |qkv| Ok(vec![attend(&qkv[0])?]));
                Ok(results?.remove(0))
            }
        }
    }
}

/// Attention of `[3, batch, sequence, heads, head]`.
fn attend(qkv: &Tensor) -> Result<Tensor> {
    let dims = &qkv.dims()[1..];
    let part = |i: usize| qkv.narrow(0, i, i + 1)?.reshape(dims);
    let scores = (einsum("bqhd,bkhd->bhqk", &part(0)?, &part(1)?)? * 0.125)?;
    einsum("bhqk,bkhd->bqhd", &scores.softmax(3)?, &part(2)?)
}
