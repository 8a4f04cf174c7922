//! PyTorch/XLA's sharding groups, as a mesh with replicas.
//!
//! There, parameters are sharded within each group of devices, and it is up to the caller to reduce
//! gradients across groups. Here the groups are the mesh axis `fsdp` and its replicas are `data`,
//! and gradients are reduced over both.

use super::error::FsdpConfigError;
use super::keys::{Keys, integer};
use super::settings::Settings;
use crate::rules::FSDP;
use fullshard_core::MeshSpec;
use serde_json::Value;

/// The mesh axis of replicas.
const DATA: &str = "data";

const GROUPS: &str =
    "lists of device numbers, such as [[0, 1], [2, 3]], each device in one of them";

impl Settings {
    /// Reads the settings of groups.
    pub(super) fn read_groups(&mut self, keys: &mut Keys) -> Result<(), FsdpConfigError> {
        self.sharding_groups = keys.read("sharding_groups", GROUPS, groups)?;
        self.sharding_rank = keys.read("sharding_rank", "a device number", integer)?;
        let size = keys.read("sharding_world_size", "a number of devices", integer)?;
        self.sharding_world_size = size;
        let bad = |key: &str, found: usize, expected| FsdpConfigError::BadValue {
            key: format!("xla_fsdp_settings.{key}"),
            found: found.to_string(),
            expected,
        };
        let of_groups = self.sharding_groups.as_ref().map(|groups| groups[0].len());
        match (of_groups, size) {
            (Some(of_groups), Some(size)) if of_groups != size => {
                return Err(bad("sharding_world_size", size, "the number of devices in a group"));
            }
            (_, Some(0)) => return Err(bad("sharding_world_size", 0, "at least 1")),
            _ => {}
        }
        match (self.sharding_rank, of_groups.or(size)) {
            (Some(rank), Some(size)) if rank >= size => {
                Err(bad("sharding_rank", rank, "below the number of devices that shard together"))
            }
            _ => Ok(()),
        }
    }

    /// The mesh of the sharding groups, if there are any: `data=2,fsdp=4` for groups of four
    /// neighbors, `fsdp=4,data=2` for groups of every second device.
    pub fn group_mesh(&self, devices: usize) -> Result<Option<MeshSpec>, FsdpConfigError> {
        let Some(groups) = &self.sharding_groups else {
            return match self.sharding_world_size {
                Some(size) if !devices.is_multiple_of(size) => Err(FsdpConfigError::BadValue {
                    key: "xla_fsdp_settings.sharding_world_size".to_owned(),
                    found: format!("{size}, for {devices} devices"),
                    expected: "a divisor of the number of devices",
                }),
                Some(size) => Ok(Some(MeshSpec::of(&[(DATA, devices / size), (FSDP, size)]))),
                None => Ok(None),
            };
        };
        let size = groups[0].len();
        let count = groups.len();
        let mut sorted: Vec<&Vec<usize>> = groups.iter().collect();
        sorted.sort();
        let is_grid = |stride: usize, first: usize| {
            let mut members = sorted.iter().enumerate();
            members.all(|(group, members)| {
                let mut members = members.iter().enumerate();
                members.all(|(i, &device)| device == group * first + i * stride)
            })
        };
        match () {
            () if size * count != devices => Err(bad_groups(groups, devices)),
            () if is_grid(1, size) => Ok(Some(MeshSpec::of(&[(DATA, count), (FSDP, size)]))),
            () if is_grid(count, 1) => Ok(Some(MeshSpec::of(&[(FSDP, size), (DATA, count)]))),
            () => Err(bad_groups(groups, devices)),
        }
    }
}

fn bad_groups(groups: &[Vec<usize>], devices: usize) -> FsdpConfigError {
    FsdpConfigError::BadValue {
        key: "xla_fsdp_settings.sharding_groups".to_owned(),
        found: format!("{groups:?}, for {devices} devices"),
        expected: "groups of equal size that hold every device once, of neighbors such as \
                   [[0, 1], [2, 3]] or at equal distances such as [[0, 2], [1, 3]]",
    }
}

/// Groups of equal size, at least one, in which no device is repeated.
fn groups(value: &Value) -> Option<Vec<Vec<usize>>> {
    let group = |value: &Value| value.as_array()?.iter().map(integer).collect::<Option<Vec<_>>>();
    let groups: Vec<Vec<usize>> = value.as_array()?.iter().map(group).collect::<Option<_>>()?;
    let size = groups.first()?.len();
    let mut devices: Vec<usize> = groups.concat();
    devices.sort_unstable();
    let repeated = devices.windows(2).any(|pair| pair[0] == pair[1]);
    (size > 0 && groups.iter().all(|group| group.len() == size) && !repeated).then_some(groups)
}

#[cfg(test)]
mod tests {
    use crate::config::FsdpConfig;

    fn mesh(settings: &str, devices: usize) -> Result<Option<String>, String> {
        let config = FsdpConfig::from_json(&format!(r#"{{"xla_fsdp_settings": {settings}}}"#));
        let settings = config.map_err(|error| error.to_string())?.settings;
        let mesh = settings.group_mesh(devices).map_err(|error| error.to_string())?;
        Ok(mesh.map(|mesh| mesh.to_string()))
    }

    #[test]
    fn groups_become_a_mesh() {
        for (settings, expected) in [
            (r#"{"sharding_groups": [[0, 1], [2, 3]]}"#, Some("data=2,fsdp=2")),
            (r#"{"sharding_groups": [[2, 3], [0, 1]], "sharding_rank": 1}"#, Some("data=2,fsdp=2")),
            (r#"{"sharding_groups": [[0, 2], [1, 3]]}"#, Some("fsdp=2,data=2")),
            (
                r#"{"sharding_groups": [[0, 1, 2, 3]], "sharding_world_size": 4}"#,
                Some("data=1,fsdp=4"),
            ),
            (r#"{"sharding_world_size": 2}"#, Some("data=2,fsdp=2")),
            ("{}", None),
        ] {
            assert_eq!(mesh(settings, 4), Ok(expected.map(str::to_owned)), "{settings}");
        }
    }

    #[test]
    fn rejects_other_groups() {
        for (settings, expected) in [
            (r#"{"sharding_groups": [[0, 1], [2]]}"#, "sharding_groups"),
            (r#"{"sharding_groups": []}"#, "sharding_groups"),
            (r#"{"sharding_groups": [[]]}"#, "sharding_groups"),
            (r#"{"sharding_groups": [[0, 1], [1, 2]]}"#, "sharding_groups"),
            (r#"{"sharding_groups": [[0, 3], [1, 2]]}"#, "equal distances"),
            (r#"{"sharding_groups": [[0, 1]]}"#, "for 4 devices"),
            (r#"{"sharding_groups": [[0, 1], [2, 3]], "sharding_world_size": 4}"#, "in a group"),
            (r#"{"sharding_groups": [[0, 1], [2, 3]], "sharding_rank": 2}"#, "sharding_rank"),
            (r#"{"sharding_world_size": 3}"#, "a divisor"),
            (r#"{"sharding_world_size": 0}"#, "at least 1"),
        ] {
            let error = mesh(settings, 4).unwrap_err();
            assert!(error.contains(expected), "{settings}: {error}");
        }
    }
}
