//! Flows of scripts: links that have waited for them, and news for other workers.

use crate::engine::Engine;

impl Engine {
    /// Opens links that have waited for scripts.
    pub(crate) fn open_links_with_scripts(&mut self) {
        for held in self.local.take_held_links() {
            let link = held.link;
            if self.local.may_open(&mut self.plane, held) {
                self.link_is_up(link);
            }
        }
    }

    /// Tells the other workers which scripts were flushed and shown in this turn.
    pub(crate) fn send_script_news(&mut self) {
        for news in self.local.take_script_news() {
            self.admin.send_to_other_workers(&mut self.plane, &news);
        }
    }
}
