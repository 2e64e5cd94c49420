//! The process platform as a sandbox is made on it: the stages of [`crate::sandbox::platform`].

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use qlib::control::PlatformStats;
use qlib::platform::{BootInfo, Event, PLATFORM_PROCESS};
use tracing::{info, warn};

use super::kernel::{self, Kernel};
use super::layout::VDSO_COPY_BYTES;
use super::{Missing, Outside, ProcessConfig, ProcessPlatform, cost};
use crate::platform::PlatformKind;
use crate::sandbox::confine::profiles::Profile;
use crate::sandbox::hostcall::HostSide;
use crate::sandbox::loader::{LoadedKernel, Placement};
use crate::sandbox::memory::{Protection, copy};
use crate::sandbox::platform::{Entry, Leave, Platform, Prepared, Resources, Running};

/// Address space for file windows, in bytes.
const WINDOW_BYTES: u64 = 1 << 40;

impl Platform for ProcessConfig {
    fn window_bytes(&self) -> u64 {
        WINDOW_BYTES
    }

    fn prepare(
        self: Box<Self>,
        host: &Arc<HostSide>,
        resources: Resources,
        leave: Option<&dyn Leave>,
    ) -> Result<Box<dyn Prepared>> {
        copy::set_crash_hook(kernel::crash);
        kernel::set_host(host.clone())?;
        // It asks by a function call.
        host.poller.be_asked();
        let memory_limit_bytes = resources.memory_limit_bytes;
        let config = ProcessConfig { memory_limit_bytes, ..*self };
        let platform = ProcessPlatform::begin(host.memory.clone(), config, leave)?;
        Ok(Box::new(PreparedProcess { host: host.clone(), platform }))
    }
}

/// The zygote is being made.
struct PreparedProcess {
    host: Arc<HostSide>,
    platform: ProcessPlatform,
}

impl Prepared for PreparedProcess {
    fn placement(&self) -> Placement {
        let mut operations = kernel::operations();
        self.platform.fill_ops(&mut operations);
        let ops = Some(kernel::bytes(&operations));
        Placement { base: self.host.memory.base(), extra_bytes: VDSO_COPY_BYTES, ops }
    }

    fn finish(&self) -> Result<()> {
        self.platform.finish()?;
        let missing = self.platform.missing();
        // `quark doctor` tells what to do.
        if missing.is_usual() {
            info!("a stub cannot {missing}");
        } else if missing != Missing::default() {
            warn!(
                "user programs of this sandbox are less isolated than they could be: a stub \
                cannot {missing}"
            );
        }
        Ok(())
    }

    fn profiles(&self) -> &'static [Profile] {
        &[Profile::Process]
    }

    fn start(
        self: Box<Self>,
        loaded: &LoadedKernel,
        info: BootInfo,
        entry: Entry<'_>,
    ) -> Result<Arc<dyn Running>> {
        let PreparedProcess { host, platform } = *self;
        // No part of RAM, so that no image of this sandbox has it: it is always this host's.
        let image = platform.vdso_image();
        let image = if image.len() as u64 <= VDSO_COPY_BYTES { image } else { &[] };
        host.memory
            .set_apart(loaded.extra, image.len() as u64, image, Protection::Read)
            .context("make the copy of the vDSO")?;
        let info = BootInfo {
            platform: PLATFORM_PROCESS,
            user_min: platform.user_min(),
            user_max: platform.user_max(),
            vdso: platform.vdso(),
            vdso_bytes: image.len() as u64,
            vdso_copy: loaded.extra,
            hwcap2: platform.hwcap2(),
            fast_entry: platform.fast_entry(),
            fast_after: platform.fast_after(),
            fpstate_bytes: platform.fpstate_bytes(),
            host_bytes_per_process: cost::PROCESS_BYTES,
            host_bytes_per_thread: cost::THREAD_BYTES,
            max_processes: platform.max_processes(),
            max_threads: platform.max_threads(),
            max_tasks: platform.max_tasks(),
            ..info
        };
        let kernel = kernel::enter(host.memory.clone(), loaded, &info, entry)?;
        platform.set_dispatch(Box::new(move |event| kernel.dispatch(event)));
        platform.set_outside(Box::new(Watched { host: host.clone(), kernel }));
        host.memory.set_dropped(platform.file_sweeper());
        Ok(Arc::new(RunningProcess { platform, kernel }))
    }
}

/// What the guest watches, for a receiver that looks at it itself for a while.
struct Watched {
    host: Arc<HostSide>,
    kernel: Kernel,
}

impl Outside for Watched {
    fn begin(&self) {
        self.host.poller.look_begin();
    }

    fn look(&self) -> bool {
        self.host.poller.look(&|event| self.kernel.dispatch(event))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.host.poller.guest_fd()
    }

    fn end(&self) {
        self.host.poller.look_end();
    }
}

/// The kernel runs in this process. The stubs live as long as the platform does.
struct RunningProcess {
    platform: ProcessPlatform,
    kernel: Kernel,
}

impl Running for RunningProcess {
    fn dispatch(&self, event: &Event) {
        self.kernel.dispatch(event);
    }

    fn stats(&self) -> PlatformStats {
        PlatformStats { name: PlatformKind::Process.to_string(), ..PlatformStats::default() }
    }

    fn limit_tasks(&self, limit: u32) {
        self.platform.limit_tasks(limit);
    }
}
