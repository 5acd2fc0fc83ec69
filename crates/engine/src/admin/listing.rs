//! Lines of CLIENT LIST, on their way from workers to a reply.

use respool_protocol::encode::{self, Version};

/// The lines of one worker's sessions, in one buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLines {
    text: String,
    /// Each session by its id, and where its line ends.
    ends: Vec<(u64, usize)>,
}

impl ClientLines {
    /// Appends the line of a session: `write` appends it to the text.
    pub(crate) fn push(&mut self, id: u64, write: impl FnOnce(&mut String)) {
        write(&mut self.text);
        self.ends.push((id, self.text.len()));
    }

    /// No more lines come.
    pub(crate) fn shrink(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Whether there is no line.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.text.capacity() + self.ends.capacity() * size_of::<(u64, usize)>()
    }

    fn iter(&self) -> impl Iterator<Item = (u64, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |&(id, end)| {
            let line = &self.text[start..end];
            start = end;
            (id, line)
        })
    }
}

/// Appends the reply with all lines, the oldest session first. If the client named sessions, their
/// lines come in the order and as often as it named them.
pub(crate) fn reply(
    out: &mut Vec<u8>,
    version: Version,
    workers: &[ClientLines],
    named: Option<Vec<u64>>,
) {
    let mut lines: Vec<(u64, &str)> = workers.iter().flat_map(ClientLines::iter).collect();
    lines.sort_unstable_by_key(|(id, _)| *id);
    let named = match &named {
        None => return write(out, version, lines.iter().map(|(_, line)| *line)),
        Some(named) => named,
    };
    let find = |id: &u64| lines.binary_search_by_key(id, |(id, _)| *id).ok();
    let found = named.iter().filter_map(find);
    write(out, version, found.map(|index| lines[index].1));
}

fn write<'a>(out: &mut Vec<u8>, version: Version, lines: impl Iterator<Item = &'a str> + Clone) {
    let len = lines.clone().map(str::len).sum();
    encode::verbatim_parts(out, version, len, lines);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ids: &[u64]) -> ClientLines {
        let mut lines = ClientLines::default();
        for id in ids {
            lines.push(*id, |text| text.push_str(&format!("{id}\n")));
        }
        lines
    }

    fn text(workers: &[ClientLines], named: Option<Vec<u64>>) -> String {
        let mut out = Vec::new();
        reply(&mut out, Version::Resp2, workers, named);
        String::from_utf8(out).expect("lines are text")
    }

    /// Lines of all workers come by age, or as the client named their sessions.
    #[test]
    fn lines_come_by_age_or_as_they_were_named() {
        let workers = [lines(&[3, 1]), lines(&[2]), ClientLines::default()];
        assert_eq!(text(&workers, None), "$6\r\n1\n2\n3\n\r\n");
        let named = Some(vec![2, 9, 3, 2]);
        assert_eq!(text(&workers, named), "$6\r\n2\n3\n2\n\r\n");
        assert_eq!(text(&[], None), "$0\r\n\r\n");
    }
}
