//! The names of the host's system calls.

use std::collections::HashMap;

use libc::c_long;

/// Number and name on each line.
static NAMES: &str = include_str!("names.txt");

fn all() -> impl Iterator<Item = (c_long, &'static str)> {
    NAMES.lines().filter_map(|line| {
        let (number, name) = line.split_once(' ')?;
        Some((number.parse().ok()?, name))
    })
}

/// The numbers of all calls, for who looks up many.
pub fn numbers() -> HashMap<&'static str, u32> {
    all().filter_map(|(number, name)| Some((name, u32::try_from(number).ok()?))).collect()
}

/// The name of a call. Allocates nothing.
pub fn name(number: c_long) -> &'static str {
    all().find(|(n, _)| *n == number).map_or("?", |(_, name)| name)
}
