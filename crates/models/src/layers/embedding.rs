//! Embeddings: a row of a table for each token or position.

use super::{dims, widened};
use crate::module::{Initializer, Module, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Comparison, Error, Result, Tensor, full, select};

/// Declares the layer, whose rows begin with a standard deviation; that of the padding token, if
/// there is one, begins at zero.
pub fn module(rows: usize, width: usize, deviation: f64, padding: Option<usize>) -> Module {
    let weight = Parameter::new("weight", &[rows, width], Initializer::Normal { deviation });
    let weight = Parameter { zero_row: padding, ..weight };
    Module { parameters: vec![weight], ..Module::new("Embedding") }
}

/// The rows that tokens pick in the layer of a name. That of the padding token has no gradient
/// from here, though it may have one as a row of a tied head.
pub fn apply(
    scope: &Scope<'_>,
    name: &str,
    tokens: &Tensor,
    padding: Option<usize>,
) -> Result<Tensor> {
    scope.module(name, |scope| {
        let table = scope.parameter("weight")?;
        // Picked from a wide table, so that the gradient of a frequent token is summed in it.
        let picked = widened(&table)?.take(tokens)?;
        let picked = match padding {
            Some(padding) => without_gradient_at(padding, tokens, &picked)?,
            None => picked,
        };
        picked.convert(table.dtype())
    })
}

/// The rows picked by tokens, those of one token without a gradient.
fn without_gradient_at(token: usize, tokens: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let token = full(tokens.dtype(), &[], token as f64)?;
    let here = tokens.compare(Comparison::Equal, &token)?.expand(tokens.rank())?;
    select(&here, &rows.stop_gradient()?, rows)
}

/// The first `count` rows of the layer of a name: those of the positions of a sequence.
pub fn first_rows(scope: &Scope<'_>, name: &str, count: usize) -> Result<Tensor> {
    scope.module(name, |scope| {
        let table = scope.parameter("weight")?;
        let [rows, _] = dims("table", &table)?;
        if count > rows {
            let reason = format!("a sequence of {count} is longer than the {rows} positions");
            return Err(Error::new("embedding", reason));
        }
        table.narrow(0, 0, count)
    })
}
