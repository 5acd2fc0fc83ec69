//! Lines of CLIENT LIST, on their way from workers to a reply.

use respool_protocol::encode::{self, Version};

use crate::data_plane::worker_query::ClientLines;

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
