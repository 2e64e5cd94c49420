//! How containerd's configuration says which `quark` to call, and with what options.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{CodedInputStream, Message};
use containerd_shim_protos::shim::oci;
use serde::{Deserialize, Serialize};

/// Where the state of containers is, below it a directory for each namespace of containerd.
const ROOT: &str = "/run/containerd/quark";

/// A bundle's file with the options that its container was made with, for those who come later.
const FILE: &str = "quark-options.json";

/// How `quark` is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The program.
    pub binary: PathBuf,
    /// The state directory.
    pub root: PathBuf,
    /// Further options, before the name of the command.
    pub arguments: Vec<String>,
}

/// The file that `ConfigPath` names in containerd's configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(rename = "BinaryName", default)]
    binary_name: String,
    #[serde(rename = "Root", default)]
    root: String,
    #[serde(rename = "Arguments", default)]
    arguments: Vec<String>,
}

impl Options {
    /// From the options of a container, for containers of a namespace.
    ///
    /// # Errors
    /// When they cannot be understood, or there is no `quark`.
    pub fn resolve(options: Option<&Any>, namespace: &str) -> Result<Self> {
        let mut config = Config::default();
        if let Some(any) = options {
            // With containerd 2.3 the name stands behind a host, as protobuf has it.
            match any.type_url.rsplit('/').next().unwrap_or_default() {
                // `ctr`, and whoever else takes every runtime for runc.
                "containerd.runc.v1.Options" => config = Config::from_runc(&any.value)?,
                "runtimeoptions.v1.Options" | "cri.runtimeoptions.v1.Options" => {
                    config = Config::from_cri(&any.value)?;
                }
                // Other runtimes' options say nothing about this one.
                _ => {}
            }
        }
        let root = if config.root.is_empty() { ROOT } else { &config.root };
        Ok(Self {
            binary: find(&config.binary_name)?,
            root: Path::new(root).join(namespace),
            arguments: config.arguments,
        })
    }

    /// Those that the container of a bundle was made with.
    ///
    /// # Errors
    /// When there are none: no container was made.
    pub fn load(bundle: &Path) -> Result<Self> {
        let path = bundle.join(FILE);
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| path.display().to_string())
    }

    /// Keeps them in a bundle.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn save(&self, bundle: &Path) -> Result<()> {
        let path = bundle.join(FILE);
        std::fs::write(&path, serde_json::to_vec(self)?).with_context(|| path.display().to_string())
    }
}

/// What is to become of a container that is saved: runc's options of a checkpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// It ends.
    pub exit: bool,
    /// The directory of the image, if the request itself names none; empty for none.
    pub path: PathBuf,
}

impl Checkpoint {
    /// From the options of a request. Those that are CRIU's mean nothing here.
    ///
    /// # Errors
    /// When they cannot be understood.
    pub fn resolve(options: Option<&Any>) -> Result<Self> {
        let Some(any) = options.filter(|any| !any.type_url.is_empty()) else {
            return Ok(Self::default());
        };
        match any.type_url.rsplit('/').next().unwrap_or_default() {
            "containerd.runc.v1.CheckpointOptions" => {
                let options = oci::CheckpointOptions::parse_from_bytes(&any.value);
                let options = options.context("the options of the checkpoint")?;
                Ok(Self { exit: options.exit, path: options.image_path.into() })
            }
            other => bail!("options of a checkpoint of an unknown kind: {other:?}"),
        }
    }
}

impl Config {
    fn from_runc(value: &[u8]) -> Result<Self> {
        let options = oci::Options::parse_from_bytes(value).context("the runtime's options")?;
        let mut arguments = Vec::new();
        if options.systemd_cgroup {
            // Refused by quark, with what to do.
            arguments.push("--systemd-cgroup".to_owned());
        }
        Ok(Self { binary_name: options.binary_name, root: options.root, arguments })
    }

    /// `runtimeoptions.v1.Options`, which containerd's CRI plugin gives to runtimes that it does
    /// not know: `type_url` (1), `config_path` (2), `config_body` (3).
    fn from_cri(value: &[u8]) -> Result<Self> {
        let (mut path, mut body) = (String::new(), Vec::new());
        let mut input = CodedInputStream::from_bytes(value);
        while let Some(tag) = input.read_raw_tag_or_eof().context("the runtime's options")? {
            match tag >> 3 {
                2 => path = input.read_string()?,
                3 => body = input.read_bytes()?,
                _ => input.read_bytes().map(drop)?,
            }
        }
        if body.is_empty() && !path.is_empty() {
            body = std::fs::read(&path).with_context(|| format!("ConfigPath {path:?}"))?;
        }
        let text = std::str::from_utf8(&body).context("the runtime's configuration")?;
        toml::from_str(text).with_context(|| {
            let name = if path.is_empty() { "the runtime's configuration" } else { &path };
            format!("{name} may have BinaryName, Root and Arguments")
        })
    }
}

/// The `quark` that is meant: a path, a name in PATH, or the one beside this program.
fn find(name: &str) -> Result<PathBuf> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let beside = || {
        let own = std::env::current_exe().ok()?;
        Some(own.parent()?.join("quark")).filter(|p| p.is_file())
    };
    if let Some(path) = name.is_empty().then(beside).flatten() {
        return Ok(path);
    }
    let name = if name.is_empty() { "quark" } else { name };
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()).with_context(
        || format!("there is no {name} in containerd's PATH, nor beside containerd-shim-quark-v1"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(name: &str, value: Vec<u8>) -> Any {
        Any { type_url: name.to_owned(), value, ..Any::new() }
    }

    #[test]
    fn options_of_runc_are_understood() {
        let options = oci::Options {
            binary_name: "/opt/quark".into(),
            root: "/run/x".into(),
            systemd_cgroup: true,
            ..oci::Options::new()
        };
        let any = any("containerd.runc.v1.Options", options.write_to_bytes().unwrap());
        let expected = Options {
            binary: "/opt/quark".into(),
            root: "/run/x/space".into(),
            arguments: vec!["--systemd-cgroup".into()],
        };
        assert_eq!(Options::resolve(Some(&any), "space").unwrap(), expected);
    }

    #[test]
    fn a_configuration_file_is_understood() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("quark.toml");
        std::fs::write(&path, "BinaryName = \"/q\"\nArguments = [\"--hibernate-after=30s\"]\n")
            .unwrap();
        let name = path.to_str().unwrap();
        let mut value = vec![0x0a, 1, b't', 0x12, u8::try_from(name.len()).unwrap()];
        value.extend(name.as_bytes());
        let options =
            Options::resolve(Some(&any("x/runtimeoptions.v1.Options", value.clone())), "n");
        let expected = Options {
            binary: "/q".into(),
            root: "/run/containerd/quark/n".into(),
            arguments: vec!["--hibernate-after=30s".into()],
        };
        assert_eq!(options.unwrap(), expected);
        std::fs::write(&path, "Binary = \"/q\"\n").unwrap();
        let error =
            Options::resolve(Some(&any("runtimeoptions.v1.Options", value)), "n").unwrap_err();
        assert!(error.to_string().contains("may have BinaryName, Root and Arguments"), "{error}");
    }

    #[test]
    fn options_of_a_checkpoint_are_understood() {
        let options = oci::CheckpointOptions {
            exit: true,
            image_path: "/image".into(),
            work_path: "/work".into(),
            open_tcp: true,
            ..oci::CheckpointOptions::new()
        };
        let any = any("x/containerd.runc.v1.CheckpointOptions", options.write_to_bytes().unwrap());
        let expected = Checkpoint { exit: true, path: "/image".into() };
        assert_eq!(Checkpoint::resolve(Some(&any)).unwrap(), expected);
        assert_eq!(Checkpoint::resolve(None).unwrap(), Checkpoint::default());
        assert_eq!(Checkpoint::resolve(Some(&Any::new())).unwrap(), Checkpoint::default());
        let other = Any { type_url: "some.Options".to_owned(), ..Any::new() };
        let error = Checkpoint::resolve(Some(&other)).unwrap_err().to_string();
        assert_eq!(error, "options of a checkpoint of an unknown kind: \"some.Options\"");
    }

    #[test]
    fn they_are_found_again_in_the_bundle() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { binary: "/q".into(), root: "/r".into(), arguments: Vec::new() };
        options.save(dir.path()).unwrap();
        assert_eq!(Options::load(dir.path()).unwrap(), options);
    }
}
