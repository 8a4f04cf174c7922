//! Steps of models other than language models: the inputs follow from the task.
#![allow(clippy::unwrap_used)]

use fullshard_graph::{DType, Result, Tensor};
use fullshard_models::layers::loss;
use fullshard_models::{Dimensions, InputSpec, Loss, Model, Scope, Task, boxed};
use fullshard_optim::AdamW;
use fullshard_parallel::{Placement, PlacementOptions, Remat};
use fullshard_step::{BatchShape, StepSpec};

/// Classifies images of 4 by 4 pixels.
#[derive(Debug)]
struct Classification;

impl Task for Classification {
    type Inputs = Tensor;
    type Labels = Tensor;

    fn name(&self) -> &'static str {
        "image-classification"
    }

    fn inputs(&self, _: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("pixel_values", DType::F32, &[4, 4])]
    }

    fn labels(&self, _: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("labels", DType::I32, &[])]
    }

    fn label_count(&self, labels: &Tensor) -> Result<Tensor> {
        loss::label_mask(labels, 10)?.convert(DType::F32)?.sum_all()
    }

    fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Loss> {
        loss::cross_entropy(logits, labels)
    }
}

#[derive(Debug)]
struct Perceptron;

impl Model<Classification> for Perceptron {
    fn class(&self) -> &'static str {
        "PerceptronForImageClassification"
    }

    fn task(&self) -> Classification {
        Classification
    }

    fn dimensions(&self) -> Dimensions {
        Dimensions { layers: 3, hidden: 8, positions: 16, ..Dimensions::default() }
    }

    fn forward(&self, nn: &Scope<'_>, pixels: &Tensor) -> Result<Tensor> {
        let x = nn.linear("input", &pixels.reshape(&[pixels.dims()[0], 16])?, 8)?;
        let x = nn.layers("layers", "Layer", 3, &x, |nn, x| {
            x + nn.linear("inner", &nn.layer_norm("norm", x)?.gelu()?, 8)?
        })?;
        nn.linear("head", &x, 10)
    }
}

#[test]
fn step_inputs_follow_the_task() {
    for (scan_layers, accumulation) in [(false, 1), (true, 2)] {
        let model = boxed(Perceptron).unwrap();
        let options = PlacementOptions {
            scan_layers,
            remat: Some(Remat::Full),
            ..PlacementOptions::default()
        };
        let placement = Placement::new(&model.tree(), 2, &options).unwrap();
        let batch =
            BatchShape { sequences: 6, tokens: 16, accumulation, sync_each_microbatch: true };
        let optimizer = Box::new(AdamW::default());
        let spec = StepSpec::new(model, placement, optimizer, batch, Some(1.0)).unwrap();
        let inputs = spec.step_inputs().unwrap().batch;
        assert_eq!(inputs[0].ty.dims, [accumulation, 6, 4, 4]);
        assert_eq!(
            (inputs[1].name.as_str(), &inputs[1].ty.dims[..]),
            ("labels", &[accumulation, 6][..])
        );
        let step = spec.step_program().unwrap().to_text();
        assert!(step.contains(&format!("tensor<{accumulation}x6x4x4xf32>")));
        assert!(spec.eval_program(4).unwrap().to_text().contains("tensor<4x4x4xf32>"));
        assert!(spec.attention_unsupported_reason().is_some());
        assert_eq!(spec.model.task(), "image-classification");
    }
}
