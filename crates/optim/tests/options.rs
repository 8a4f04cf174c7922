//! Optimizers and schedules by name, invalid options, and tensors of wrong shape.
#![allow(clippy::unwrap_used)]

use fullshard_graph::{Argument, DType, Program, TensorType};
use fullshard_optim::{
    AdamW, Arguments, Error, Layout, Optimizer, OptimizerKind, OptimizerOptions, SCHEDULES,
    Schedule, ScheduleOptions, Sgd, Shape, Shard, SlotKind, Update, decays, from_name, optimizers,
    register,
};

fn arguments(arguments: &str) -> OptimizerOptions {
    OptimizerOptions { arguments: arguments.to_owned(), ..OptimizerOptions::default() }
}

#[track_caller]
fn error_of(name: &str, options: &OptimizerOptions) -> Error {
    match from_name(name, options) {
        Ok(_) => panic!("{name} accepts {options:?}"),
        Err(error) => error,
    }
}

fn matrix() -> Shard {
    Shard::replicated(&[4, 6, 5], Some(3))
}

#[test]
fn all_names_build_an_optimizer() {
    for name in optimizers() {
        let optimizer = from_name(name, &OptimizerOptions::default()).unwrap();
        assert_eq!(optimizer.scalars(1, 0.1).len(), optimizer.scalar_count(), "{name}");
    }
    let error = error_of("adam", &OptimizerOptions::default()).to_string();
    assert!(error.contains("`adam`") && error.contains("adamw_torch"), "{error}");
}

#[test]
fn other_crates_register_optimizers() {
    let kind = OptimizerKind {
        names: &["plain", "plain_descent"],
        make: |options| {
            let arguments = Arguments::parse("Plain", &options.arguments, &["momentum"])?;
            let momentum = arguments.number("momentum")?.unwrap_or(0.5);
            Ok(Box::new(Sgd { momentum, ..Sgd::default() }))
        },
    };
    register(kind).unwrap();
    let found = from_name("plain_descent", &arguments("momentum=0")).unwrap();
    assert_eq!(found.slots(&matrix()), []);
    assert!(error_of("adam", &OptimizerOptions::default()).to_string().contains("plain_descent"));
    assert_eq!(register(kind), Err(Error::NameTaken { name: "plain" }));
    let duplicate = OptimizerKind { names: &["other", "sgd"], ..kind };
    let error = register(duplicate).unwrap_err().to_string();
    assert!(error.starts_with("the optimizer `sgd` is already registered"), "{error}");
    assert!(!optimizers().contains(&"other"));
}

#[test]
fn arguments_reach_the_optimizer() {
    let slots = |name: &str, options: &OptimizerOptions| {
        let slots = from_name(name, options).unwrap().slots(&matrix());
        slots.into_iter().map(|slot| (slot.name, slot.kind)).collect::<Vec<_>>()
    };
    assert_eq!(slots("sgd", &arguments("")), []);
    assert_eq!(slots("sgd", &arguments("momentum=0.9")), [("momentum_buffer", SlotKind::Like)]);
    let factors = [
        ("exp_avg_sq_row", SlotKind::Replicated(vec![3, 4, 6])),
        ("exp_avg_sq_col", SlotKind::Replicated(vec![3, 4, 5])),
        ("exp_avg", SlotKind::Like),
    ];
    assert_eq!(slots("adafactor", &arguments("")), factors[..2]);
    assert_eq!(slots("adafactor", &arguments("beta1 = 0.9, scale_parameter=true")), factors);
    let relative = from_name("adafactor", &arguments("relative_step=True,warmup_init=1")).unwrap();
    assert_eq!(relative.scalars(10, 0.5)[0], 1e-5);
    let given = from_name("adafactor", &arguments("")).unwrap();
    assert_eq!(given.scalars(10, 0.5)[0], 0.5);
}

#[test]
fn rejects_bad_options() {
    let learning_rate = Some(1e-3);
    let relative = OptimizerOptions { learning_rate, ..arguments("relative_step=true") };
    let expected = Error::LearningRateWithRelativeStep { learning_rate: 1e-3 };
    assert_eq!(error_of("adafactor", &relative), expected);
    assert_eq!(
        error_of("adafactor", &arguments("warmup_init=true")),
        Error::WarmupWithoutRelativeStep
    );
    for nesterov in ["nesterov=true", "nesterov=true,momentum=0.9,dampening=0.1"] {
        assert_eq!(error_of("sgd", &arguments(nesterov)), Error::NesterovWithoutMomentum);
    }
    let cases = [
        (
            "adamw",
            OptimizerOptions { adam_beta1: 1.0, ..OptimizerOptions::default() },
            "adam_beta1 is 1",
        ),
        (
            "adamw",
            OptimizerOptions { adam_beta2: -0.1, ..OptimizerOptions::default() },
            "adam_beta2 is -0.1",
        ),
        (
            "adamw",
            OptimizerOptions { adam_epsilon: f64::NAN, ..OptimizerOptions::default() },
            "adam_epsilon is NaN",
        ),
        (
            "sgd",
            OptimizerOptions { weight_decay: -1.0, ..OptimizerOptions::default() },
            "weight_decay is -1",
        ),
        ("adamw", arguments("momentum=0.9"), "AdamW takes no argument `momentum`"),
        ("sgd", arguments("beta1=0.9"), "it takes momentum"),
        ("sgd", arguments("momentum=-1"), "momentum is -1"),
        ("sgd", arguments("momentum"), "`momentum` is not of the form key=value"),
        ("sgd", arguments("momentum=high"), "`momentum=high` is not a number"),
        ("adafactor", arguments("scale_parameter=maybe"), "is not true or false"),
        ("adafactor", arguments("clip_threshold=0"), "clip_threshold is 0"),
        ("adafactor", arguments("decay_rate=0.8"), "decay_rate is 0.8; it must be below 0"),
        ("adafactor", arguments("beta1=1.5"), "beta1 is 1.5"),
    ];
    for (name, options, expected) in cases {
        let error = error_of(name, &options).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn schedules_by_name() {
    let needs_more = ["cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"];
    for name in SCHEDULES {
        let error = name.parse::<Schedule>().err();
        let missing = matches!(error, Some(Error::MissingScheduleOption { .. }));
        assert_eq!(missing, needs_more.contains(name), "{name}: {error:?}");
    }
    for name in ["reduce_lr_on_plateau", "greedy"] {
        let error = name.parse::<Schedule>().unwrap_err();
        assert!(matches!(error, Error::AdaptiveSchedule { .. }), "{error}");
        let error = error.to_string();
        assert!(error.contains(name) && error.contains("metric"), "{error}");
    }
    let error = "triangle".parse::<Schedule>().unwrap_err().to_string();
    assert!(error.contains("`triangle`"), "{error}");
    assert!(SCHEDULES.iter().all(|name| error.contains(name)), "{error}");
    assert!("square".parse::<Shape>().unwrap_err().to_string().contains("1-sqrt"));
}

#[test]
fn rejects_bad_schedule_options() {
    let default = ScheduleOptions::default;
    let unused = ScheduleOptions { power: Some(2.0), ..default() }.schedule("linear");
    let expected = Error::UnusedScheduleOption { schedule: "linear", option: "power" };
    assert_eq!(unused, Err(expected));
    let both = ScheduleOptions { min_lr: Some(0.0), min_lr_rate: Some(0.0), ..default() };
    assert_eq!(both.schedule("cosine_with_min_lr"), Err(Error::ConflictingMinLr));
    let above = ScheduleOptions { learning_rate: Some(1e-8), ..default() }.schedule("polynomial");
    assert!(matches!(above, Err(Error::OutOfRange { option: "lr_end", .. })));
}

/// A run not longer than its warmup has a valid rate at every step.
#[test]
fn short_runs_have_valid_rates() {
    for name in SCHEDULES.iter().filter(|name| name.parse::<Schedule>().is_ok()) {
        let schedule: Schedule = name.parse().unwrap();
        for (warmup, total) in [(0, 0), (0, 1), (5, 5), (9, 5)] {
            for step in 0..12 {
                let factor = schedule.factor(step, warmup, total);
                assert!((0.0..=1.0).contains(&factor), "{name}: {factor} at {step} of {total}");
            }
        }
    }
}

#[test]
fn biases_and_norms_do_not_decay() {
    let decaying = [
        ("transformer.wte.weight", "Embedding"),
        ("model.layers.0.mlp.up_proj.weight", "Linear"),
        ("model.normaliser.weight", "Linear"),
    ];
    let not_decaying = [
        ("transformer.ln_f.weight", "LayerNorm"),
        ("transformer.h.0.mlp.c_fc.bias", "Conv1D"),
        ("relative_attention_bias.weight", "Embedding"),
        ("model.norm.weight", "Identity"),
        ("norm.weight", "Identity"),
        ("model.layers.0.input_layernorm.weight", "LlamaRMSNorm"),
        ("encoder.layer_norm.weight", "T5LayerNorm"),
        ("block.LayerNorm.weight", "Custom"),
        ("block.ln.weight", "MistralRMSNorm"),
    ];
    assert!(decaying.iter().all(|(name, class)| decays(name, class)));
    for (name, class) in not_decaying {
        assert!(!decays(name, class), "{name}");
    }
}

/// Traces AdamW on a shard with tensors of given dimensions and returns the error.
fn trace(shard: Shard, parameter: &[usize], slots: usize, scalars: usize) -> String {
    let argument = |dims: &[usize]| Argument::new(TensorType::new(DType::F32, dims));
    let mut arguments = vec![argument(&[scalars])];
    arguments.extend((0..2 + slots).map(|_| argument(parameter)));
    let traced = Program::trace("step", &arguments, |mut tensors| {
        let update = Update {
            shard,
            slots: tensors.split_off(3),
            gradient: tensors.remove(2),
            parameter: tensors.remove(1),
            decays: true,
            scalars: tensors.remove(0),
        };
        let updated = AdamW::default().update(vec![update])?;
        Ok(updated.into_iter().map(|one| one.parameter).collect())
    });
    traced.unwrap_err().to_string()
}

#[test]
fn shape_errors_name_the_tensor() {
    let shard = |layout| Shard { layout, slice: 19, ..Shard::replicated(&[4, 5], None) };
    let cases = [
        (trace(shard(Layout::Replicated), &[5, 4], 2, 3), "the parameter is"),
        (trace(shard(Layout::Replicated), &[4, 5], 1, 3), "expected 2 state tensors, got 1"),
        (trace(shard(Layout::Replicated), &[4, 5], 2, 2), "the scalars of a step are"),
        (trace(shard(Layout::Flat), &[19], 2, 3), "does not fit into 1 slices of 19"),
        (
            trace(Shard { dims: vec![], ..shard(Layout::Dim(0)) }, &[], 2, 3),
            "[] has no dimension 0",
        ),
    ];
    for (error, expected) in cases {
        assert!(error.starts_with("adamw: ") && error.contains(expected), "{error}");
    }
}
