//! Embeddings: a table with a row per token or position.

use super::dim_names::{self, DimName};
use super::{DEFAULT_STD, upcast};
use crate::module::{Initializer, Parameter};
use crate::scope::Scope;
use fullshard_graph::{Comparison, Error, Result, Tensor, full, select};

/// A table with a row per token or position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Embedding {
    rows: usize,
    width: usize,
    std: f64,
    padding: Option<usize>,
}

impl Embedding {
    /// A table with a number of rows of a width.
    pub fn new(rows: usize, width: usize) -> Embedding {
        Embedding { rows, width, std: DEFAULT_STD, padding: None }
    }

    /// With a standard deviation for the initializer.
    pub fn std(self, std: f64) -> Embedding {
        Embedding { std, ..self }
    }

    /// With a padding token, if any, whose row is initialized to zero. Its lookups have no
    /// gradient, but its row may get one from a tied head.
    pub fn padding(self, token: Option<usize>) -> Embedding {
        Embedding { padding: token, ..self }
    }

    /// Looks tokens up in the layer with a name.
    pub fn apply(&self, nn: &Scope<'_>, name: &str, tokens: &Tensor) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let table = self.table(nn, &[dim_names::VOCAB, dim_names::EMBED])?;
            // Upcast before the lookup, so that the gradient of a frequent token is summed in f32.
            let looked_up = match nn.tensor_parallel().filter(|it| it.slices(&dim_names::VOCAB)) {
                Some(tensor) => tensor.take(&upcast(&table)?, tokens)?,
                None => upcast(&table)?.take(tokens)?,
            };
            let looked_up = match self.padding {
                Some(padding) => without_gradient_at(padding, tokens, &looked_up)?,
                None => looked_up,
            };
            let rows = looked_up.convert(table.dtype())?;
            match nn.tensor_parallel().filter(|it| it.slices(&dim_names::VOCAB)) {
                Some(tensor) => tensor.sum(&rows),
                None => Ok(rows),
            }
        })
    }

    /// The rows of the `count` positions of a sequence, or of this device's tokens of it, in the
    /// layer with a name.
    pub fn first_rows(&self, nn: &Scope<'_>, name: &str, count: usize) -> Result<Tensor> {
        nn.module(name, CLASS, |nn| {
            let rows = self.rows;
            let table = self.table(nn, &[dim_names::POSITIONS, dim_names::EMBED])?;
            let sequence = nn.context().map_or(count, |context| context.sequence(count));
            if sequence > rows {
                let reason =
                    format!("a sequence of {sequence} is longer than the {rows} positions");
                return Err(Error::new("embedding", reason));
            }
            match nn.context() {
                Some(context) => table.take(&context.positions(count)?),
                None => table.narrow(0, 0, count),
            }
        })
    }

    fn table(&self, nn: &Scope<'_>, names: &[DimName]) -> Result<Tensor> {
        let normal = Initializer::normal(self.std);
        let table = Parameter::new("weight", &[self.rows, self.width], normal);
        nn.stored(&Parameter { zero_row: self.padding, ..table.with_dim_names(names) })
    }
}

const CLASS: &str = "Embedding";

/// The looked-up rows, with the gradient stopped at one token.
fn without_gradient_at(token: usize, tokens: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let token = full(tokens.dtype(), &[], token as f64)?;
    let is_token = tokens.compare(Comparison::Equal, &token)?.expand(tokens.rank())?;
    select(&is_token, &rows.stop_gradient()?, rows)
}
