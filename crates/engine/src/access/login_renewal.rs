//! Logs in anew on links that are up.
//!
//! A password with a lifetime is a token: a server or a cloud may close connections that were
//! authenticated with an old one. So links that are up authenticate with each new password. AUTH
//! changes nothing else on a connection. If the server refuses it, the connection stays as it was.
//!
//! ```text
//!   new password ──► link is up ──────────────► AUTH, HELLO ──► accepted
//!                    link is inside a request ──► next tick     refused ──► after a pause
//! ```

use respool_protocol::encode::Version;

use crate::access::Access;
use crate::access::login_check::CheckResult;
use crate::base::handle::{CONFIGURED, LinkId};
use crate::base::limits::LOGIN_RENEWAL_PAUSE_MS;
use crate::base::settings::PasswordSource;
use crate::base::time::Time;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::completion::access::{AccessCompletion, LoginCheck};
use crate::data_plane::link::{Link, LinkRole, LinkState, Sends, Streaming};

/// Links that still have to log in with the current password.
#[derive(Debug, Default)]
pub(crate) struct LoginRenewals {
    /// Each link at most once.
    waiting: Vec<WaitingRenewal>,
}

/// A link that still has to log in.
#[derive(Debug)]
struct WaitingRenewal {
    link: LinkId,
    /// It does not log in before then.
    due: Time,
}

/// The next step of a link that has to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RenewalStep {
    /// It logs in now.
    LogIn,
    /// It is asked again at the next tick.
    Wait,
    /// It has no connection with the old password.
    Forget,
}

impl LoginRenewals {
    fn add(&mut self, link: LinkId, due: Time) {
        if !self.waiting.iter().any(|waiting| waiting.link == link) {
            self.waiting.push(WaitingRenewal { link, due });
        }
    }

    /// Memory of the list, bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.waiting.capacity() * size_of::<WaitingRenewal>()
    }
}

/// Whether a link has the configured login, and may authenticate again.
fn has_configured_login(link: &Link) -> bool {
    let may_send_auth = match link.role {
        LinkRole::Probe => false,
        // A RESP2 connection with subscriptions may not authenticate.
        LinkRole::HubLine(_) | LinkRole::Redirect { .. } => link.kind.version == Version::Resp3,
        _ => true,
    };
    may_send_auth && link.kind.user == CONFIGURED
}

/// The step of a link that has to log in. Between two requests AUTH has a place of its own. Inside
/// a large request it would become a part of it, and behind a request that blocks it would wait.
fn step(link: &Link) -> RenewalStep {
    match link.state {
        LinkState::Up => {}
        // Its handshake may have the old password.
        LinkState::Handshaking { .. } => return RenewalStep::Wait,
        _ => return RenewalStep::Forget,
    }
    let is_between_requests = link.streaming == Streaming::No && !link.waits;
    match link.sends {
        Sends::More if link.tunnel.is_none() && is_between_requests => RenewalStep::LogIn,
        Sends::More => RenewalStep::Wait,
        Sends::Rest | Sends::Nothing => RenewalStep::Forget,
    }
}

impl Access {
    /// Has all links that use the password of this source log in with the current one.
    pub(crate) fn renew_logins(&mut self, plane: &mut DataPlane, source: PasswordSource) {
        for (id, link) in plane.links.iter() {
            let credentials = plane.server(link.kind.server).settings.credentials.as_ref();
            let is_concerned = credentials.is_some_and(|login| login.source == Some(source));
            if is_concerned && has_configured_login(link) && step(link) != RenewalStep::Forget {
                self.login_renewals.add(id, plane.now);
            }
        }
        self.tick_login_renewals(plane);
    }

    /// Logs in on the links that have to and may.
    pub(crate) fn tick_login_renewals(&mut self, plane: &mut DataPlane) {
        if self.login_renewals.waiting.is_empty() {
            return;
        }
        for waiting in std::mem::take(&mut self.login_renewals.waiting) {
            let step = match plane.links.get(waiting.link) {
                Some(_) if plane.now < waiting.due => RenewalStep::Wait,
                Some(link) => step(link),
                None => RenewalStep::Forget,
            };
            match step {
                RenewalStep::LogIn => log_in_anew(plane, waiting.link),
                RenewalStep::Wait => self.login_renewals.waiting.push(waiting),
                RenewalStep::Forget => {}
            }
        }
    }

    /// A server has answered a login on a link that is up. If it refuses the password, its source
    /// is read again, and the link tries again after a pause.
    pub(crate) fn settle_renewal(
        &mut self,
        plane: &mut DataPlane,
        link: LinkId,
        renewal: LoginCheck,
        hello: &[u8],
    ) {
        let result = renewal.found(hello);
        if result == CheckResult::Accepted {
            return;
        }
        let Some(server) = plane.links.get(link).map(|link| link.kind.server) else {
            return;
        };
        if let CheckResult::Refused(error) = result {
            self.seek_password(plane, server, &error);
        }
        let due = plane.now.plus_ms(LOGIN_RENEWAL_PAUSE_MS);
        self.login_renewals.add(link, due);
    }
}

/// Sends the configured login on a link that is up.
fn log_in_anew(plane: &mut DataPlane, id: LinkId) {
    let Some(server) = plane.links.get(id).map(|link| link.kind.server) else {
        return;
    };
    let credentials = plane.server(server).settings.credentials.as_ref();
    let Some(credentials) = credentials else {
        return;
    };
    let (login, bytes) = LoginCheck::new(Some(credentials));
    let completion = AccessCompletion::Renewal(Box::new(login));
    plane.put_ours(id, &bytes, Completion::Access(completion));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_plane::link::{LinkKind, Tunnel};
    use crate::data_plane::slow_readers::DEFAULT_LANE;
    use crate::routing::pool::ServerId;

    fn link(role: LinkRole, version: Version) -> Link {
        let kind = LinkKind {
            server: ServerId(0),
            version,
            db: 0,
            user: CONFIGURED,
            lane: DEFAULT_LANE,
        };
        let mut link = Link::new(kind, role, 0, Time(0));
        link.state = LinkState::Up;
        link
    }

    /// A link logs in between two requests. A link that is not connected forgets the old password.
    #[test]
    fn link_logs_in_between_two_requests() {
        type Change = fn(&mut Link);
        let table: [(Change, RenewalStep); 7] = [
            (|_| {}, RenewalStep::LogIn),
            (|link| link.waits = true, RenewalStep::Wait),
            (|link| link.streaming = Streaming::Open, RenewalStep::Wait),
            (
                |link| link.tunnel = Some(Tunnel::Open { owed: 0 }),
                RenewalStep::Wait,
            ),
            (|link| link.sends = Sends::Rest, RenewalStep::Forget),
            (|link| link.state = LinkState::Down, RenewalStep::Forget),
            (
                |link| link.state = LinkState::Connecting { since: Time(0) },
                RenewalStep::Forget,
            ),
        ];
        for (change, expected) in table {
            let mut link = link(LinkRole::Shared, Version::Resp2);
            change(&mut link);
            assert_eq!(step(&link), expected);
        }
    }

    /// Links of clients' users and probing links keep their login. A subscriber needs RESP3.
    #[test]
    fn configured_links_log_in_anew() {
        let table = [
            (LinkRole::Shared, Version::Resp2, true),
            (LinkRole::Idle, Version::Resp3, true),
            (LinkRole::Sentinel, Version::Resp2, true),
            (LinkRole::Probe, Version::Resp3, false),
            (LinkRole::Redirect { to: 1 }, Version::Resp2, false),
            (LinkRole::Redirect { to: 1 }, Version::Resp3, true),
        ];
        for (role, version, expected) in table {
            let mut link = link(role, version);
            assert_eq!(has_configured_login(&link), expected, "{role:?}");
            link.kind.user = CONFIGURED + 1;
            assert!(!has_configured_login(&link), "{role:?}");
        }
    }
}
