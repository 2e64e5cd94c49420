//! Which operations are served, and by what.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

use super::job::{Done, Job};
use super::{buffers, cancel, files, net, poll, rw, timeout};
use crate::errno::{Errno, Result};
use crate::ipc::uring::abi::*;

/// Something that is served.
pub(super) type Served = Pin<Box<dyn Future<Output = Result<Done>> + Send>>;

macro_rules! operations {
    ($($($code:ident)|* => $kind:ident $function:path;)*) => {
        /// True if this operation is served.
        pub(super) fn is_served(opcode: u8) -> bool {
            matches!(opcode, $($(| $code)*)*)
        }

        /// Serves a request.
        pub(super) fn serve(job: Job) -> Served {
            match job.sqe().opcode {
                $($($code)|* => operations!($kind $function, job),)*
                _ => Box::pin(async { Err(Errno::EINVAL) }),
            }
        }
    };
    (plain $function:path, $job:ident) => { Box::pin(async move { $function(&$job) }) };
    (waits $function:path, $job:ident) => { Box::pin($function($job)) };
}

fn nothing(_job: &Job) -> Result<Done> {
    Ok(Done::default())
}

/// Without a request before it.
fn limits_nothing(_job: &Job) -> Result<Done> {
    Err(Errno::EINVAL)
}

operations! {
    OP_NOP => plain nothing;
    OP_READ | OP_READV | OP_READ_FIXED => waits rw::read;
    OP_WRITE | OP_WRITEV | OP_WRITE_FIXED => waits rw::write;
    OP_FSYNC => waits rw::fsync;
    OP_SYNC_FILE_RANGE => waits rw::sync_range;
    OP_FALLOCATE => waits rw::allocate;
    OP_FADVISE => plain rw::advise;
    OP_SPLICE => waits rw::splice;
    OP_TEE => waits rw::tee;
    OP_POLL_ADD => waits poll::add;
    OP_POLL_REMOVE => plain poll::remove;
    OP_TIMEOUT => waits timeout::wait;
    OP_TIMEOUT_REMOVE => plain timeout::remove;
    OP_LINK_TIMEOUT => plain limits_nothing;
    OP_ASYNC_CANCEL => plain cancel::cancel;
    OP_SEND => waits net::send;
    OP_SENDMSG => waits net::send_message;
    OP_RECV => waits net::receive;
    OP_RECVMSG => waits net::receive_message;
    OP_ACCEPT => waits net::accept;
    OP_CONNECT => waits net::connect;
    OP_SHUTDOWN => plain net::shut_down;
    OP_SOCKET => plain net::make;
    OP_OPENAT | OP_OPENAT2 => waits files::open_at;
    OP_CLOSE => plain files::close;
    OP_STATX => plain files::statx;
    OP_UNLINKAT => plain files::unlink_at;
    OP_RENAMEAT => plain files::rename_at;
    OP_LINKAT => plain files::link_at;
    OP_SYMLINKAT => plain files::symlink_at;
    OP_MKDIRAT => plain files::make_dir_at;
    OP_EPOLL_CTL => plain files::epoll_ctl;
    OP_MADVISE => waits files::advise_memory;
    OP_FILES_UPDATE => plain files::update_files;
    OP_MSG_RING => plain files::message;
    OP_PROVIDE_BUFFERS => plain buffers::provide;
    OP_REMOVE_BUFFERS => plain buffers::remove;
}
