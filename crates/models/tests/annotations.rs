//! Annotations of a model: names of dims that become constraints over automatic mesh axes.
#![allow(clippy::unwrap_used)]

use fullshard_graph::{
    Argument, DType, Mesh, MeshExt, Program, Result, Sharding, Tensor, TensorType,
};
use fullshard_models::layers::dim_names::{
    BATCH, DimName, EMBED, HEADS, MLP, NORM_SEQUENCE, VOCAB,
};
use fullshard_models::layers::{Conv1d, Embedding};
use fullshard_models::{
    Activations, Annotations, Body, Layer, LayerBody, Parameter, Place, Scope, Tracer,
};

/// A tracer of zeros, with an automatic axis or without.
struct Zeros(Option<Annotations>);

impl Tracer for Zeros {
    fn module(&self, _: &Place, body: Body<'_>) -> Result<Vec<Tensor>> {
        body()
    }

    fn layers(
        &self,
        place: &Place,
        count: usize,
        carries: Vec<Tensor>,
        body: LayerBody<'_>,
    ) -> Result<Vec<Tensor>> {
        (0..count).try_fold(carries, |carries, i| body(&place.layer(Layer::Known(i)), carries))
    }

    /// As a placement on four devices stores it.
    fn parameter(&self, _: &Place, parameter: &Parameter) -> Result<Tensor> {
        let names: Vec<&str> = parameter.dim_names.iter().map(|dim| dim.name).collect();
        let dims: &[usize] = match (&self.0, &names[..]) {
            (Some(_), ["embed", "heads"]) => &[8, 3, 8],
            (Some(_), ["heads"]) => &[3, 8],
            (Some(_), ["vocab", "embed"]) => &[12, 8],
            _ => &parameter.dims,
        };
        fullshard_graph::zeros(DType::F32, dims)
    }

    fn dropout(&self, _: &Place, _: &str, x: &Tensor, _: Activations, _: f64) -> Result<Tensor> {
        Ok(x.clone())
    }

    fn is_training(&self) -> bool {
        false
    }

    fn compute_dtype(&self) -> DType {
        DType::F32
    }

    fn annotations(&self) -> Option<&Annotations> {
        self.0.as_ref()
    }
}

fn mesh() -> Mesh {
    Mesh::new(&[("fsdp", 2), ("tensor", 4)]).unwrap()
}

/// With `tensor` automatic. `fsdp` shards the batch, and is manual.
fn automatic() -> Zeros {
    let tensor = |name: DimName| (name.name.to_owned(), vec![1]);
    Zeros(Some(Annotations::new(mesh(), [VOCAB, HEADS, MLP, NORM_SEQUENCE].map(tensor).to_vec())))
}

/// A program of one module over `f32[2, 16, 8]`, in a region that is manual over `fsdp`.
fn traced(tracer: &Zeros, body: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>) -> Result<Program> {
    let rows: Sharding = mesh().sharding(&[&["fsdp"], &[], &[]]).unwrap();
    let argument = Argument::new(TensorType::new(DType::F32, &[4, 16, 8])).sharded(&rows);
    Program::trace("model", &[argument], |inputs| {
        let inputs = [(&inputs[0], rows.clone())];
        mesh().manual(&["fsdp"], &inputs, std::slice::from_ref(&rows), |inputs| {
            Scope::root(tracer, |nn| {
                let output = nn.module("block", "Block", |nn| body(nn, &inputs[0]))?;
                // Of the dims that the region returns, whatever the body computed.
                Ok(vec![(&inputs[0] + (output.sum_all()? * 0.0)?)?])
            })
        })
    })
}

fn text(tracer: &Zeros, body: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>) -> String {
    traced(tracer, body).unwrap().to_text()
}

fn error(body: impl Fn(&Scope<'_>, &Tensor) -> Result<Tensor>) -> String {
    traced(&Zeros(None), body).unwrap_err().to_string()
}

#[test]
fn names_become_automatic_axes_and_manual_ones_are_left_out() {
    let text = text(&automatic(), |nn, x| nn.constrain(x, &[Some(BATCH), None, Some(MLP)]));
    assert!(text.contains("<@mesh, [{?}, {?}, {\"tensor\"}]>"), "{text}");
}

#[test]
fn exact_annotations_close_other_dims() {
    let text = text(&automatic(), |nn, x| {
        nn.constrain_exactly(x, &[Some(BATCH), Some(NORM_SEQUENCE), None])
    });
    assert!(text.contains("<@mesh, [{}, {\"tensor\"}, {}]>"), "{text}");
}

#[test]
fn names_without_automatic_axes_change_nothing() {
    let constrained = |nn: &Scope<'_>, x: &Tensor| nn.constrain(x, &[Some(BATCH), None, Some(MLP)]);
    assert_eq!(text(&Zeros(None), constrained), text(&Zeros(None), |_, x| Ok(x.clone())));
    let embedded = |nn: &Scope<'_>, x: &Tensor| nn.constrain(x, &[None, None, Some(EMBED)]);
    assert_eq!(text(&automatic(), embedded), text(&automatic(), |_, x| Ok(x.clone())));
}

#[test]
fn runs_functions_on_the_shards_of_named_dims() {
    let text = text(&automatic(), |nn, x| {
        let dims = &[None, None, Some(MLP)][..];
        let results = nn.per_shard(&[(x, dims)], &[dims], |x| {
            assert_eq!(x[0].dims(), [2, 16, 2]);
            Ok(x)
        })?;
        assert_eq!(results[0].dims(), [2, 16, 8]);
        Ok(results[0].clone())
    });
    assert!(text.contains("manual_axes={\"tensor\"}"), "{text}");
}

#[test]
fn parameters_have_the_dims_of_their_declaration() {
    let traced = traced(&automatic(), |nn, x| {
        let projection = Conv1d::new(24).dim_names([EMBED, HEADS.of(4).fused(3)]);
        assert_eq!(projection.apply(nn, "whole", x)?.dims(), [2, 16, 24]);
        let parts = projection.apply_parts(nn, "parts", x, 3)?;
        assert!(parts.len() == 3 && parts.iter().all(|part| part.dims() == [2, 16, 8]));
        let tokens = x.convert(DType::I32)?.sum(&[2])?;
        assert_eq!(Embedding::new(11, 8).apply(nn, "wte", &tokens)?.dims(), [2, 16, 8]);
        Ok(parts[0].clone())
    });
    traced.unwrap();
}

#[test]
fn rejects_unknown_names_in_every_program() {
    let flipped = DimName { name: "hieght", ..EMBED };
    let error = error(|nn, x| nn.constrain(x, &[None, None, Some(flipped)]));
    assert!(error.starts_with("constrain: no dim is named `hieght`; the names are vocab, embed,"));
    assert!(error.ends_with("(in block)"), "{error}");
}

#[test]
fn rejects_another_number_of_names() {
    let error = error(|nn, x| nn.constrain(x, &[None, Some(MLP)]));
    assert_eq!(error, "constrain: 2 names of dims for f32[2,16,8] (in block)");
}

#[test]
fn rejects_an_axis_for_two_dims() {
    let both = traced(&automatic(), |nn, x| nn.constrain(x, &[None, Some(HEADS), Some(MLP)]));
    let error = both.unwrap_err().to_string();
    assert!(error.contains("`tensor`") && error.ends_with("(in block)"), "{error}");
}
