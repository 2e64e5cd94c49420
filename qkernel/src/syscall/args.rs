//! System-call arguments: how a register becomes a typed argument.

use qlib::Va;

/// A type that an argument register can be read as. Never fails: what the value means is the call's
/// business.
pub trait FromArg {
    /// From the register's value.
    fn from_arg(value: u64) -> Self;
}

macro_rules! from_arg {
    ($($ty:ty)*) => {
        $(impl FromArg for $ty {
            fn from_arg(value: u64) -> Self {
                value as $ty
            }
        })*
    };
}

from_arg!(u64 i64 u32 i32 usize isize);

impl FromArg for Va {
    fn from_arg(value: u64) -> Self {
        Va(value)
    }
}
