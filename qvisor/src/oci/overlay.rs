//! Where a container writes what it writes to its root, as its annotation and the command line say.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

const ANNOTATION: &str = "io.quark.overlay";

/// What lies over file systems of the host, in guest memory, and takes what is written there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Overlay {
    /// Nothing: the host has what is written.
    #[default]
    None,
    /// A layer over the root, which goes with the container, sleeps with it, and is part of its
    /// images.
    Root,
}

impl Overlay {
    /// What `annotations` say, else the option.
    ///
    /// # Errors
    /// Names the annotation.
    pub fn choose(annotations: &BTreeMap<String, String>, option: Overlay) -> Result<Overlay> {
        let Some(value) = annotations.get(ANNOTATION) else { return Ok(option) };
        Overlay::from_str(value, false).map_err(|_| {
            anyhow!("annotation {ANNOTATION} is {value:?}: write \"none\" or \"root\"")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_goes_before_the_option() {
        let of = |value: &str| {
            Overlay::choose(&BTreeMap::from([(ANNOTATION.into(), value.into())]), Overlay::Root)
        };
        assert_eq!(of("root").unwrap(), Overlay::Root);
        assert_eq!(of("none").unwrap(), Overlay::None);
        assert_eq!(Overlay::choose(&BTreeMap::new(), Overlay::Root).unwrap(), Overlay::Root);
        for bad in ["", "Root", "all"] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains(ANNOTATION) && error.contains("root"), "{error}");
        }
    }
}
