//! Errors in the options of an optimizer or a schedule. Mismatched tensors are trace errors, as
//! everywhere.

/// An invalid optimizer or schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No optimizer has this name.
    #[error("unknown optimizer `{name}`; supported are {}", known.join(", "))]
    UnknownOptimizer {
        /// The name.
        name: String,
        /// The supported names, registered ones included.
        known: Vec<&'static str>,
    },
    /// An optimizer of this name is already registered.
    #[error("the optimizer `{name}` is already registered; choose another name")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// The optimizer does not take this argument.
    #[error("{optimizer} takes no argument `{key}`; {}", or_none(known))]
    UnknownArgument {
        /// The optimizer.
        optimizer: &'static str,
        /// The argument's name.
        key: String,
        /// The supported names.
        known: &'static [&'static str],
    },
    /// An argument that is not of the form `key=value`, or whose value has the wrong type.
    #[error("the optimizer argument `{argument}` is not {expected}")]
    BadArgument {
        /// The argument.
        argument: String,
        /// What is expected.
        expected: &'static str,
    },
    /// A number out of range.
    #[error("{option} is {value}; it must be {expected}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What is expected.
        expected: &'static str,
    },
    /// Adafactor with both a learning rate and a relative step size.
    #[error(
        "Adafactor's relative_step sets its own step size, so it takes no learning rate; leave \
         out the learning rate ({learning_rate}) or set relative_step=false"
    )]
    LearningRateWithRelativeStep {
        /// The learning rate.
        learning_rate: f64,
    },
    /// Adafactor with `warmup_init` but without `relative_step`.
    #[error(
        "Adafactor's warmup_init applies to relative steps; set relative_step=true or leave it out"
    )]
    WarmupWithoutRelativeStep,
    /// Nesterov momentum without momentum, or with dampening.
    #[error("nesterov needs momentum above 0 and no dampening; set momentum=0.9 and dampening=0")]
    NesterovWithoutMomentum,
    /// No schedule has this name.
    #[error("unknown learning-rate schedule `{name}`; supported are {}", known.join(", "))]
    UnknownSchedule {
        /// The name.
        name: String,
        /// The supported names.
        known: &'static [&'static str],
    },
    /// A schedule that depends on metrics of the run, not only on the step.
    #[error(
        "the learning-rate schedule `{name}` depends on a metric of the run, but learning rates \
         are fixed before it starts; choose one of {}", known.join(", ")
    )]
    AdaptiveSchedule {
        /// The name.
        name: String,
        /// The supported names.
        known: &'static [&'static str],
    },
    /// A required option of the schedule is missing.
    #[error("the learning-rate schedule `{schedule}` needs {option}")]
    MissingScheduleOption {
        /// The schedule.
        schedule: &'static str,
        /// The option, or the options of which one is required.
        option: &'static str,
    },
    /// Both `min_lr` and `min_lr_rate` are set.
    #[error("only one of min_lr and min_lr_rate can be set")]
    ConflictingMinLr,
    /// An option that the schedule does not use.
    #[error("the learning-rate schedule `{schedule}` takes no {option}; leave it out")]
    UnusedScheduleOption {
        /// The schedule.
        schedule: &'static str,
        /// The option.
        option: &'static str,
    },
    /// An unknown shape of the warmup or decay.
    #[error("unknown warmup or decay shape `{name}`; supported are linear, cosine and 1-sqrt")]
    UnknownShape {
        /// The name.
        name: String,
    },
}

fn or_none(known: &[&str]) -> String {
    if known.is_empty() {
        "leave it out".to_owned()
    } else {
        format!("it takes {}", known.join(", "))
    }
}
