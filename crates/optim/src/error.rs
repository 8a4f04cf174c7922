//! What can be wrong with the options of an optimizer or a schedule. Mistakes in tensors are
//! errors of the trace, as everywhere.

/// An optimizer or a schedule that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No optimizer has this name.
    #[error("no optimizer is called `{name}`; there are {}", known.join(", "))]
    UnknownOptimizer {
        /// The name.
        name: String,
        /// The names there are, registered ones included.
        known: Vec<&'static str>,
    },
    /// An optimizer is registered under a name that another has.
    #[error("`{name}` is an optimizer already; register the other under a name of its own")]
    NameTaken {
        /// The name.
        name: &'static str,
    },
    /// An optimizer does not take this argument.
    #[error("{optimizer} takes no argument `{key}`; {}", or_none(known))]
    UnknownArgument {
        /// The optimizer.
        optimizer: &'static str,
        /// The argument's name.
        key: String,
        /// The names it knows.
        known: &'static [&'static str],
    },
    /// An argument that is not of the form `key=value`, or whose value is of another type.
    #[error("the optimizer argument `{argument}` is not {expected}")]
    BadArgument {
        /// The argument.
        argument: String,
        /// What would have been right.
        expected: &'static str,
    },
    /// A number outside what makes sense.
    #[error("{option} is {value}; it must be {expected}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What would have been right.
        expected: &'static str,
    },
    /// Adafactor with both a learning rate and steps of its own.
    #[error(
        "Adafactor's relative_step sets its own step size, so it takes no learning rate; leave \
         out the learning rate ({learning_rate}) or set relative_step=false"
    )]
    LearningRateWithRelativeStep {
        /// The learning rate that was given.
        learning_rate: f64,
    },
    /// Adafactor told to warm up steps that are not its own.
    #[error("Adafactor's warmup_init warms up relative steps; set relative_step=true or leave it")]
    WarmupWithoutRelativeStep,
    /// Nesterov momentum without momentum, or with dampening.
    #[error("nesterov needs momentum above 0 and no dampening; set momentum=0.9 and dampening=0")]
    NesterovWithoutMomentum,
    /// No schedule has this name.
    #[error("no learning-rate schedule is called `{name}`; there are {}", known.join(", "))]
    UnknownSchedule {
        /// The name.
        name: String,
        /// The names there are.
        known: &'static [&'static str],
    },
    /// A schedule that needs to know how the run goes, which a function of the step cannot.
    #[error(
        "the learning-rate schedule `{name}` follows a metric of the run, and the rates here are \
         known before it starts; choose one of {}", known.join(", ")
    )]
    AdaptiveSchedule {
        /// The name.
        name: String,
        /// The names that can be had.
        known: &'static [&'static str],
    },
    /// A schedule lacks an option that has no default.
    #[error("the learning-rate schedule `{schedule}` needs {option}")]
    MissingScheduleOption {
        /// The schedule.
        schedule: &'static str,
        /// The option, or the options one of which is needed.
        option: &'static str,
    },
    /// Two options that say the same in different ways.
    #[error("of min_lr and min_lr_rate only one can be set")]
    TwoMinima,
    /// An option that a schedule does not look at.
    #[error("the learning-rate schedule `{schedule}` takes no {option}; leave it out")]
    UnusedScheduleOption {
        /// The schedule.
        schedule: &'static str,
        /// The option.
        option: &'static str,
    },
    /// A shape of the warm-up or decay that is not known.
    #[error("`{name}` is no shape of a warm-up or decay; there are linear, cosine and 1-sqrt")]
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
