//! The `kvm` platform's ring 0: what qvisor does on `process`, the image does for itself here.
//!
//! From top to bottom: [`start`] brings vCPUs up; [`sched`] is the loop that each of them runs
//! (pick a thread, let it run, hand its trap to the kernel, idle); in [`queues`] threads wait for
//! that; [`thread`] and [`space`] are the platform's operations on user threads and page tables;
//! [`entry`] goes to user mode and comes back; [`cpu`] is per-CPU data and descriptor tables;
//! [`apic`], [`fpu`], [`msr`] the hardware; [`stolen`] is what the host says of its own use of it.
//! All of it but [`entry`] runs under the kernel lock with interrupts off.

pub mod apic;
pub mod clock;
pub mod cpu;
pub mod entry;
pub mod fpu;
pub mod host;
pub mod msr;
pub mod queues;
pub mod sched;
pub mod space;
pub mod start;
pub mod stolen;
pub mod thread;
