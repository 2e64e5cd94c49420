//! The task API: what containerd asks, and the events that it is told.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use containerd_shim_protos::api::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
    CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest,
    PauseRequest, PidsRequest, PidsResponse, ProcessInfo, ResizePtyRequest, ResumeRequest,
    ShutdownRequest, StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest,
    StatsResponse, UpdateTaskRequest, WaitRequest, WaitResponse,
};
use containerd_shim_protos::events::task::{
    TaskCheckpointed, TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskIO,
    TaskOOM, TaskPaused, TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{EnumOrUnknown, Message, MessageField};
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::shim_async::Task;
use containerd_shim_protos::topics;
use containerd_shim_protos::ttrpc::Result as RpcResult;
use containerd_shim_protos::ttrpc::r#async::TtrpcContext;
use tokio::sync::{Notify, oneshot};

use crate::bundle::Config;
use crate::container::{Container, New};
use crate::events::Events;
use crate::fault::Fault;
use crate::log;
use crate::metrics;
use crate::options::{Checkpoint, Options};
use crate::process::{Exit, Process};
use crate::reaper::Reaper;
use crate::stdio::Paths;

/// Signals that end a container which has not been started: HUP, INT, QUIT, KILL, TERM.
const ENDING: [u32; 5] = [1, 2, 3, 9, 15];

/// The containers of a shim.
pub struct Service {
    namespace: String,
    containers: Mutex<HashMap<String, Slot>>,
    reaper: Arc<Reaper>,
    events: Arc<Events>,
    shutdown: Arc<Notify>,
}

enum Slot {
    /// It is being made.
    Taken,
    Made(Arc<Container>),
}

impl Service {
    /// A service without containers; `shutdown` is told when it is of no use any more.
    pub fn new(
        namespace: &str,
        reaper: Arc<Reaper>,
        events: Arc<Events>,
        shutdown: Arc<Notify>,
    ) -> Self {
        let (namespace, containers) = (namespace.to_owned(), Mutex::default());
        Self { namespace, containers, reaper, events, shutdown }
    }

    fn containers(&self) -> MutexGuard<'_, HashMap<String, Slot>> {
        self.containers.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn container(&self, id: &str) -> Result<Arc<Container>, Fault> {
        match self.containers().get(id) {
            Some(Slot::Made(container)) => Ok(container.clone()),
            _ => Err(Fault::NotFound(format!("container {id}"))),
        }
    }

    fn find(&self, id: &str, exec_id: &str) -> Result<(Arc<Container>, Arc<Process>), Fault> {
        let container = self.container(id)?;
        let process = container.process(exec_id)?;
        Ok((container, process))
    }

    /// Makes a container of a pod into one that quark can make. The answer: whether it shares the
    /// kernel of the pod's first one.
    fn adapt(&self, id: &str, bundle: &Path, options: &Options) -> anyhow::Result<bool> {
        let mut config = Config::read(bundle)?;
        let Some(pod) = config.pod().map(str::to_owned) else { return Ok(false) };
        let first = (pod != id).then(|| self.container(&pod).ok()).flatten();
        let first = first.and_then(|first| Config::read(&first.bundle).ok());
        if first.as_ref().is_some_and(|first| first.is_shared(&options.arguments)) {
            // What it is to share it can share.
            return Ok(true);
        }
        let (changed, processes) = config.leave_pod(first.as_ref().and_then(Config::hostname));
        if processes {
            log::warn(&format!(
                "container {id}: its processes are its own, not its pod's, for it has a kernel of \
                its own"
            ));
        }
        if changed {
            config.write(bundle)?;
        }
        Ok(false)
    }

    async fn make(&self, request: &CreateTaskRequest) -> Result<Arc<Container>, Fault> {
        if !request.parent_checkpoint.is_empty() {
            return Err(Fault::Unimplemented("a checkpoint that builds on another".to_owned()));
        }
        let bundle = Path::new(&request.bundle);
        let options = Options::resolve(request.options.as_ref(), &self.namespace)?;
        let shares_kernel = self.adapt(&request.id, bundle, &options)?;
        let paths = Paths {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
        };
        let image = Some(Path::new(&request.checkpoint)).filter(|dir| !dir.as_os_str().is_empty());
        let new = New {
            id: &request.id,
            bundle,
            rootfs: &request.rootfs,
            paths,
            image,
            shares_kernel,
            options,
        };
        let (container, ended) = Container::create(new, &self.reaper).await?;
        let container = Arc::new(container);
        self.containers().insert(request.id.clone(), Slot::Made(container.clone()));
        let io = TaskIO {
            stdin: request.stdin.clone(),
            stdout: request.stdout.clone(),
            stderr: request.stderr.clone(),
            terminal: request.terminal,
            ..TaskIO::new()
        };
        let event = TaskCreate {
            container_id: request.id.clone(),
            bundle: request.bundle.clone(),
            rootfs: request.rootfs.clone(),
            io: MessageField::some(io),
            checkpoint: request.checkpoint.clone(),
            pid: container.init.pid_u32(),
            ..TaskCreate::new()
        };
        self.events.publish(topics::TASK_CREATE_EVENT_TOPIC, "TaskCreate", &event);
        if let Some(ended) = ended {
            self.tell_end(&container, container.init.clone(), ended);
        }
        Ok(container)
    }

    /// Tells of the end of a process when it comes.
    fn tell_end(
        &self,
        container: &Arc<Container>,
        process: Arc<Process>,
        ended: oneshot::Receiver<u32>,
    ) {
        let (container, events) = (container.clone(), self.events.clone());
        tokio::spawn(async move {
            let exit = process.ended(ended).await;
            // What is under way, its start above all, is told before.
            let _turn = process.turn.lock().await;
            drop(process.signals.write().await);
            let is_init = process.exec_id.is_empty();
            if is_init && container.was_out_of_memory().await {
                let event = TaskOOM { container_id: container.id.clone(), ..TaskOOM::new() };
                events.publish(topics::TASK_OOM_EVENT_TOPIC, "TaskOOM", &event);
            }
            publish_exit(&events, &container, &process, exit);
        });
    }

    async fn begin(&self, request: &StartRequest) -> Result<u32, Fault> {
        let (container, process) = self.find(&request.id, &request.exec_id)?;
        let _turn = process.turn.lock().await;
        if process.is_started() {
            return Err(Fault::FailedPrecondition(format!("{} is started already", request.id)));
        }
        if process.pid() == 0 && process.exit().is_some() {
            return Err(Fault::FailedPrecondition(format!("{} has ended", request.id)));
        }
        if request.exec_id.is_empty() {
            let ended = container.start().await?;
            process.set_started();
            let pid = process.pid_u32();
            let event = TaskStart { container_id: request.id.clone(), pid, ..TaskStart::new() };
            self.events.publish(topics::TASK_START_EVENT_TOPIC, "TaskStart", &event);
            if let Some(ended) = ended {
                self.tell_end(&container, process.clone(), ended);
            }
            return Ok(pid);
        }
        let ended = container.start_exec(&process).await?;
        process.set_started();
        let event = TaskExecStarted {
            container_id: request.id.clone(),
            exec_id: request.exec_id.clone(),
            pid: process.pid_u32(),
            ..TaskExecStarted::new()
        };
        self.events.publish(topics::TASK_EXEC_STARTED_EVENT_TOPIC, "TaskExecStarted", &event);
        self.tell_end(&container, process.clone(), ended);
        Ok(process.pid_u32())
    }

    async fn save(&self, request: CheckpointTaskRequest) -> Result<(), Fault> {
        let container = self.container(&request.id)?;
        let options = Checkpoint::resolve(request.options.as_ref())?;
        let path =
            if request.path.is_empty() { options.path } else { PathBuf::from(&request.path) };
        if path.as_os_str().is_empty() {
            return Err(Fault::InvalidArgument("a checkpoint without a path".to_owned()));
        }
        if !container.init.is_started() {
            return Err(Fault::FailedPrecondition(format!("{} is not started", request.id)));
        }
        // Its end, if it is to end, is told after the answer.
        let _answer_first = container.init.signals.read().await;
        container.checkpoint(&path, options.exit).await?;
        let event = TaskCheckpointed {
            container_id: request.id,
            checkpoint: path.to_string_lossy().into_owned(),
            ..TaskCheckpointed::new()
        };
        self.events.publish(topics::TASK_CHECKPOINTED_EVENT_TOPIC, "TaskCheckpointed", &event);
        Ok(())
    }

    async fn remove(&self, request: &DeleteRequest) -> Result<DeleteResponse, Fault> {
        let (container, process) = self.find(&request.id, &request.exec_id)?;
        let is_init = request.exec_id.is_empty();
        if is_init {
            container.delete().await?;
            self.containers().remove(&request.id);
        } else {
            container.delete_exec(&process).await?;
        }
        let mut response = DeleteResponse { pid: process.pid_u32(), ..DeleteResponse::new() };
        if let Some(exit) = process.exit() {
            response.exit_status = exit.status;
            response.exited_at = MessageField::some(exit.at);
        }
        if is_init {
            let event = TaskDelete {
                container_id: request.id.clone(),
                pid: response.pid,
                exit_status: response.exit_status,
                exited_at: response.exited_at.clone(),
                ..TaskDelete::new()
            };
            self.events.publish(topics::TASK_DELETE_EVENT_TOPIC, "TaskDelete", &event);
        }
        Ok(response)
    }

    async fn list(&self, id: &str) -> Result<PidsResponse, Fault> {
        let container = self.container(id)?;
        let execs = container.all_execs();
        let describe = |pid: u32| {
            let mut info = ProcessInfo { pid, ..ProcessInfo::new() };
            if let Some(exec) = execs.iter().find(|e| e.pid_u32() == pid) {
                let details =
                    ProcessDetails { exec_id: exec.exec_id.clone(), ..ProcessDetails::new() };
                info.info = MessageField::some(Any {
                    type_url: "containerd.runc.v1.ProcessDetails".to_owned(),
                    value: details.write_to_bytes().unwrap_or_default(),
                    ..Any::new()
                });
            }
            info
        };
        let processes = container.pids().await?.into_iter().map(describe).collect();
        Ok(PidsResponse { processes, ..PidsResponse::new() })
    }
}

/// Notes and tells how a process ended.
fn publish_exit(events: &Events, container: &Container, process: &Process, exit: Exit) {
    let is_init = process.exec_id.is_empty();
    let event = TaskExit {
        container_id: container.id.clone(),
        id: if is_init { &container.id } else { &process.exec_id }.clone(),
        pid: process.pid_u32(),
        exit_status: exit.status,
        exited_at: MessageField::some(exit.at.clone()),
        ..TaskExit::new()
    };
    process.set_exit(exit);
    events.publish(topics::TASK_EXIT_EVENT_TOPIC, "TaskExit", &event);
}

#[async_trait]
impl Task for Service {
    async fn state(&self, _: &TtrpcContext, request: StateRequest) -> RpcResult<StateResponse> {
        let (container, process) = self.find(&request.id, &request.exec_id)?;
        let mut response = StateResponse {
            id: request.id,
            exec_id: request.exec_id,
            bundle: container.bundle.to_string_lossy().into_owned(),
            pid: process.pid_u32(),
            status: EnumOrUnknown::new(process.status()),
            stdin: process.paths.stdin.clone(),
            stdout: process.paths.stdout.clone(),
            stderr: process.paths.stderr.clone(),
            terminal: process.paths.terminal,
            ..StateResponse::new()
        };
        if let Some(exit) = process.exit() {
            response.exit_status = exit.status;
            response.exited_at = MessageField::some(exit.at);
        }
        Ok(response)
    }

    async fn create(
        &self,
        _: &TtrpcContext,
        request: CreateTaskRequest,
    ) -> RpcResult<CreateTaskResponse> {
        {
            let mut containers = self.containers();
            if containers.contains_key(&request.id) {
                return Err(Fault::AlreadyExists(format!("container {}", request.id)).into());
            }
            containers.insert(request.id.clone(), Slot::Taken);
        }
        match self.make(&request).await {
            Ok(container) => Ok(CreateTaskResponse {
                pid: container.init.pid_u32(),
                ..CreateTaskResponse::new()
            }),
            Err(e) => {
                self.containers().remove(&request.id);
                Err(e.into())
            }
        }
    }

    async fn start(&self, _: &TtrpcContext, request: StartRequest) -> RpcResult<StartResponse> {
        let pid = self.begin(&request).await?;
        Ok(StartResponse { pid, ..StartResponse::new() })
    }

    async fn delete(&self, _: &TtrpcContext, request: DeleteRequest) -> RpcResult<DeleteResponse> {
        Ok(self.remove(&request).await?)
    }

    async fn pids(&self, _: &TtrpcContext, request: PidsRequest) -> RpcResult<PidsResponse> {
        Ok(self.list(&request.id).await?)
    }

    async fn pause(&self, _: &TtrpcContext, request: PauseRequest) -> RpcResult<Empty> {
        let container = self.container(&request.id)?;
        container.pause(true).await.map_err(Fault::from)?;
        let event = TaskPaused { container_id: request.id, ..TaskPaused::new() };
        self.events.publish(topics::TASK_PAUSED_EVENT_TOPIC, "TaskPaused", &event);
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, request: ResumeRequest) -> RpcResult<Empty> {
        let container = self.container(&request.id)?;
        container.pause(false).await.map_err(Fault::from)?;
        let event = TaskResumed { container_id: request.id, ..TaskResumed::new() };
        self.events.publish(topics::TASK_RESUMED_EVENT_TOPIC, "TaskResumed", &event);
        Ok(Empty::new())
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        request: CheckpointTaskRequest,
    ) -> RpcResult<Empty> {
        self.save(request).await?;
        Ok(Empty::new())
    }

    async fn kill(&self, _: &TtrpcContext, request: KillRequest) -> RpcResult<Empty> {
        let (container, process) = self.find(&request.id, &request.exec_id)?;
        if request.exec_id.is_empty() && ENDING.contains(&request.signal) && container.is_awaited()
        {
            // Nothing will be made of the image, unless that is under way.
            let _turn = process.turn.lock().await;
            if container.is_awaited() {
                let exit = Exit::now(128 + request.signal);
                publish_exit(&self.events, &container, &process, exit);
                return Ok(Empty::new());
            }
        }
        let _answer_first = process.signals.read().await;
        container.kill(&process, request.signal, request.all).await?;
        Ok(Empty::new())
    }

    async fn exec(&self, _: &TtrpcContext, request: ExecProcessRequest) -> RpcResult<Empty> {
        let container = self.container(&request.id)?;
        let paths = Paths {
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
        };
        container.add_exec(&request.exec_id, &request.spec.value, paths)?;
        let event = TaskExecAdded {
            container_id: request.id,
            exec_id: request.exec_id,
            ..TaskExecAdded::new()
        };
        self.events.publish(topics::TASK_EXEC_ADDED_EVENT_TOPIC, "TaskExecAdded", &event);
        Ok(Empty::new())
    }

    async fn resize_pty(&self, _: &TtrpcContext, request: ResizePtyRequest) -> RpcResult<Empty> {
        let (_, process) = self.find(&request.id, &request.exec_id)?;
        process.resize(request.width, request.height).map_err(Fault::from)?;
        Ok(Empty::new())
    }

    async fn close_io(&self, _: &TtrpcContext, request: CloseIORequest) -> RpcResult<Empty> {
        let (_, process) = self.find(&request.id, &request.exec_id)?;
        if request.stdin {
            process.close_stdin();
        }
        Ok(Empty::new())
    }

    async fn update(&self, _: &TtrpcContext, request: UpdateTaskRequest) -> RpcResult<Empty> {
        let container = self.container(&request.id)?;
        container.update(&request.resources.value).await.map_err(Fault::from)?;
        Ok(Empty::new())
    }

    async fn wait(&self, _: &TtrpcContext, request: WaitRequest) -> RpcResult<WaitResponse> {
        let (_, process) = self.find(&request.id, &request.exec_id)?;
        let exit = process.wait().await;
        Ok(WaitResponse {
            exit_status: exit.status,
            exited_at: MessageField::some(exit.at),
            ..WaitResponse::new()
        })
    }

    async fn stats(&self, _: &TtrpcContext, request: StatsRequest) -> RpcResult<StatsResponse> {
        let container = self.container(&request.id)?;
        let usage = container.own_usage().await;
        let stats = metrics::collect(container.cgroup(), usage.as_ref()).map_err(Fault::from)?;
        Ok(StatsResponse { stats: MessageField::some(stats), ..StatsResponse::new() })
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        request: ConnectRequest,
    ) -> RpcResult<ConnectResponse> {
        let task_pid = self.container(&request.id).map_or(0, |c| c.init.pid_u32());
        Ok(ConnectResponse { shim_pid: std::process::id(), task_pid, ..ConnectResponse::new() })
    }

    async fn shutdown(&self, _: &TtrpcContext, request: ShutdownRequest) -> RpcResult<Empty> {
        // Other containers of the pod may be here.
        if request.now || self.containers().is_empty() {
            self.shutdown.notify_one();
        }
        Ok(Empty::new())
    }
}
