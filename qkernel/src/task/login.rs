//! Who logged in, as Linux's audit remembers it of each thread (pam_loginuid(8), proc(5)).

use crate::errno::{Errno, Result};

/// The user that somebody logged in as, and the number of that session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Login {
    /// A user id, or [`Login::UNSET`].
    pub uid: u32,
    /// Different for each login, or [`Login::UNSET`].
    pub session: u32,
}

impl Default for Login {
    fn default() -> Self {
        Login { uid: Login::UNSET, session: Login::UNSET }
    }
}

impl Login {
    /// Nobody logged in: AUDIT_UID_UNSET and AUDIT_SID_UNSET.
    pub const UNSET: u32 = u32::MAX;

    /// What it is when user `uid` has logged in, in `session`, or with [`Login::UNSET`] nobody any
    /// more. EPERM for who is logged in already and may not change that (CAP_AUDIT_CONTROL).
    pub fn change(self, uid: u32, session: u32, may_change: bool) -> Result<Login> {
        if self.uid != Login::UNSET && !may_change {
            return Err(Errno::EPERM);
        }
        Ok(if uid == Login::UNSET { Login::default() } else { Login { uid, session } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_logged_in_stays_so() {
        let user = Login::default().change(1000, 7, false).unwrap();
        assert_eq!(user, Login { uid: 1000, session: 7 });
        assert_eq!(user.change(0, 8, false), Err(Errno::EPERM));
        assert_eq!(user.change(Login::UNSET, 8, false), Err(Errno::EPERM));
        assert_eq!(user.change(0, 8, true), Ok(Login { uid: 0, session: 8 }));
        assert_eq!(user.change(Login::UNSET, 8, true), Ok(Login::default()));
        assert_eq!(Login::default().change(Login::UNSET, 8, false), Ok(Login::default()));
    }
}
