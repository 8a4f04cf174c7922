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
