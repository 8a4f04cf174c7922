//! Planning errors.

use fullshard_pjrt::Code;

/// An error while planning.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine is unknown.
    #[error(transparent)]
    Machine(#[from] crate::machine::MachineError),
    /// The spec is for another number of devices than the machine has.
    #[error("the step spec has {spec} devices, but {machine} has {devices}")]
    Devices {
        /// Devices of the spec.
        spec: usize,
        /// The machine.
        machine: String,
        /// Its devices.
        devices: usize,
    },
    /// A step that is far too large to be worth compiling.
    #[error(
        "does not fit: needs about {needed:.1} GiB per device, {limit:.1} GiB available; {fix}"
    )]
    TooLarge {
        /// GiB needed.
        needed: f64,
        /// GiB available.
        limit: f64,
        /// What makes it fit.
        fix: String,
    },
    /// The compiler ran out of device memory.
    #[error("out of memory at compile time: {reason}")]
    OutOfMemory {
        /// The compiler's message.
        reason: String,
        /// Bytes needed besides the arguments, if the compiler reports them.
        temporaries: Option<u64>,
    },
    /// An error of the plugin or the compiler.
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    /// An error in the spec.
    #[error(transparent)]
    Step(#[from] fullshard_step::Error),
}

impl Error {
    /// Converts a compiler error, recognizing out of memory.
    pub(crate) fn from_compiler(error: fullshard_pjrt::Error) -> Error {
        match error {
            fullshard_pjrt::Error::Call { code: Code::ResourceExhausted, message, .. } => {
                let reason = message.lines().next().unwrap_or_default().to_owned();
                Error::OutOfMemory { temporaries: first_size(&reason), reason }
            }
            other => Error::Pjrt(other),
        }
    }
}

/// The first size in a compiler message, such as `1.10T` or `30.75G`.
fn first_size(text: &str) -> Option<u64> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.'));
    words.into_iter().find_map(|word| {
        let power = ["K", "M", "G", "T"].iter().position(|unit| word.ends_with(unit))? + 1;
        let number: f64 = word[..word.len() - 1].parse().ok()?;
        Some((number * 1024_f64.powi(power as i32)) as u64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_size_parses_oom_messages() {
        let message = "CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for \
                       HLO temporaries (1.50T) exceeds available HBM (30.75G). HLO module: \
                       train_step.";
        assert_eq!(first_size(message), Some(3 << 39));
        assert_eq!(first_size("Ran out of memory. Used 40.00G of 30.75G hbm"), Some(40 << 30));
        assert_eq!(first_size("TOO MUCH"), None);
    }
}
