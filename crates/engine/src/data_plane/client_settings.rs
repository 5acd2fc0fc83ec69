//! Settings of a client's connection that respool keeps in place of a server.

/// The settings that a client has sent for its connection.
#[derive(Debug, Default)]
pub(crate) struct ClientSettings {
    /// The name of CLIENT SETNAME. Empty: it has none.
    pub(crate) name: Box<[u8]>,
    /// The library's name of CLIENT SETINFO.
    pub(crate) lib_name: Box<[u8]>,
    /// The library's version of CLIENT SETINFO.
    pub(crate) lib_ver: Box<[u8]>,
    /// CLIENT NO-EVICT: the session is not closed to make room for others.
    pub(crate) no_evict: bool,
    /// The client has asked for the debugger of scripts, and was refused.
    pub(crate) debugs_scripts: bool,
}

impl ClientSettings {
    /// RESET. As at the server, the library stays.
    pub(crate) fn reset(&mut self) {
        self.name = Box::default();
        self.no_evict = false;
        self.debugs_scripts = false;
    }

    /// The memory of the names.
    pub(crate) fn memory_bytes(&self) -> usize {
        let names = [&self.name, &self.lib_name, &self.lib_ver];
        names.map(|name| name.len()).iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RESET takes the name and the options, and leaves the library.
    #[test]
    fn reset_keeps_the_library() {
        let mut client = ClientSettings {
            name: (*b"app").into(),
            lib_name: (*b"redis-py").into(),
            lib_ver: (*b"7").into(),
            no_evict: true,
            debugs_scripts: true,
        };
        let before = client.memory_bytes();
        client.reset();
        assert!(client.name.is_empty() && !client.no_evict && !client.debugs_scripts);
        assert_eq!(
            (&*client.lib_name, &*client.lib_ver),
            (&b"redis-py"[..], &b"7"[..])
        );
        assert_eq!((before, client.memory_bytes()), (3 + 8 + 1, 8 + 1));
    }
}
