//! Annotations whose value is "true" or "false".

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// What the value of the annotation `name` says.
///
/// # Errors
/// Names the annotation.
pub fn switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => bail!("annotation {name} is {value:?}: write \"true\" or \"false\""),
    }
}

/// What `annotations` say, if they have one of this name.
///
/// # Errors
/// Names the annotation.
pub fn switch_in(annotations: &BTreeMap<String, String>, name: &str) -> Result<Option<bool>> {
    annotations.get(name).map(|value| switch(name, value)).transpose()
}
