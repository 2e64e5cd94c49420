//! What the shim reads of a bundle's `config.json`, and what it changes in it for pods.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

/// Kubernetes' name for the pod that a container belongs to. All containers with the same one share
/// a shim.
const POD: &str = "io.kubernetes.cri.sandbox-id";

/// quark's annotation of a pod's first container, and the option that it goes before: whether the
/// others share its kernel.
const SHARED: (&str, &str) = ("io.quark.pod", "--pod");

/// A bundle's configuration.
pub struct Config(Value);

impl Config {
    /// Reads it.
    ///
    /// # Errors
    /// When it is not there, or no JSON.
    pub fn read(bundle: &Path) -> Result<Self> {
        let path = bundle.join("config.json");
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        Ok(Self(serde_json::from_slice(&text).with_context(|| path.display().to_string())?))
    }

    /// The pod that the container belongs to.
    pub fn pod(&self) -> Option<&str> {
        self.0["annotations"][POD].as_str().filter(|id| !id.is_empty())
    }

    /// The host's name inside of it.
    pub fn hostname(&self) -> Option<&str> {
        self.0["hostname"].as_str().filter(|name| !name.is_empty())
    }

    /// Whether further containers of the pod that it begins share its kernel; `arguments` are
    /// quark's.
    pub fn is_shared(&self, arguments: &[String]) -> bool {
        let mut words = arguments.iter().enumerate().rev();
        let option = words.find_map(|(at, word)| match word.strip_prefix(SHARED.1)? {
            "" => arguments.get(at + 1).map(String::as_str),
            value => value.strip_prefix('='),
        });
        self.0["annotations"][SHARED.0].as_str().or(option) == Some("shared")
    }

    /// Turns what a container of a pod is to share with the others into what it can share. Each has
    /// its own kernel: of the namespaces of the pod it gets the network, and the host's name; IPC
    /// and processes are its own. The answer: what was changed, and whether the process namespace
    /// was to be shared.
    pub fn leave_pod(&mut self, hostname: Option<&str>) -> (bool, bool) {
        let (mut changed, mut processes) = (false, false);
        let namespaces = self.0["linux"]["namespaces"].as_array_mut();
        for namespace in namespaces.into_iter().flatten() {
            let kind = namespace["type"].as_str().unwrap_or_default().to_owned();
            if !matches!(kind.as_str(), "ipc" | "uts" | "pid") {
                continue;
            }
            let path = namespace.as_object_mut().and_then(|n| n.remove("path"));
            if path.is_some_and(|p| p.as_str().is_some_and(|p| !p.is_empty())) {
                changed = true;
                processes |= kind == "pid";
            }
        }
        if let (None, Some(name)) = (self.hostname(), hostname) {
            self.0["hostname"] = name.into();
            changed = true;
        }
        (changed, processes)
    }

    /// Writes it back, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, bundle: &Path) -> Result<()> {
        let (path, new) = (bundle.join("config.json"), bundle.join("config.json.new"));
        std::fs::write(&new, serde_json::to_vec(&self.0)?)
            .and_then(|()| std::fs::rename(&new, &path))
            .with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_keeps_only_the_network_of_its_pod() {
        let mut config = Config(serde_json::json!({
            "annotations": { "io.kubernetes.cri.sandbox-id": "pod" },
            "linux": { "namespaces": [
                { "type": "network", "path": "/proc/7/ns/net" }, { "type": "ipc", "path": "/proc/7/ns/ipc" },
                { "type": "uts", "path": "/proc/7/ns/uts" }, { "type": "pid" } ] },
        }));
        assert_eq!(config.pod(), Some("pod"));
        assert_eq!(config.leave_pod(Some("box")), (true, false));
        assert_eq!(
            config.0["linux"]["namespaces"],
            serde_json::json!([{ "type": "network", "path": "/proc/7/ns/net" }, { "type": "ipc" },
                { "type": "uts" }, { "type": "pid" }])
        );
        assert_eq!(config.hostname(), Some("box"));
        assert_eq!(config.leave_pod(Some("other")), (false, false));
    }

    #[test]
    fn the_first_container_says_whether_others_share_its_kernel() {
        let of =
            |kind: &str| Config(serde_json::json!({ "annotations": { "io.quark.pod": kind } }));
        let options = ["--debug".to_owned(), "--pod=shared".to_owned()];
        assert!(of("shared").is_shared(&[]));
        assert!(!of("separate").is_shared(&options));
        let silent = Config(serde_json::json!({}));
        assert!(silent.is_shared(&["--pod".to_owned(), "shared".to_owned()]));
        assert!(silent.is_shared(&options) && !silent.is_shared(&options[..1]));
    }

    #[test]
    fn shared_processes_are_told() {
        let mut config = Config(serde_json::json!({
            "linux": { "namespaces": [{ "type": "pid", "path": "/proc/7/ns/pid" }] } }));
        assert_eq!(config.leave_pod(None), (true, true));
        assert_eq!(config.pod(), None);
    }
}
