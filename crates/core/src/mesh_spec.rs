//! The mesh that a user asks for: the value of `--mesh`, such as `data=2,fsdp=-1`.

use crate::mesh::{Mesh, MeshError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Named axes with sizes, one of which may be the rest of the devices. The first varies slowest
/// over device ids, the last fastest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshSpec {
    axes: Vec<(String, Option<usize>)>,
}

/// A mesh that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeshSpecError {
    /// An axis that is not a name and a size.
    #[error("`{0}` is not an axis: write NAME=SIZE, such as data=2,fsdp=4; -1 is the rest")]
    BadAxis(String),
    /// More than one axis of the size -1.
    #[error("`{0}` and `{1}` are both -1: only one axis can be the rest of the devices")]
    TwoRests(String, String),
    /// Names or sizes that a mesh cannot have.
    #[error(transparent)]
    Mesh(#[from] MeshError),
    /// The axes do not make up the number of devices.
    #[error("a mesh of {spec} has {product} devices, but there are {devices}: {fix}")]
    Devices {
        /// The axes.
        spec: MeshSpec,
        /// The product of the sizes that are given.
        product: usize,
        /// The number of devices.
        devices: usize,
        /// What to change.
        fix: String,
    },
}

impl MeshSpec {
    /// Axes of known sizes.
    pub fn of(axes: &[(&str, usize)]) -> MeshSpec {
        let axes = axes.iter().map(|&(name, size)| (name.to_owned(), Some(size)));
        MeshSpec { axes: axes.collect() }
    }

    /// The axes and their sizes; none is the rest.
    pub fn axes(&self) -> impl Iterator<Item = (&str, Option<usize>)> {
        self.axes.iter().map(|(name, size)| (name.as_str(), *size))
    }

    /// The same axes, one of them with another size.
    pub fn with_size(mut self, axis: &str, size: usize) -> MeshSpec {
        for (_, old) in self.axes.iter_mut().filter(|(name, _)| name == axis) {
            *old = Some(size);
        }
        self
    }

    /// The number of devices, if no axis is the rest.
    pub fn devices(&self) -> Option<usize> {
        self.axes.iter().try_fold(1_usize, |devices, (_, size)| devices.checked_mul((*size)?))
    }

    /// The product of the sizes that are given.
    fn product(&self) -> usize {
        self.axes.iter().fold(1, |product, (_, size)| product.saturating_mul(size.unwrap_or(1)))
    }

    /// The mesh of a number of devices.
    pub fn resolve(&self, devices: usize) -> Result<Mesh, MeshSpecError> {
        let product = self.product();
        let rest = self.axes.iter().find(|(_, size)| size.is_none());
        let is_whole = match rest {
            Some(_) => product > 0 && devices.is_multiple_of(product) && devices > 0,
            None => product == devices,
        };
        if !is_whole {
            let fix = match rest {
                Some((name, _)) => format!("`{name}` would not be a whole number"),
                None => "change a size, or write -1 for the rest".to_owned(),
            };
            return Err(MeshSpecError::Devices { spec: self.clone(), product, devices, fix });
        }
        let size = |size: &Option<usize>| size.unwrap_or(devices / product.max(1));
        let axes: Vec<(&str, usize)> =
            self.axes.iter().map(|(name, given)| (name.as_str(), size(given))).collect();
        Ok(Mesh::new(&axes)?)
    }
}

impl fmt::Display for MeshSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let axis = |(name, size): &(String, Option<usize>)| match size {
            Some(size) => format!("{name}={size}"),
            None => format!("{name}=-1"),
        };
        f.write_str(&self.axes.iter().map(axis).collect::<Vec<_>>().join(","))
    }
}

impl FromStr for MeshSpec {
    type Err = MeshSpecError;

    fn from_str(text: &str) -> Result<MeshSpec, MeshSpecError> {
        let axis = |word: &str| -> Result<(String, Option<usize>), MeshSpecError> {
            let bad = || MeshSpecError::BadAxis(word.to_owned());
            let (name, size) = word.split_once('=').ok_or_else(bad)?;
            let size = match size.trim() {
                "-1" => None,
                size => Some(size.parse().map_err(|_| bad())?),
            };
            Ok((name.trim().to_owned(), size))
        };
        let axes =
            text.split(',').map(str::trim).map(axis).collect::<Result<Vec<_>, MeshSpecError>>()?;
        let mut rests = axes.iter().filter(|(_, size)| size.is_none());
        if let (Some((first, _)), Some((second, _))) = (rests.next(), rests.next()) {
            return Err(MeshSpecError::TwoRests(first.clone(), second.clone()));
        }
        let sizes: Vec<(&str, usize)> =
            axes.iter().map(|(name, size)| (name.as_str(), size.unwrap_or(1))).collect();
        Mesh::new(&sizes)?;
        Ok(MeshSpec { axes })
    }
}

impl Serialize for MeshSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MeshSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<MeshSpec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(text: &str, devices: usize) -> Result<Vec<(String, usize)>, String> {
        let spec: MeshSpec = text.parse().map_err(|error: MeshSpecError| error.to_string())?;
        assert_eq!(spec.to_string().parse(), Ok(spec.clone()));
        let mesh = spec.resolve(devices).map_err(|error| error.to_string())?;
        Ok(mesh.axes().map(|(name, size)| (name.to_owned(), size)).collect())
    }

    #[test]
    fn the_rest_fills_up_the_devices() {
        let axes = |a, b| Ok(vec![("data".to_owned(), a), ("fsdp".to_owned(), b)]);
        assert_eq!(resolve("data=2,fsdp=4", 8), axes(2, 4));
        assert_eq!(resolve("data=2, fsdp=-1", 6), axes(2, 3));
        assert_eq!(resolve("data=-1,fsdp=1", 1), axes(1, 1));
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, devices, expected) in [
            ("data", 8, "`data` is not an axis: write NAME=SIZE"),
            ("", 8, "is not an axis"),
            ("data=x", 8, "`data=x` is not an axis"),
            ("data=-2", 8, "`data=-2` is not an axis"),
            ("data=-1,fsdp=-1", 8, "`data` and `fsdp` are both -1"),
            ("data=2,data=4", 8, "`data` is repeated"),
            ("data=0,fsdp=4", 8, "`data` has size 0"),
            ("da ta=2", 8, "letters, digits"),
            ("data=2,fsdp=2", 8, "has 4 devices, but there are 8: change a size"),
            ("data=3,fsdp=-1", 8, "`fsdp` would not be a whole number"),
            ("data=99999999999999999999", 8, "is not an axis"),
            ("data=9999999999,fsdp=9999999999", 8, "the maximum is"),
        ] {
            let error = resolve(text, devices).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
