//! Which AF_UNIX sockets in volumes a container reaches, as its annotation and the command line
//! say.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use clap::ValueEnum;

use crate::sandbox::hostcall::uds::HostUds;

const ANNOTATION: &str = "io.quark.host-uds";

/// What `annotations` say, else the option.
///
/// # Errors
/// Names the annotation.
pub fn choose(annotations: &BTreeMap<String, String>, option: HostUds) -> Result<HostUds> {
    let Some(value) = annotations.get(ANNOTATION) else { return Ok(option) };
    HostUds::from_str(value, false).map_err(|_| {
        anyhow!(
            "annotation {ANNOTATION} is {value:?}: write \"none\", \"open\", \"create\" or \"all\""
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_goes_before_the_option() {
        let of = |value: &str| {
            choose(&BTreeMap::from([(ANNOTATION.into(), value.into())]), HostUds::Open)
        };
        assert_eq!(of("all").unwrap(), HostUds::All);
        assert_eq!(of("none").unwrap(), HostUds::None);
        assert_eq!(choose(&BTreeMap::new(), HostUds::Create).unwrap(), HostUds::Create);
        for bad in ["", "Open", "both", "open,create"] {
            let error = of(bad).unwrap_err().to_string();
            assert!(error.contains(ANNOTATION) && error.contains("create"), "{error}");
        }
    }
}
