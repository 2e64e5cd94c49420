//! OCI bundles: reading `config.json`, checking it, and turning it into what the guest kernel is
//! told.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use oci_spec::runtime::{
    LinuxNamespace, LinuxNamespaceType, LinuxResources, PosixRlimit, PosixRlimitType, Spec,
};

use super::devices;
use super::mounts::{self, Mount};
use super::process;
use super::seccomp;
use crate::platform::PlatformKind;
use qlib::control::{DeviceSpec, ProcessSpec};

/// No honest configuration is larger, in bytes.
const MAX_CONFIG: u64 = 16 << 20;

/// The longest name of a host, in bytes (sethostname(2)).
const HOST_NAME_MAX: usize = 64;

/// A checked bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// Absolute path of the bundle.
    pub dir: PathBuf,
    /// Absolute path of the root file system.
    pub rootfs: PathBuf,
    /// The configuration.
    pub spec: Spec,
    /// The program.
    pub process: ProcessSpec,
    /// The mounts.
    pub mounts: Vec<Mount>,
    /// Device nodes besides the standard ones.
    pub devices: Vec<DeviceSpec>,
}

impl Bundle {
    /// Reads and checks the bundle in `dir`.
    ///
    /// # Errors
    /// With one line that says what is wrong, when anything is missing, malformed, or asks for what
    /// a sandbox does not do.
    pub fn load(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("bundle {}", dir.display()))?;
        if !dir.is_dir() {
            bail!(
                "bundle {} is not a directory: give the one that config.json is in",
                dir.display()
            );
        }
        let path = dir.join("config.json");
        let spec = read_config(&path)?;
        tell_ignored(&spec);
        tell_few_descriptors(&spec);
        check_own_processes(&spec)
            .and_then(|()| Self::check(dir, spec))
            .with_context(|| path.display().to_string())
    }

    /// Checks a configuration that belongs to the directory `dir`.
    ///
    /// # Errors
    /// As [`Bundle::load`].
    pub fn check(dir: PathBuf, spec: Spec) -> Result<Self> {
        let root = spec.root().as_ref().context("\"root\" is missing")?;
        let rootfs = dir.join(root.path());
        let rootfs = rootfs
            .canonicalize()
            .with_context(|| format!("root file system {}", rootfs.display()))?;
        if !rootfs.is_dir() {
            bail!("root file system {} is not a directory", rootfs.display());
        }
        if let Some(name) = spec.hostname().as_ref().filter(|n| n.len() > HOST_NAME_MAX) {
            bail!("hostname has {} bytes, and {HOST_NAME_MAX} are the most", name.len());
        }
        let process = spec.process().as_ref().context("\"process\" is missing")?;
        check_host_settings(&spec)?;
        let mut process = process::convert(process, &rootfs)?;
        if let Some(profile) = spec.linux().as_ref().and_then(|l| l.seccomp().as_ref()) {
            process.seccomp = seccomp::compile(profile).context("linux.seccomp")?;
        }
        let mounts = mounts::convert(spec.mounts().as_deref().unwrap_or_default(), &dir)?;
        let devices = devices::convert(&spec)?;
        let mut seen = Vec::new();
        for namespace in namespaces_of(&spec) {
            if seen.contains(&namespace.typ()) {
                bail!("linux.namespaces has the {:?} namespace twice", namespace.typ());
            }
            seen.push(namespace.typ());
            match namespace.typ() {
                LinuxNamespaceType::User => {
                    bail!("user namespaces are not supported; remove the one in linux.namespaces")
                }
                LinuxNamespaceType::Time => {
                    bail!("time namespaces are not supported; remove the one in linux.namespaces")
                }
                _ => {}
            }
        }
        if let Some(hooks) = spec.hooks() {
            if hooks.start_container().as_ref().is_some_and(|h| !h.is_empty()) {
                bail!(
                    "startContainer hooks are not supported: they would run inside the guest, \
                    before its program"
                );
            }
            super::hooks::check(hooks)?;
        }
        Ok(Bundle { dir, rootfs, spec, process, mounts, devices })
    }

    /// Refuses a configuration that is to join namespaces, of a container with its own kernel: all
    /// but the network are its own in any case, and another container's cannot be shared.
    ///
    /// # Errors
    /// Names the namespace.
    pub fn check_alone(&self) -> Result<()> {
        for namespace in self.namespaces() {
            let joins = namespace.path().as_ref().is_some_and(|p| !p.as_os_str().is_empty());
            if joins && namespace.typ() != LinuxNamespaceType::Network {
                bail!(
                    "joining an existing {:?} namespace is not supported: every container has its \
                    own kernel",
                    namespace.typ()
                );
            }
        }
        Ok(())
    }

    /// The namespaces that it has or joins.
    pub fn namespaces(&self) -> &[LinuxNamespace] {
        namespaces_of(&self.spec)
    }

    /// The network namespace: `None` for the caller's own, an empty path for a new one.
    pub fn network(&self) -> Option<PathBuf> {
        let mut namespaces = namespaces_of(&self.spec).iter();
        let network = namespaces.find(|n| n.typ() == LinuxNamespaceType::Network)?;
        Some(network.path().clone().unwrap_or_default())
    }

    /// The host name: the configuration's, or the host's own where that is shared.
    pub fn hostname(&self) -> String {
        let is_shared =
            !namespaces_of(&self.spec).iter().any(|n| n.typ() == LinuxNamespaceType::Uts);
        match self.spec.hostname() {
            Some(name) => name.clone(),
            None if is_shared => rustix::system::uname().nodename().to_string_lossy().into_owned(),
            None => "quark".to_owned(),
        }
    }

    /// The annotations.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.spec.annotations().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()
    }

    /// Where the cgroup is, as OCI has it.
    pub fn cgroup_path(&self, id: &str) -> String {
        let path = self.spec.linux().as_ref().and_then(|l| l.cgroups_path().as_ref());
        match path {
            Some(path) if !path.as_os_str().is_empty() => path.display().to_string(),
            // Whatever is delegated to an ordinary user begins where they are.
            _ if super::rootless::is_needed() => format!("quark/{id}"),
            _ => format!("/quark/{id}"),
        }
    }

    /// Has the container have a new network namespace, whatever the configuration says.
    pub fn set_new_network(&mut self) {
        let linux = self.spec.linux_mut().get_or_insert_default();
        let namespaces = linux.namespaces_mut().get_or_insert_default();
        namespaces.retain(|n| n.typ() != LinuxNamespaceType::Network);
        let mut network = LinuxNamespace::default();
        network.set_typ(LinuxNamespaceType::Network);
        namespaces.push(network);
    }

    /// Has the cgroup of the container be beside the one that the configuration names, if it names
    /// one: two containers of one bundle have one each.
    pub fn set_cgroup_beside(&mut self, id: &str) {
        let linux = self.spec.linux_mut();
        let Some(path) = linux.as_mut().and_then(|linux| linux.cgroups_path_mut().as_mut()) else {
            return;
        };
        if !path.as_os_str().is_empty() {
            path.set_file_name(id);
        }
    }

    /// The limits that its cgroup is to have.
    pub fn resources(&self) -> Option<&LinuxResources> {
        resources_of(&self.spec)
    }

    /// The memory limit in bytes, 0 when there is none.
    pub fn memory_limit(&self) -> u64 {
        let limit = self
            .resources()
            .and_then(|r| r.memory().as_ref())
            .and_then(oci_spec::runtime::LinuxMemory::limit);
        limit.and_then(|l| u64::try_from(l).ok()).unwrap_or(0)
    }

    /// The limit of tasks, 0 when there is none.
    pub fn tasks_limit(&self) -> u32 {
        let limit = self
            .resources()
            .and_then(|r| r.pids().as_ref())
            .map_or(0, oci_spec::runtime::LinuxPids::limit);
        // One that is larger is none.
        u32::try_from(limit).unwrap_or(0)
    }
}

fn namespaces_of(spec: &Spec) -> &[LinuxNamespace] {
    let linux = spec.linux().as_ref();
    linux.and_then(|l| l.namespaces().as_deref()).unwrap_or_default()
}

fn resources_of(spec: &Spec) -> Option<&LinuxResources> {
    spec.linux().as_ref().and_then(|l| l.resources().as_ref())
}

/// Reads a JSON file of at most [`MAX_CONFIG`] bytes.
pub(super) fn read_config(path: &Path) -> Result<Spec> {
    let parse = |text: &[u8]| -> serde_json::Result<Spec> {
        let mut value: serde_json::Value = serde_json::from_slice(text)?;
        if let Some(process) = value.get_mut("process") {
            process::complete(process);
        }
        serde_json::from_value(value)
    };
    parse(&read_bounded(path)?)
        .with_context(|| format!("{} is not a valid OCI configuration", path.display()))
}

/// The least memory limit in MiB with which a sandbox starts and runs a small program. In a virtual
/// machine the whole kernel image is the container's own memory, with the room that it is given.
const fn least_memory_mib(platform: PlatformKind) -> i64 {
    match platform {
        PlatformKind::Process => 6,
        PlatformKind::Kvm => 24,
    }
}
/// The fewest tasks of the host that a sandbox with one program is.
const LEAST_PIDS: i64 = 5;

/// Refuses limits with which the sandbox itself could not be.
///
/// # Errors
/// When one is.
pub(super) fn check_limits(resources: &LinuxResources, platform: PlatformKind) -> Result<()> {
    let least = least_memory_mib(platform);
    let memory = resources.memory().as_ref().and_then(oci_spec::runtime::LinuxMemory::limit);
    if let Some(limit) = memory.filter(|l| (1..least << 20).contains(l)) {
        bail!(
            "memory.limit of {limit} bytes is too small: a sandbox, its kernel included, needs {} \
            ({least} MiB)",
            least << 20
        );
    }
    let cpu = resources.cpu().as_ref();
    let real_time = |of: Option<i64>| of.is_some_and(|of| of != 0);
    if real_time(cpu.and_then(|cpu| cpu.realtime_runtime()))
        || real_time(cpu.and_then(|cpu| cpu.realtime_period().and_then(|p| i64::try_from(p).ok())))
    {
        bail!(
            "cpu.realtimeRuntime and cpu.realtimePeriod: a guest's threads have no real-time \
            priority on the host; use cpu.quota and cpu.period"
        );
    }
    let pids = resources.pids().as_ref().map(oci_spec::runtime::LinuxPids::limit);
    if let Some(limit) = pids.filter(|l| (1..LEAST_PIDS).contains(l)) {
        bail!(
            "pids.limit of {limit} is too small: it counts the sandbox's own processes, which are \
            {LEAST_PIDS} with one program"
        );
    }
    Ok(())
}

/// Refuses a configuration that is to share the host's processes.
fn check_own_processes(spec: &Spec) -> Result<()> {
    if !namespaces_of(spec).iter().any(|n| n.typ() == LinuxNamespaceType::Pid) {
        bail!(
            "linux.namespaces has no pid namespace (docker run --pid host): the host's processes \
            are not in a guest, which has its own kernel"
        );
    }
    Ok(())
}

/// What the kernel would refuse of a container without a guest kernel.
fn check_host_settings(spec: &Spec) -> Result<()> {
    const SCORES: RangeInclusive<i32> = -1000..=1000;
    let score = spec.process().as_ref().and_then(oci_spec::runtime::Process::oom_score_adj);
    if let Some(score) = score.filter(|score| !SCORES.contains(score)) {
        bail!("process.oomScoreAdj {score} is not between -1000 and 1000");
    }
    let propagation = spec.linux().as_ref().and_then(|l| l.rootfs_propagation().as_deref());
    match propagation.unwrap_or_default() {
        "" | "shared" | "slave" | "private" | "unbindable" | "rshared" | "rslave" | "rprivate"
        | "runbindable" => Ok(()),
        other => bail!(
            "rootfsPropagation={other} is not supported; use shared, slave, private or unbindable, \
            each with r before it or not"
        ),
    }
}

/// Says when programs may open more files than the sandbox can.
fn tell_few_descriptors(spec: &Spec) {
    use rustix::process::{Resource, getrlimit};
    let rlimits = spec.process().iter().filter_map(|p| p.rlimits().as_ref()).flatten();
    let wanted =
        rlimits.filter(|l| l.typ() == PosixRlimitType::RlimitNofile).map(PosixRlimit::hard);
    let has = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    if let Some(wanted) = wanted.max().filter(|wanted| *wanted > has) {
        tracing::warn!(
            "RLIMIT_NOFILE of {wanted} is more than the host lets the sandbox have ({has}, its \
            caller's hard limit): the container's programs get EMFILE before theirs"
        );
    }
}

/// Says what a configuration asks for that has no meaning for a guest.
fn tell_ignored(spec: &Spec) {
    let profile = spec.process().as_ref().and_then(|p| p.apparmor_profile().as_deref());
    if let Some(profile) = profile.filter(|p| !p.is_empty() && *p != "unconfined") {
        tracing::warn!(
            "process.apparmorProfile {profile:?} is ignored: the host does not see a guest's \
            programs"
        );
    }
}

/// Reads a file that has no reason to be huge.
pub(super) fn read_bounded(path: &Path) -> Result<Vec<u8>> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            bail!("JSON specification file {} not found", path.display())
        }
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    let mut text = Vec::new();
    // Its size may be unknown, and change meanwhile.
    file.take(MAX_CONFIG + 1)
        .read_to_end(&mut text)
        .with_context(|| format!("reading {}", path.display()))?;
    if text.len() as u64 > MAX_CONFIG {
        bail!("{} has more than the {MAX_CONFIG} bytes that are accepted", path.display());
    }
    Ok(text)
}
