//! The kvm platform as a sandbox is made on it: the stages of [`crate::sandbox::platform`].

use std::sync::Arc;

use anyhow::{Result, bail};
use qlib::channel::CHANNEL_BYTES;
use qlib::control::PlatformStats;
use qlib::kvm::CPU_AREA_BYTES;
use qlib::platform::{BootInfo, Event, PLATFORM_KVM};

use super::{KvmPlatform, Shape, TABLES_BYTES};
use crate::sandbox::confine::{self, profiles::Profile};
use crate::sandbox::hostcall::HostSide;
use crate::sandbox::loader::{LoadedKernel, Placement};
use crate::sandbox::memory::RAM_UNIT;
use crate::sandbox::platform::{Entry, Leave, Platform, Prepared, Resources, Running};

/// Address space for file windows, in bytes.
pub const WINDOW_BYTES: u64 = 64 << 30;

/// The kvm platform, of which nothing is made yet.
#[derive(Clone, Copy, Debug)]
pub struct KvmConfig;

impl Platform for KvmConfig {
    fn window_bytes(&self) -> u64 {
        WINDOW_BYTES
    }

    fn prepare(
        self: Box<Self>,
        host: &Arc<HostSide>,
        resources: Resources,
        leave: Option<&dyn Leave>,
    ) -> Result<Box<dyn Prepared>> {
        let platform = KvmPlatform::new(host.clone(), Shape::new(resources.cpus)?)?;
        if let Some(leave) = leave {
            leave.leave_host()?;
            leave.enter_domain()?;
        }
        Ok(Box::new(PreparedKvm(platform)))
    }
}

/// A virtual machine without vCPUs.
struct PreparedKvm(Arc<KvmPlatform>);

impl Prepared for PreparedKvm {
    fn placement(&self) -> Placement {
        let Shape { base, cpus } = self.0.shape();
        let own = TABLES_BYTES + CHANNEL_BYTES + u64::from(cpus) * CPU_AREA_BYTES;
        Placement { base, extra_bytes: own.next_multiple_of(RAM_UNIT), ops: None }
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }

    fn profiles(&self) -> &'static [Profile] {
        &[Profile::Loop, Profile::Vcpu]
    }

    fn start(
        self: Box<Self>,
        loaded: &LoadedKernel,
        info: BootInfo,
        entry: Entry<'_>,
    ) -> Result<Arc<dyn Running>> {
        if matches!(entry, Entry::Again(_)) {
            bail!("the kvm platform has no images: use the process platform");
        }
        let PreparedKvm(platform) = *self;
        let cpus = platform.shape().cpus;
        platform.start(loaded, BootInfo { platform: PLATFORM_KVM, cpus, ..info })?;
        confine::narrow(Profile::Loop)?;
        Ok(platform)
    }
}

impl Running for KvmPlatform {
    fn dispatch(&self, event: &Event) {
        self.shared.notify(self.shared.channel().post(event));
    }

    fn stats(&self) -> PlatformStats {
        self.exits.read()
    }

    // The guest's threads are none of the host's.
    fn limit_tasks(&self, _: u32) {}
}
