//! Where a container writes what it writes to its root, as its annotation and the command line say.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use clap::ValueEnum;

const ANNOTATION: &str = "io.quark.rootfs.upper";

/// Where the upper layer of a root lies, which takes what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Upper {
    /// There is none: the host has what is written.
    #[default]
    Host,
    /// In guest memory: it goes with the container, sleeps with it, and is part of its images.
    Memory,
}

impl Upper {
    /// What `annotations` say, else the option.
    ///
    /// # Errors
    /// Names the annotation.
    pub fn choose(annotations: &BTreeMap<String, String>, option: Upper) -> Result<Upper> {
        let Some(value) = annotations.get(ANNOTATION) else { return Ok(option) };
        let wrong =
            || anyhow!("annotation {ANNOTATION} is {value:?}: write \"host\" or \"memory\"");
        Upper::from_str(value, false).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_goes_before_the_option() {
        let of = |value: &str| {
            Upper::choose(&BTreeMap::from([(ANNOTATION.into(), value.into())]), Upper::Memory)
        };
        assert_eq!(of("memory").unwrap(), Upper::Memory);
        assert_eq!(of("host").unwrap(), Upper::Host);
        assert_eq!(Upper::choose(&BTreeMap::new(), Upper::Memory).unwrap(), Upper::Memory);
        for bad in ["", "Memory", "disk"] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains(ANNOTATION) && error.contains("memory"), "{error}");
        }
    }
}
