//! The inputs of programs, by name.
#![allow(clippy::unwrap_used)]

use fullshard_models::from_json;
use fullshard_optim::{Adafactor, AdamW, Optimizer};
use fullshard_parallel::{Placement, PlacementOptions};
use fullshard_step::{BatchShape, Ordered, StepSpec};

const CONFIG: &str = r#"{"model_type": "gpt2", "vocab_size": 131, "n_positions": 20, "n_embd": 24,
    "n_layer": 2, "n_head": 3}"#;

fn spec(optimizer: Box<dyn Optimizer>) -> StepSpec {
    let model = from_json(CONFIG).unwrap();
    let frozen = vec!["transformer.wpe.weight".to_owned()];
    let options = PlacementOptions { scan_layers: true, frozen, ..PlacementOptions::default() };
    let placement = Placement::new(&model.tree(), 4, &options).unwrap();
    let batch =
        BatchShape { sequences: 8, tokens: 16, accumulation: 2, sync_each_microbatch: true };
    StepSpec::new(model, placement, optimizer, batch, None).unwrap()
}

/// A slot is named after its parameter, and frozen parameters have none.
#[test]
fn state_tensors_have_names() {
    let spec = spec(Box::new(AdamW::default()));
    let state = spec.state().unwrap().map(|state| state.tensor.name.clone());
    let names = spec.placement.parameters.iter().map(|param| param.name.as_str());
    assert!(state.parameters.iter().eq(names));
    assert_eq!(state.optimizer.len(), 2 * (state.parameters.len() - 1));
    let first = ["transformer.wte.weight.exp_avg", "transformer.wte.weight.exp_avg_sq"];
    assert_eq!(state.optimizer[..2], first);
    assert!(state.optimizer.iter().any(|name| name == "transformer.h.*.ln_1.bias.exp_avg"));
    assert!(!state.optimizer.iter().any(|name| name.contains("wpe")));
}

/// A slot has its parameter's position, and its sharding unless it is replicated.
#[test]
fn slots_refer_to_their_parameters() {
    let spec = spec(Box::new(Adafactor::paper()));
    let state = spec.state().unwrap();
    for slot in &state.optimizer {
        let parameter = &state.parameters[slot.parameter];
        let name = slot.slot.as_ref().unwrap().name;
        assert_eq!(slot.tensor.name, format!("{}.{name}", parameter.tensor.name));
        let like = slot.tensor.sharding == parameter.tensor.sharding;
        assert_eq!(like, name == "exp_avg_sq", "{}", slot.tensor.name);
    }
}

/// Inputs follow the state, the batch first.
#[test]
fn inputs_follow_the_state() {
    let spec = spec(Box::new(AdamW::default()));
    let arguments = spec.step_arguments().unwrap();
    let inputs = arguments.inputs.map(|tensor| (tensor.name.as_str(), tensor.ty.to_string()));
    let [tokens, labels] = &inputs.batch[..] else { panic!("{:?}", inputs.batch) };
    assert_eq!((tokens.0, labels.0), ("input_ids", "labels"));
    assert_eq!(arguments.inputs.batch[0].ty.dims, [2, 8, 16]);
    assert_eq!(spec.eval_arguments(8).unwrap().batch[1].ty.dims, [8, 16]);
    let flat = arguments.flatten();
    assert_eq!(flat.len(), arguments.state.count() + 6);
    assert_eq!(flat[arguments.positions().inputs.seed].name, "seed");
    assert!(spec.eval_arguments(6).is_err(), "six sequences on four devices");
}

/// The program of one step per launch is that of a step. Those of several have the inputs of all
/// steps, which share the seed and begin with the same metrics.
#[test]
fn loops_take_the_inputs_of_all_steps() {
    let one = spec(Box::new(AdamW::default()));
    let step = one.step_program().unwrap().to_text();
    assert_eq!(one.launch_program().unwrap().to_text(), step);
    let three = one.with_iterations_per_loop(3).unwrap();
    assert_eq!(three.step_program().unwrap().to_text(), step);
    assert_ne!(three.launch_program().unwrap().to_text(), step);
    let inputs = three.launch_arguments().unwrap().inputs;
    let dims = inputs.map(|tensor| tensor.ty.dims.clone());
    assert_eq!(
        (&dims.batch[0][..], &dims.scalars[..1], &dims.step[..]),
        (&[3, 2, 8, 16][..], &[3][..], &[3][..])
    );
    assert_eq!((&dims.seed[..], &dims.previous[..]), (&[2][..], &[3][..]));
    let labels = &inputs.batch[1];
    assert_eq!(labels.sharding.local_dims(&labels.ty).unwrap(), [3, 2, 2, 16]);
}

#[test]
fn rejects_launches_without_steps() {
    let error = spec(Box::new(AdamW::default())).with_iterations_per_loop(0).err().unwrap();
    assert_eq!(error.to_string(), "--iterations_per_loop is 0, but must be at least 1");
}
