//! POSIX message queues (mq_overview(7)).
//!
//! A queue is a file of a file system of type "mqueue". Each IPC namespace has one, whether
//! anybody has mounted it or not ([`names`]), and all its mounts show the same. What is in a
//! [`queue`] is kernel memory that outlives processes, so all of it together is bounded
//! ([`crate::account::Lasting`]), and that of each user by RLIMIT_MSGQUEUE ([`share`]). Who is told
//! of a message that comes to an empty queue stands in [`notify`].

mod names;
mod notify;
mod queue;
mod share;

pub use names::{make, namespace_ended, open, unlink};
pub use notify::How;
pub use queue::{MOST_PRIORITIES, MqAttr, OpenQueue, Queue};
