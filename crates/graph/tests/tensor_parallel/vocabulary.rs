//! Embedding and loss with a vocabulary that is sharded over an automatic axis `tensor`.

use super::block::{BATCH, SEQUENCE, WIDTH, mesh, sharding};
use fullshard_graph::{
    Argument, Comparison, DType, MeshExt, Program, Result, Tensor, TensorType, iota, module,
    select, value_and_grad, zeros,
};

pub const VOCABULARY: usize = 4096;

/// How the rows of the table are looked up, and the logits of labels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    Gather,
    OneHot,
    Select,
    PerShard,
}

fn one_hot(tokens: &Tensor) -> Result<Tensor> {
    let dims = [tokens.dims(), &[VOCABULARY]].concat();
    let ids = iota(DType::I32, &dims, 2)?;
    ids.compare(Comparison::Equal, &tokens.expand(2)?.broadcast_to(&dims)?)
}

fn embed(form: Form, table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    match form {
        Form::Gather | Form::Select => table.take(tokens),
        Form::OneHot => one_hot(tokens)?.convert(DType::F32)?.linear(table),
        Form::PerShard => {
            let inputs = [(table, sharding(&[&["tensor"], &[]])), (tokens, sharding(&[&[], &[]]))];
            let outputs = [sharding(&[&[], &[], &[]])];
            let rows = mesh().per_shard(&inputs, &outputs, |inputs| {
                let group = mesh().over(&["tensor"])?;
                let rows = VOCABULARY / group.size();
                let first = (group.index()? * rows as f64)?;
                let local = (&inputs[1] - &first)?;
                let zero = zeros(DType::I32, &[])?;
                let inside = local.compare(Comparison::GreaterEqual, &zero)?;
                let end = fullshard_graph::full(DType::I32, &[], rows as f64)?;
                let inside = (inside.convert(DType::F32)?
                    * local.compare(Comparison::Less, &end)?.convert(DType::F32)?)?;
                let found = inputs[0].take(&local.clamp(0.0, rows as f64 - 1.0)?)?;
                let found = (found * inside.expand(2)?)?;
                Ok(vec![group.sum(&found)?])
            })?;
            Ok(rows[0].clone())
        }
    }
}

fn cross_entropy(form: Form, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let of_label = match form {
        Form::Gather | Form::PerShard => {
            let dims = labels.dims().to_vec();
            logits.take_along(&labels.expand(2)?, 2)?.reshape(&dims)?
        }
        Form::OneHot => (logits * one_hot(labels)?.convert(DType::F32)?)?.sum(&[2])?,
        Form::Select => select(&one_hot(labels)?, logits, &zeros(DType::F32, &[])?)?.sum(&[2])?,
    };
    (logits.logsumexp(2)? - of_label)?.sum_all()
}

/// Forward and backward of a tied embedding and loss, or of one of them.
pub fn program(form: Form, embedding: bool, sequence: bool) -> Program {
    let table = sharding(&[&["tensor"], &[]]);
    let tokens = sharding(&[&["fsdp"], &[]]);
    let stream: &[&str] = if sequence { &["tensor"] } else { &[] };
    let stream = sharding(&[&["fsdp"], stream, &[]]);
    let argument = |dtype, dims: &[usize]| Argument::new(TensorType::new(dtype, dims));
    let arguments = [
        argument(DType::F32, &[VOCABULARY, WIDTH]).sharded(&table),
        argument(DType::I32, &[BATCH, SEQUENCE]).sharded(&tokens),
        argument(DType::F32, &[BATCH, SEQUENCE, WIDTH]).sharded(&stream),
    ];
    let program = Program::trace("vocabulary", &arguments, |inputs| {
        let rows = sharding(&[&["fsdp"], &[], &[]]);
        let shards = [
            (&inputs[0], mesh().replicated(2)),
            (&inputs[1], tokens.clone()),
            (&inputs[2], rows.clone()),
        ];
        let outputs = [mesh().replicated(0), mesh().replicated(2), rows.clone()];
        mesh().manual(&["fsdp"], &shards, &outputs, |locals| {
            let group = mesh().over(&["fsdp"])?;
            let (loss, mut gradients) = value_and_grad(&[&locals[0], &locals[2]], |inputs| {
                if embedding {
                    let found = module("embedding", || embed(form, &inputs[0], &locals[1]))?;
                    let axes: &[&str] = if sequence { &["tensor"] } else { &[] };
                    let found = found.constrain_exactly(&sharding(&[&[], axes, &[]]))?;
                    return (found * &inputs[1])?.sum_all();
                }
                let logits = module("lm_head", || inputs[1].linear(&inputs[0].t()?))?;
                let logits = logits.constrain(&sharding(&[&[], &[], &["tensor"]]))?;
                module("loss", || cross_entropy(form, &logits, &locals[1]))
            })?;
            gradients[0] = module("sum", || group.sum(&gradients[0]))?;
            Ok([group.sum(&loss)?].into_iter().chain(gradients).collect())
        })
    });
    program.unwrap().sharded_results(&[mesh().replicated(0), table, stream]).unwrap()
}
