//! An image classifier: an MLP mixer over patches.

use super::losses;
use crate::common::numbers;
use fullshard_graph::{DType, Result, Tensor};
use fullshard_models::layers::loss;
use fullshard_models::{AnyModel, Dimensions, InputSpec, Loss, Model, Scope, Task, boxed};
use fullshard_pjrt::HostTensor;

/// Image classification.
#[derive(Debug, Clone, Copy)]
struct ImageClassification {
    /// Pixels along each side.
    size: usize,
    channels: usize,
    classes: usize,
}

impl Task for ImageClassification {
    type Inputs = Tensor;
    type Labels = Tensor;

    fn name(&self) -> &'static str {
        "image-classification"
    }

    fn inputs(&self, _: usize) -> Vec<InputSpec> {
        let dims = [self.channels, self.size, self.size];
        vec![InputSpec::new("pixel_values", DType::F32, &dims)]
    }

    fn labels(&self, _: usize) -> Vec<InputSpec> {
        vec![InputSpec::new("labels", DType::I32, &[])]
    }

    fn label_count(&self, labels: &Tensor) -> Result<Tensor> {
        loss::label_mask(labels, self.classes)?.convert(DType::F32)?.sum_all()
    }

    fn loss(&self, logits: &Tensor, labels: &Tensor) -> Result<Loss> {
        loss::cross_entropy(logits, labels)
    }
}

#[derive(Debug)]
struct PatchMixer {
    task: ImageClassification,
    patch: usize,
    width: usize,
    depth: usize,
}

impl Model<ImageClassification> for PatchMixer {
    fn class(&self) -> &'static str {
        "PatchMixerForImageClassification"
    }

    fn task(&self) -> ImageClassification {
        self.task
    }

    fn dimensions(&self) -> Dimensions {
        let positions = (self.task.size / self.patch).pow(2);
        Dimensions { layers: self.depth, hidden: self.width, positions, ..Dimensions::default() }
    }

    fn forward(&self, nn: &Scope<'_>, pixels: &Tensor) -> Result<Tensor> {
        let (side, patch) = (self.task.size / self.patch, self.patch);
        let [batch, channels] = [pixels.dims()[0], pixels.dims()[1]];
        let patches = pixels
            .reshape(&[batch, channels, side, patch, side, patch])?
            .transpose(&[0, 2, 4, 1, 3, 5])?
            .reshape(&[batch, side * side, channels * patch * patch])?;
        let x = nn.linear("patches", &patches, self.width)?;
        let x = nn.layers("mixers", "Mixer", self.depth, &x, |nn, x| {
            let across = nn.layer_norm("norm_1", x)?.transpose(&[0, 2, 1])?;
            let across = nn.linear("positions", &across.gelu()?, side * side)?;
            let x = (x + across.transpose(&[0, 2, 1])?)?;
            let inner = nn.linear("up", &nn.layer_norm("norm_2", &x)?, 2 * self.width)?;
            x + nn.linear("down", &inner.gelu()?, self.width)?
        })?;
        nn.linear("head", &nn.layer_norm("norm", &x)?.mean(&[1])?, self.task.classes)
    }
}

const CLASSES: usize = 5;

fn model() -> Box<dyn AnyModel> {
    let task = ImageClassification { size: 8, channels: 3, classes: CLASSES };
    boxed(PatchMixer { task, patch: 4, width: 16, depth: 2 }).unwrap()
}

#[test]
fn image_classifier_is_described() {
    let model = model();
    assert_eq!(model.task(), "image-classification");
    let specs = model.batch(1024);
    let pixels = InputSpec::new("pixel_values", DType::F32, &[3, 8, 8]);
    assert_eq!(specs, [pixels, InputSpec::new("labels", DType::I32, &[])]);
    let tree = model.tree();
    let named = tree.named_parameters();
    let dims = |name: &str| &named.iter().find(|(known, _)| known == name).unwrap().1.dims;
    assert_eq!(dims("patches.weight"), &[16, 48]);
    assert_eq!(dims("mixers.1.positions.weight"), &[4, 4]);
    assert_eq!(dims("head.bias"), &[CLASSES]);
}

#[test]
fn image_classifier_learns() {
    let pixels: Vec<f32> = numbers(10 * 3 * 64, 5).into_iter().map(|x| 2.0 * x as f32).collect();
    // One label is ignored.
    let labels: Vec<i32> =
        (0..10).map(|i| if i == 9 { -100 } else { i % CLASSES as i32 }).collect();
    let batch = vec![
        HostTensor::from_values(&[10, 3, 8, 8], &pixels).unwrap(),
        HostTensor::from_values(&[10], &labels).unwrap(),
    ];
    let losses = losses(&*model(), batch, 0.5, 30);
    println!("{losses:?}");
    assert!((losses[0] - (CLASSES as f64).ln()).abs() < 0.3, "{}", losses[0]);
    assert!(losses[29] < 0.5 * losses[0], "{losses:?}");
}
