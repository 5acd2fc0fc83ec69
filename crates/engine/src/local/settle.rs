//! Replies to requests of the local component, and to requests that it changes.

use crate::base::handle::LinkId;
use crate::data_plane::DataPlane;
use crate::data_plane::completion::local::LocalCompletion;
use crate::data_plane::ledger::Entry;
use crate::data_plane::scripts::is_refusal;
use crate::local::Local;
use crate::local::catalog::OpeningAnswer;
use crate::local::cluster_facade::{config_of_plain_server, role_of_single_node};
use crate::local::info::shown_info;
use crate::local::session_commands::refusal_of_database;

/// The work on a reply that is left to other components.
pub(crate) enum LocalOutcome {
    /// There is none.
    Done,
    /// A server has answered whether a user may open transactions. If the link of the answer is
    /// stuck, it was closed: the loss is settled first, and drops older answers.
    Opening(OpeningAnswer),
    /// INFO: respool's section follows the server's.
    AddSection,
    /// The server may have lost the script of an EVALSHA. The client has no reply yet.
    ScriptMissing,
}

impl Local {
    /// Handles the reply to a request. `cut`: the beginning of the reply was delivered before, and
    /// this is the rest.
    pub(crate) fn settle(
        &mut self,
        plane: &mut DataPlane,
        (link, entry): (LinkId, Entry),
        completion: LocalCompletion,
        request: &[u8],
        (reply, cut): (&[u8], bool),
    ) -> LocalOutcome {
        // The rest of a large reply is no error.
        let reply_or_rest = if cut { b"" } else { reply };
        let session = entry.session;
        match completion {
            LocalCompletion::Learn(about) => self.learn(plane, link, about, reply),
            LocalCompletion::Probe(opened) => {
                let replies = [&opened.unwrap_or_default(), reply];
                if let Some(answer) = self.read_opening(plane, link, replies) {
                    return LocalOutcome::Opening(answer);
                }
            }
            LocalCompletion::Load(number) => self.settle_load(plane, link, number, reply),
            LocalCompletion::Script => {
                self.settle_script(plane, link, session, request, reply_or_rest);
                plane.deliver_to(entry, reply);
            }
            LocalCompletion::Code { shown } => {
                if let Some(body) = shown.filter(|_| !is_refusal(reply_or_rest)) {
                    self.settle_shown(plane, link, session, &body);
                }
                plane.deliver_to(entry, reply);
            }
            LocalCompletion::Evalsha => {
                if self.settle_evalsha(plane, link, entry, reply) {
                    return LocalOutcome::ScriptMissing;
                }
                plane.answer_or_fail(entry, reply);
            }
            LocalCompletion::FlushScripts => {
                self.settle_flush(plane, link, reply);
                plane.deliver_to(entry, reply);
            }
            LocalCompletion::Info { ours: true } => return LocalOutcome::AddSection,
            LocalCompletion::Info { ours: false } => {
                let reply = shown_info(plane, session, None, reply);
                plane.deliver_to(entry, &reply);
            }
            LocalCompletion::AsPlainServer => {
                plane.deliver_to(entry, &config_of_plain_server(reply));
            }
            LocalCompletion::RoleOfNode => plane.deliver_to(entry, &role_of_single_node(reply)),
            LocalCompletion::Select(db) => {
                plane.take_selected(link, entry, db, reply);
                let reply = refusal_of_database(plane, session, reply);
                plane.deliver_to(entry, &reply);
            }
        }
        LocalOutcome::Done
    }
}
