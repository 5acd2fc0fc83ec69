//! CLIENT UNBLOCK that respool sends on its own account. It ends the wait of a request at its
//! server.

use respool_protocol::encode;

use crate::base::handle::LinkId;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::Completion;
use crate::data_plane::link::{Link, LinkRole};

impl DataPlane {
    /// Sends CLIENT UNBLOCK for a blocked link on a shared link of the same server. Returns false
    /// without a shared link that has been up at least as long as the blocked one. A younger link
    /// may lead to another server at the same address, where the client id belongs to another
    /// client.
    pub(crate) fn ask_to_unblock(
        &mut self,
        blocked: LinkId,
        how: &str,
        completion: Completion,
    ) -> bool {
        let Some(blocked) = self.links.get(blocked) else {
            return false;
        };
        let (server, client_id) = (blocked.kind.server, blocked.client_id);
        // The configured user's link is preferred: the session was found to have the right.
        let first = self.default_kind(server);
        let shared = |link: &Link| {
            let is_older = link.up_since <= blocked.up_since;
            link.role == LinkRole::Shared && link.is_up() && link.kind.server == server && is_older
        };
        let links = self.links.iter().filter(|(_, link)| shared(link));
        let Some((link, _)) = links.max_by_key(|(_, link)| link.kind == first) else {
            return false;
        };
        let client_id = client_id.to_string();
        let mut request = Vec::new();
        encode::request(&mut request, &["CLIENT", "UNBLOCK", &client_id, how]);
        self.put_ours(link, &request, completion);
        true
    }
}
