//! Pods: what a container takes over from the sandbox that it belongs to, as the annotations of
//! Kubernetes' runtime interface (CRI) say. Each has a guest kernel of its own, so what containers
//! of a pod share by a namespace on a host is given to each.

use std::collections::BTreeMap;

use oci_spec::runtime::Spec;

use super::bundle::{self, Bundle};
use super::state::Store;

/// The annotation that names the sandbox of a pod's container.
const SANDBOX: &str = "io.kubernetes.cri.sandbox-id";

/// The settings of System V IPC and POSIX message queues, which belong to an IPC namespace
/// (ipc_namespaces(7)).
const OF_IPC: [&str; 4] = ["kernel.shm", "kernel.msg", "kernel.sem", "fs.mqueue."];

/// The sysctl settings of container `id`, with those of its pod that a namespace of the host would
/// bring. The network's are in the network namespace, which it shares indeed.
pub fn settings(bundle: &Bundle, id: &str, store: &Store) -> Vec<(String, String)> {
    let mut all = of(&bundle.spec);
    if let Some(sandbox) = bundle.annotations().get(SANDBOX).filter(|sandbox| *sandbox != id)
        && let Ok((_, state)) = store.load(sandbox)
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
