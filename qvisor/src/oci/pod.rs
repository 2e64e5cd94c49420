//! Pods: whether containers of one share a kernel, and what a container takes over from the first
//! one of its pod, as the annotations of Kubernetes' runtime interface (CRI) say.
//!
//! By default each has a guest kernel of its own, and what containers of a pod share by a namespace
//! on a host is given to each. Those of a *shared* pod have the guest kernel of the first one
//! ([`super::member`]).

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use oci_spec::runtime::{LinuxNamespaceType, Spec};
use qlib::control::{FurtherNamespaces, Whose};

use super::bundle::{self, Bundle};
use super::rootless;
use super::state::{Entry, State, Status, Store};
use crate::sys::is_same_file;

/// Whether further containers of a pod share the kernel of its first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Pod {
    /// Each has its own.
    #[default]
    Separate,
    /// They share it.
    Shared,
}

/// The annotation of a pod's first container that says so.
const KIND: &str = "io.quark.pod";

impl Pod {
    /// What `annotations` say, else the option.
    ///
    /// # Errors
    /// Names the annotation.
    pub fn choose(annotations: &BTreeMap<String, String>, option: Pod) -> Result<Pod> {
        let Some(value) = annotations.get(KIND) else { return Ok(option) };
        match Pod::from_str(value, false) {
            Ok(pod) => Ok(pod),
            Err(_) => {
                bail!("annotation {KIND} is {value:?}: write \"separate\" or \"shared\"")
            }
        }
    }
}

/// The annotation that names the sandbox of a pod's container.
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";

/// The sandbox that `bundle`, which becomes container `id`, says it belongs to, unless it is that
/// itself.
fn sandbox_of(bundle: &Bundle, id: &str) -> Option<String> {
    bundle.annotations().remove(SANDBOX).filter(|sandbox| sandbox != id)
}

/// The first container of the pod that `bundle`, which becomes container `id`, belongs to, if it is
/// one that shares its kernel.
pub fn first_of(bundle: &Bundle, id: &str, store: &Store) -> Option<(Entry, State)> {
    store.load(&sandbox_of(bundle, id)?).ok().filter(|(_, state)| state.is_shared)
}

/// The status of a container: one is paused when the first one of its pod is, whose kernel it
/// shares.
pub fn status(state: &State, store: &Store) -> Status {
    shown(state.status(), state, store)
}

/// The same of one that has status `own` by itself.
pub fn shown(own: Status, state: &State, store: &Store) -> Status {
    match own {
        Status::Running if is_held(state, store) => Status::Paused,
        own => own,
    }
}

/// True if the first container of its pod, whose kernel it shares, is paused.
pub fn is_held(state: &State, store: &Store) -> bool {
    let first = state.pod.as_ref().and_then(|first| store.load(first).ok());
    first.is_some_and(|(_, first)| first.status() == Status::Paused)
}

/// What a further container finds the sandbox of its pod by.
#[derive(Debug)]
pub struct Joined {
    /// The first container's directory.
    pub entry: Entry,
    /// Its state.
    pub state: State,
    /// The mount namespace of the sandbox process.
    pub mounts: OwnedFd,
    /// Its user namespace, if it has one of its own.
    pub users: Option<OwnedFd>,
    /// Whose namespaces the container is in.
    pub namespaces: FurtherNamespaces,
}

impl Joined {
    /// Finds it, for a container that is to be made of `bundle`.
    ///
    /// # Errors
    /// When the first container does not run, or the configuration asks for something else than it
    /// has.
    pub fn new((entry, state): (Entry, State), bundle: &Bundle, store: &Store) -> Result<Joined> {
        let first = &state.id;
        if rootless::is_needed() {
            bail!("containers of ordinary users cannot share a kernel: make pod {first} separate");
        }
        match state.status() {
            Status::Running => {}
            Status::Paused => bail!("pod {first} is paused: resume its first container"),
            other => bail!(
                "the first container of pod {first} is {}, and has to run before others are made",
                other.name()
            ),
        }
        let dir = format!("/proc/{}/ns", state.pid);
        let open = |name: &str| -> Result<OwnedFd> {
            let path = format!("{dir}/{name}");
            Ok(std::fs::File::open(&path).with_context(|| path)?.into())
        };
        let mounts = open("mnt")?;
        let own_users = Path::new("/proc/self/ns/user");
        let users = if is_same_file(Path::new(&format!("{dir}/user")), own_users)? {
            None
        } else {
            Some(open("user")?)
        };
        let namespaces = namespaces(bundle, &state, Path::new(&dir), store)?;
        if let Some((name, _)) = of(&bundle.spec).first_key_value() {
            bail!(
                "sysctl {name} is the pod's, whose kernel the container shares: give it to {first}"
            );
        }
        // Not until here is it certain whose these are.
        if state.sandbox()?.is_none() {
            bail!("the first container of pod {first} has ended");
        }
        Ok(Joined { entry, state, mounts, users, namespaces })
    }
}

/// The number of the further container of the pod of `first` that `path` names a namespace of, as
/// `/proc/PID/ns/NAME` with the process that stands for it: to the host that process has the
/// namespaces of others.
fn named(path: &Path, name: &str, first: &State, store: &Store) -> Option<u32> {
    let text = path.to_str()?.strip_prefix("/proc/")?.strip_suffix(name)?.strip_suffix("/ns/")?;
    let pid: i32 = text.parse().ok().filter(|pid| *pid != first.pid)?;
    // Not "+7", nor "007": there is no such file.
    if pid.to_string() != text {
        return None;
    }
    let is_it = |state: &State| {
        state.pid == pid
            && state.pod.as_ref() == Some(&first.id)
            && state.status() == Status::Running
    };
    let found = store.list().ok()?.into_iter().find(|(_, state)| is_it(state));
    found.map(|(_, state)| state.process.container)
}

/// Whose namespaces a container is in, in the pod of `first`, whose sandbox process has those in
/// `dir`. What it joins must be there.
fn namespaces(
    bundle: &Bundle,
    first: &State,
    dir: &Path,
    store: &Store,
) -> Result<FurtherNamespaces> {
    let mut whose = FurtherNamespaces::default();
    let mut has_network = false;
    for namespace in bundle.namespaces() {
        let (name, place) = match namespace.typ() {
            LinuxNamespaceType::Ipc => ("ipc", Some(&mut whose.ipc)),
            LinuxNamespaceType::Pid => ("pid", Some(&mut whose.pid)),
            LinuxNamespaceType::Uts => ("uts", Some(&mut whose.uts)),
            LinuxNamespaceType::Network => {
                has_network = true;
                ("net", None)
            }
            // Those of mounts and cgroups are its own in any case.
            _ => continue,
        };
        let path = namespace.path().as_ref().filter(|p| !p.as_os_str().is_empty());
        let other = path.and_then(|path| named(path, name, first, store));
        match (path, place) {
            (None, Some(whose)) => *whose = Whose::Own,
            (Some(_), Some(whose)) if let Some(other) = other => *whose = Whose::Of(other),
            (Some(path), _) if other.is_some() || is_same_file(path, &dir.join(name))? => {}
            _ => bail!(
                "linux.namespaces has another {name} namespace than the pod: its containers share \
                a kernel, so give the path of that of the pod's sandbox process, {}/{name}, or of \
                the process of another of its containers",
                dir.display()
            ),
        }
    }
    if !has_network && !is_same_file(Path::new("/proc/self/ns/net"), &dir.join("net"))? {
        bail!(
            "the container is to have the host's network, and pod {}, whose kernel it shares, has \
            not",
            first.id
        );
    }
    Ok(whose)
}

/// Refuses of a container whose kernel others share what is for all of them.
///
/// # Errors
/// Names the first container, of which it can be asked, if this is another.
pub fn check_first(state: &State, what: &str) -> Result<()> {
    match &state.pod {
        Some(first) => bail!(
            "container {} shares the kernel of pod {first}, which can only be {what} as a whole: \
            use {first}",
            state.id
        ),
        None => Ok(()),
    }
}

/// The settings of System V IPC and POSIX message queues, which belong to an IPC namespace
/// (ipc_namespaces(7)).
const OF_IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// The sysctl settings of container `id`, with those of its pod that a namespace of the host would
/// bring. The network's are in the network namespace, which it shares indeed.
pub fn settings(bundle: &Bundle, id: &str, store: &Store) -> Vec<(String, String)> {
    let mut all = of(&bundle.spec);
    if let Some(sandbox) = sandbox_of(bundle, id)
        && let Ok((_, state)) = store.load(&sandbox)
    {
        match bundle::read_config(&state.bundle.join("config.json")) {
            Ok(pod) => {
                for (name, value) in of(&pod) {
                    if OF_IPC.iter().any(|prefix| name.starts_with(prefix)) {
                        all.entry(name).or_insert(value);
                    }
                }
            }
            Err(e) => tracing::warn!("the settings of pod {sandbox} are not known: {e:#}"),
        }
    }
    all.into_iter().collect()
}

fn of(spec: &Spec) -> BTreeMap<String, String> {
    let sysctl = spec.linux().as_ref().and_then(|linux| linux.sysctl().as_ref());
    // sysctl(8) takes either separator.
    let dotted =
        |name: &str| if name.contains('.') { name.to_owned() } else { name.replace('/', ".") };
    sysctl.into_iter().flatten().map(|(name, value)| (dotted(name), value.clone())).collect()
}
