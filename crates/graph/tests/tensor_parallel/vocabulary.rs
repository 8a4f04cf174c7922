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
    /// By their indices.
    Gather,
    /// By a matmul, or a sum over all logits.
    OneHot,
}

fn one_hot(tokens: &Tensor) -> Result<Tensor> {
    let dims = [tokens.dims(), &[VOCABULARY]].concat();
    let ids = iota(DType::I32, &dims, 2)?;
    ids.compare(Comparison::Equal, &tokens.expand(2)?.broadcast_to(&dims)?)
}

fn embed(form: Form, table: &Tensor, tokens: &Tensor) -> Result<Tensor> {
    match form {
        Form::Gather => table.take(tokens),
        Form::OneHot => one_hot(tokens)?.convert(DType::F32)?.linear(table),
    }
}

fn cross_entropy(form: Form, logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let of_label = match form {
        Form::Gather => {
            let dims = labels.dims().to_vec();
            logits.take_along(&labels.expand(2)?, 2)?.reshape(&dims)?
        }
        Form::OneHot => select(&one_hot(labels)?, logits, &zeros(DType::F32, &[])?)?.sum(&[2])?,
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
