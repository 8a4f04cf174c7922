//! A transformer block in plain ops, with annotations for an automatic axis `tensor`.

use fullshard_graph::{
    Argument, DType, Mesh, MeshExt, Policy, Program, Result, Sharding, Tensor, TensorType, einsum,
    module, remat, vjp,
};

pub const BATCH: usize = 4;
pub const SEQUENCE: usize = 256;
pub const WIDTH: usize = 512;
pub const HEADS: usize = 8;
pub const HEAD: usize = WIDTH / HEADS;
pub const HIDDEN: usize = 4 * WIDTH;

/// What is annotated.
#[derive(Debug, Clone, Copy, Default)]
pub struct Annotations {
    /// The weights after they are gathered over `fsdp`.
    pub weights: bool,
    /// The heads of queries, keys and values, and the hidden units of the MLP.
    pub inner: bool,
    /// The heads of what attention returns.
    pub mixed: bool,
    /// The residual stream: along the sequence, or else replicated over `tensor`.
    pub residual: bool,
    /// The results of both row-parallel matmuls, like the residual stream.
    pub outputs: bool,
    /// The normalized inputs of both column-parallel matmuls, replicated over `tensor`.
    pub inputs: bool,
    /// Whether the sequence of the residual stream is sharded over `tensor`.
    pub sequence: bool,
    /// Whether the block is recomputed.
    pub remat: bool,
    /// Attention in a manual region of its own.
    pub per_shard: bool,
}

pub fn mesh() -> Mesh {
    Mesh::new(&[("fsdp", 2), ("tensor", 4)]).unwrap()
}

pub fn sharding(dims: &[&[&str]]) -> Sharding {
    mesh().sharding(dims).unwrap()
}

/// Weights: dims, and which dim `fsdp` and `tensor` shard.
const WEIGHTS: [(&[usize], usize, Option<usize>); 6] = [
    (&[WIDTH], 0, None),
    (&[WIDTH, 3, HEADS, HEAD], 0, Some(2)),
    (&[HEADS, HEAD, WIDTH], 2, Some(0)),
    (&[WIDTH], 0, None),
    (&[WIDTH, HIDDEN], 0, Some(1)),
    (&[HIDDEN, WIDTH], 1, Some(0)),
];

fn of_weight(index: usize, fsdp: bool, tensor: bool) -> Sharding {
    let (dims, by_fsdp, by_tensor) = WEIGHTS[index];
    let mut axes: Vec<&[&str]> = vec![&[]; dims.len()];
    if fsdp {
        axes[by_fsdp] = &["fsdp"];
    }
    if let (true, Some(dim)) = (tensor, by_tensor) {
        axes[dim] = &["tensor"];
    }
    sharding(&axes)
}

impl Annotations {
    /// Forward and backward of the block, with its weights gathered over `fsdp`.
    pub fn program(self) -> Program {
        let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
        let stream: &[&str] = if self.sequence { &["tensor"] } else { &[] };
        let stream = sharding(&[&["fsdp"], stream, &[]]);
        let activation = || argument(&[BATCH, SEQUENCE, WIDTH]).sharded(&stream);
        let stored: Vec<Sharding> = (0..6).map(|i| of_weight(i, true, true)).collect();
        let weights = stored.iter().zip(WEIGHTS);
        let weights = weights.map(|(sharding, (dims, ..))| argument(dims).sharded(sharding));
        let arguments: Vec<Argument> =
            [activation(), activation()].into_iter().chain(weights).collect();
        let rows = sharding(&[&["fsdp"], &[], &[]]);
        let local = [rows.clone(), rows.clone()].into_iter();
        let local: Vec<Sharding> = local.chain((0..6).map(|i| of_weight(i, true, false))).collect();
        let program = Program::trace("block", &arguments, |inputs| {
            let shards: Vec<_> = inputs.iter().zip(local.iter().cloned()).collect();
            let outputs: Vec<Sharding> =
                [&rows].into_iter().chain([&rows]).chain(&local[2..]).cloned().collect();
            mesh().manual(&["fsdp"], &shards, &outputs, |locals| {
                let inputs: Vec<&Tensor> = [&locals[0]].into_iter().chain(&locals[2..]).collect();
                let (results, pullback) = vjp(&inputs, |values| {
                    let values: Vec<&Tensor> = values.iter().collect();
                    if self.remat {
                        return remat(Policy::Nothing, &values, |values| {
                            Ok(vec![self.block(&values)?])
                        });
                    }
                    let values: Vec<Tensor> = values.into_iter().cloned().collect();
                    Ok(vec![self.block(&values)?])
                })?;
                let gradients = pullback.apply(&[Some(locals[1].clone())])?;
                Ok(results.into_iter().chain(gradients.into_iter().flatten()).collect())
            })
        });
        let results: Vec<Sharding> =
            [&stream, &stream].into_iter().chain(&stored).cloned().collect();
        program.unwrap().sharded_results(&results).unwrap()
    }

    fn stream(self, x: &Tensor) -> Result<Tensor> {
        let axes: &[&str] = if self.sequence { &["tensor"] } else { &[] };
        x.constrain_exactly(&sharding(&[&[], axes, &[]]))
    }

    fn block(self, values: &[Tensor]) -> Result<Tensor> {
        let group = mesh().over(&["fsdp"])?;
        let weights = values[1..].iter().enumerate().map(|(i, shard)| {
            let kept = of_weight(i, false, true);
            let full = mesh()
                .per_shard(&[(shard, kept.clone())], &[kept], |shard| {
                    Ok(vec![group.all_gather(&shard[0], WEIGHTS[i].1)?])
                })?
                .remove(0);
            if self.weights { full.constrain(&of_weight(i, false, true)) } else { Ok(full) }
        });
        let w = weights.collect::<Result<Vec<Tensor>>>()?;
        let when = |on: bool, x: Tensor| if on { self.stream(&x) } else { Ok(x) };
        let full = |x: Tensor| {
            if self.inputs { x.constrain_exactly(&sharding(&[&[], &[], &[]])) } else { Ok(x) }
        };
        let x = when(self.residual, values[0].clone())?;
        let x = module("attn", || {
            let h = full((x.rms_normalize(1e-5)? * &w[0])?)?;
            let mixed = module("qkv", || {
                let qkv = einsum("bsw,wchd->cbshd", &h, &w[1])?;
                self.attention(&qkv)
            })?;
            let out =
                module("c_proj", || when(self.outputs, einsum("bshd,hdw->bsw", &mixed, &w[2])?))?;
            when(self.residual, (x + out)?)
        })?;
        module("mlp", || {
            let h = full((x.rms_normalize(1e-5)? * &w[3])?)?;
            let up = module("up", || h.linear(&w[4]))?;
            let up =
                if self.inner { up.constrain(&sharding(&[&[], &[], &["tensor"]]))? } else { up };
            let up = up.gelu_tanh()?;
            let out = module("down", || when(self.outputs, up.linear(&w[5])?))?;
            when(self.residual, (x + out)?)
        })
    }

    fn attention(self, qkv: &Tensor) -> Result<Tensor> {
        let heads = sharding(&[&[], &[], &[], &["tensor"], &[]]);
        let qkv = if self.inner { qkv.constrain(&heads)? } else { qkv.clone() };
        if self.per_shard {
            let mixed = sharding(&[&[], &[], &["tensor"], &[]]);
            return Ok(mesh()
                .per_shard(&[(&qkv, heads)], &[mixed], |qkv| Ok(vec![attend(&qkv[0])?]))?
                .remove(0));
        }
        let mixed = attend(&qkv)?;
        if self.mixed {
            mixed.constrain(&sharding(&[&[], &[], &["tensor"], &[]]))
        } else {
            Ok(mixed)
        }
    }
}

fn attend(qkv: &Tensor) -> Result<Tensor> {
    let dims = &qkv.dims()[1..];
    let part = |i: usize| qkv.narrow(0, i, i + 1)?.reshape(dims);
    let scores = (einsum("bqhd,bkhd->bhqk", &part(0)?, &part(1)?)? * 0.125)?;
    einsum("bhqk,bkhd->bqhd", &scores.softmax(3)?, &part(2)?)
}
