//! Structs of tensors with a fixed order, like JAX pytrees.
//!
//! Inputs and outputs of a program are flat lists; the code around it uses names. An [`Ordered`]
//! struct is both: its one required method visits the fields in order, and everything else follows
//! from that. The same struct holds types, shardings, traced tensors or arrays on devices.

/// A struct of `T`s in a fixed order, such as the arguments of a program.
pub trait Ordered<T>: Sized {
    /// The same struct of another type.
    type Of<U>: Ordered<U>;

    /// Maps each value, in order, with a function that can fail.
    fn try_map<'a, U, E>(
        &'a self,
        change: impl FnMut(&'a T) -> Result<U, E>,
    ) -> Result<Self::Of<U>, E>
    where
        T: 'a;

    /// Maps each value, in order.
    fn map<'a, U>(&'a self, mut change: impl FnMut(&'a T) -> U) -> Self::Of<U>
    where
        T: 'a,
    {
        let Ok(changed) = self.try_map(|value| Ok::<U, std::convert::Infallible>(change(value)));
        changed
    }

    /// The same struct of references.
    fn each_ref(&self) -> Self::Of<&T> {
        self.map(|value| value)
    }

    /// The number of values.
    fn count(&self) -> usize {
        let mut count = 0;
        self.map(|_| count += 1);
        count
    }

    /// The position of each value in the flat list.
    fn positions(&self) -> Self::Of<usize> {
        let mut next = 0;
        self.map(|_| {
            next += 1;
            next - 1
        })
    }

    /// The values as a flat list.
    fn flatten(&self) -> Vec<T>
    where
        T: Clone,
    {
        let mut values = Vec::new();
        self.map(|value| values.push(value.clone()));
        values
    }

    /// The same struct from the values of a flat list.
    fn unflatten<U>(&self, values: Vec<U>) -> Result<Self::Of<U>, CountMismatch> {
        let mismatch = CountMismatch { found: values.len(), expected: self.count() };
        if mismatch.found != mismatch.expected {
            return Err(mismatch);
        }
        let mut values = values.into_iter();
        self.try_map(|_| values.next().ok_or(mismatch))
    }

    /// Each value with the one at its position in another such struct.
    fn zip<'a, U>(
        &'a self,
        other: &'a Self::Of<U>,
    ) -> Result<Self::Of<(&'a T, &'a U)>, CountMismatch> {
        let (values, others) = (self.each_ref().flatten(), other.each_ref().flatten());
        match (others.len(), values.len()) {
            (found, expected) if found != expected => Err(CountMismatch { found, expected }),
            _ => self.unflatten(values.into_iter().zip(others).collect()),
        }
    }
}

/// A flat list whose length does not match its struct.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{found} tensors were given where {expected} are expected")]
pub struct CountMismatch {
    /// The number of tensors given.
    pub found: usize,
    /// The number expected.
    pub expected: usize,
}

impl<T> Ordered<T> for Vec<T> {
    type Of<U> = Vec<U>;

    fn try_map<'a, U, E>(&'a self, change: impl FnMut(&'a T) -> Result<U, E>) -> Result<Vec<U>, E> {
        self.iter().map(change).collect()
    }
}
