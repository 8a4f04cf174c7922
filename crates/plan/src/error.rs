//! What can go wrong while planning.

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such machine.
    #[error(transparent)]
    Machine(#[from] crate::machine::MachineError),
    /// The recipe is for another number of devices than the machine has.
    #[error("the step is for {recipe} devices, but {machine} has {devices}")]
    Devices {
        /// Devices of the recipe.
        recipe: usize,
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
    /// The compiler cannot make it fit, and does not say by how much.
    #[error("the compiler finds no room for it: {reason}")]
    NoRoom {
        /// What it says.
        reason: String,
    },
    /// Something about the plugin or the compiler.
    #[error(transparent)]
    Pjrt(#[from] fullshard_pjrt::Error),
    /// Something about the recipe.
    #[error(transparent)]
    Train(#[from] fullshard_train::Error),
}
