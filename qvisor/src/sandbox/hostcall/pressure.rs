//! What the guest asks about the host's memory being short: [`crate::sandbox::pressure`].

use qlib::host::Op;
use rustix::io::Errno;

use super::{Call, Outcome};

impl Call<'_> {
    pub(super) fn pressure_call(&self, op: Op) -> Outcome {
        let pressure = self.host.pressure.get().ok_or(Errno::NOENT)?;
        match op {
            Op::PressureWatch => pressure.watch(&self.host.poller, self.args[0] != 0).map(|()| 0),
            Op::PressureLine => pressure.stand(self.args[0]),
            _ => {
                pressure.leave();
                Ok(0)
            }
        }
    }
}
