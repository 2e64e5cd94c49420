//! Linux ABI structures that user programs hand over, as plain data.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Data without padding or invalid values, copied between kernel and user bytewise.
pub trait Pod: FromBytes + IntoBytes + Immutable + KnownLayout + Copy {}
impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Copy> Pod for T {}

macro_rules! abi_struct {
    ($(#[$doc:meta])* pub struct $name:ident { $(pub $field:ident: $ty:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[derive(
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[allow(missing_docs)]
        pub struct $name { $(pub $field: $ty,)* }
    };
}
#[allow(unused_imports)]
pub(crate) use abi_struct;

abi_struct! {
    /// struct timespec.
    pub struct TimeSpec { pub sec: i64, pub nsec: i64, }
}
abi_struct! {
    /// struct timeval.
    pub struct TimeVal { pub sec: i64, pub usec: i64, }
}
abi_struct! {
    /// struct iovec.
    pub struct IoVec { pub base: u64, pub len: u64, }
}

impl TimeSpec {
    /// From nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        TimeSpec { sec: (ns / 1_000_000_000) as i64, nsec: (ns % 1_000_000_000) as i64 }
    }

    /// As nanoseconds; EINVAL when out of range, saturated when too long to count.
    pub fn to_ns(self) -> crate::Result<u64> {
        if self.sec < 0 || !(0..1_000_000_000).contains(&self.nsec) {
            return Err(crate::Errno::EINVAL);
        }
        Ok((self.sec as u64).saturating_mul(1_000_000_000).saturating_add(self.nsec as u64))
    }
}

impl TimeVal {
    /// From nanoseconds.
    pub fn from_ns(ns: u64) -> Self {
        TimeVal { sec: (ns / 1_000_000_000) as i64, usec: (ns % 1_000_000_000 / 1000) as i64 }
    }

    /// As nanoseconds; EINVAL when out of range.
    pub fn to_ns(self) -> crate::Result<u64> {
        if self.sec < 0 || !(0..1_000_000).contains(&self.usec) {
            return Err(crate::Errno::EINVAL);
        }
        Ok((self.sec as u64).saturating_mul(1_000_000_000).saturating_add(self.usec as u64 * 1000))
    }
}
