//! Clocks without calls to the host: a page that says how to turn the CPU's time stamp counter into
//! the time of the host's clocks, and the calibrator that keeps it right.
//!
//! The page ([`ClockPage`]) is written by the guest kernel and read by it and, mapped read-only, by
//! user programs (through the vDSO). It holds a straight line, which is good for [`VALID_NS`]; who
//! finds it expired asks the guest kernel, which takes [samples](Sample) of the host's clocks and
//! lets the [`Calibrator`] draw the next line.

mod calibrator;
mod page;

pub use calibrator::{Calibrator, Sample, VALID_NS};
pub use page::{ClockPage, FRACTION_BITS, Line, Source, TIMESPEC_NS, source_of};

#[cfg(test)]
mod tests;
