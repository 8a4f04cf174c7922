//! What can go wrong while planning.

use fullshard_pjrt::Code;

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such machine.
    #[error(transparent)]
    Machine(#[from] crate::machine::MachineError),
    /// The spec is for another number of devices than the machine has.
    #[error("the step is for {spec} devices, but {machine} has {devices}")]
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
        "it cannot fit: about {needed:.1} GiB on each device, of {limit:.1} GiB there are; lower \
         --per_device_train_batch_size, add --remat full, or take more devices"
    )]
    TooLarge {
        /// GiB it would need.
        needed: f64,
        /// GiB there are.
        limit: f64,
    },
    /// The compiler cannot make it fit.
    #[error("the compiler finds no room for it: {reason}")]
    NoRoom {
        /// What it says.
        reason: String,
        /// The bytes it would need beside its arguments, where the compiler says so.
        temporaries: Option<u64>,
    },
    /// Something about the plugin or the compiler.
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    /// Something about the spec.
    #[error(transparent)]
    Step(#[from] fullshard_step::Error),
}

impl Error {
    /// An error of a compiler, which may be that there is no room.
    pub(crate) fn of_compiler(error: fullshard_pjrt::Error) -> Error {
        match error {
            fullshard_pjrt::Error::Call { code: Code::ResourceExhausted, message, .. } => {
                let reason = message.lines().next().unwrap_or_default().to_owned();
                Error::NoRoom { temporaries: first_size(&reason), reason }
            }
            other => Error::Pjrt(other),
        }
    }
}

/// The first size in a text, written as compilers do: `1.10T`, `30.75G`.
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
    fn compilers_say_how_much_is_missing() {
        let words = "CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for \
                     HLO temporaries (1.50T) exceeds available HBM (30.75G). HLO module: train_step.";
        assert_eq!(first_size(words), Some(3 << 39));
        assert_eq!(first_size("Ran out of memory. Used 40.00G of 30.75G hbm"), Some(40 << 30));
        assert_eq!(first_size("TOO MUCH"), None);
    }
}
