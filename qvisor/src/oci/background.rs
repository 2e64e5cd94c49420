//! Whether what the programs of a container of an image do not ask for is read ahead of use, as its
//! annotation and the command line say.

use std::collections::BTreeMap;

use anyhow::Result;

use super::annotation;

const ANNOTATION: &str = "io.quark.restore.background";

/// What `annotations` say, else the option.
///
/// # Errors
/// Names the annotation.
pub fn choose(annotations: &BTreeMap<String, String>, option: bool) -> Result<bool> {
    Ok(annotation::switch_in(annotations, ANNOTATION)?.unwrap_or(option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_annotation_goes_before_the_option() {
        let of = |value: &str, option| {
            choose(&BTreeMap::from([(ANNOTATION.into(), value.into())]), option)
        };
        assert!(of("true", false).unwrap() && !of("false", true).unwrap());
        assert!(choose(&BTreeMap::new(), true).unwrap());
        assert!(!choose(&BTreeMap::new(), false).unwrap());
        for bad in ["", "True", "1"] {
            let error = of(bad, true).unwrap_err().to_string();
            assert!(error.contains(ANNOTATION) && error.contains("false"), "{error}");
        }
    }
}
