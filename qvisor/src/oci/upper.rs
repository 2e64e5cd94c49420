//! Where a container writes what it writes to its root, as its annotation and the command line say.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use qlib::control::RootLayer;

use super::cli;

const ANNOTATION: &str = "io.quark.rootfs.upper";
const SIZE_ANNOTATION: &str = "io.quark.rootfs.size";

/// Where the upper layer of a root lies, which takes what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Upper {
    /// There is none: the host has what is written.
    #[default]
    Host,
    /// In guest memory: it goes with the container, sleeps with it, and is part of its images.
    Memory,
    /// The same in the container's store on disk, and in guest memory what was used last of it.
    Disk,
}

impl Upper {
    /// The layer that `annotations` tell of, else the options: where it is, and its size in bytes
    /// (0: as if nobody said).
    ///
    /// # Errors
    /// Names the annotation.
    pub fn choose(
        annotations: &BTreeMap<String, String>,
        option: Upper,
        option_bytes: Option<u64>,
    ) -> Result<Option<RootLayer>> {
        let upper = match annotations.get(ANNOTATION) {
            None => option,
            Some(value) => Upper::from_str(value, false).map_err(|_| {
                let all = "write \"host\", \"memory\" or \"disk\"";
                anyhow!("annotation {ANNOTATION} is {value:?}: {all}")
            })?,
        };
        let limit_bytes = match annotations.get(SIZE_ANNOTATION) {
            None => option_bytes.unwrap_or(0),
            Some(value) => size(value).with_context(|| format!("annotation {SIZE_ANNOTATION}"))?,
        };
        let is_on_disk = upper == Upper::Disk;
        Ok((upper != Upper::Host).then_some(RootLayer { is_on_disk, limit_bytes }))
    }
}

/// A size, in bytes.
///
/// # Errors
/// It is none.
pub fn size(text: &str) -> Result<u64> {
    let bytes = cli::bytes(text).map_err(|e| anyhow!("{text:?} is no size: {e}"))?;
    let bytes = u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    bytes.with_context(|| format!("{text:?} is no size: it must be more than 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_goes_before_the_option() {
        let annotations = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let of =
            |pairs: &[(&str, &str)]| Upper::choose(&annotations(pairs), Upper::Memory, Some(7));
        let layer = |is_on_disk, limit_bytes| Some(RootLayer { is_on_disk, limit_bytes });
        assert_eq!(of(&[]).unwrap(), layer(false, 7));
        assert_eq!(of(&[(ANNOTATION, "memory")]).unwrap(), layer(false, 7));
        assert_eq!(of(&[(ANNOTATION, "disk")]).unwrap(), layer(true, 7));
        assert_eq!(of(&[(ANNOTATION, "host")]).unwrap(), None);
        assert_eq!(of(&[(SIZE_ANNOTATION, "2G")]).unwrap(), layer(false, 2 << 30));
        for bad in ["", "Memory", "disc"] {
            let error = of(&[(ANNOTATION, bad)]).unwrap_err().to_string();
            assert!(error.contains(ANNOTATION) && error.contains("memory"), "{error}");
        }
        for bad in ["", "0", "-1", "1X"] {
            let error = format!("{:#}", of(&[(SIZE_ANNOTATION, bad)]).unwrap_err());
            assert!(error.contains(SIZE_ANNOTATION), "{error}");
        }
    }
}
